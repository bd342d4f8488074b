"""Job edits: edited, disabled, deleted, added again; no due time is lost, doubled or fired at once by an edit."""

import pytest
from msgspec.structs import replace

from pollux import schedule as when
from pollux.model import Cron, Interval, Overlap, RunState
from tests.unit.plan_world import T0, a_job
from tests.unit.test_plan_planner import HOUR, MINUTE, end_all, fired


def test_an_edit_of_the_params_moves_no_due_time(world, leader):
    world.put(a_job(every_ms=HOUR))
    leader.run()
    due_ms = world.jobs["a"].next_due_ms
    world.put(replace(world.jobs["a"], params={"x": 1}))
    leader.run()

    assert world.jobs["a"].next_due_ms == due_ms
    assert len(world.runs) == 1


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Interval(HOUR), Interval(MINUTE)),
        (Interval(MINUTE), Interval(HOUR)),
        (Interval(24 * HOUR), Interval(10_000)),
        (Interval(HOUR), Cron("7 * * * *")),
        (Cron("0 5 * * *"), Cron("0 6 * * *")),
        (Cron("0 5 * * *"), Interval(HOUR)),
    ],
)
def test_a_new_schedule_counts_from_the_next_firing_and_never_at_once(world, leader, before, after, forgets):
    """Also for a leader that has never seen the old schedule."""
    world.put(a_job(schedule=before))
    leader.run()
    end_all(world)
    leader.go(5_000)
    runs = len(world.runs)
    if forgets:
        leader.rebuild()
    world.put(replace(world.jobs["a"], schedule=after))
    leader.run()

    assert len(world.runs) == runs
    assert world.jobs["a"].next_due_ms == when.next_due(after, "a", world.now_ms)
    assert world.jobs["a"].next_due_ms > world.now_ms


@pytest.mark.parametrize("schedule", [Interval(HOUR), Interval(MINUTE), Cron("0 5 * * *")])
def test_a_leader_that_never_saw_the_old_schedule_keeps_the_due_of_an_unchanged_one(world, leader, schedule):
    world.put(a_job(schedule=schedule))
    leader.run()
    end_all(world)
    leader.go(5_000)
    due_ms = world.jobs["a"].next_due_ms
    leader.rebuild()
    world.put(replace(world.jobs["a"], params={"x": 1}))
    leader.run()

    assert world.jobs["a"].next_due_ms == due_ms


def test_an_edit_that_a_refill_sees_before_the_feed_does_is_an_edit_all_the_same(world, leader):
    world.put(a_job(schedule=Cron("0 5 * * *")))
    leader.run()
    due_ms = world.jobs["a"].next_due_ms
    world.now_ms = due_ms - 20_000
    leader.rebuild()
    world.put(replace(world.jobs["a"], schedule=Cron("0 6 * * *")))
    wants = leader.planner.wants(world.now_ms)
    leader.planner.learn(timers=world.due(wants.timers))
    leader.go(MINUTE)

    assert fired(world) == []
    assert world.jobs["a"].next_due_ms == due_ms + HOUR


def test_a_new_job_whose_due_comes_into_the_window_before_it_is_written_fires_on_time(world, leader):
    """It lies beyond the horizon when it is read; the next window is read before the store knows its due."""
    leader.run()
    world.put(a_job(schedule=Interval(3_600_000, start_ms=T0 + 70_000)))
    leader.read()
    world.now_ms += 35_000
    leader.read()
    leader.go(60_000)

    assert leader.late == [("a", T0 + 70_000, 0)]


def test_an_edit_after_the_clock_came_back_gives_no_due_that_was_fired(world, leader):
    minute = T0 - T0 % MINUTE + MINUTE
    world.put(a_job(schedule=Cron("* * * * *"), overlap=Overlap.ALLOW))
    leader.go(minute - T0)
    assert fired(world) == [minute]
    world.now_ms -= 5_000
    leader.rebuild()
    world.put(replace(world.jobs["a"], schedule=Cron("*/1 * * * *")))
    leader.run()

    assert world.jobs["a"].next_due_ms == minute + MINUTE


def test_a_disabled_job_has_no_next_due_and_an_enabled_one_does_not_fire_at_once(world, leader):
    world.put(a_job(every_ms=10_000))
    leader.run()
    world.put(replace(world.jobs["a"], enabled=False))
    leader.go(MINUTE)
    assert len(world.runs) == 1
    assert world.jobs["a"].next_due_ms is None

    end_all(world)
    world.put(replace(world.jobs["a"], enabled=True))
    leader.run()
    assert len(world.runs) == 1
    leader.go(20_000)
    assert len(world.runs) >= 2


def test_a_deleted_job_fires_no_more_and_its_ends_are_forgotten(world, leader):
    world.put(a_job(every_ms=10_000))
    leader.run()
    world.runs[f"a@{T0}"] = replace(world.runs[f"a@{T0}"], state=RunState.LEASED)
    world.delete("a")
    leader.go(MINUTE)
    world.end(f"a@{T0}")
    leader.go(MINUTE)

    assert len(world.runs) == 1
    assert world.feed == {}


def test_a_deletion_that_is_read_after_a_new_put_deletes_nothing(world, leader):
    """Entries may come out of order: the store is asked what is true."""
    world.put(a_job(every_ms=10_000))
    leader.run()
    world.delete("a")
    world.put(a_job(every_ms=10_000))
    world.feed = dict(zip(reversed(world.feed), world.feed.values(), strict=True))
    end_all(world)
    leader.go(MINUTE)

    assert len(world.runs) > 1


def test_a_job_that_is_deleted_and_added_again_fires_no_due_twice(world, leader):
    world.put(a_job(every_ms=10_000))
    leader.run()
    for _ in range(3):
        world.delete("a")
        world.put(a_job(every_ms=10_000))
        leader.run()

    assert fired(world) == [T0]
