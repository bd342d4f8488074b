"""Never more than one run on a seat, and never more runs than seats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.errors import InvalidInput
from pollux.runtime.attempt import Pool


def test_a_full_pool_refuses():
    pool = Pool(2)
    assert pool.try_seat() is not None
    assert pool.try_seat() is not None
    assert pool.free == 0
    assert pool.try_seat() is None
    assert pool.busy == 2


def test_a_freed_seat_is_told_and_leaving_twice_is_harmless():
    pool, told, empty = Pool(1), [], []
    pool.on_free, pool.on_empty = lambda: told.append(pool.free), lambda: empty.append(True)
    seat = pool.try_seat()
    pool.leave(seat)
    pool.leave(seat)
    assert told == [1]
    assert empty == [True]
    assert pool.free == 1


def test_somebody_elses_seat_cannot_be_left_by_an_old_ticket():
    pool = Pool(1)
    old = pool.try_seat()
    pool.leave(old)
    pool.try_seat()
    pool.leave(old)
    assert pool.free == 0


def test_a_draining_pool_refuses():
    pool = Pool(2)
    pool.try_seat()
    pool.drain()
    assert pool.free == 0
    assert pool.try_seat() is None


def test_a_smaller_pool_waits_until_those_too_many_have_left():
    pool = Pool(3)
    seats = [pool.try_seat() for n in range(3)]
    pool.resize(1)
    pool.leave(seats[0])
    assert pool.free == 0
    assert pool.try_seat() is None
    pool.leave(seats[1])
    pool.leave(seats[2])
    assert pool.free == 1


@pytest.mark.parametrize("seats", [0, -1, 10_001])
def test_a_number_of_seats_that_cannot_be_is_refused(seats):
    with pytest.raises(InvalidInput, match="seats are not possible"):
        Pool(seats)


@given(st.lists(st.one_of(st.just("sit"), st.just("leave"), st.integers(1, 5)), max_size=60))
def test_whatever_happens_nobody_is_seated_beyond_the_size_and_no_seat_is_shared(steps):
    pool, sitting = Pool(3), []
    for step in steps:
        if step == "sit":
            before = pool.busy
            seat = pool.try_seat()
            assert (seat is not None) == (before < pool.seats)
            sitting += [] if seat is None else [seat]
        elif step == "leave" and sitting:
            pool.leave(sitting.pop(0))
        elif isinstance(step, int):
            pool.resize(step)
        assert pool.busy == len(sitting) == len({seat.number for seat in sitting})
        assert pool.free == max(0, pool.seats - len(sitting))
