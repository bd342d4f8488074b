"""Missed due times after a downtime: fired or skipped by policy, counted, and rate-limited."""

import pytest
from msgspec.structs import replace

from pollux.model import Cron, Ended, Interval, Misfire, Overlap
from tests.unit.plan_world import T0, Leader, a_job
from tests.unit.test_plan_planner import HOUR, MINUTE, end_all, fired


def down(world, leader, ms):
    """Nobody leads for a while."""
    end_all(world)
    leader.run()
    world.now_ms += ms
    leader.rebuild()


def test_after_a_downtime_the_latest_missed_due_fires_and_the_others_are_counted(world, leader):
    world.put(a_job(schedule=Interval(MINUTE, spread=False)))
    leader.run()
    down(world, leader, 10 * MINUTE - 20_000 + (MINUTE - T0 % MINUTE))
    leader.run()

    missed = list(range(T0 - T0 % MINUTE + MINUTE, world.now_ms + 1, MINUTE))
    assert fired(world) == [T0, missed[-1]]
    assert world.jobs["a"].memory.skips == {"late": len(missed) - 1}
    assert ("a", missed[0], len(missed) - 1, "late") in leader.skipped()


def test_a_job_that_skips_what_it_missed_counts_it(world, leader):
    world.put(a_job(schedule=Interval(HOUR, spread=False), misfire=Misfire.SKIP))
    leader.run()
    down(world, leader, 5 * HOUR + 40 * MINUTE)
    leader.run()

    assert fired(world) == [T0]
    assert world.jobs["a"].memory.skips == {"late": (world.now_ms - T0 // HOUR * HOUR) // HOUR}


def test_a_job_that_wants_all_it_missed_gets_all_one_by_one(world, leader):
    world.put(a_job(schedule=Interval(HOUR, spread=False), misfire=Misfire.ALL, overlap=Overlap.ALLOW))
    leader.run()
    down(world, leader, 5 * HOUR + 40 * MINUTE)
    leader.go(2_000)

    hour = T0 // HOUR * HOUR
    assert fired(world) == [T0, *range(hour + HOUR, world.now_ms, HOUR)]
    assert world.jobs["a"].memory.skips == {}


def test_catching_up_is_paced_by_the_seats(world, leader):
    world.put(*[a_job(f"j{n:03}", schedule=Cron("0 5 * * *")) for n in range(100)])
    leader.run()
    down(world, leader, 30 * HOUR)
    begin = world.now_ms
    leader.run()
    assert len(world.runs) <= 2

    per_second = []
    while len(world.runs) < 100:
        before = len(world.runs)
        leader.go(1_000)
        per_second.append(len(world.runs) - before)
        assert world.now_ms < begin + 10_000
    assert max(per_second) <= 2 * world.seats + 2
    assert min(per_second[:-1]) >= 2 * world.seats - 1


def test_fresh_due_times_are_not_delayed_by_catching_up(world, leader):
    world.put(*[a_job(f"j{n:03}", schedule=Cron("0 5 * * *")) for n in range(300)])
    leader.run()
    down(world, leader, 30 * HOUR)
    world.put(a_job("fresh", every_ms=1_000))
    leader.go(5_000)

    assert len([run for run in world.runs.values() if run.job_id != "fresh"]) < 300
    assert len(leader.planner._term.late) > 0
    late = [late_ms for job_id, _, late_ms in leader.late if job_id == "fresh"]
    assert len(late) >= 5
    assert max(late) == 0


def test_a_late_job_whose_next_due_comes_fires_it_without_waiting_for_its_turn(world):
    """Hundreds wait for the pace; each fires its own fresh due on time, and what it missed is counted."""
    leader = Leader(world, seats=1)
    world.seats = 1
    world.put(*[a_job(f"j{n:03}", every_ms=20_000) for n in range(300)])
    leader.go(20_000)
    down(world, leader, 65_000)
    begin = world.now_ms
    leader.go(20_000)

    fresh = {job_id: late_ms for job_id, due_ms, late_ms in leader.late if due_ms > begin}
    assert fresh.keys() == world.jobs.keys()
    assert max(fresh.values()) == 0
    caught_up = [due_ms for _, due_ms, late_ms in leader.late if due_ms <= begin and late_ms > 10_000]
    assert 10 <= len(caught_up) <= 2 * 20 + 2


def test_a_fast_job_that_is_far_behind_does_not_choose_for_ever(world, leader):
    """Between choosing the latest missed due and firing it time goes on."""
    world.put(a_job(every_ms=100, overlap=Overlap.ALLOW))
    leader.run()
    down(world, leader, 10_000)
    for _ in range(20):
        leader.turn()
        world.now_ms += 700

    assert len(fired(world)) > 5


def test_what_one_leader_chose_and_could_not_fire_is_counted_once_by_the_next(world, leader):
    """It dies between the two writes, and the next due comes before there is another one."""
    world.put(a_job(schedule=Interval(MINUTE, spread=False)))
    leader.run()
    down(world, leader, 10 * MINUTE - 20_000 + (MINUTE - T0 % MINUTE))
    while leader.turn() and not leader.skipped():
        pass
    counted = sum(count for _, _, count, _ in leader.skipped())
    assert fired(world) == [T0]
    assert counted > 1

    world.now_ms += 25_000  # five seconds after the next due time
    again = Leader(world)
    again.run()
    fresh_ms = world.now_ms // MINUTE * MINUTE
    assert fired(world) == [T0, fresh_ms]
    missed = list(range(T0 - T0 % MINUTE + MINUTE, fresh_ms, MINUTE))
    assert world.jobs["a"].memory.skips == {"late": len(missed)}


@pytest.mark.parametrize(("every_ms", "took_ms"), [(2_000, 5), (10_000, 5_000)], ids=["short-interval", "long-run"])
@pytest.mark.parametrize("is_new", [False, True], ids=["all-along", "after-a-change"])
def test_a_leader_that_is_steadily_late_fires_every_due_time(world, leader, every_ms, took_ms, is_new):
    """The due time right after comes before a run of the missed one is over, but the leader is as late for that one."""
    world.put(a_job(schedule=Interval(every_ms, spread=False)))
    leader.run()
    first_ms = T0 + every_ms
    if is_new:
        world.now_ms = first_ms + every_ms // 2
        leader.rebuild()
    for n in range(50):
        world.now_ms = first_ms + n * every_ms + 6 * every_ms // 10
        world.enter(Ended(tuple(replace(world.ended(run.id), duration_ms=took_ms) for run in world.live())))
        leader.run()

    dues = fired(world)[1:]
    assert len(dues) == len(set(dues))
    assert len(dues) == 50 - is_new, "it waits for a due time that is on time, and none ever is"
    assert world.jobs["a"].memory.skips == ({"late": 1} if is_new else {})
