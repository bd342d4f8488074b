"""Cron due times: strictly increasing, the same for all callers, with bounded caches."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.errors import InvalidInput
from pollux.schedule import compile_cron
from pollux.schedule.cron import _REACH_MAX_MS, _compile
from pollux.schedule.timezones import _window, segment_at
from pollux.units import MOMENT_MAX_MS, zone_of

T0 = 1_800_000_000_000

lines = st.sampled_from(
    [
        "* * * * *",
        "*/5 * * * *",
        "30 2 * * *",
        "0 0 * * *",
        "0 */3 * * *",
        "15,45 1-3 * * *",
        "0 9 * * MON-FRI",
        "0 0 1 * *",
        "0 0 29 2 *",
        "*/20 * * * * *",
        "0 30 2 * * *",
        "H H(0-5) * * *",
        "0 3 L * *",
        "59 23 * * 5L",
    ]
)
zones = st.sampled_from(
    [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Africa/Casablanca",
        "Pacific/Apia",
        "Asia/Beirut",
    ]
)
moments = st.integers(0, 4_000_000_000_000)


def fresh(line, tz):
    """One that nobody has asked yet."""
    return _compile.__wrapped__(line, tz, "a")


@given(lines, zones, moments)
def test_the_next_due_is_later_and_the_one_after_it_later_still(line, tz, after_ms):
    cron = compile_cron(line, tz, "a")
    found = [after_ms]
    for _ in range(20):
        found.append(cron.next_after(found[-1]))
    assert all(left < right for left, right in pairwise(found))
    assert all(due % 1_000 == 0 for due in found[1:])


@given(lines, zones, moments, st.data())
def test_between_a_moment_and_its_next_due_every_moment_has_the_same_next_due(line, tz, after_ms, data):
    """Nothing is skipped and nothing depends on where one starts to ask: late planning and early planning agree."""
    due = fresh(line, tz).next_after(after_ms)
    assert fresh(line, tz).next_after(data.draw(st.integers(after_ms, due - 1))) == due
    assert fresh(line, tz).next_after(due) > due


@given(lines, zones, st.lists(moments, min_size=1, max_size=3))
def test_an_answer_does_not_depend_on_what_was_asked_before(line, tz, asked):
    cron = compile_cron(line, tz, "a")
    for after_ms in asked:
        due = cron.next_after(after_ms)
        for moment in (due - 1, after_ms, after_ms - 90_000_000, due, due + 500, after_ms + 1):
            assert cron.next_after(moment) == fresh(line, tz).next_after(moment)


@given(lines, zones, moments, st.integers(0, 40))
def test_counting_equals_asking_one_by_one(line, tz, after_ms, times):
    cron = compile_cron(line, tz, "a")
    until_ms = after_ms
    for _ in range(times):
        until_ms = cron.next_after(until_ms)
    assert cron.count_between(after_ms, until_ms) == times
    assert cron.count_between(until_ms, after_ms) == 0


@given(zones, st.integers(0, 4_000_000_000))
def test_a_segment_tells_the_offset_and_where_it_ends(tz, at_s):
    segment = segment_at(tz, at_s)
    offset_s = int(datetime.fromtimestamp(at_s, zone_of(tz)).utcoffset().total_seconds())

    assert segment.start_s <= at_s < segment.end_s
    assert segment.offset_s == offset_s
    assert segment_at(tz, segment.end_s).start_s == segment.end_s


def test_a_line_is_the_same_to_all_jobs_unless_it_says_h():
    assert compile_cron("*/5 * * * *", "UTC", "a") is compile_cron("*/5 * * * *", "UTC", "b")
    assert compile_cron("@monthly", "UTC", "a") is compile_cron("@monthly", "UTC", "b")
    assert compile_cron("H * * * *", "UTC", "a") is not compile_cron("H * * * *", "UTC", "b")


def test_the_caches_have_a_limit():
    assert _compile.cache_info().maxsize
    assert _window.cache_info().maxsize
    assert zone_of.cache_info().maxsize


def test_a_clock_before_1970_gets_the_first_due_after_it():
    assert compile_cron("0 0 * * *", "UTC", "a").next_after(-(10**15)) == 0


def test_a_clock_near_the_end_of_the_calendar_is_refused_in_words():
    with pytest.raises(InvalidInput, match="out of reach"):
        compile_cron("* * * * *", "UTC", "a").next_after(MOMENT_MAX_MS)
    cron = fresh("0 0 1 1 *", "UTC")
    assert cron.next_after(_REACH_MAX_MS) > _REACH_MAX_MS + 1
    with pytest.raises(InvalidInput, match="out of reach"):
        cron.next_after(_REACH_MAX_MS + 1)  # also between a question and its answer


def test_the_rarest_date_is_found_over_the_year_without_a_leap_day():
    """29 February on a Sunday: 2088, then not before 2128, for 2100 has none."""
    cron = compile_cron("0 0 29 2 */8", "UTC", "a")  # */8 of 0-7 is Sunday, and a star means "and"
    after_ms, years = T0, []
    for _ in range(5):
        after_ms = cron.next_after(after_ms)
        found = datetime.fromtimestamp(after_ms / 1_000, UTC)
        assert (found.month, found.day, found.isoweekday()) == (2, 29, 7)
        years.append(found.year)
    assert years == [2032, 2060, 2088, 2128, 2156]
