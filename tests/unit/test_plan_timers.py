"""Timers: one heap, a horizon, a limit."""

from hypothesis import given
from hypothesis import strategies as st

from pollux.plan import Timers, TimerWindow

T = 1_800_000_000_000


def filled(*dues, **options):
    timers = Timers(**options)
    timers.reach(TimerWindow(None, T + 10**9, 10**6), 0, None)
    for job_id, due in dues:
        timers.put(job_id, T + due)
    return timers


def test_timers_come_earliest_first_and_by_id():
    timers = filled(("c", 5), ("b", 5), ("a", 9), ("d", 1))

    assert timers.pop_due(T + 5, 10) == ["d", "b", "c"]
    assert timers.pop_due(T + 8, 10) == []
    assert timers.pop_due(T + 9, 10) == ["a"]
    assert len(timers) == 0


def test_no_more_are_taken_than_asked_for():
    timers = filled(*[(f"j{n}", n) for n in range(9)])

    assert timers.pop_due(T + 100, 3) == ["j0", "j1", "j2"]
    assert timers.next_due_ms() == T + 3


def test_a_job_has_one_timer_the_latest_set():
    timers = filled(("a", 5), ("a", 50), ("b", 7), ("b", 3), ("a", 20))

    assert timers.next_due_ms() == T + 3
    assert timers.pop_due(T + 10, 10) == ["b"]
    assert timers.pop_due(T + 19, 10) == []
    assert timers.pop_due(T + 100, 10) == ["a"]
    assert timers.pop_due(T + 100, 10) == []


def test_a_timer_set_back_to_its_old_time_comes_once():
    timers = filled(("a", 5), ("a", 50), ("a", 5))

    assert timers.pop_due(T + 100, 10) == ["a"]


def test_a_dropped_timer_does_not_come():
    timers = filled(("a", 5), ("b", 6))
    timers.drop("a")
    timers.drop("nobody")

    assert timers.next_due_ms() == T + 6
    assert "a" not in timers
    assert timers.pop_due(T + 100, 10) == ["b"]
    assert timers.next_due_ms() is None


def test_timers_that_move_often_leave_no_garbage():
    timers = filled()
    for n in range(10_000):
        timers.put("a", T + n)

    assert len(timers._heap) < 200


# the horizon


def test_before_anything_was_read_everything_is_left_to_the_store():
    timers = Timers()

    assert timers.put("a", T) is False
    assert timers.needs_refill(T)
    assert timers.window(T) == TimerWindow(None, T + 60_000, 1_000)


def test_beyond_the_horizon_a_timer_is_left_to_the_store_unless_it_must_be_kept():
    timers = Timers()
    timers.reach(TimerWindow(None, T + 60_000, 1_000), 0, None)

    assert timers.put("a", T + 59_999) is True
    assert timers.put("b", T + 60_000) is False
    assert timers.put("a", T + 60_000) is False
    assert "a" not in timers
    assert timers.put("c", T + 10**6, anyway=True) is True
    assert timers.next_due_ms() == T + 10**6


def test_a_full_page_moves_the_horizon_to_its_last_job_only():
    timers = Timers(page=3)
    timers.reach(timers.window(T), 3, (T + 10, "k"))

    assert timers.put("a", T + 10) is True
    assert timers.put("k", T + 10) is True
    assert timers.put("l", T + 10) is False
    assert timers.window(T) == TimerWindow((T + 10, "k"), T + 60_000, 3)


def test_the_window_is_refilled_when_half_of_it_has_passed():
    timers = Timers()
    timers.reach(timers.window(T), 0, None)

    assert not timers.needs_refill(T + 29_999)
    assert timers.needs_refill(T + 30_000)
    assert timers.refill_ms() == T + 30_000


def test_without_room_nothing_is_read():
    timers = filled(*[(f"j{n}", n) for n in range(6)], limit=10)

    assert not timers.needs_refill(T + 10**9)
    assert timers.refill_ms() is None
    timers.pop_due(T, 1)
    assert timers.needs_refill(T + 10**9)
    assert not timers.needs_refill(T + 10**9, busy=1)


def test_too_many_timers_push_the_farthest_out_and_bring_the_horizon_back():
    timers = filled(*[(f"j{n:02}", n) for n in range(10)], limit=10)
    timers.put("zz", T + 3)

    assert len(timers) == 8
    assert timers.pop_due(T + 100, 100) == ["j00", "j01", "j02", "j03", "zz", "j04", "j05", "j06"]
    assert timers.put("j07", T + 7) is False
    assert timers.window(T).after == (T + 6, "j06")


MOVES = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "pop", "read"]), st.integers(0, 30), st.integers(0, 2_000)), max_size=200
)


@given(MOVES, st.integers(1, 12))
def test_with_the_store_behind_it_no_timer_is_ever_lost_or_early(moves, limit):
    """Against a plain dictionary: whatever is due is popped, in order, as soon as it is asked for."""
    timers, stored, now = Timers(limit=limit, window_ms=200, page=3), {}, T

    def refill():
        while timers.needs_refill(now):
            window = timers.window(now)
            after, before, count = window
            rows = sorted((due, job) for job, due in stored.items() if due < before)
            rows = [row for row in rows if after is None or row > after][:count]
            timers.reach(window, len(rows), rows[-1] if rows else None)
            for due, job in rows:
                timers.put(job, due)

    for what, number, ms in moves:
        job = f"j{number:02}"
        if what == "put":
            stored[job] = now + ms
            timers.put(job, now + ms)
        elif what == "drop":
            stored.pop(job, None)
            timers.drop(job)
        elif what == "read":
            refill()
        else:
            now += ms
            popped = []
            while True:
                refill()
                some = timers.pop_due(now, 2)
                if not some:
                    break
                popped += [(stored.pop(job), job) for job in some]
            assert popped == sorted(popped)
            assert all(due <= now for due, _ in popped)
            assert not [job for job, due in stored.items() if due <= now]
        assert len(timers) <= limit
