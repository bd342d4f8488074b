"""Rules of the state machine for terms and plans."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from pollux.model import (
    SCHEDULER_VERSION,
    CancelOrder,
    Cause,
    Earlier,
    Ended,
    Firing,
    Holding,
    JobUpdate,
    Memory,
    Overlap,
    Plan,
    Release,
    RunState,
)
from pollux.store.contract import Answer
from pollux.testing.conformance.builders import a_run

TICK_MS = 10_000  # wide enough that no two moments of one history are the same
JOBS = st.integers(0, 3)
PICK = st.integers(0, 1_000)


class Planning(RuleBasedStateMachine):
    """Of whoever leads; stores, ledger and clock are `StoreMachine`'s."""

    @rule(node=st.integers(0, 1), resigns=st.sampled_from([False, True]))
    def lead(self, node, resigns):
        if resigns:
            self.do("resign", f"n{node}", term=self.terms[-1], now_ms=self.now)
            return
        term = self.do("elect", f"n{node}", ttl_ms=15 * TICK_MS, now_ms=self.now)
        self.ledger.elected(term)
        if term.holder == f"n{node}":
            self.terms.append(term.number)

    @rule(
        n=JOBS,
        steps=st.lists(st.integers(-2, 0), min_size=1, max_size=2),
        overlap=st.sampled_from(Overlap),
        is_stale=st.sampled_from([False, False, False, True]),
        is_old_term=st.sampled_from([False, False, False, True]),
        has_read=st.sampled_from([True, True, False]),
    )
    def fire(self, n, steps, overlap, is_stale, is_old_term, has_read):
        job = self.seen.jobs.get(f"j{n}")
        revision = (job.revision if job else 1) + is_stale
        base = self.ticks // 60 * 60
        firings = []
        for step in steps:
            due_ms = (base + step * 60) * TICK_MS + n  # the grid of the job: the same due comes up again and again
            run = a_run(f"j{n}@{due_ms}", f"j{n}", due_ms=due_ms, cause=Cause.SCHEDULE, gated=n == 3)
            firings.append(Firing(run, revision, due_ms + 60 * TICK_MS, overlap, Memory(ended=next(self.numbers))))
        term = self.terms[0] if is_old_term else self.terms[-1]
        feeds = [self.stores.run(store.feed(limit=1_000, now_ms=self.now)).items for store in self.stores.stores]
        reads = [tuple(item.id for item in items) if has_read else () for items in feeds]
        plans = [(term, Plan(read=read, firings=tuple(firings))) for read in reads]
        advanced = self.do("advance", each=plans, now_ms=self.now)
        if advanced.answer is Answer.FENCED:
            self.unchanged()
            return
        if is_stale:
            assert set(advanced.firings) == {Answer.STALE}
        ends = [end for item in feeds[0] if isinstance(item.entry, Ended) for end in item.entry.ends]
        is_unread = not has_read and any(end.job_id == f"j{n}" for end in ends)
        self.check_unread(f"j{n}", advanced.firings, is_guarded=is_unread and overlap is not Overlap.ALLOW)
        is_quiet = not self.overlapping(f"j{n}")
        made = [answer for answer in advanced.firings if answer in {Answer.OK, Answer.WAITS}]
        assert overlap is Overlap.ALLOW or made[:1] != [Answer.OK] or is_quiet, "I19: fired beside another"
        assert overlap is Overlap.ALLOW or Answer.OK not in made[1:], "I19: fired beside another"
        self.ledger.advanced(firings, advanced, can_forget=self.was_set_back)

    def overlapping(self, job_id):
        """The live runs that keep a firing of the job from beginning: not what somebody asked for at a later time."""
        return [run for run in self.seen.live() if run.job_id == job_id and run.overlaps_at(self.now)]

    def check_unread(self, job_id, answers, *, is_guarded):
        """I18: no run is made while an end before it is unread; and for no other reason is one left out."""
        assert is_guarded or Answer.UNREAD not in answers, "I18: what was read is waited for"
        is_quiet = not self.overlapping(job_id)
        assert not (is_guarded and is_quiet and Answer.OK in answers), "I18: fired before the end was read"

    @rule(number=PICK, many=st.integers(1, 3), has_read=st.sampled_from([True, True, False]))
    def begin_alone(self, number, many, has_read):
        """I19: a held run begins where no other of its job is live but such as wait themselves; and nowhere else."""
        held = [run for run in self.seen.live() if run.state is RunState.HELD and run.overlaps_at(self.now)]
        first = self.pick(held, number)
        if first is None:
            return
        asked = [run for run in held if run.job_id == first.job_id][:many]
        feeds = [self.stores.run(store.feed(limit=1_000, now_ms=self.now)).items for store in self.stores.stores]
        reads = [tuple(item.id for item in items) if has_read else () for items in feeds]
        releases = tuple(Release(run.id, alone=True) for run in asked)
        plans = [(self.terms[-1], Plan(read=read, releases=releases)) for read in reads]
        advanced = self.do("advance", each=plans, now_ms=self.now)
        if advanced.answer is Answer.FENCED:
            self.unchanged()
            return
        ends = [end for item in feeds[0] if isinstance(item.entry, Ended) for end in item.entry.ends]
        is_unread = not has_read and any(end.job_id == first.job_id for end in ends)
        assert advanced.waiting == self.not_alone(asked, is_unread=is_unread), (
            "I19: begun beside another, or not at all"
        )

    def not_alone(self, asked, *, is_unread):
        """Which of the runs of a job may not begin, if they are gone through in their order."""
        asked = [run for run in asked if run.scheduler_version == SCHEDULER_VERSION]
        barring = {run.id for run in self.overlapping(asked[0].job_id) if not run.is_behind} if asked else set()
        barring -= {run.id for run in asked}
        waiting = []
        for run in asked:
            if barring or is_unread:
                waiting.append(run.id)
            else:
                barring.add(run.id)
        return tuple(waiting)

    @rule(number=PICK, do=st.sampled_from(["release", "release", "hold", "cancel", "earlier"]))
    def gate(self, number, do):
        held = [run for run in self.seen.live() if run.state is RunState.HELD]
        run = self.pick(held or self.seen.live(), number)
        if run is None:
            return
        plans = {
            "release": Plan(releases=(Release(run.id),)),
            "hold": Plan(holds=(Holding(run.id, f"full {number}"),)),
            "cancel": Plan(cancels=(CancelOrder(run.id, "enough"),)),
            "earlier": Plan(earlier=(Earlier(run.id, self.moment(number % 10)),)),
        }
        if self.do("advance", self.terms[-1], plans[do], now_ms=self.now).answer is Answer.FENCED:
            self.unchanged()

    @rule(limit=st.integers(1, 20))
    def consume(self, limit):
        """The oldest entries, by the ids that each store gave them."""
        for store in self.stores.stores:
            feed = self.stores.run(store.feed(limit=limit, now_ms=self.now))
            plan = Plan(consumed=tuple(item.id for item in feed.items))
            self.stores.run(store.advance(self.terms[-1], plan, now_ms=self.now))

    @precondition(lambda self: self.seen.jobs)
    @rule(number=PICK, is_stale=st.booleans())
    def update(self, number, is_stale):
        job = self.pick(list(self.seen.jobs.values()), number)
        last_due_ms = None if number % 2 else self.moment(-100)
        update = JobUpdate(
            job.id, job.revision + is_stale, self.moment(number % 100), Memory(ended=number), last_due_ms
        )
        self.do("advance", self.terms[-1], Plan(updates=(update,)), now_ms=self.now)
        due = self.do("due", before_ms=self.now + 50 * TICK_MS, limit=3)
        assert all(job.enabled and job.next_due_ms < self.now + 50 * TICK_MS for job in due)
