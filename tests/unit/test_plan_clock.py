"""Clock corrections: a clock that was wrong by hours is set back or forward, and due times follow."""

from random import Random

import pytest
from msgspec.structs import replace

from pollux.ids import new_id
from pollux.model import SCHEDULER_VERSION, Cause, Cron, Interval, Misfire, Note, Once, Overlap, Run, RunState, Tried
from pollux.model.leader_notes import CAME_BACK_MS, clock_key, clock_note
from pollux.plan.due_decision import lies_ahead
from pollux.plan.leader_notes import earlier_ms
from pollux.schedule import next_due
from tests.unit.plan_world import Leader, World, a_job

MINUTE = 60_000
HOUR = 3_600_000
DAY = 24 * HOUR


class ClockedWorld(World):
    """As the contract says: a last due far ahead was written before the clock came back, and refuses nothing."""

    def _fire(self, firing):
        job = self.jobs.get(firing.run.job_id)
        if job is not None and job.last_due_ms is not None and job.last_due_ms > self.now_ms + CAME_BACK_MS:
            self.jobs[job.id] = replace(job, last_due_ms=None)
            answer = super()._fire(firing)
            if self.jobs[job.id].last_due_ms is None:
                self.jobs[job.id] = replace(self.jobs[job.id], last_due_ms=job.last_due_ms)
            return answer
        return super()._fire(firing)


def dues_since(world, start_ms):
    return sorted(run.due_ms for run in world.runs.values() if run.job_id == "a" and run.due_ms >= start_ms)


@pytest.mark.parametrize("schedule", [Interval(every_ms=5 * MINUTE), Cron("*/5 * * * *")], ids=["interval", "cron"])
@pytest.mark.parametrize("misfire", list(Misfire))
def test_after_a_wrong_hour_a_recurring_job_goes_on_where_the_clock_is_and_no_due_fires_twice(schedule, misfire):
    world = ClockedWorld()
    leader = Leader(world)
    world.put(a_job(schedule=schedule, misfire=misfire, overlap=Overlap.ALLOW))
    leader.go(30 * MINUTE)
    right_ms = world.now_ms

    world.now_ms += HOUR
    leader.go(MINUTE)
    world.now_ms = right_ms
    leader.go(30 * MINUTE)

    dues = dues_since(world, right_ms)
    assert len(dues) == len(set(dues))
    assert len([due for due in dues if right_ms < due <= right_ms + 30 * MINUTE]) == 6, "it waited for the hour to come"


def test_an_hour_that_is_lived_twice_fires_nothing_twice():
    world = ClockedWorld()
    leader = Leader(world)
    world.put(a_job(every_ms=5 * MINUTE, overlap=Overlap.ALLOW))
    leader.go(2 * HOUR)
    before = dues_since(world, 0)

    world.now_ms -= HOUR
    leader.go(50 * MINUTE)
    assert dues_since(world, 0) == before

    leader.go(30 * MINUTE)
    dues = dues_since(world, 0)
    assert len(dues) == len(set(dues)) == len(before) + 4


def test_a_start_that_lies_ahead_is_not_moved_by_the_clock():
    world = ClockedWorld()
    leader = Leader(world)
    world.put(a_job(every_ms=MINUTE, overlap=Overlap.ALLOW))
    world.put(a_job(id="b", schedule=Interval(every_ms=MINUTE, start_ms=world.now_ms + 3 * HOUR)))
    leader.go(2 * MINUTE)
    world.now_ms -= HOUR
    leader.go(2 * MINUTE)
    assert [run for run in world.runs.values() if run.job_id == "b"] == []


# the leader changes in between


def ahead(world, jobs=30):
    """A leader plans by a clock that is a day ahead; then it is gone, and the clock is set right."""
    leader = Leader(world)
    world.put(*[a_job(id=f"j{n:02}", every_ms=HOUR, overlap=Overlap.ALLOW) for n in range(jobs)])
    leader.go(MINUTE)
    world.now_ms += DAY
    leader.go(2 * HOUR)
    for run in world.live():
        world.end(run.id)
    leader.run()
    world.now_ms -= DAY


def too_far(world):
    return [job.id for job in world.jobs.values() if lies_ahead(job, world.now_ms)]


def test_a_new_leader_puts_right_what_lies_too_far_ahead_and_notes_it():
    world = ClockedWorld()
    ahead(world)
    assert len(too_far(world)) == 30
    Leader(world).go(MINUTE)
    assert too_far(world) == []
    noted = clock_note(world.notes[clock_key(SCHEDULER_VERSION)])
    assert (noted.back.is_over, noted.back.jobs, noted.back.runs) == (True, 30, 0)
    assert noted.highest_ms <= world.now_ms
    assert noted.words(world.now_ms).endswith(": 30 due times and 0 runs were corrected")
    assert noted.words(world.now_ms + DAY) == ""

    again = Leader(world)
    again.read()
    assert not again.planner._term.clock.is_scanning, "it was put right, and the next leader looks again"


def test_the_look_begins_again_with_the_next_leader_until_all_is_written():
    world = ClockedWorld()
    ahead(world, jobs=300)
    first = Leader(world)
    for _ in range(2):
        first.turn()
    assert 0 < len(too_far(world)) < 300, "the test needs a leader that dies in between"
    noted = clock_note(world.notes[clock_key(SCHEDULER_VERSION)])
    assert not noted.back.is_over
    assert noted.is_behind(world.now_ms)
    assert "the leader corrects what lies too far ahead" in noted.words(world.now_ms)

    Leader(world).go(MINUTE)
    assert too_far(world) == []


def test_ends_that_nobody_read_tell_of_the_time_in_which_they_came():
    """The leader was gone when the clock went ahead: only a worker has seen that time."""
    world = ClockedWorld()
    leader = Leader(world)
    world.put(a_job(schedule=None))
    leader.go(MINUTE)
    world.now_ms += DAY
    world.enqueue("a", "r")
    world.end("r", RunState.READY, failed=True, error="no answer")
    tried = (Tried(1, world.now_ms, world.now_ms, "no answer"),)
    world.runs["r"] = replace(world.runs["r"], visible_ms=world.now_ms + 5_000, attempt=1, tried=tried)
    world.now_ms -= DAY
    Leader(world).run()
    assert world.runs["r"].visible_ms == world.now_ms + 5_000


@pytest.mark.parametrize(("by_ms", "is_looked_at"), [(1_000, False), (5_000, False), (5_001, True), (50_000, True)])
def test_a_clock_that_comes_back_by_more_than_seconds_is_looked_at(by_ms, is_looked_at):
    world = ClockedWorld()
    leader = Leader(world)
    world.put(a_job(every_ms=MINUTE))
    leader.go(5 * MINUTE)
    noted = clock_note(world.notes[clock_key(SCHEDULER_VERSION)])
    world.now_ms = noted.highest_ms - by_ms
    again = Leader(world)
    again.read()
    assert again.planner._term.clock.is_scanning is is_looked_at
    assert noted.is_behind(world.now_ms) is is_looked_at


@pytest.mark.parametrize("by_ms", [1_000, 5_000, 9_000, 14_000, 20_000, 50_000, 59_000, 61_000])
def test_a_schedule_stands_still_for_seconds_however_far_the_clock_comes_back(by_ms):
    """Once the leader is another one; the note may be some seconds behind what was planned."""
    world = ClockedWorld()
    leader = Leader(world)
    world.put(a_job(every_ms=1_000, overlap=Overlap.ALLOW))
    leader.go(MINUTE)
    right_ms = world.now_ms
    world.now_ms += by_ms
    leader.go(30_000)
    world.now_ms -= by_ms
    before = len(world.runs)
    Leader(world).go(MINUTE)
    dues = dues_since(world, right_ms)
    assert len(dues) == len(set(dues))
    lived_twice = min(30_000, by_ms)  # what fired in the time that is lived twice does not fire again
    assert len(world.runs) - before >= (MINUTE - min(by_ms, 10_000) - lived_twice) // 1_000


@pytest.mark.parametrize("value", ["what", None, {}, {"highest_ms": "soon"}, {"highest_ms": 5, "back": {"at_ms": []}}])
def test_a_clock_note_that_cannot_be_read_stops_nobody(value):
    world = ClockedWorld()
    world.notes[clock_key(SCHEDULER_VERSION)] = Note(clock_key(SCHEDULER_VERSION), value)
    leader = Leader(world)
    world.put(a_job(every_ms=MINUTE, overlap=Overlap.ALLOW))
    leader.go(5 * MINUTE)
    assert len(leader.fired()) >= 5


def test_an_idle_leader_writes_no_clock_note():
    world = ClockedWorld()
    leader = Leader(world)
    world.put(a_job(schedule=None))
    leader.go(MINUTE)
    plans = len(leader.plans)
    leader.go(HOUR)
    assert len(leader.plans) == plans


# how far ahead a time may lie

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("schedule", "due_in", "last_in", "is_ahead"),
    [
        (Interval(HOUR), DAY, DAY - HOUR, True),
        (Interval(HOUR), 90 * MINUTE + 1, -MINUTE, True),
        (Interval(HOUR), HOUR // 2, -HOUR // 2, False),
        (Interval(MINUTE), 59_999, None, False),  # the first due of a crowd, spread
        (Interval(HOUR, start_ms=NOW + DAY), DAY, None, False),
        (Cron("*/5 * * * *"), DAY, DAY - 5 * MINUTE, True),
        (Cron("0 0 1 1 *"), 300 * DAY, None, False),
        (Once(), HOUR, None, True),
        (Once(at_ms=NOW + HOUR), HOUR, None, False),
        (None, None, None, False),
        (Interval(HOUR), None, None, False),
    ],
)
def test_a_due_time_lies_too_far_ahead_if_the_schedule_does_not_allow_it(schedule, due_in, last_in, is_ahead):
    if isinstance(schedule, Cron) and due_in > 100 * DAY:
        due_in = next_due(schedule, "a", NOW) - NOW
    times = {"next_due_ms": due_in, "last_due_ms": last_in}
    times = {name: None if ms is None else NOW + ms for name, ms in times.items()}
    assert lies_ahead(a_job(schedule=schedule, **times), NOW) is is_ahead


def waiting(visible_in, cause=Cause.ENQUEUED, made_in=None, **fields):
    run_id = "r" if made_in is None else new_id(NOW + made_in, Random(1))
    return Run(run_id, "a", NOW + visible_in, cause=cause, visible_ms=NOW + visible_in, **fields)


def tried_at(ended_in):
    return {"attempt": 1, "tried": (Tried(1, NOW + ended_in - 5, NOW + ended_in, "no answer"),)}


@pytest.mark.parametrize(
    ("run", "earlier_in"),
    [
        (waiting(0), None),
        (waiting(DAY + 9_000, **tried_at(DAY)), 9_000),
        (waiting(DAY + 9_000, **tried_at(-DAY)), None),  # it was told so by `Retry-After`, before the clock went ahead
        (waiting(9 * DAY, **tried_at(DAY)), DAY),
        (waiting(9_000, **tried_at(-1_000)), None),
        (waiting(DAY + 9_000, fence=2, **tried_at(DAY)), 0),  # the delivery after the retry was handed back
        (waiting(DAY + 9_000, fence=2, **tried_at(-DAY)), 0),
        (waiting(DAY + 9_000, fence=1, **tried_at(-DAY)), None),
        (waiting(DAY + 9_000, fence=3, attempt=1, tried=(Tried(0, NOW, NOW - DAY, "long ago"),)), None),
        (waiting(DAY + 9_000, fence=1, made_in=-HOUR), 0),  # handed back by the clock ahead: it waits for a place
        (waiting(DAY + 9_000, fence=1), 0),
        (waiting(4_000, fence=1, made_in=-HOUR), None),  # handed back since
        (waiting(DAY - 5, Cause.SCHEDULE), 0),
        (waiting(DAY - 5, made_in=DAY - 5), 0),
        (waiting(DAY + 4_999, made_in=DAY + 4_999), 0),
        (waiting(DAY - 5, made_in=DAY - HOUR), 0),  # its delay was over before the clock came back
        (waiting(2 * DAY, made_in=DAY), None),  # somebody wants it then
        (waiting(HOUR, made_in=-MINUTE), None),  # made before the clock went ahead, or after it came back
        (waiting(HOUR, made_in=0), None),
        (waiting(HOUR, Cause.FORCED, made_in=0), None),
        (waiting(HOUR, made_in=30 * DAY), None),  # digits that are no time: no run is made after it is visible
        (waiting(HOUR), None),  # an id of the caller's own
    ],
)
def test_a_waiting_run_keeps_its_delay_or_comes_now_if_its_time_was_reckoned_by_a_clock_ahead(run, earlier_in):
    found = earlier_ms(run, highest_ms=NOW + DAY, now_ms=NOW)
    assert found == (None if earlier_in is None else NOW + earlier_in)
