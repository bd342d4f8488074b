"""State machine over several stores in lockstep: any call that can come, and the invariants after each."""

import tempfile
from itertools import count
from pathlib import Path

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec.structs import replace

from pollux.model import (
    LIVE,
    SCHEDULER_VERSION,
    AuditLine,
    Back,
    Cancelled,
    Dead,
    Done,
    Hold,
    Job,
    Node,
    NotePut,
    RetryAt,
    Run,
    RunState,
    stop_key,
)
from pollux.store.contract import Answer, Audit, JobPut, Pruning, Renewal, RunsAlike, Settlement
from pollux.store.memory import MemoryStore
from pollux.store.postgres.store import PostgresStore
from pollux.store.redis import RedisStore
from pollux.store.sqlite.store import SqliteStore
from pollux.testing.conformance.builders import T0, a_failure, a_run, an_outcome
from tests.conformance.lockstep import LOSSES_MAX, OTHER, Ledger, Lockstep
from tests.conformance.planning import JOBS, PICK, TICK_MS, Planning
from tests.servers import postgres
from tests.servers.redis import own_url

LEASE_MS = 30 * TICK_MS
REPEATABLE = {
    *("move_jobs", "enqueue", "claim", "renew", "settle"),
    *("cancel", "revive", "advance", "put_jobs", "delete_jobs"),
}
ON_RECORD = {"put_jobs", "delete_jobs", "move_jobs", "enqueue", "cancel", "revive", "put_notes"}
VERSIONS = (SCHEDULER_VERSION, SCHEDULER_VERSION, OTHER)
SPANS = st.sampled_from([1, 5, 31, 61, 3_600])
SHM = Path("/dev/shm")  # no disk is proved here: kill -9 and power cuts have their own tests

VERDICTS = ("done", "failed", "clears", "retry", "retry", "dead", "dead", "sole", "cancelled", "back", "hold")
DISTURBANCES = (
    *("lose an answer", "lose an answer", "crash a worker", "crash a worker", "reopen", "page through"),
    *("stop", "beat", "prune the old", "prune the many", "prune one"),
)

new_run = st.fixed_dictionaries(
    {
        "job": st.integers(0, 4),
        "key": st.sampled_from([None, None, "k1", "k2"]),
        "delay": st.sampled_from([0, 0, 0, 5, 60]),
        "priority": st.integers(1, 3),
        "gated": st.booleans(),
        "again": st.sampled_from([False, False, False, True]),
    }
)


def told_of(verb, now_ms):
    """The line that goes into the log with a call."""
    return Audit((AuditLine(now_ms, "ann", verb, "these"),))


class StoreMachine(Planning):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None)
        self.stores = Lockstep(
            MemoryStore(),
            SqliteStore(Path(self.folder.name) / "pollux.db"),
            RedisStore(own_url("machine")),
            PostgresStore(postgres.own_url("machine")),
        )
        self.ledger = Ledger()
        self.ticks = T0 // TICK_MS
        self.numbers = count(10)  # every moment has its own millisecond: nothing is tied
        self.now = self.moment()
        self.leases: list[Run] = []  # what workers believe to hold
        self.calls: list[tuple] = []  # earlier settlements and renewals
        self.ids: list[str] = []
        self.terms: list[int] = []
        self.was_set_back = False
        self.is_lost = False  # the next answer is lost: the call is sent again
        self.seen = self.before = self.stores.look(self.now)

    def teardown(self):
        self.stores.close()
        self.folder.cleanup()

    # how it is told

    def moment(self, ticks=0):
        return (self.ticks + ticks) * TICK_MS + next(self.numbers) % TICK_MS

    def span(self, ticks):
        """A length that no other lease has: nor do they end together when the clock comes back and all are cut."""
        return ticks * TICK_MS + next(self.numbers) * 13 % 9_973

    def do(self, verb, *args, **options):
        if verb in ON_RECORD and next(self.numbers) % 2:
            options["audit"] = told_of(verb, self.now)
        answer = self.stores.do(verb, *args, **options)
        if self.is_lost and verb in REPEATABLE:
            self.is_lost = False
            once, log = self.stores.look(self.now), self.log()
            again = self.stores.do(verb, *args, **options)
            assert self.stores.look(self.now) == once, f"I13: {verb} sent twice did something twice"
            assert self.log() == log, f"I13: {verb} sent twice is on record twice"
            if verb == "claim":
                assert again == answer
        return answer

    def log(self):
        return self.stores.do("read_log", newest=True, limit=3)

    def pick(self, items, number):
        return items[number % len(items)] if items else None

    @invariant()
    def all_invariants_hold(self):
        self.ledger.latest_ms = max(self.ledger.latest_ms, self.now)
        self.seen = self.stores.look(self.now)
        self.ledger.check(self.before, self.seen, LEASE_MS + TICK_MS)
        self.stores.check_lines(self.seen, self.now)
        self.log()
        self.before = self.seen
        self.now = self.moment()

    def unchanged(self):
        assert self.stores.look(self.now) == self.seen, "I4: a call that was refused changed something"

    # jobs

    @initialize()
    def begin(self):
        """Most histories begin with jobs, a leader and something to do."""
        self.do("put_jobs", [JobPut(Job(id=f"j{n}", handler="h", target="t" if n == 3 else "")) for n in range(4)])
        self.terms.append(self.do("elect", "n0", ttl_ms=15 * TICK_MS, now_ms=self.now).number)
        self.ledger.terms[1] = "n0"
        self.runs_begin()

    def runs_begin(self):
        runs = [
            self.make(job=n % 4, key=None, delay=0, priority=n % 3 + 1, gated=n == 3, again=False) for n in range(5)
        ]
        self.do("enqueue", runs, now_ms=self.now)
        self.ledger.accepted |= {run.id for run in runs}

    @rule(n=JOBS, variant=st.integers(0, 2), is_enabled=st.sampled_from([True, True, False]))
    def put_job(self, n, variant, is_enabled):
        job = Job(id=f"j{n}", handler="h", priority=variant + 1, enabled=is_enabled, target="t" if n == 3 else "")
        self.do("put_jobs", [JobPut(job)], now_ms=self.now)

    @rule(n=JOBS, is_sure=st.sampled_from([True, False, False]))
    def delete_job(self, n, is_sure):
        """Not too often, or nothing is left to see."""
        if is_sure:
            self.do("delete_jobs", [f"j{n}"], now_ms=self.now)

    @rule(n=st.lists(JOBS, min_size=1, max_size=2), to=st.sampled_from(VERSIONS))
    def move_jobs(self, n, to):
        """Jobs go to another version and come back; whatever they have goes along, once."""
        before = {run.id: run for run in self.seen.live()}
        answers = self.do("move_jobs", [f"j{each}" for each in n], to, now_ms=self.now)
        after = self.stores.look(self.now)
        for each, answer in zip(n, answers, strict=True):
            job = after.jobs.get(f"j{each}")
            assert (job is None) == (answer is Answer.LOST)
            assert job is None or job.scheduler_version == to
        moved = {f"j{each}" for each, answer in zip(n, answers, strict=True) if answer is Answer.OK}
        for run in after.live():
            old = before[run.id]
            assert replace(run, scheduler_version=old.scheduler_version) == old, "I17: a move changed a run"
            assert run.job_id not in moved or run.scheduler_version == to, "I17: a run was left behind"

    # runs

    @rule(
        batch=st.lists(new_run, min_size=1, max_size=4),
        ready_max=st.sampled_from([100, 100, 3]),
        is_alike=st.sampled_from([False, False, True]),
    )
    def enqueue(self, batch, ready_max, is_alike):
        runs = [self.make(**each) for each in batch]
        if is_alike:
            one = replace(runs[0], key=None)
            runs = RunsAlike(one, sorted(run.id for run in runs), [msgspec.json.encode(run.payload) for run in runs])
        answers = self.do("enqueue", runs, ready_max=ready_max, now_ms=self.now)
        for answer in answers:
            if answer.answer is Answer.OK:
                assert answer.id not in self.seen.runs
                self.ledger.accepted.add(answer.id)

    def make(self, *, job, key, delay, priority, gated, again):
        number = next(self.numbers)
        run_id = self.pick(self.ids, number * 7) if again and self.ids else f"r{number:05}"
        self.ids.append(run_id)
        due_ms = self.moment(delay - 1 if delay == 0 else delay)
        return a_run(run_id, f"j{job}", due_ms=due_ms, key=key, priority=priority, gated=gated, payload={"n": number})

    @rule(
        limit=st.integers(1, 4),
        first=st.integers(1, 3),
        feed_max=st.sampled_from([1_000, 1_000, 5]),
        version=st.sampled_from(VERSIONS),
    )
    def claim(self, limit, first, feed_max, version=SCHEDULER_VERSION):
        token = f"c{next(self.numbers)}"
        claimed = self.do(
            "claim",
            stores=self.stores.beside if version == OTHER else None,
            node="n",
            token=token,
            limit=limit,
            lease_ms=LEASE_MS,
            first=first,
            losses_max=LOSSES_MAX,
            feed_max=feed_max,
            now_ms=self.now,
        )
        if claimed.answer is Answer.FULL:
            assert self.seen.counts.ends > feed_max, "of all versions: at least as many as of this one"
            assert claimed.runs == ()
            return
        self.check_claim(claimed.runs, limit, first, version)
        self.ledger.delivered(claimed.runs)
        for run in claimed.runs:  # no two leases end at the same time
            self.do("renew", [Renewal(run.id, run.token)], lease_ms=self.span(30), now_ms=self.now)
        self.leases += claimed.runs

    def check_claim(self, runs, limit, first, version):
        after = self.stores.look(self.now)
        there = [run for run in after.live() if run.scheduler_version == version]
        assert all(run.scheduler_version == version for run in runs), "I17: a run of another version"
        rank = {priority: (priority - first) % 3 if priority >= first else 3 + priority for priority in (1, 2, 3)}
        assert [rank[run.priority] for run in runs] == sorted(rank[run.priority] for run in runs), "I7: out of order"
        for priority in (1, 2, 3):
            times = [run.visible_ms for run in runs if run.priority == priority]
            assert times == sorted(times), "I7: out of order"
        assert all(run.visible_ms <= self.now for run in runs), "I7: a run before its time"
        waiting = [run for run in there if run.state is RunState.READY and run.visible_ms <= self.now]
        assert len(runs) == limit or not waiting, "none only if there is none"
        if runs and waiting:
            assert max(rank[run.priority] for run in runs) <= min(rank[run.priority] for run in waiting), "I7"
        for run in there:
            is_over = run.state is RunState.LEASED and run.lease_until_ms <= self.now
            assert not is_over, "I10: a lease that ended was left"

    @precondition(lambda self: self.leases)
    @rule(number=PICK, length=st.sampled_from([30, 5]))
    def renew(self, number, length):
        run = self.pick(self.leases, number)
        is_current = self.holds(run.id, run.token)
        renewals = [Renewal(run.id, run.token, "" if number % 2 else f"{number}%")]
        [renewed] = self.do("renew", renewals, lease_ms=self.span(length), now_ms=self.now)
        assert renewed.answer is (Answer.OK if is_current else Answer.LOST)
        if not is_current:
            self.unchanged()
        self.calls.append(("renew", renewals))

    def holds(self, run_id, token):
        run = self.seen.runs.get(run_id)
        return run is not None and run.state is RunState.LEASED and run.token == token

    @rule(
        limit=st.integers(1, 3),
        between=st.sampled_from(["", "", "stalls", "is asked to stop", "its job goes"]),
        verdicts=st.lists(st.sampled_from(VERDICTS), max_size=3),
        follow_ups=st.lists(new_run, max_size=1),
    )
    def work(self, limit, between, verdicts, follow_ups):
        """A worker's turn: it claims, something happens, and it settles what it comes to."""
        had = len(self.leases)
        self.claim(limit, 1, 1_000)
        self.all_invariants_hold()
        for run in self.leases[had:]:
            match between:
                case "stalls":
                    self.ticks += 61
                    self.now = self.moment()
                    self.claim(9, 1, 1_000)
                case "is asked to stop":
                    self.do("cancel", run_ids=[run.id], reason="enough", now_ms=self.now)
                case "its job goes":
                    self.do("delete_jobs", [run.job_id], now_ms=self.now)
            self.all_invariants_hold()
        for run, verdict in zip(self.leases[had:], verdicts, strict=False):
            self.settle_one(run, verdict, follow_ups, has_note=False)
            self.all_invariants_hold()

    @precondition(lambda self: self.leases)
    @rule(
        number=PICK, verdict=st.sampled_from(VERDICTS), follow_ups=st.lists(new_run, max_size=3), has_note=st.booleans()
    )
    def settle(self, number, verdict, follow_ups, has_note):
        self.settle_one(self.pick(self.leases, number), verdict, follow_ups, has_note)

    def settle_one(self, run, verdict, follow_ups, has_note):
        settlement = Settlement(
            run.id,
            run.token,
            self.verdict(verdict),
            None if verdict in {"back", "hold"} else self.outcome(verdict),
            tuple(self.make(**each) for each in follow_ups),
            (NotePut("n", next(self.numbers)),) if has_note else (),
            "last words" if has_note else "",
        )
        self.settled(settlement)
        self.calls.append(("settle", [settlement]))

    def verdict(self, word):
        match word:
            case "done" | "failed" | "clears":
                return Done(failed=word == "failed", clears=word == "clears")
            case "retry":
                return RetryAt(self.moment(10))
            case "dead" | "sole":
                return Dead("gave up", sole=word == "sole")
            case "cancelled":
                return Cancelled("asked")
            case "back":
                return Back()
        return Hold("stopped")

    def outcome(self, word):
        return a_failure(self.now) if word in {"retry", "dead", "sole", "failed"} else an_outcome(self.now, result=1)

    def settled(self, settlement):
        """I4, I5: with the current token everything is there, with any other nothing."""
        is_current = self.holds(settlement.run_id, settlement.token)
        run = self.seen.runs.get(settlement.run_id)
        fresh = [each for each in settlement.follow_ups if each.id not in self.seen.runs]
        [answer] = self.do("settle", [settlement], now_ms=self.now)
        if not is_current:
            assert answer in {Answer.ALREADY, Answer.LOST}
            self.unchanged()
            return
        assert answer is Answer.OK
        verdict = settlement.verdict
        self.ledger.accepted |= {each.id for each in fresh}
        after = self.stores.look(self.now)
        keys = {each.key for each in after.live()}
        for each in fresh:
            is_there = each.id in after.runs
            assert is_there or each.job_id not in after.jobs or each.key in keys, "I5: a follow-up is missing"
        if isinstance(verdict, Back | Hold):
            assert after.runs[run.id].attempt == run.attempt, "I6: handed back and charged"
        if isinstance(verdict, Done | Dead | Cancelled):
            assert after.runs[run.id].state not in LIVE

    @precondition(lambda self: self.calls)
    @rule(number=PICK)
    def replay(self, number):
        """A call that went astray arrives again, much later."""
        verb, items = self.pick(self.calls, number)
        if verb == "settle":
            self.settled(items[0])
        elif not self.holds(items[0].run_id, items[0].token):
            self.do("renew", items, lease_ms=LEASE_MS, now_ms=self.now)
            self.unchanged()

    @precondition(lambda self: self.seen.runs)
    @rule(number=PICK)
    def cancel_run(self, number):
        run = self.pick(list(self.seen.runs.values()), number)
        [answer] = self.do("cancel", run_ids=[run.id], reason="enough", now_ms=self.now)
        if run.state not in LIVE:
            assert answer.answer in {Answer.LOST, Answer.ALREADY}
            self.unchanged()

    @rule(n=JOBS, is_sure=st.sampled_from([True, False, False]))
    def cancel_job(self, n, is_sure):
        if not is_sure:
            return
        answers = self.stores.run(self.stores._all("cancel", job_id=f"j{n}", reason="enough", now_ms=self.now))
        live = sorted(run.id for run in self.seen.live() if run.job_id == f"j{n}")
        assert [sorted(each.id for each in given) for given in answers] == [live] * len(answers)

    @precondition(lambda self: any(run.state is RunState.DEAD for run in self.seen.runs.values()))
    @rule(number=PICK)
    def revive(self, number):
        """I16: a dead letter comes back with a clean slate, its payload and its fence."""
        letter = self.pick([run for run in self.seen.runs.values() if run.state is RunState.DEAD], number)
        [answer] = self.do("revive", [letter.id], now_ms=self.now)
        if answer.answer is Answer.OK:
            run = self.stores.look(self.now).runs[letter.id]
            assert (run.attempt, run.lease_losses, run.crashes) == (0, 0, 0)
            assert (run.payload, run.fence) == (letter.payload, letter.fence)
            assert run.state is (RunState.HELD if run.gated else RunState.READY)
        else:
            assert answer.answer in {Answer.STALE, Answer.CONFLICT}
            self.unchanged()

    def prune(self, kind):
        finished = {run.id for run in self.seen.runs.values() if run.state not in LIVE}
        match kind:
            case "prune the old":
                what = Pruning(finished_before_ms=self.now - 60 * TICK_MS)
            case "prune the many":
                what = Pruning(keep_per_job=0)  # which of those that ended together is the newest is left open
            case _:
                what = Pruning(ids=tuple(sorted(finished)[:1]))
        self.do("prune", what)
        self.ledger.removed |= finished - set(self.stores.look(self.now).runs)

    # the world

    def stop(self, number):
        key, value = stop_key("job", f"j{number % 4}"), "paused" if number % 3 else None
        before = [self.stops(store) for store in self.stores.stores]
        self.do("put_notes", [NotePut(key, value)], now_ms=self.now)
        after = [self.stops(store) for store in self.stores.stores]
        is_changed = self.seen.notes.get(key) != value
        assert [old != new for old, new in zip(before, after, strict=True)] == [is_changed] * len(after)

    def stops(self, store):
        claim = store.claim(node="n", token="none", limit=0, lease_ms=1, feed_max=-1, now_ms=self.now)
        return self.stores.run(claim).stops_revision

    def beat(self, number):
        node = Node(f"n{number % 2}", seats=4, handlers=("a", "b")[: number % 3])
        self.do("beat", node, ttl_ms=45 * TICK_MS, now_ms=self.now)
        self.do("nodes", now_ms=self.now)

    @rule(ticks=SPANS, is_back=st.sampled_from([False, False, True]))
    def move_the_clock(self, ticks, is_back):
        self.was_set_back = self.was_set_back or is_back
        self.ticks += -ticks if is_back else ticks
        self.now = self.moment()

    @rule(what=st.sampled_from(DISTURBANCES), number=PICK)
    def disturb(self, what, number):
        match what:
            case "lose an answer":
                self.is_lost = True
            case "crash a worker":
                self.leases.clear()  # nobody tells the store; the leases run out
            case "reopen":
                self.stores.reopen()
            case "page through":
                # I14: pages have no gaps and no repeats, whatever their size, and looking changes nothing.
                assert self.stores.look(self.now, page=number % 4 + 1) == self.seen
            case "stop":
                self.stop(number)
            case "beat":
                self.beat(number)
            case _:
                self.prune(what)
