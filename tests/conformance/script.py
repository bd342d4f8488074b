"""Scripts of store operations: steps that can be replayed, also without some of them.

A step is a number and a name.  Its random numbers are drawn anew each time, from the seed and its number; besides, it
depends only on what the first store returned for the steps before.  So a script can be cut, and the rest means the
same as far as it can.

No two moments of a script are the same millisecond, where the contract leaves open what comes first: every step has its
own last three digits, and a call makes at most one run visible "now".
"""

import json
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from pollux.model import (
    SCHEDULER_VERSION,
    AuditLine,
    Back,
    Cancelled,
    CancelOrder,
    Cause,
    Dead,
    Done,
    Fault,
    Firing,
    Hold,
    Holding,
    Interval,
    Job,
    JobUpdate,
    Memory,
    Node,
    NotePut,
    Once,
    Outcome,
    Overlap,
    Plan,
    Release,
    RetryAt,
    RunState,
    stop_key,
)
from pollux.store.contract import Audit, JobFilter, JobPut, Pruning, Renewal, RunFilter, RunsAlike, Settlement
from pollux.testing.conformance.builders import T0, a_run

TICK_MS = 1_000
STEPS_MAX = 99
MOMENTS = 10  # of one step
JOBS = 5
NODES = ("n0", "n1")
STEPS = {
    "put_jobs": 5,
    "delete_jobs": 1,
    "enqueue": 8,
    "enqueue_alike": 3,
    "claim": 9,
    "claim_again": 2,
    "renew": 4,
    "settle": 10,
    "settle_again": 2,
    "cancel": 3,
    "revive": 3,
    "advance": 8,
    "consume": 3,
    "update": 3,
    "put_notes": 3,
    "nodes": 2,
    "elect": 3,
    "resign": 1,
    "prune": 2,
    "log": 2,
    "look": 4,
    "clock": 2,
    "reopen": 1,
    "load": 1,
    "move_jobs": 2,
    "versions": 1,
}
OTHER = 1  # a version beside the one where nothing is said
IN_A_VERSION = {
    *("put_jobs", "claim", "elect", "resign", "advance", "consume", "update", "look", "settle", "enqueue"),
    "enqueue_alike",
}


class Step(NamedTuple):
    number: int
    name: str


def make_script(seed: int, length: int) -> list[Step]:
    dice = Random(seed)
    names, weights = list(STEPS), list(STEPS.values())
    begin = ["put_jobs", "elect", "put_jobs", "enqueue", "claim"]
    rest = dice.choices(names, weights, k=min(length, STEPS_MAX) - len(begin))
    return [Step(number, name) for number, name in enumerate([*begin, *rest], start=1)]


class Script:
    """One script that is being told to a cast of stores."""

    def __init__(self, seed, cast):
        self.seed, self.cast = seed, cast
        self.shift_ms = 0
        self.delivered = []  # runs as they were delivered, with their tokens, also old ones
        self.ids = ["nobody"]
        self.terms = {SCHEDULER_VERSION: [0], OTHER: [0]}
        self.claims = []
        self.settlements = []

    async def tell(self, step):
        self.number, self.dice = step.number, Random(f"{self.seed}.{step.number}")
        self.made = 0
        self.now_ms = T0 + self.number * (TICK_MS + MOMENTS) + self.shift_ms
        is_other = step.name in IN_A_VERSION and self.dice.random() < 0.2
        self.cast.version = OTHER if is_other else SCHEDULER_VERSION
        await getattr(self, step.name)()

    async def do(self, verb, *args, **options):
        return await self.cast.do(verb, *args, **options)

    def on_record(self, action):
        """The lines that go into the log with a call, if any do."""
        roll = self.dice.random()
        texts = ("ä", "more")[: 2 if roll < 0.3 else 1]
        lines = tuple(AuditLine(self.now_ms, "ann", action, "these", text) for text in texts)
        return {"audit": Audit(lines, each=roll < 0.2)} if roll < 0.5 else {}

    def moment(self, ticks=0):
        """A time that nothing else has."""
        self.made = min(self.made + 1, MOMENTS - 1)
        return self.now_ms + self.made + ticks * TICK_MS

    def pick(self, items, count=1):
        items = list(items)
        return self.dice.sample(items, min(count, len(items)))

    # jobs

    def job(self, number=None):
        number = self.dice.randrange(JOBS) if number is None else number
        return Job(
            id=f"j{number}",
            handler=self.dice.choice(("a", "b")),
            name=self.dice.choice(("", "näme")),
            schedule=self.dice.choice((Interval(60_000), Once(), None)),
            params=self.dice.choice(({}, {"x": [1, 2.5, None, "ü"]})),
            target="host" if number == 3 else "",
            group=self.dice.choice(("", "edge")),
            priority=self.dice.choice((1, 2, 3)),
            enabled=self.dice.random() < 0.8,
            release=self.dice.randrange(2),
            source=self.dice.choice(("api", "api", "api", "file:x")),
            tags=self.dice.choice(((), ("t",), ("t", "u"))),
        )

    async def put_jobs(self):
        revision = self.dice.choice((None, None, None, 0, 1, 2))
        puts = [JobPut(self.job(), revision) for _ in range(self.dice.randint(1, 4))]
        await self.do("put_jobs", puts, **self.on_record("put"), now_ms=self.now_ms)

    async def delete_jobs(self):
        ids = [f"j{self.dice.randrange(JOBS)}", "nothing"]
        reason = self.dice.choice(("", "old"))
        await self.do("delete_jobs", ids, reason=reason, **self.on_record("delete"), now_ms=self.now_ms)

    # runs

    def new_run(self, name, *, can_repeat=True):
        number = self.dice.randrange(JOBS + 1)  # one more than there are: its job is missing
        run_id = self.dice.choice(self.ids) if can_repeat and self.dice.random() < 0.1 else name
        self.ids.append(run_id)
        due_ms = self.moment(self.dice.choice((-1, -1, -1, 2, 20)))
        return a_run(
            run_id,
            f"j{number}",
            due_ms=due_ms,
            priority=self.dice.choice((1, 2, 3)),
            gated=self.dice.random() < 0.25,
            key=self.dice.choice((None, None, "k1", "k2")),
            payload=self.dice.choice((None, {"n": [self.number]})),
            cause=self.dice.choice((Cause.ENQUEUED, Cause.FORCED, Cause.SCHEDULE)),
            target="host" if number == 3 else "",
        )

    async def enqueue(self):
        runs = [self.new_run(f"r{self.number}.{n}") for n in range(self.dice.randint(1, 6))]
        if self.dice.random() < 0.2:
            runs.append(runs[0])
        notes = [NotePut("mark", self.number)] if self.dice.random() < 0.3 else []
        ready_max = self.dice.choice((1_000, 1_000, 1_000, 6))
        record = self.on_record("enqueue")
        await self.do("enqueue", runs, notes=notes, ready_max=ready_max, **record, now_ms=self.now_ms)

    async def enqueue_alike(self):
        """Those that differ in their ids and payloads alone, and are all visible at once, in their order."""
        one = replace(self.new_run("one", can_repeat=False), key=None)
        self.ids.pop()
        ids = [f"a{self.number}.{n}" for n in range(self.dice.randint(1, 5))]
        if self.dice.random() < 0.2:
            ids.append(self.dice.choice([*self.ids, ids[0]]))
        self.ids += ids
        bodies = [self.dice.choice((None, json.dumps({"n": [n, "ü"]}).encode())) for n in range(len(ids))]
        ready_max = self.dice.choice((1_000, 1_000, 6))
        record = self.on_record("enqueue")
        await self.do("enqueue", RunsAlike(one, ids, bodies), ready_max=ready_max, **record, now_ms=self.now_ms)

    async def claim(self):
        call = {
            "node": self.dice.choice(NODES),
            "token": f"c{self.number}",
            "limit": self.dice.choice((1, 2, 5, MOMENTS - 1)),
            "lease_ms": self.dice.choice((4, 12, 60)) * TICK_MS,
            "first": self.dice.choice((1, 1, 2, 3)),
            "losses_max": 3,
            "feed_max": self.dice.choice((1_000, 1_000, 1_000, 8)),
        }
        self.claims.append((self.cast.version, call))
        await self.take(call)

    async def claim_again(self):
        """Its answer was lost, a while ago."""
        for version, call in self.claims[-1:]:
            self.cast.version = version
            await self.take(call)

    async def take(self, call):
        """Claim, and let no two leases end together: they would be taken back in any order."""
        for run in (await self.do("claim", **call, now_ms=self.now_ms)).runs:
            lease_ms = self.moment() - self.now_ms + call["lease_ms"]
            await self.do("renew", [Renewal(run.id, run.token)], lease_ms=lease_ms, now_ms=self.now_ms)
            self.delivered.append(run)

    def held(self, count):
        """Some that were delivered, the latest more likely."""
        near = self.delivered[-8:] if self.dice.random() < 0.8 else self.delivered
        return self.pick(near, count)

    async def renew(self):
        gone = [Renewal("nobody", "x"), Renewal(self.dice.choice(self.ids), "c0:1")]
        for run in self.held(2):
            renewals = [Renewal(run.id, run.token, self.dice.choice(("", "half"))), *gone]
            lease_ms = self.moment(self.dice.choice((3, 20))) - self.now_ms
            await self.do("renew", renewals, lease_ms=lease_ms, now_ms=self.now_ms)

    async def settle(self):
        verdicts = [Done(), Done(), Done(failed=True), Done(clears=True), Dead("no"), Dead("no", sole=True)]
        verdicts += [Cancelled("so"), RetryAt(0), RetryAt(0)]
        once = [Back(), Hold("unknown handler"), Back(at_ms=self.moment(3))]  # at most one run becomes visible now
        settlements = []
        for run in self.held(self.dice.randint(1, 4)):
            verdict = once.pop(self.dice.randrange(len(once))) if once and self.dice.random() < 0.25 else None
            once = once if verdict is None else []
            settlements.append(self.settlement(run, verdict or self.dice.choice(verdicts)))
        if settlements:
            self.settlements.append(settlements)
            await self.do("settle", settlements, now_ms=self.now_ms)

    def settlement(self, run, verdict):
        if isinstance(verdict, RetryAt):
            verdict = RetryAt(self.moment(self.dice.choice((2, 15))))
        is_fault = not isinstance(verdict, Done)
        outcome = Outcome(
            self.now_ms - 5,
            self.now_ms,
            fault=Fault.TRANSIENT if is_fault else None,
            error="refused: ä" if is_fault else "",
            result=self.dice.choice((None, {"v": [1, None]})),
            changed=self.dice.choice((None, True, False)),
            fingerprint=self.dice.choice(("", "f")),
            crashed=is_fault and self.dice.random() < 0.2,
        )
        follow_ups = [self.new_run(f"f{self.number}.{run.id}") for _ in range(self.dice.choice((0, 0, 0, 1)))]
        notes = (NotePut(stop_key("job", "j0"), {"by": "x"}),) if self.dice.random() < 0.1 else ()
        progress = self.dice.choice(("", "", "last words"))
        given = None if isinstance(verdict, Back | Hold) else self.dice.choice((outcome, outcome, outcome, None))
        return Settlement(run.id, run.token, verdict, given, tuple(follow_ups), notes, progress)

    async def settle_again(self):
        """Their answer was lost, a while ago."""
        for settlements in self.pick(self.settlements):
            await self.do("settle", settlements, now_ms=self.now_ms)

    async def cancel(self):
        job_id = self.dice.choice((None, None, f"j{self.dice.randrange(JOBS)}"))
        run_ids = self.pick(set_of(self.ids), 2) if job_id is None else []  # together they may be two entries
        reason = self.dice.choice(("", "enough"))
        record = self.on_record("cancel")
        await self.do("cancel", run_ids=run_ids, job_id=job_id, reason=reason, **record, now_ms=self.now_ms)

    async def revive(self):
        dead = (await self.do("list_runs", RunFilter(states=(RunState.DEAD,)), limit=1_000)).runs
        ids = [run.id for run in self.pick(sorted(dead, key=lambda run: run.id))]
        ids = ids or [self.dice.choice(self.ids)]
        await self.do("revive", ids, **self.on_record("revive"), now_ms=self.now_ms)

    # the plan

    async def advance(self):
        jobs = {job.id: job for job in (await self.do("list_jobs", limit=1_000)).jobs}
        live = [run for run in (await self.do("list_runs", limit=1_000)).runs if not run.is_finished]
        held = sorted((run for run in live if run.state is RunState.HELD), key=lambda run: run.id)
        plan = Plan(
            firings=tuple(self.firings(jobs)) if self.dice.random() < 0.7 else (),
            releases=tuple(self.releases(held)),
            holds=tuple(Holding(run.id, f"full {self.number}") for run in self.pick(held, 2)),
            cancels=tuple(CancelOrder(run_id, "enough") for run_id in self.pick(set_of(self.ids))[: self.number % 2]),
            notes=(NotePut(stop_key("all"), {"n": self.number}),) if self.dice.random() < 0.1 else (),
        )
        await self.cast.advance(self.term(), plan, self.dice.choice((0, 3, 1_000)), self.now_ms)

    def releases(self, held):
        """One of the held runs, or as many of one job as are to begin alone: at most one of them does."""
        for first in self.pick(held):
            match self.dice.choice(("none", "plain", "alone", "alone")):
                case "plain":
                    yield Release(first.id)
                case "alone":
                    mates = [run.id for run in held if run.job_id == first.job_id]
                    yield from [Release(run_id, alone=True) for run_id in self.pick(mates, 3)]

    def firings(self, jobs):
        for number in self.dice.sample(range(JOBS), self.dice.randint(1, 2)):
            job = jobs.get(f"j{number}")
            revision = (job.revision if job else 1) + (self.dice.random() < 0.1)
            due_ms = T0 + self.number // 6 * 6 * TICK_MS - number  # the same one comes up again and again
            run = a_run(f"j{number}@{due_ms}", f"j{number}", due_ms=due_ms, cause=Cause.SCHEDULE, gated=number == 3)
            self.ids.append(run.id)
            next_ms = self.dice.choice((None, due_ms + 6 * TICK_MS))
            memory = self.dice.choice((None, Memory(ended=self.number)))
            yield Firing(run, revision, next_ms, self.dice.choice(list(Overlap)), memory)

    def term(self):
        terms = self.terms[self.cast.version]
        return terms[-1] if self.dice.random() < 0.9 else self.dice.choice(terms)

    async def consume(self):
        """The oldest entries, by the ids that each store gave them."""
        await self.cast.consume(self.term(), self.dice.randint(1, 12), self.now_ms)

    async def update(self):
        jobs = (await self.do("list_jobs", limit=1_000)).jobs
        updates = [
            JobUpdate(
                job.id,
                job.revision + (self.dice.random() < 0.2),
                self.dice.choice((None, self.moment(5))),
                Memory(ended=self.number, last_end_ms=self.dice.choice((None, self.now_ms))),
                self.dice.choice((None, self.moment(-9))),
            )
            for job in self.pick(jobs, 2)
        ]
        await self.do("advance", self.term(), Plan(updates=tuple(updates)), now_ms=self.now_ms)
        await self.do("due", before_ms=self.now_ms + 3 * TICK_MS, limit=2)

    # notes, nodes, terms

    async def put_notes(self):
        keys = ("a", "b", "ü/c", stop_key("job", "j1"), stop_key("all"))
        puts = [
            NotePut(
                key,
                self.dice.choice((None, 1, {"v": [self.number]})),
                self.dice.choice((None, None, 0, self.cast.CURRENT, 10**9)),
                self.dice.choice((None, None, self.moment(4))),
            )
            for key in self.pick(keys, 3)
        ]
        await self.cast.put_notes(puts, self.now_ms, **self.on_record("put"))
        await self.do("notes", self.dice.choice(("", "stop:", "ü")), now_ms=self.now_ms)

    async def nodes(self):
        name = self.dice.choice(NODES)
        if self.dice.random() < 0.3:
            await self.do("beat", Node(name), ttl_ms=0, now_ms=self.now_ms)
        else:
            node = Node(name, seats=self.dice.randint(1, 4), handlers=self.dice.choice((("a",), ("a", "b"))))
            await self.do("beat", node, ttl_ms=self.dice.choice((3, 30)) * TICK_MS, now_ms=self.now_ms)
        await self.do("nodes", now_ms=self.now_ms)

    async def elect(self):
        name = self.dice.choice(NODES)
        term = await self.do("elect", name, ttl_ms=self.dice.choice((5, 40)) * TICK_MS, now_ms=self.now_ms)
        self.terms[self.cast.version].append(term.number)

    async def resign(self):
        await self.do("resign", self.dice.choice(NODES), term=self.term(), now_ms=self.now_ms)

    # the rest

    async def prune(self):
        finished = [run for run in (await self.do("list_runs", limit=1_000)).runs if run.is_finished]
        kinds = (
            Pruning(ids=tuple(run.id for run in self.pick(sorted(finished, key=lambda run: run.id), 2))),
            Pruning(unchanged_before_ms=self.now_ms - 5 * TICK_MS),
            Pruning(finished_before_ms=self.now_ms - 9 * TICK_MS),
            Pruning(keep_per_job=0),
            Pruning(once_before_ms=self.now_ms - 2 * TICK_MS),
            Pruning(dead_before_ms=self.now_ms - 9 * TICK_MS),
            Pruning(dead_max=0),
            Pruning(log_max=2),
        )
        what = self.dice.choice(kinds)
        await self.do("prune", what, **(self.on_record("drop") if what.ids else {}))

    async def log(self):
        lines = [AuditLine(self.now_ms + n, "ann", "pause", f"j{n}", "wäre") for n in range(self.dice.randint(1, 3))]
        await self.do("log", lines)
        await self.do("read_log", limit=self.dice.choice((1, 3, 100)), newest=self.dice.random() < 0.5)

    async def look(self):
        wanted = (
            RunFilter(states=(RunState.READY, RunState.DEAD)),
            RunFilter(job_id="j1"),
            RunFilter(target="host"),
            RunFilter(failed=True),
            RunFilter(error="refused: ä"),
            RunFilter(finished_after_ms=self.now_ms - 9 * TICK_MS),
        )
        await self.cast.page_through("list_runs", self.dice.choice(wanted), self.dice.randint(1, 4))
        jobs = (JobFilter(group="edge"), JobFilter(tag="t"), JobFilter(source="api"), JobFilter(text="ä"), JobFilter())
        await self.cast.page_through("list_jobs", self.dice.choice(jobs), self.dice.randint(1, 3))
        await self.do("get_runs", self.pick(set_of(self.ids), 3))
        await self.do("get_jobs", ["j0", "nothing", "j1"])
        await self.do("due", after=(T0, "j1"), before_ms=self.now_ms + 9 * TICK_MS, limit=3)
        await self.do("feed", limit=self.dice.choice((1, 5, 1_000)), now_ms=self.now_ms)
        await self.do("wake")
        await self.do("lines", now_ms=self.now_ms)
        await self.do("counts")
        await self.do("counts", all_versions=True)

    async def clock(self):
        """Forwards, or back: by whole seconds, so that no two moments meet."""
        ticks = self.dice.choice((10, 30, 90, -5, -40))
        self.cast.is_steady = self.cast.is_steady and ticks > 0
        self.shift_ms += ticks * TICK_MS

    async def reopen(self):
        await self.do("close")
        await self.do("open")
        self.claims.clear()  # whoever closes a store has no claim under way

    async def move_jobs(self):
        ids = [f"j{number}" for number in self.dice.sample(range(JOBS + 1), 2)]
        to = self.dice.choice((OTHER, SCHEDULER_VERSION))
        await self.do("move_jobs", ids, to, **self.on_record("move"), now_ms=self.now_ms)
        await self.do("versions", now_ms=self.now_ms)

    async def versions(self):
        await self.do("versions", now_ms=self.now_ms)
        number = self.dice.choice((OTHER, 7))
        await self.do("prune", Pruning(version=number), **self.on_record("drop"), now_ms=self.now_ms)

    async def load(self):
        """What was dumped comes back: nothing of it is new, but for what went meanwhile."""
        await self.cast.load_own_dump()


def set_of(ids):
    return sorted(set(ids))
