"""Invariants of the planner under random events: lost answers, dead leaders, pauses, edits, downtimes, full queues.

A due time below a job's stored next due time is *over*.  Every due time that is over was fired once or is counted as
skipped once, whatever the order of events; computing a plan changes no state.  A firing starts only if no other run of
its job is live, unless they may overlap.
"""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pollux import schedule as when
from pollux.model import Cause, Cron, Interval, Misfire, Overlap, RunState
from tests.unit.plan_world import T0, Leader, World, a_job

SCHEDULES = st.sampled_from(
    [
        Interval(100),
        Interval(1_000),
        Interval(7_000, spread=False),
        Interval(60_000),
        Interval(3_600_000),
        Interval(5_000, start_ms=T0 + 12_345),
        Cron("*/5 * * * *"),
        Cron("30 * * * * *"),
    ]
)
JOBS = st.lists(
    st.builds(
        lambda schedule, overlap, misfire, target: a_job(
            schedule=schedule, overlap=overlap, misfire=misfire, target=target
        ),
        SCHEDULES,
        st.sampled_from(list(Overlap)),
        st.sampled_from(list(Misfire)),
        st.sampled_from(["", "host"]),
    ),
    min_size=1,
    max_size=4,
)
ANY = st.integers(0, 10**6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([1, 20, 99, 400, 1_001, 5_000, 61_000, 400_000, 7_300_000])),
        st.tuples(st.sampled_from(["turn", "turn", "lose", "crash", "crash unwritten", "crash written"]), ANY),
        st.tuples(st.sampled_from(["end", "fail", "retry", "hold", "enqueue", "edit", "undeclare"]), ANY),
        st.tuples(st.sampled_from(["pause", "pause for a while", "resume", "full", "room", "clock back"]), ANY),
    ),
    max_size=30,
)


class Story:
    """One random run of events against the world, with the books kept beside it."""

    def __init__(self, jobs, **options):
        self.world = World()
        self.leader = Leader(self.world, **options)
        self.jobs = [replace(job, id=f"j{n}") for n, job in enumerate(jobs)]
        self.over, self.ahead = {}, {}  # by job: the due times that are over, and the one that follows them
        self.asked, self.is_edited, self.went_back = 0, False, False
        self.world.put(*self.jobs)

    def step(self, what, number):
        begun = self.begun()
        getattr(self, "do_" + what.replace(" ", "_"))(number)
        self.check()
        self.check_alone(self.begun() - begun)

    def do_wait(self, ms):
        self.world.now_ms += ms

    def do_clock_back(self, number):
        """Not in a story with edits: a leader that knows only the new schedule may find an earlier due of it."""
        if not self.is_edited:
            self.went_back = True
            self.world.now_ms -= number % 30_000

    def do_turn(self, _):
        self.leader.turn()

    def do_lose(self, _):
        self.leader.turn(lose_answer=True)

    def do_crash(self, _):
        self.leader.rebuild()

    def do_crash_unwritten(self, _):
        self.leader.plan()
        self.leader.rebuild()

    def do_crash_written(self, _):
        self.world.advance(self.leader.plan())
        self.leader.rebuild()

    def some(self, number, states):
        runs = sorted((run for run in self.world.live() if run.state in states), key=lambda run: run.id)
        return runs[number % len(runs)] if runs else None

    def finish(self, number, state, **options):
        run = self.some(number, {RunState.READY, RunState.LEASED})
        if run is not None:
            self.world.end(run.id, state, **options)

    def do_end(self, number):
        self.finish(number, RunState.DONE)

    def do_fail(self, number):
        self.finish(number, RunState.DEAD, failed=True, error="E")

    def do_retry(self, number):
        self.finish(number, RunState.READY, failed=True, error="E")

    def do_hold(self, number):
        run = self.some(number, {RunState.READY})
        if run is not None:
            self.world.hold(run.id, "handed back")

    def do_enqueue(self, number):
        self.asked += 1
        self.world.enqueue(self.jobs[number % len(self.jobs)].id, f"asked-{self.asked}")

    def do_edit(self, number):
        self.edit(number, params={"n": number}, declared=True)

    def do_undeclare(self, number):
        self.edit(number, declared=False)

    def edit(self, number, **changes):
        if not self.went_back:
            self.is_edited = True
            self.world.put(replace(self.world.jobs[self.jobs[number % len(self.jobs)].id], **changes))

    def do_pause(self, number):
        self.world.stop(["stop:all", "stop:job:j0", "stop:target:host"][number % 3])

    def do_pause_for_a_while(self, number):
        self.world.stop("stop:all", expires_ms=self.world.now_ms + 1 + number % 20_000)

    def do_resume(self, number):
        for key in list(self.world.notes):
            self.world.resume(key)

    def do_full(self, _):
        self.world.ready_extra = 10**9

    def do_room(self, _):
        self.world.ready_extra = 0

    # the books

    def begun(self):
        """The firings that are on their way: not held, or held to be tried again."""
        live = (run for run in self.world.live() if run.cause is Cause.SCHEDULE)
        return {run.id for run in live if run.state is not RunState.HELD or run.started_ms is not None}

    def check_alone(self, new):
        """Who began in this step began alone; what was asked for in a step begins nothing in it."""
        for run in [self.world.runs[run_id] for run_id in new]:
            mates = [mate.id for mate in self.world.live(run.job_id) if mate.id != run.id and not mate.is_behind]
            assert not mates or self.world.jobs[run.job_id].overlap is Overlap.ALLOW, f"{run.id} began beside {mates}"

    def check(self):
        for job in self.world.jobs.values():
            if job.next_due_ms is not None or job.last_due_ms is not None:
                self.check_job(job)

    def check_job(self, job):
        if job.id not in self.over:  # planned just now
            first = when.first_due(job.schedule, job.id, now_ms=self.world.now_ms, batch_size=len(self.jobs))
            self.over[job.id], self.ahead[job.id] = set(), first
        over, due_ms = self.over[job.id], self.ahead[job.id]
        while due_ms < job.next_due_ms:
            over.add(due_ms)
            due_ms = when.next_due(job.schedule, job.id, due_ms)
        self.ahead[job.id] = due_ms
        assert due_ms == job.next_due_ms, "the next due is none of the schedule, or went back"
        fired = {run.due_ms for run in self.world.runs.values() if run.id.startswith(f"{job.id}@")}
        assert fired <= over
        assert len(over) == len(fired) + sum(job.memory.skips.values()), (sorted(over), sorted(fired), job.memory.skips)


@given(JOBS, STEPS)
def test_every_due_time_that_is_over_was_fired_once_or_counted_once(jobs, steps):
    story = Story(jobs, ready_max=1_000)
    for what, number in steps:
        story.step(what, number)
    story.world.now_ms = max(story.world.now_ms, T0)
    story.leader.run()
    story.check()


@given(JOBS, STEPS)
def test_when_the_storm_is_over_no_run_stays_at_the_gate_and_nothing_unread(jobs, steps):
    """No job is due any more, nobody pauses, every run ends: then the gate and the feed are empty."""
    story = Story(jobs, ready_max=1_000)
    for what, number in steps:
        story.step(what, number)
    world, leader = story.world, story.leader
    story.do_resume(0)
    world.put(*[replace(job, enabled=False, declared=True) for job in world.jobs.values()])
    for _ in range(20):
        leader.run()
        for run in world.live():
            if run.state is not RunState.HELD:
                world.end(run.id)
        world.now_ms += 3_000
    leader.run()

    assert [(run.id, run.held_reason) for run in world.live()] == []
    assert world.feed == {}
    assert not leader.planner.left_over
    assert len(leader.planner._term.held_runs) == 0
    assert all(job.next_due_ms is None for job in world.jobs.values())


@given(JOBS, STEPS)
def test_the_same_events_give_the_same_plans(jobs, steps):
    plans = []
    for _ in range(2):
        story = Story(jobs)
        for what, number in steps:
            story.step(what, number)
        plans.append(story.leader.plans)

    assert plans[0] == plans[1]
