"""Misfire handling after a downtime: which due times fire, the count of the others, and the cost."""

import time
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pollux.model.job import Cron, Interval, Once, OnEvent
from pollux.schedule import Catchup, CompiledCron, catch_up, next_due
from pollux.schedule.due_times import CATCH_UP_AGE_MAX_MS, CATCH_UP_MAX, late_after_ms
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS

T0 = 1_800_000_000_000 - 1_800_000_000_000 % DAY_MS
MINUTELY = Interval(MINUTE_MS, spread=False)

misfires = st.sampled_from(["one", "skip", "all"])
schedules = st.one_of(
    st.builds(Interval, every_ms=st.sampled_from([100, 999, 1_000, 1_500, 30_000, HOUR_MS]), spread=st.booleans()),
    st.builds(
        Cron,
        line=st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "0 */6 * * *", "*/5 * * * * *", "* * 3 * * *"]),
        tz=st.sampled_from(["UTC", "Europe/Berlin"]),
    ),
)


def caught_up(schedule, *, due_ms, now_ms, misfire):
    return catch_up(schedule, "a", due_ms=due_ms, now_ms=now_ms, misfire=misfire)


def listed(schedule, due_ms, now_ms):
    """Every due up to now, one by one, and the first after it."""
    found = []
    while due_ms <= now_ms:
        found.append(due_ms)
        due_ms = next_due(schedule, "a", due_ms)
    return found, due_ms


def slow_catch_up(schedule, due_ms, now_ms, misfire):
    """The rule as it is written, over the whole list."""
    dues, next_ms = listed(schedule, due_ms, now_ms)
    missed, fresh = [], []
    for due, after in zip(dues, [*dues[1:], next_ms], strict=True):
        distance = schedule.every_ms if isinstance(schedule, Interval) else after - due
        (missed if now_ms - due > min(max(distance // 2, 1_000), 60_000) else fresh).append(due)
    is_served = fresh or next_ms - now_ms <= 1_000
    kept = {
        "one": [] if is_served else missed[-1:],
        "skip": [],
        "all": [due for due in missed[-CATCH_UP_MAX:] if now_ms - due <= CATCH_UP_AGE_MAX_MS],
    }[misfire]
    return Catchup((*kept, *fresh), len(dues) - len(kept) - len(fresh), next_ms)


# the rule


def test_a_due_on_time_fires_whatever_the_misfire_says():
    for misfire in ("one", "skip", "all"):
        answer = caught_up(MINUTELY, due_ms=T0, now_ms=T0 + 30_000, misfire=misfire)
        assert answer == Catchup((T0,), 0, T0 + 60_000)


def test_a_due_is_missed_when_it_is_older_than_half_the_interval():
    assert caught_up(MINUTELY, due_ms=T0, now_ms=T0 + 30_001, misfire="skip") == Catchup((), 1, T0 + 60_000)
    assert caught_up(MINUTELY, due_ms=T0, now_ms=T0 + 30_001, misfire="one") == Catchup((T0,), 0, T0 + 60_000)


def test_a_first_due_off_the_grid_has_the_same_tolerance_though_the_second_comes_sooner():
    """The second due is 35 s away, but late is half a minute after the first all the same."""
    assert caught_up(MINUTELY, due_ms=T0 + 25_000, now_ms=T0 + 55_000, misfire="skip").fire == (T0 + 25_000,)
    assert caught_up(MINUTELY, due_ms=T0 + 25_000, now_ms=T0 + 55_001, misfire="skip").fire == ()


@pytest.mark.parametrize(("distance", "late"), [(100, 1_000), (2_000, 1_000), (30_000, 15_000), (DAY_MS, 60_000)])
def test_the_tolerance_is_half_the_distance_but_between_a_second_and_a_minute(distance, late):
    assert late_after_ms(distance) == late


def test_one_fires_the_latest_missed_and_counts_the_others():
    now_ms = T0 + 10 * MINUTE_MS - 20_000
    answer = caught_up(MINUTELY, due_ms=T0, now_ms=now_ms, misfire="one")
    assert answer == Catchup((T0 + 9 * MINUTE_MS,), 9, T0 + 10 * MINUTE_MS)


def test_one_fires_the_current_where_there_is_one_and_counts_what_was_missed():
    now_ms = T0 + 10 * MINUTE_MS + 5
    answer = caught_up(MINUTELY, due_ms=T0, now_ms=now_ms, misfire="one")
    assert answer == Catchup((T0 + 10 * MINUTE_MS,), 10, T0 + 11 * MINUTE_MS)


@pytest.mark.parametrize(("soon_ms", "fire"), [(10_000, ()), (9_999, (T0 + 9 * MINUTE_MS,))])
def test_one_leaves_the_missed_to_a_due_that_comes_before_a_run_would_be_over(soon_ms, fire):
    now_ms = T0 + 10 * MINUTE_MS - 10_000
    answer = catch_up(MINUTELY, "a", due_ms=T0, now_ms=now_ms, misfire="one", soon_ms=soon_ms)
    assert answer == Catchup(fire, 10 - len(fire), T0 + 10 * MINUTE_MS)


def test_skip_fires_the_current_only():
    answer = caught_up(MINUTELY, due_ms=T0, now_ms=T0 + 10 * MINUTE_MS + 5, misfire="skip")
    assert answer == Catchup((T0 + 10 * MINUTE_MS,), 10, T0 + 11 * MINUTE_MS)


def test_all_fires_the_latest_hundred_missed():
    answer = caught_up(MINUTELY, due_ms=T0, now_ms=T0 + 200 * MINUTE_MS + 5, misfire="all")
    assert answer.fire == tuple(T0 + n * MINUTE_MS for n in range(100, 201))
    assert answer.skipped == 100


def test_all_only_counts_what_is_older_than_a_day():
    answer = caught_up(Interval(HOUR_MS, spread=False), due_ms=T0 - 47 * HOUR_MS, now_ms=T0 + 5, misfire="all")
    assert answer.fire == tuple(T0 - n * HOUR_MS for n in range(23, -1, -1))
    assert answer.skipped == 24


def test_a_daily_line_that_was_missed_fires_once():
    daily = Cron("0 3 * * *")
    answer = caught_up(daily, due_ms=T0 + 3 * HOUR_MS, now_ms=T0 + 5 * HOUR_MS, misfire="one")
    assert answer == Catchup((T0 + 3 * HOUR_MS,), 0, T0 + 27 * HOUR_MS)
    assert caught_up(daily, due_ms=T0 + 3 * HOUR_MS, now_ms=T0 + 5 * HOUR_MS, misfire="skip").fire == ()


def test_a_first_due_off_the_grid_is_followed_by_the_grid():
    answer = caught_up(MINUTELY, due_ms=T0 + 7, now_ms=T0 + 60_010, misfire="all")
    assert answer == Catchup((T0 + 7, T0 + 60_000), 0, T0 + 120_000)


@pytest.mark.parametrize("misfire", ["one", "skip"])
def test_a_line_of_every_second_may_have_two_fresh_dues(misfire):
    answer = caught_up(Cron("* * * * * *"), due_ms=T0, now_ms=T0 + 10_000, misfire=misfire)
    assert answer == Catchup((T0 + 9_000, T0 + 10_000), 9, T0 + 11_000)


def test_the_shortest_interval_may_have_eleven_fresh_dues():
    answer = caught_up(Interval(100, spread=False), due_ms=T0, now_ms=T0 + 10_000, misfire="skip")
    assert answer == Catchup(tuple(range(T0 + 9_000, T0 + 10_001, 100)), 90, T0 + 10_100)


@pytest.mark.parametrize("misfire", ["one", "skip", "all"])
def test_a_one_shot_job_is_never_missed(misfire):
    assert caught_up(Once(at_ms=5), due_ms=5, now_ms=T0, misfire=misfire) == Catchup((5,), 0, None)


def test_an_event_job_fires_nothing():
    assert caught_up(OnEvent(), due_ms=5, now_ms=T0, misfire="all") == Catchup((), 0, None)


def test_what_is_not_due_yet_is_left_alone():
    assert caught_up(MINUTELY, due_ms=T0 + 1, now_ms=T0, misfire="one") == Catchup((), 0, T0 + 1)


# the promise


@given(
    schedules, misfires, st.integers(0, 30 * DAY_MS), st.integers(0, 3) | st.integers(0, 4_000), st.integers(0, 60_000)
)
def test_it_equals_the_rule_followed_due_by_due(schedule, misfire, offset, turns, late):
    due_ms = T0 + offset
    distance = next_due(schedule, "a", due_ms) - due_ms
    now_ms = due_ms + min(turns * distance, 20 * DAY_MS) + late
    assume(not isinstance(schedule, Interval) or (now_ms - due_ms) // schedule.every_ms < 5_000)
    assume(not isinstance(schedule, Cron) or schedule.line.count(" ") == 4 or now_ms - due_ms < DAY_MS)

    assert caught_up(schedule, due_ms=due_ms, now_ms=now_ms, misfire=misfire) == slow_catch_up(
        schedule, due_ms, now_ms, misfire
    )


@given(schedules, misfires, st.integers(0, T0), st.integers(0, 10 * 365 * DAY_MS))
def test_whatever_the_downtime_the_answer_is_ordered_and_looks_ahead(schedule, misfire, due_ms, down_ms):
    answer = caught_up(schedule, due_ms=due_ms, now_ms=due_ms + down_ms, misfire=misfire)

    assert answer == caught_up(schedule, due_ms=due_ms, now_ms=due_ms + down_ms, misfire=misfire)
    assert all(left < right for left, right in pairwise(answer.fire))
    assert all(due_ms <= due <= due_ms + down_ms for due in answer.fire)
    assert answer.skipped >= 0
    assert answer.fire or answer.skipped
    assert answer.next_ms > due_ms + down_ms
    assert answer.next_ms == next_due(schedule, "a", answer.fire[-1]) if answer.fire and misfire != "all" else True


@given(schedules, misfires, st.integers(0, T0), st.integers(0, DAY_MS))
def test_after_catching_up_there_is_nothing_to_catch_up(schedule, misfire, due_ms, down_ms):
    now_ms = due_ms + down_ms
    answer = caught_up(schedule, due_ms=due_ms, now_ms=now_ms, misfire=misfire)
    assert caught_up(schedule, due_ms=answer.next_ms, now_ms=now_ms, misfire=misfire) == Catchup((), 0, answer.next_ms)


@pytest.mark.parametrize("misfire", ["one", "skip", "all"])
@pytest.mark.parametrize(
    "schedule",
    [Interval(100), Cron("* * * * * *", "Europe/Berlin"), Cron("* * * * *"), Cron("* * 3 * * *"), Cron("0 0 29 2 *")],
)
@pytest.mark.parametrize("years", [1, 10, 50])
def test_no_downtime_is_too_long(schedule, misfire, years):
    """A generous limit: listing a hundred-millisecond grid of one year alone would take minutes."""
    due_ms, started = next_due(schedule, "a", T0 - years * 365 * DAY_MS), time.thread_time()
    answer = caught_up(schedule, due_ms=due_ms, now_ms=T0, misfire=misfire)
    assert time.thread_time() - started < 0.5
    assert answer.next_ms > T0
    assert len(answer.fire) <= CATCH_UP_MAX + 12


def test_a_burst_of_dues_is_not_walked_through(monkeypatch):
    """86,400 dues on the first of the month, asked for on the second: the latest hundred cost some hundred steps."""
    asked = []

    def counted(self, after_ms, answer=CompiledCron.next_after):
        asked.append(after_ms)
        return answer(self, after_ms)

    monkeypatch.setattr(CompiledCron, "next_after", counted)
    due_ms = next_due(Cron("* * * 1 * *"), "a", T0)
    asked.clear()
    answer = caught_up(Cron("* * * 1 * *"), due_ms=due_ms, now_ms=due_ms + DAY_MS + 9 * HOUR_MS, misfire="all")
    assert answer.skipped == 86_400 - len(answer.fire)
    assert len(answer.fire) == CATCH_UP_MAX
    assert len(asked) < 500


def test_the_count_of_a_long_downtime_is_exact():
    year = 365 * DAY_MS
    assert (
        caught_up(Interval(100, spread=False), due_ms=T0 - year, now_ms=T0, misfire="skip").skipped == year // 100 - 10
    )
    assert caught_up(Cron("* * * * *"), due_ms=T0 - year, now_ms=T0, misfire="skip").skipped == year // MINUTE_MS


def test_dues_older_than_ten_years_are_not_counted():
    answer = caught_up(Cron("0 0 * * *"), due_ms=0, now_ms=T0, misfire="skip")
    assert answer.skipped == 3_653
