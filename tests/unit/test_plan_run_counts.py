"""Run counter: every run that ended in a version is counted once, in its minute."""

import itertools

from msgspec.structs import replace

from pollux.model import End, Ended, FeedItem, Note, RunState
from pollux.model.leader_notes import ENDS, RunCounts, counted_since, hour_of
from pollux.plan import Planner
from tests.unit.plan_world import Leader, a_job

MINUTE, HOUR = 60_000, 3_600_000
DAY, WEEK = 24 * HOUR, 7 * 24 * HOUR
DONE, DEAD, CANCELLED, READY = RunState.DONE, RunState.DEAD, RunState.CANCELLED, RunState.READY
numbers = itertools.count()


def end_one(world, state=DONE, **how):
    run_id = f"r{next(numbers)}"
    world.enqueue("a", run_id)
    world.end(run_id, state, **how)


def counted(world, since_ms=0, version=2):
    return counted_since(world.standing_notes(), version, since_ms, world.now_ms)


def totals(world, since_ms=0):
    found = counted(world, since_ms)
    return found.ended, found.failed, found.dead, found.cancelled


def told(leader):
    """The plans that told what was counted."""
    return [plan for plan in leader.plans if any(put.key.startswith(ENDS) for put in plan.notes)]


def later(world, leader, ms):
    world.now_ms += ms
    leader.run()


def test_each_way_to_end_is_counted_and_what_goes_on_is_not(world, leader):
    world.put(a_job("a", schedule=None))
    leader.run()
    end_one(world)
    end_one(world, DONE, failed=True)
    end_one(world, DEAD, failed=True)
    end_one(world, DEAD, ran=False)
    end_one(world, CANCELLED, ran=False)
    end_one(world, READY, failed=True)
    leader.run()

    assert totals(world) == (5, 3, 2, 1)


def test_what_ended_before_is_left_out_by_the_minute(world, leader):
    world.now_ms -= world.now_ms % MINUTE
    begun = world.now_ms
    world.put(a_job("a", schedule=None))
    leader.run()
    for _ in range(3):
        end_one(world, DEAD)
        later(world, leader, MINUTE)

    assert [totals(world, begun + n * MINUTE)[0] for n in range(4)] == [3, 2, 1, 0]
    assert totals(world, begun + MINUTE + 59_999)[0] == 2, "the minute counts whole"
    assert counted(world, begun + MINUTE + 59_999).from_ms == begun + MINUTE


def test_it_is_told_at_once_and_then_every_five_seconds_at_most(world, leader):
    world.put(a_job("a", schedule=None))
    leader.run()
    end_one(world)
    leader.run()
    assert (len(told(leader)), totals(world)[0]) == (1, 1)
    for _ in range(49):
        end_one(world)
        later(world, leader, 100)
    assert (len(told(leader)), totals(world)[0]) == (1, 1)
    assert leader.planner.next_ms() == world.now_ms + 100, "it is told also if nothing else happens"
    later(world, leader, 100)
    assert (len(told(leader)), totals(world)[0]) == (2, 50)
    assert leader.planner._term.counting._entries == {}, "and forgotten"
    assert leader.planner.next_ms() > world.now_ms + 5_000
    later(world, leader, HOUR)
    assert len(told(leader)) == 2, "nothing ended: nothing is told"


def test_a_leader_that_goes_tells_the_rest(world, leader):
    world.put(a_job("a", schedule=None))
    leader.run()
    for _ in range(3):
        end_one(world)
        leader.run()
    assert totals(world)[0] == 1
    world.advance(leader.planner.unreported())
    assert totals(world)[0] == 3
    leader.rebuild()
    assert leader.planner.unreported().is_empty()


def test_the_next_leader_goes_on_with_the_count(world, leader):
    world.put(a_job("a", schedule=None))
    leader.run()
    begun = world.now_ms
    for _ in range(4):
        end_one(world, DEAD)
        leader.run()
        leader = Leader(world)

    assert totals(world) == (4, 4, 4, 0)
    later(world, leader, HOUR)
    end_one(world)
    leader.run()
    assert counted(world).from_ms == begun, "it was counted since the first of them"


def test_a_waiting_run_that_the_leader_cancels_is_counted_though_no_feed_tells_of_it(world, leader):
    world.put(a_job("a", 10_000, handler="rare", target="t"))
    leader.run()
    world.put(replace(world.jobs["a"], declared=False))
    leader.turn(lose_answer=True)
    leader.run()

    assert [run.state for run in world.runs.values()] == [CANCELLED]
    assert totals(world) == (1, 0, 0, 1)
    later(world, leader, HOUR)
    assert totals(world) == (1, 0, 0, 1)


def test_a_planner_leaves_what_it_has_not_told_to_the_next(world, leader):
    """For an hour that is long gone, and one for which nobody counts any more."""
    world.put(a_job("a", schedule=None))
    leader.run()
    for _ in range(4):
        end_one(world)
        leader.run()
    left = leader.planner.leave(None)
    assert (totals(world)[0], sum(row[0] for row in left.minutes.values())) == (1, 3)

    for waits_ms, found in ((HOUR, (3, 0, 0, 0)), (2 * DAY, None)):
        world.now_ms += waits_ms
        planner = Planner()
        planner.begin(world.now_ms, notes=[], held=[], nodes=[], ready=0, left=left)
        planner.wants(world.now_ms)
        rows = [
            row
            for put in planner.plan(world.now_ms).notes
            if put.key.startswith(ENDS)
            for row in hour_of(Note(put.key, put.value)).minutes.values()
        ]
        assert rows == ([] if found is None else [found])


def test_a_plan_whose_answer_was_lost_counts_once(world, leader):
    world.put(a_job("a", schedule=None))
    leader.run()
    end_one(world)
    leader.turn(lose_answer=True)
    assert totals(world)[0] == 1

    end_one(world)
    later(world, leader, 5_000)
    assert totals(world)[0] == 2


def test_an_entry_that_is_not_consumed_is_counted_by_who_consumes_it(world, leader):
    world.put(a_job("a", schedule=None))
    leader.run()
    end_one(world)
    leader.plan()  # and dies before it is written
    assert totals(world)[0] == 0
    Leader(world).run()
    assert totals(world)[0] == 1


def test_what_was_unread_for_long_is_counted_when_it_ended_and_no_more_notes_come_than_fit(world, leader):
    world.put(a_job("a", schedule=None))
    leader.run()
    begun = world.now_ms
    for _ in range(72):
        end_one(world)
        world.now_ms += HOUR
    leader.run()

    assert totals(world, begun)[0] == 72
    assert totals(world, world.now_ms - 10 * HOUR)[0] == 10, "each in its hour"
    assert max(len(plan.notes) for plan in leader.plans) <= 26


def test_an_end_in_the_future_is_of_now(world):
    planner = Planner()
    planner.begin(world.now_ms, notes=[], held=[], nodes=[], ready=0)
    planner.apply(FeedItem(1, Ended((End("r", "a", CANCELLED, "forced", 0, world.now_ms + DAY, ran=False),))))
    planner.wants(world.now_ms)
    [put] = [put for put in planner.plan(world.now_ms).notes if put.key.startswith(ENDS)]
    assert list(hour_of(Note(put.key, put.value)).minutes) == [world.now_ms // MINUTE]


def test_the_count_is_kept_for_a_week(world, leader):
    world.put(a_job("a", schedule=None))
    leader.run()
    end_one(world)
    leader.run()
    later(world, leader, WEEK)
    assert (totals(world)[0], counted(world).from_ms) == (1, world.now_ms - WEEK)
    later(world, leader, HOUR)
    assert counted(world) == RunCounts()


def test_versions_are_counted_apart(world, leader):
    world.put(a_job("a", schedule=None))
    leader.run()
    end_one(world)
    leader.run()
    assert (counted(world).ended, counted(world, version=3)) == (1, RunCounts())


def test_a_note_that_nobody_can_read_stops_nobody(world, leader):
    world.put(a_job("a", schedule=None))
    leader.run()
    end_one(world)
    leader.run()
    [key] = [key for key in world.notes if key.startswith(ENDS)]
    for value in ("what", None, {"minutes": {"1": [1]}, "from_ms": 1}, {"minutes": 7}, []):
        world.notes[key] = Note(key, value)
        assert counted(world) == RunCounts()
        leader = Leader(world)
        end_one(world)
        leader.run()
        assert counted(world).ended == 1
    world.notes[f"{ENDS}x"] = Note(f"{ENDS}x", {})
    assert counted(world).ended == 1
