"""Planner against a small store: due jobs fire once and on time, and all counts are correct."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from pollux import schedule as when
from pollux.model import Answer, Cause, Cron, Interval, Once, OnEvent, Overlap, RunState
from pollux.plan import why_job
from tests.unit.plan_world import T0, Leader, World, a_job

MINUTE = 60_000
HOUR = 3_600_000


def fired(world, job_id="a"):
    return sorted(run.due_ms for run in world.runs.values() if run.job_id == job_id)


def end_all(world):
    for run in world.live():
        if run.state is not RunState.HELD:
            world.end(run.id)


def go_and_end(leader, ms, step_ms=1_000):
    """Let time pass; every run ends within a second."""
    for _ in range(0, ms, step_ms):
        leader.go(step_ms)
        end_all(leader.world)


# due times


def test_a_new_job_fires_at_once_and_then_on_its_grid(world, leader):
    world.put(a_job(every_ms=MINUTE))
    go_and_end(leader, 5 * MINUTE)

    dues = fired(world)
    assert dues[0] == T0
    assert MINUTE // 2 <= dues[1] - T0 < 3 * MINUTE // 2
    assert {later - earlier for earlier, later in pairwise(dues[1:])} == {MINUTE}
    assert world.jobs["a"].next_due_ms == dues[-1] + MINUTE


def test_a_firing_is_ready_and_bears_the_id_of_its_due_time(world, leader):
    world.put(a_job(priority=1, group="g"))
    leader.run()

    run = world.runs[f"a@{T0}"]
    assert (run.state, run.cause, run.priority, run.group) == (RunState.READY, Cause.SCHEDULE, 1, "g")


def test_a_new_job_costs_one_write(world, leader):
    world.put(a_job())
    leader.run()

    assert world.advances == 1
    assert world.feed == {}


def test_a_cron_job_does_not_fire_at_start(world, leader):
    world.put(a_job(schedule=Cron("0 * * * *")))
    leader.run()

    assert fired(world) == []
    assert world.jobs["a"].next_due_ms == T0 + HOUR - T0 % HOUR


@pytest.mark.parametrize("schedule", [None, OnEvent()])
def test_a_job_without_a_time_never_fires(world, leader, schedule):
    world.put(a_job(schedule=schedule))
    leader.go(10 * MINUTE)

    assert fired(world) == []
    assert world.feed == {}


def test_an_idle_leader_writes_nothing_and_wants_to_be_woken_for_its_window_only(world, leader):
    leader.run()
    assert leader.planner.next_ms() == T0 + 30_000

    leader.go(10 * MINUTE)
    assert world.advances == 0


def test_next_ms_is_the_next_due_time(world, leader):
    world.put(a_job(every_ms=10_000))
    leader.run()

    assert leader.planner.next_ms() == world.jobs["a"].next_due_ms
    assert not leader.planner.left_over


def test_a_crowd_of_new_jobs_is_spread_and_its_entry_is_consumed_with_its_last_effect(world, leader):
    world.put(*[a_job(f"j{n:04}", every_ms=HOUR) for n in range(1_000)])

    entry = next(iter(world.feed))
    assert leader.turn()
    while world.feed:
        assert entry not in leader.plans[-1].consumed
        written = [job for job in world.jobs.values() if job.next_due_ms is not None]
        assert len(written) < 1_000
        assert leader.planner.left_over
        leader.turn()
    assert leader.plans[-1].consumed == (entry,)
    assert all(job.next_due_ms is not None for job in world.jobs.values())

    leader.go(MINUTE)
    assert len(world.runs) == 1_000
    assert len({run.due_ms for run in world.runs.values()}) > 500
    assert all(T0 <= run.due_ms < T0 + MINUTE for run in world.runs.values())


def test_a_leader_that_dies_in_the_middle_of_an_entry_leaves_the_rest_to_the_next(world, leader):
    world.put(*[a_job(f"j{n:04}", every_ms=HOUR) for n in range(300)])
    leader.turn()
    leader.rebuild()
    leader.go(MINUTE)

    assert len(world.runs) == 300


def test_many_due_jobs_fire_in_plans_of_a_hundred_without_a_rest_between(world, leader):
    for n in range(250):
        world.put(a_job(f"j{n:03}", every_ms=HOUR, schedule=Interval(HOUR, spread=False)))
    leader.turn()
    assert len(leader.plans[0].firings) == 100
    assert leader.planner.left_over
    assert leader.planner.next_ms() == T0
    leader.run()

    assert [len(plan.firings) for plan in leader.plans] == [100, 100, 50]


# asking and answering


def test_asking_a_hundred_times_moves_nothing(world, leader):
    world.put(a_job(), a_job("b", schedule=Cron("* * * * *")))
    first = leader.plan()
    for _ in range(100):
        assert leader.planner.plan(world.now_ms) == first

    assert world.runs == {}
    leader.turn()
    assert leader.plans == [first]


def test_a_plan_whose_answer_was_lost_is_sent_again_and_fires_once(world, leader):
    world.put(a_job(every_ms=10_000))
    for _ in range(5):
        while leader.turn(lose_answer=True):
            pass  # it learns, then it fires
        end_all(world)
        world.now_ms += 10_000
    leader.run()

    chain = [T0]
    while len(chain) < len(fired(world)):
        chain.append(when.next_due(Interval(10_000), "a", chain[-1]))
    assert fired(world) == chain
    assert world.jobs["a"].memory.skips.get("late", 0) == 0


@pytest.mark.parametrize("overlap", list(Overlap))
def test_already_is_as_good_as_ok(overlap):
    """Two worlds, one of which loses every answer: the same firings, the same rows, the same memories."""
    ends = []
    for lose in (False, True):
        world = World()
        leader = Leader(world)
        world.put(a_job(every_ms=1_000, overlap=overlap), a_job("g", every_ms=3_000, overlap=overlap, target="t"))
        for step in range(40):
            while leader.turn(lose_answer=lose) or leader.planner.left_over:
                pass
            if step % 3 == 0:
                end_all(world)
            world.now_ms += 500
        ends.append((world.jobs, world.runs, leader.fired()))

    assert ends[0] == ends[1]


def test_a_job_that_was_edited_behind_the_plan_is_read_again_and_fires_once(world, leader):
    world.put(a_job(every_ms=10_000))
    leader.go(20_000)
    end_all(world)
    leader.run()
    due_ms = world.now_ms = world.jobs["a"].next_due_ms
    plan = leader.plan()
    world.put(replace(world.jobs["a"], params={"new": 1}))
    answer = world.advance(plan)
    assert answer.firings == (Answer.STALE,)
    leader.planner.accept(plan, answer)
    assert leader.planner.wants(world.now_ms).jobs == ("a",)
    leader.run()

    assert fired(world).count(due_ms) == 1
    assert world.jobs["a"].memory.ended == 1


def test_what_an_end_taught_survives_a_stale_answer(world, leader):
    world.put(a_job(every_ms=HOUR))
    leader.run()
    world.end(f"a@{T0}", failed=True, error="E")
    plan = leader.plan()
    world.put(replace(world.jobs["a"], params={"new": 1}))
    leader.planner.accept(plan, world.advance(plan))
    assert leader.planner.wants(world.now_ms).jobs == ("a",)
    leader.run()

    assert (world.jobs["a"].memory.ended, world.jobs["a"].memory.last_error) == (1, "E")


def test_a_due_time_whose_run_is_there_already_is_passed_by(world, leader):
    """Somebody has enqueued a run under the id of the firing: the store moves nothing, the leader goes on."""
    world.put(a_job(every_ms=10_000, overlap=Overlap.SKIP))
    leader.run()
    end_all(world)
    due_ms = world.jobs["a"].next_due_ms
    world.enqueue("a", f"a@{due_ms}")
    world.end(f"a@{due_ms}")
    leader.go(30_000)

    assert world.now_ms < world.jobs["a"].next_due_ms
    assert len(leader.fired()) == len(set(leader.fired()))
    assert len(fired(world)) == 3


# once


@pytest.mark.parametrize("schedule", [Once(), Once(T0 + 5_000), Once(T0 - 24 * HOUR)])
def test_a_once_job_fires_once_whatever_restarts(world, leader, schedule):
    world.put(a_job(schedule=schedule))
    for _ in range(5):
        leader.go(10_000)
        leader.rebuild()
        world.put(replace(world.jobs["a"], params={"n": world.now_ms}))
    end_all(world)
    leader.go(10_000)

    assert fired(world) == [T0 if schedule.at_ms is None else schedule.at_ms]
    assert world.jobs["a"].next_due_ms is None


def test_a_once_job_that_is_moved_fires_at_its_new_time(world, leader):
    world.put(a_job(schedule=Once(T0 + HOUR)))
    leader.run()
    leader.rebuild()
    world.put(replace(world.jobs["a"], schedule=Once(T0 + 2 * HOUR)))
    leader.go(3 * HOUR)

    assert fired(world) == [T0 + 2 * HOUR]


# the clock


def test_a_clock_that_comes_back_fires_nothing_twice_and_nothing_early(world, leader):
    world.put(a_job(every_ms=10_000, overlap=Overlap.ALLOW))
    leader.go(60_000)
    before = fired(world)
    world.now_ms -= 45_000
    leader.run()
    assert fired(world) == before

    leader.go(100_000)
    dues = fired(world)
    assert len(dues) == len(set(dues))
    assert dues[: len(before)] == before


def test_what_was_due_is_not_due_any_more_when_the_clock_comes_back(world, leader):
    world.put(a_job(every_ms=10_000, overlap=Overlap.ALLOW))
    leader.run()
    due_ms = world.jobs["a"].next_due_ms
    world.now_ms = due_ms + 5
    assert leader.plan().firings
    world.now_ms = due_ms - 1_000
    leader.run()
    assert fired(world) == [T0]

    leader.go(1_000)
    assert fired(world) == [T0, due_ms]


# full lines


def test_a_firing_that_meets_a_full_line_is_skipped_and_counted(world):
    leader = Leader(world, ready_max=5)
    world.put(a_job(every_ms=10_000))
    leader.run()
    end_all(world)
    world.ready_extra = 5
    leader.run()
    leader.go(30_000)
    assert len(world.runs) == 1
    assert world.jobs["a"].memory.skips["full"] >= 2

    world.ready_extra = 0
    leader.go(30_000)
    assert len(world.runs) == 2


def test_a_plan_does_not_overfill_the_line(world):
    leader = Leader(world, ready_max=30)
    world.put(*[a_job(f"j{n:02}", every_ms=10_000, schedule=Interval(10_000, spread=False)) for n in range(50)])
    leader.run()

    assert len(world.runs) == 30
    assert sum(job.memory.skips.get("full", 0) for job in world.jobs.values()) == 20


def test_a_once_job_finds_room_in_a_full_line(world):
    leader = Leader(world, ready_max=1)
    world.ready_extra = 5
    leader.rebuild()
    world.put(a_job(schedule=Once()))
    leader.run()

    assert len(world.runs) == 1


# bad jobs


@pytest.mark.parametrize("schedule", [Cron("no such line"), Cron("* * * * *", tz="Nowhere/Land"), Interval(0)])
def test_a_job_with_a_bad_schedule_stops_nobody_and_says_why(world, leader, schedule):
    world.put(a_job("bad", schedule=schedule), a_job("good", every_ms=10_000))
    leader.go(MINUTE)

    assert len(fired(world, "good")) >= 1
    bad = world.jobs["bad"]
    if fired(world, "bad") == []:
        assert bad.memory.last_error
    assert bad.next_due_ms is None
    assert any(row[0] == "bad" and row[3] == "broken" for row in leader.skipped())
    assert world.feed == {}


def test_a_schedule_that_turns_bad_when_it_is_due_gets_no_next_due(world, leader):
    world.put(a_job("bad", every_ms=10_000), a_job("good", every_ms=10_000))
    leader.run()
    world.jobs["bad"] = replace(world.jobs["bad"], schedule=Cron("no such line"))
    leader.rebuild()
    leader.go(MINUTE)

    assert world.jobs["bad"].next_due_ms is None
    assert world.jobs["bad"].memory.skips["broken"] == 1
    assert "no such" in world.jobs["bad"].memory.last_error
    assert len(fired(world, "good")) == 1
    assert world.jobs["good"].memory.skips["overlap"] >= 4


def test_a_job_that_fired_and_is_given_a_bad_schedule_says_what_is_bad(world, leader):
    """Not that it was put just now: nobody plans it."""
    world.put(a_job("bad", every_ms=10_000))
    leader.go(MINUTE)
    assert fired(world, "bad")
    end_all(world)
    world.put(replace(world.jobs["bad"], schedule=Cron("no such line")))
    leader.run()

    assert world.jobs["bad"].memory.skips["broken"] == 1
    assert leader.skipped()[-1][2:] == (1, "broken")
    why = why_job(world.jobs["bad"], stops=[], now_ms=world.now_ms, live=None, nodes=list(world.nodes.values()))
    assert (why.answer, why.reason.startswith("its schedule cannot be used: InvalidInput: ")) == ("held", True)


def test_a_mended_job_is_planned_again(world, leader):
    world.put(a_job("bad", schedule=Cron("no such line")))
    leader.run()
    world.put(replace(world.jobs["bad"], schedule=Interval(10_000)))
    leader.go(MINUTE)

    assert len(fired(world, "bad")) == 1


# bounds


def test_with_few_timers_in_memory_every_job_fires_on_time_all_the_same(world):
    leader = Leader(world, timers_max=20, idle_max=10)
    world.put(*[a_job(f"j{n:03}", every_ms=10_000, overlap=Overlap.ALLOW) for n in range(100)])
    leader.go(65_000)

    for job_id, job in world.jobs.items():
        chain = [fired(world, job_id)[0]]
        while when.next_due(job.schedule, job_id, chain[-1]) <= world.now_ms:
            chain.append(when.next_due(job.schedule, job_id, chain[-1]))
        assert fired(world, job_id) == chain
    assert max(report.late_ms_max for report in leader.reports) == 0
    assert len(leader.planner._term.slots) <= 20 + 10 + 5


def test_jobs_far_ahead_are_left_to_the_store(world, leader):
    world.put(*[a_job(f"j{n:03}", schedule=Cron("0 5 * * *")) for n in range(200)])
    leader.run()

    assert len(leader.planner._term.timers) == 0


def test_more_jobs_at_one_instant_than_fit_into_memory_all_fire(world):
    leader = Leader(world, timers_max=10)
    world.put(*[a_job(f"j{n:03}", schedule=Cron("* * * * *"), overlap=Overlap.ALLOW) for n in range(120)])
    leader.go(3 * MINUTE)

    assert {len(fired(world, job_id)) for job_id in world.jobs} == {3}
