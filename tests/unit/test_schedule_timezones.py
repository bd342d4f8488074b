"""Cron due times at every DST transition, compared with a brute-force oracle.

The oracle uses no cron text, no segments and no search.  Around each transition it lists the wall clock minute by
minute of real time, and applies the documented rule:

* a line of real time fires at every minute at which the wall clock shows one of its times;
* a line of the wall clock fires at the first minute at which the wall clock shows the time; a time that it never shows
  fires at the first minute after the gap in which it is missing.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from pollux.schedule import compile_cron, timezones
from pollux.units import moment_ms

HOUR, DAY = 3_600, 86_400
FROM, TO = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2041, 1, 1, tzinfo=UTC).timestamp())
REACH = 26 * HOUR  # compared so far on both sides of a transition
MARGIN = 4 * HOUR  # looked at further, so that a fold or gap at the edge is seen whole
QUARTER = 900

# fmt: off
ZONES = [
    "Africa/Cairo", "Africa/Casablanca", "Africa/El_Aaiun", "Africa/Juba", "Africa/Sao_Tome",
    "America/Asuncion", "America/Caracas", "America/Godthab", "America/Halifax", "America/Havana",
    "America/Los_Angeles", "America/New_York", "America/Port-au-Prince", "America/Santiago", "America/Sao_Paulo",
    "America/Scoresbysund", "America/St_Johns", "Antarctica/Casey", "Antarctica/Macquarie", "Antarctica/Troll",
    "Asia/Amman", "Asia/Beirut", "Asia/Damascus", "Asia/Dhaka", "Asia/Gaza",
    "Asia/Jerusalem", "Asia/Kathmandu", "Asia/Pyongyang", "Asia/Tehran", "Atlantic/Azores",
    "Australia/Adelaide", "Australia/Lord_Howe", "Australia/Sydney", "Europe/Berlin", "Europe/Dublin",
    "Europe/Istanbul", "Europe/London", "Europe/Moscow", "Pacific/Apia", "Pacific/Auckland",
    "Pacific/Chatham", "Pacific/Easter", "Pacific/Fiji", "Pacific/Tongatapu", "UTC",
]
# fmt: on


@dataclass(frozen=True)
class Wish:
    """A cron line, and what it means, spelt out: the seconds of the day, whose time it follows, a test of days."""

    line: str
    times: tuple[int, ...]
    is_real: bool
    day: Callable[[date], bool]


def wish(line, minutes, hours, *, real=False, day=lambda _: True, seconds=(0,)):
    times = tuple(sorted(h * HOUR + m * 60 + s for h in hours for m in minutes for s in seconds))
    return Wish(line, times, real, day)


def is_last(d):
    return (d + timedelta(days=1)).day == 1


SWEPT = [
    wish("30 2 * * *", [30], [2]),
    wish("0 0 * * *", [0], [0]),
    wish("59 23 * * *", [59], [23]),
    wish("30 0 * * *", [30], [0]),
    wish("15,45 1,2,3 * * *", [15, 45], [1, 2, 3]),
    wish("*/30 0-4 * * *", [0, 30], range(5)),
    wish("45 0-23 * * *", [45], range(24)),
    wish("*/15 * * * *", range(0, 60, 15), range(24), real=True),
    wish("0 */2 * * *", [0], range(0, 24, 2), real=True),
    wish("7 */5 * * *", [7], range(0, 24, 5), real=True),
    wish("30 */24 * * *", [30], [0], real=True),
    wish("20 2 L * *", [20], [2], day=is_last),
    wish("10 2 * * 0L", [10], [2], day=lambda d: d.weekday() == 6 and (d + timedelta(days=7)).month != d.month),
    wish("0 1-3 * * SUN", [0], [1, 2, 3], day=lambda d: d.weekday() == 6),
    wish("0 0,12 1 * 1", [0], [0, 12], day=lambda d: d.day == 1 or d.weekday() == 0),
    wish("5 */3 * * 6,0", [5], range(0, 24, 3), real=True, day=lambda d: d.weekday() >= 5),
    wish("30 0 */2 3-11 *", [30], [0], day=lambda d: d.day % 2 == 1 and 3 <= d.month <= 11),
]


def offset(info, second):
    return int(datetime.fromtimestamp(second, info).utcoffset().total_seconds())


@cache
def transitions(tz):
    """Every real second from 2000 to 2040 at which the clocks of that zone jump."""
    info, found = ZoneInfo(tz), []
    before = offset(info, FROM)
    for day in range(FROM + DAY, TO, DAY):
        after = offset(info, day)
        if after != before:
            quarter = next(s for s in range(day - DAY + QUARTER, day + 1, QUARTER) if offset(info, s) != before)
            found.append(next(s for s in range(quarter - QUARTER, quarter + 1, 60) if offset(info, s) != before))
            assert offset(info, found[-1] - 1) == before, "a jump off the minutes"
        before = after
    return found


def walls(info, quarter, step):
    """What the wall shows at each step of a quarter of an hour; asked anew for each, unless nothing happens in it."""
    shift = offset(info, quarter)
    if shift == offset(info, quarter + QUARTER):
        return range(quarter + shift, quarter + QUARTER + shift, step)
    return [real + offset(info, real) for real in range(quarter, quarter + QUARTER, step)]


class Window:
    """What the wall shows around a moment, step by step."""

    def __init__(self, tz, around, *, reach=REACH, step=60):
        info = ZoneInfo(tz)
        begin, end = around - reach - MARGIN, around + reach + MARGIN
        self.real = range(begin, end, step)
        self.wall = [wall for quarter in range(begin, end, QUARTER) for wall in walls(info, quarter, step)]
        self.first = dict(zip(reversed(self.wall), reversed(self.real), strict=True))
        self.last = dict(zip(self.wall, self.real, strict=True))
        self.days = range(min(self.wall) // DAY, max(self.wall) // DAY + 1)
        self.shown = range(around - reach, around + reach)
        pairs = zip(self.wall, self.wall[1:], self.real[1:], strict=False)
        self.gaps = [(before, after, real) for before, after, real in pairs if after > before + step]

    def expected(self, wish):
        """The real seconds inside the window at which the wish fires, by the rule as it is written."""
        days = [day * DAY for day in self.days if wish.day(date(1970, 1, 1) + timedelta(days=day))]
        wanted = [day + time for day in days for time in wish.times]
        fires = {self.first[wall] for wall in wanted if wall in self.first}
        if wish.is_real:
            fires |= {self.last[wall] for wall in wanted if wall in self.last}
        else:
            missing = [wall for wall in wanted if wall not in self.first] if self.gaps else []
            fires |= {real for wall in missing for before, after, real in self.gaps if before < wall < after}
        return sorted(fire for fire in fires if fire in self.shown)


def dues(compiled, shown):
    found, due = [], compiled.next_after(shown[0] * 1_000 - 1)
    while due <= shown[-1] * 1_000:
        found.append(due // 1_000)
        due = compiled.next_after(due)
    return found


def test_the_zones_and_their_jumps_are_as_many_as_we_believe():
    assert len(ZONES) >= 40
    assert sum(len(transitions(tz)) for tz in ZONES) > 2_300
    assert len(transitions("Pacific/Apia")) >= 6
    assert transitions("UTC") == []


@pytest.mark.parametrize("tz", ZONES)
def test_every_line_comes_as_the_oracle_says_around_every_jump(tz):
    compiled = [(wish, compile_cron(wish.line, tz, "a")) for wish in SWEPT]
    for around in transitions(tz) or [FROM + DAY]:
        window = Window(tz, around)
        for wish, cron in compiled:
            expected = window.expected(wish)
            assert dues(cron, window.shown) == expected, (wish.line, tz, around)
            counted = cron.count_between(window.shown[0] * 1_000 - 1, window.shown[-1] * 1_000)
            assert counted == len(expected), (wish.line, tz, around)


SECONDS = [
    wish("*/20 * * * * *", range(60), range(24), seconds=[0, 20, 40], real=True),
    wish("30 */15 2 * * *", range(0, 60, 15), [2], seconds=[30]),
    wish("0,59 59,0 0-3 * * *", [59, 0], range(4), seconds=[0, 59]),
    wish("15 7 */1 * * *", [7], range(24), seconds=[15], real=True),
]


@pytest.mark.parametrize(
    "tz",
    ["Africa/Casablanca", "America/Santiago", "Antarctica/Troll", "Asia/Beirut", "Australia/Lord_Howe", "Pacific/Apia"],
)
def test_lines_with_seconds_come_as_the_oracle_says(tz):
    compiled = [(wish, compile_cron(wish.line, tz, "a")) for wish in SECONDS]
    for around in transitions(tz)[-6:]:
        window = Window(tz, around, reach=3 * HOUR, step=1)
        for wish, cron in compiled:
            assert dues(cron, window.shown) == window.expected(wish), (wish.line, tz, around)


@pytest.fixture
def narrow_windows(monkeypatch):
    """Windows of half an hour instead of a year, so that every fold and gap has a border inside."""
    monkeypatch.setattr(timezones, "_WINDOW_BITS", 11)
    timezones._window.cache_clear()
    yield
    timezones._window.cache_clear()


@pytest.mark.parametrize("tz", ["Antarctica/Troll", "Europe/Berlin", "Pacific/Apia"])
def test_the_borders_of_the_cached_windows_change_no_answer(tz, narrow_windows):
    """Asked from every few minutes around the jump: what a window did not see itself it knows from looking back."""
    for around in transitions(tz)[-4:]:
        window = Window(tz, around)
        for wish in SWEPT[:11]:  # the daily ones: a month of half hours is a long way
            expected, cron = window.expected(wish), compile_cron(wish.line, tz, "a")
            for after in range(around - HOUR, around + 3 * HOUR, 420):
                following = [fire for fire in expected if fire > after]
                assert cron.next_after(after * 1_000) == following[0] * 1_000, (wish.line, tz, after)
                assert cron.count_between(after * 1_000, window.shown[-1] * 1_000) == len(following)


# 20,000 random cases


def random_numbers(dice, low, high):
    """A field as text, and the numbers it means."""
    match dice.randrange(5):
        case 0:
            return "*", list(range(low, high + 1))
        case 1:
            step = dice.randint(1, high)
            return f"*/{step}", list(range(low, high + 1, step))
        case 2:
            first, last = sorted(dice.sample(range(low, high + 1), 2))
            return f"{first}-{last}", list(range(first, last + 1))
        case 3:
            some = dice.sample(range(low, high + 1), dice.randint(2, 4))
            return ",".join(map(str, some)), some
        case _:
            value = dice.randint(low, high)
            return str(value), [value]


def random_day(dice):
    """Three fields as text, and the test of days they mean."""
    days, months, weekdays = random_numbers(dice, 1, 28), random_numbers(dice, 1, 12), random_numbers(dice, 0, 6)
    kind = dice.choice(["any", "any", "day", "weekday", "both", "month"])
    day_text, day_set = days if kind in {"day", "both"} else ("*", range(1, 32))
    if day_text == "*" or day_text.startswith("*/"):
        day_set = range(1, 32, int(day_text[2:] or 1))
    weekday_text, weekday_set = weekdays if kind in {"weekday", "both"} else ("*", range(7))
    month_text, month_set = months if kind == "month" else ("*", range(1, 13))
    both = all if "*" in {day_text[0], weekday_text[0]} else any  # cron: two restrictions mean "or"

    def day(d):
        return d.month in month_set and both((d.day in day_set, d.isoweekday() % 7 in weekday_set))

    return f"{day_text} {month_text} {weekday_text}", day


def random_wish(dice):
    minute_text, minutes = random_numbers(dice, 0, 59)
    hour_text, hours = random_numbers(dice, 0, 23)
    day_text, day = random_day(dice)
    return wish(f"{minute_text} {hour_text} {day_text}", minutes, hours, real=hour_text.startswith("*"), day=day)


@pytest.mark.parametrize("part", range(4))
def test_twenty_thousand_random_cases_equal_the_oracle(part):
    """A random line, asked at a random moment near a random jump: its next due is the oracle's, or lies outside."""
    dice = random.Random(part)
    zones = [tz for tz in ZONES if transitions(tz)]
    for _ in range(250):
        tz = dice.choice(zones)
        window = Window(tz, dice.choice(transitions(tz)))
        for _ in range(20):
            wish = random_wish(dice)
            after_ms = dice.randrange(window.shown[0] * 1_000, window.shown[-1] * 1_000)
            expected = next((fire * 1_000 for fire in window.expected(wish) if fire * 1_000 > after_ms), None)
            got = compile_cron(wish.line, tz, "a").next_after(after_ms)
            assert got == expected if expected else got > window.shown[-1] * 1_000, (wish.line, tz, after_ms)


# the same in plain examples


@pytest.mark.parametrize(
    ("line", "tz", "after", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", ["2026-03-29T01:00Z", "2026-03-30T00:30Z"]),
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", ["2026-03-29T01:00Z", "2026-03-30T00:00Z"]),
        ("*/30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00Z", ["2026-03-29T01:00Z", "2026-03-29T01:30Z"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30Z", ["2026-10-26T01:30Z"]),
        ("30 * * * *", "Europe/Berlin", "2026-03-29T00:00Z", ["2026-03-29T00:30Z", "2026-03-29T01:30Z"]),
        ("30 */1 * * *", "Europe/Berlin", "2026-10-25T00:00Z", ["2026-10-25T00:30Z", "2026-10-25T01:30Z"]),
        ("30 1 * * *", "America/New_York", "2026-11-01T00:00Z", ["2026-11-01T05:30Z", "2026-11-02T06:30Z"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00Z", ["2026-10-03T15:30Z", "2026-10-04T15:15Z"]),
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T23:00Z", ["2011-12-30T10:00Z", "2011-12-30T22:00Z"]),
        ("0 0 * * *", "Asia/Beirut", "2026-03-28T12:00Z", ["2026-03-28T22:00Z", "2026-03-29T21:00Z"]),
        ("0 1-2 * * *", "Antarctica/Troll", "2026-03-29T00:00Z", ["2026-03-29T01:00Z", "2026-03-29T23:00Z"]),
    ],
)
def test_at_a_jump_a_line_comes_like_this(line, tz, after, expected):
    after_ms, compiled = moment_ms(after), compile_cron(line, tz, "a")
    for due in expected:
        after_ms = compiled.next_after(after_ms)
        assert after_ms == moment_ms(due)
