"""The clock was wrong by hours and is set right: due times follow it, in both directions."""

import pytest
from msgspec.structs import replace

from pollux.model import Cron, Interval, Misfire, Overlap
from tests.unit.plan_world import Leader, World, a_job

MINUTE = 60_000
HOUR = 3_600_000


class ClockedWorld(World):
    """As the contract says: a last due far ahead was written before the clock came back, and refuses nothing."""

    def _fire(self, firing):
        job = self.jobs.get(firing.run.job_id)
        if job is not None and job.last_due_ms is not None and job.last_due_ms > self.now_ms + MINUTE:
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
