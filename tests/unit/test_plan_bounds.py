"""Limits of the planner: the catch-up rate, and the eviction of job slots."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pollux.plan.term_state import CatchUpRate
from pollux.plan.timers import JobSlots
from tests.unit.plan_world import T0, a_job


def test_one_may_go_at_the_start_and_then_so_many_a_second():
    pace, gone = CatchUpRate(T0, 20.0), []
    for now in range(T0, T0 + 10_000):
        while pace.left(now) >= 1:
            pace.spend(now, 1)
            gone.append(now)

    assert gone[0] == T0
    assert len(gone) == 10 * 20
    assert all(later - earlier >= 50 for earlier, later in pairwise(gone))


def test_a_long_rest_saves_up_a_tenth_of_a_second_only():
    pace = CatchUpRate(T0, 200.0)

    assert pace.left(T0 + 3_600_000) == 20.0
    assert CatchUpRate(T0, 2.0).left(T0 + 3_600_000) == 1.0


def test_the_next_one_may_go_when_it_says():
    pace = CatchUpRate(T0, 3.0)
    pace.spend(T0, 1)

    assert pace.left(pace.ready_ms() - 1) < 1
    assert pace.left(pace.ready_ms()) >= 1


def test_a_clock_that_comes_back_gives_nothing_and_takes_nothing():
    pace = CatchUpRate(T0, 20.0)
    pace.spend(T0, 1)

    assert pace.left(T0 - 60_000) == 0.0


@given(st.lists(st.integers(0, 3_000), max_size=50), st.sampled_from([1.0, 2.0, 20.0, 333.0]))
def test_no_second_sees_more_than_the_pace_and_its_burst(waits, per_s):
    pace, now, gone = CatchUpRate(T0, per_s), T0, []
    for wait in waits:
        now += wait
        count = int(pace.left(now))
        pace.spend(now, count)
        gone += [now] * count
    for start in gone:
        assert sum(start <= at < start + 1_000 for at in gone) <= per_s + max(1.0, per_s * 0.1) + 1


def slots_of(count, idle_max):
    slots = JobSlots(idle_max=idle_max)
    for n in range(count):
        slots.add(a_job(f"j{n:02}"))
    return slots


def test_the_oldest_idle_slots_are_forgotten():
    slots = slots_of(20, idle_max=5)
    slots.trim(lambda _: False, needed=0)

    assert list(slots) == ["j15", "j16", "j17", "j18", "j19"]


def test_a_slot_that_is_needed_is_never_forgotten():
    slots = slots_of(20, idle_max=5)
    needed = {"j00", "j01", "j02", "j12"}
    for _ in range(10):
        slots.trim(needed.__contains__, needed=len(needed))

    assert needed <= set(slots)
    assert len(slots) == 5 + len(needed)


def test_within_the_limit_nothing_is_forgotten():
    slots = slots_of(20, idle_max=5)
    slots.trim(lambda _: False, needed=15)

    assert len(slots) == 20


def test_a_slot_leaves_the_bulk_in_the_store():
    slot = JobSlots().add(a_job(params={"bulk": "x" * 1_000}, name="long", tags=("a", "b")))

    assert (slot.job.params, slot.job.name, slot.job.tags) == ({}, "", ())
