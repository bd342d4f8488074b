"""Cron parser: accepted lines, and errors with the field, the fault and the cure."""

import re
import time
from collections import Counter
from datetime import UTC, datetime

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from pollux.errors import InvalidInput
from pollux.schedule import compile_cron
from pollux.schedule.cron_parser import LINE_MAX, read_line
from pollux.units import format_moment, moment_ms

T0 = moment_ms("2026-01-15T12:34:56Z")


def dues(line, count=3, *, tz="UTC", job_id="a", after=T0):
    compiled, found = compile_cron(line, tz, job_id), []
    for _ in range(count):
        after = compiled.next_after(after)
        found.append(format_moment(after, tz)[:19])
    return found


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("*/5 * * * *", "2026-01-15T12:35:00"),
        ("  */5\t* * * * ", "2026-01-15T12:35:00"),
        ("30 9 * * mon-fri", "2026-01-16T09:30:00"),
        ("0 0 * * 7", "2026-01-18T00:00:00"),
        ("0 0 * * 0", "2026-01-18T00:00:00"),
        ("0 0 L * *", "2026-01-31T00:00:00"),
        ("0 0 LW * *", "2026-01-30T00:00:00"),
        ("0 0 * * FRI#2", "2026-02-13T00:00:00"),
        ("0 0 * * 5L", "2026-01-30T00:00:00"),
        ("0 0 13 * 5", "2026-01-16T00:00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00:00"),
        ("57 * * * * *", "2026-01-15T12:34:57"),
        ("*/10 0 0 1 1 *", "2027-01-01T00:00:00"),
        ("@hourly", "2026-01-15T13:00:00"),
        ("@daily", "2026-01-16T00:00:00"),
        ("@Midnight", "2026-01-16T00:00:00"),
        ("@weekly", "2026-01-18T00:00:00"),
        ("@monthly", "2026-02-01T00:00:00"),
        ("@yearly", "2027-01-01T00:00:00"),
        ("@annually", "2027-01-01T00:00:00"),
        ("0 */24 * * *", "2026-01-16T00:00:00"),
    ],
)
def test_a_line_comes_when_it_says(line, first):
    assert dues(line, 1) == [first]


def test_six_fields_begin_with_the_seconds():
    assert dues("10,20 35 12 * * *") == ["2026-01-15T12:35:10", "2026-01-15T12:35:20", "2026-01-16T12:35:10"]


@pytest.mark.parametrize(
    ("line", "what", "cure"),
    [
        ("60 * * * *", "the minute field '60'", "minutes go from 0 to 59"),
        ("* 24 * * *", "the hour field '24'", "hours go from 0 to 23"),
        ("* * 32 2 *", "the day-of-month field '32'", "days go from 1 to 31"),
        ("* * 0 * *", "the day-of-month field '0'", "days go from 1 to 31"),
        ("* * * 13 *", "the month field '13'", "JAN to DEC"),
        ("* * * * 8", "the day-of-week field '8'", "SUN to SAT"),
        ("60 * * * * *", "the second field '60'", "seconds go from 0 to 59"),
        ("x * * * *", "the minute field 'X'", "minutes go"),
        ("0 22-2 * * *", "the hour field '22-2'", "write 22-23,0-2"),
        ("*/0 * * * *", "the minute field", "a step starts at 1"),
        ("*/90 * * * *", "a step of 90, but only 60 values", "use an interval"),
        ("0 0 ? * 1", "the day-of-month field", "write *"),
        ("0 0 15W * *", "the day-of-month field '15W'", "the nearest weekday (15W) is no part of cron"),
        ("0 0 31 2 *", "the day-of-month '31' never comes in the month '2'", "change the day or the month"),
        ("0 0 LW * */6", "never comes", "name a day"),
        ("30 2 30 FEB *", "the day-of-month '30' never comes in the month 'FEB'", "change"),
        ("", "has 0 fields", "5 fields, or 6 with the seconds first"),
        ("* * * *", "has 4 fields", "5 fields"),
        ("0 0 1 1 * 2030 x", "has 7 fields", "5 fields"),
        ("@every 5m", "@every is an interval", "use an interval"),
        ("@reboot", "names no time", "use a job that runs once"),
        ("@fortnightly", "no nickname", "@daily"),
        ("@daily x", "no nickname", "@daily"),
        ("CRON_TZ=Europe/Berlin 0 0 * * *", "zone is not part of the line", "tz: Europe/Berlin"),
        ("tz=UTC 0 0 * * *", "zone is not part of the line", "tz:"),
        ("H(5-1) * * * *", "'H(5-1)'", "upwards"),
        ("H(0-60) * * * *", "'H(0-60)'", "minutes go"),
        ("H/0 * * * *", "'H/0'", "steps start at 1"),
        ("H/61 * * * *", "a step of 61", "interval"),
        ("HH * * * *", "'HH'", "H is written"),
        ("* * * * * " + "1," * LINE_MAX, "characters", "at most"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused_with_fault_and_cure(line, what, cure):
    with pytest.raises(InvalidInput) as refusal:
        compile_cron(line, "UTC", "a")
    assert what in refusal.value.what
    assert cure in refusal.value.cure
    assert refusal.value.where == "line"


def test_a_line_whose_times_always_fall_into_a_gap_is_refused():
    """Midnight of the last Sunday of March does not exist in Beirut; a line of real time has no such instant, ever."""
    with pytest.raises(InvalidInput, match="never comes in Asia/Beirut"):
        compile_cron("0 */24 * 3 0L", "Asia/Beirut", "a")
    assert dues("0 0 * 3 0L", 1, tz="Asia/Beirut") == ["2026-03-29T01:00:00"]


def test_an_unknown_zone_is_refused_with_the_right_spelling():
    with pytest.raises(InvalidInput, match="did you mean Europe/Berlin"):
        compile_cron("@daily", "Europe/Belrin", "a")


# H


def test_h_gives_each_job_its_own_value_and_keeps_it():
    minutes = {job: dues("H * * * *", 1, job_id=job)[0][14:16] for job in ("a", "b", "c", "d", "e")}
    assert len(set(minutes.values())) > 2
    assert minutes == {job: dues("H * * * *", 1, job_id=job)[0][14:16] for job in minutes}


def test_the_values_of_h_are_the_same_for_ever():
    """If these change, an upgrade moves every job that says H."""
    assert dues("H H H H *", 1, job_id="disk") == ["2026-10-20T02:25:00"]


@pytest.mark.parametrize(
    ("field", "line", "low", "high"),
    [
        ("seconds", "H 0 0 1 1 *", 0, 59),
        ("minutes", "H 0 1 1 *", 0, 59),
        ("hours", "0 H 1 1 *", 0, 23),
        ("days", "0 0 H 1 *", 1, 28),
        ("months", "0 0 1 H *", 1, 12),
        ("weekdays", "0 0 * 1 H", 0, 6),
        ("hours", "0 H(2-5) * * *", 2, 5),
        ("days", "0 0 H(29-31) * *", 29, 31),
    ],
)
def test_h_reaches_every_value_of_its_range_and_no_other(field, line, low, high):
    found = Counter()
    for n in range(2_000):
        (value,) = getattr(read_line(line, f"job-{n}").fields, field)
        found[value] += 1
    assert set(found) == set(range(low, high + 1))
    assert min(found.values()) > 2_000 / len(found) / 3


@pytest.mark.parametrize(
    ("line", "low", "high", "step"),
    [
        ("H/15 * * * *", 0, 59, 15),
        ("H(10-40)/7 * * * *", 10, 40, 7),
        ("H/25 * * * *", 0, 59, 25),
        ("H/60 * * * *", 0, 59, 60),
    ],
)
def test_h_with_a_step_starts_inside_the_first_step(line, low, high, step):
    starts = set()
    for n in range(1_000):
        minutes = sorted(read_line(line, f"job-{n}").fields.minutes)
        assert low <= minutes[0] < low + step
        assert minutes == list(range(minutes[0], high + 1, step))
        starts.add(minutes[0])
    assert len(starts) == step


def test_h_with_a_step_beyond_its_range_is_one_value_of_the_range():
    found = [read_line("H(3-9)/20 * * * *", f"job-{n}").fields.minutes for n in range(200)]
    assert {len(minutes) for minutes in found} == {1}
    assert set().union(*found) == set(range(3, 10))


def test_h_stands_beside_other_values_and_days_with_an_h_in_their_name():
    fields = read_line("5,H(30-30) H * * THU", "a").fields
    assert fields.minutes == {5, 30}
    assert fields.weekdays == {4}


def test_the_fields_of_one_job_are_hashed_apart():
    """One hash for all would tie the minute to the second; H H would never be spread over more than 60 places."""
    same = sum(
        read_line("H H * * * *", f"j{n}").fields.seconds == read_line("H H * * * *", f"j{n}").fields.minutes
        for n in range(1_000)
    )
    assert same < 60


# whatever comes


terms = st.from_regex(
    r"(\*|H|L|LW|[0-9]{1,3}|MON|JAN|H\([0-9]-[0-9]{2}\))(-[0-9]{1,2})?([/#][0-9]{1,2})?[LW?]?", fullmatch=True
)
almost = st.lists(terms, min_size=4, max_size=7).map(" ".join)
noise = st.text(alphabet="0123456789*/,-#LWH?()@ \tAEFMNORSTU", max_size=60)


@given(almost | noise | st.text(), st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia"]))
def test_whatever_is_given_as_a_line_is_computed_or_refused_and_soon(line, tz):
    started = time.thread_time()
    try:
        assert compile_cron(line, tz, "a").next_after(T0) > T0
    except InvalidInput as refusal:
        assert refusal.cure  # noqa: PT017
        assert "\n" not in str(refusal) or "\n" in line  # noqa: PT017
    assert time.thread_time() - started < 2


def test_an_impossible_line_is_refused_at_once():
    started = time.thread_time()
    for month in ("2", "4,6,9,11"):
        with pytest.raises(InvalidInput):
            compile_cron(f"0 0 31 {month} *", "Europe/Berlin", "a")
    for dow in ("*/6", "*/7"):
        with pytest.raises(InvalidInput, match="never comes"):
            compile_cron(f"0 0 LW * {dow}", "Europe/Berlin", "a")
    assert time.thread_time() - started < 1


one = st.integers(0, 59)
fields = st.tuples(
    st.sampled_from(["0", "*/7", "3,50", "10-20/3"]),
    one.map(str) | st.sampled_from(["*", "*/9", "5-50/4"]),
    st.integers(0, 23).map(str) | st.sampled_from(["*", "*/5", "2-9", "1,13"]),
    st.integers(1, 31).map(str) | st.sampled_from(["*", "*/2", "L", "LW", "1,L", "20-31"]),
    st.integers(1, 12).map(str) | st.sampled_from(["*", "*/3", "JAN-MAR"]),
    st.integers(0, 7).map(str) | st.sampled_from(["*", "MON-FRI", "5L", "TUE#3", "0,FRI#5", "*/2"]),
)


@given(fields, st.integers(0, 2_200_000_000_000))
def test_in_utc_our_search_and_that_of_cronsim_agree(parts, after_ms):
    """cronsim steps through time, we look it up in tables: two ways to one answer."""
    line = " ".join(parts)
    try:
        compiled = compile_cron(line, "UTC", "a")
    except InvalidInput:
        return
    theirs = CronSim(line, datetime.fromtimestamp(after_ms // 1_000, UTC))
    for _ in range(5):
        after_ms = compiled.next_after(after_ms)
        assert after_ms == next(theirs).timestamp() * 1_000


def test_refusals_name_no_library():
    with pytest.raises(InvalidInput) as refusal:
        compile_cron("61 * * * *", "UTC", "a")
    assert not re.search("cronsim", str(refusal.value), re.IGNORECASE)
