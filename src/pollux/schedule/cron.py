"""Due times of a cron line in its time zone: matched in local time, returned in UTC, exact at DST transitions.

There are two kinds of lines, distinguished by the hour field:

* `*` or `*/n` follows **real time**: an instant is due if the local time at it matches.  Local times in a gap have no
  such instant, those in a fold have two.
* Any other follows **the wall clock**: a matching local time is due at the first instant at which the wall clock has
  reached *or passed* it.  So the times inside a gap fire once, together, at the end of the gap; the times inside a
  fold fire the first time only.

The first instant at which the wall clock has reached or passed a time never decreases, so due times only grow and none
occurs twice.  One search for the next matching local time (`CronMatcher`) is mapped to real time segment by segment
(`timezones`), without stepping through minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from functools import lru_cache

from cronsim import CronSim
from msgspec import Struct

from pollux.errors import InvalidConfig, InvalidInput
from pollux.schedule.cron_parser import CronLine, names_a_hash, read_line
from pollux.schedule.timezones import Segment, segment_at
from pollux.units import MOMENT_MAX_MS, zone_of

DAY_S = 86_400
HORIZON_YEARS = 50  # the rarest date, 29 February on one weekday, recurs after 40 years at most
_HORIZON_S = HORIZON_YEARS * 366 * DAY_S
_REACH_MAX_MS = MOMENT_MAX_MS - 2 * _HORIZON_S * 1_000
_PROBE_MS = 1_704_067_200_000  # 2024-01-01: a line without a due time after it has none at all


def compile_cron(line: str, tz: str, job_id: str) -> CompiledCron:
    """The compiled line; refused if it is invalid or has no due times.  Cached, so call it each time."""
    return _compile(line, tz, job_id if names_a_hash(line) else "")


@lru_cache(maxsize=4096)
def _compile(line: str, tz: str, job_id: str) -> CompiledCron:
    compiled = CompiledCron(_read(line, tz, job_id), tz)
    try:
        compiled.next_after(_PROBE_MS)
    except InvalidInput as error:
        what = f"the line {line!r} never comes in {tz}"
        raise InvalidInput(what, where="line", cure="name a day and a local time that exist") from error
    return compiled


def _read(line: str, tz: str, job_id: str) -> CronLine:
    """The parsed line; problems of the line and of the zone are reported together."""
    try:
        zone_of(tz)
    except InvalidInput as wrong_zone:
        try:
            read_line(line, job_id)
        except InvalidInput as wrong_line:
            raise InvalidConfig([wrong_line, wrong_zone]) from wrong_line
        raise
    return read_line(line, job_id)


class CompiledCron:
    """One line in one zone, without state but a cache of the last result.

    A call with a time between the last argument and its result returns the same result: a thousand jobs of one line,
    put together, compute it once.
    """

    __slots__ = ("_follows_wall", "_last", "_times", "_tz")

    def __init__(self, line: CronLine, tz: str) -> None:
        self._times, self._follows_wall, self._tz = CronMatcher(line.fields), line.follows_wall, tz
        self._last = (0, 0)  # an argument of `next_after`, and its result

    def next_after(self, after_ms: int) -> int:
        """The first due time strictly after `after_ms`, from 1970 on; refused near the end of the calendar."""
        if after_ms > _REACH_MAX_MS:
            raise InvalidInput(f"the moment {after_ms} ms is out of reach of a cron line", cure="set the clock right")
        asked_ms, due_ms = self._last
        if asked_ms <= after_ms < due_ms:
            return due_ms
        after_s = max(after_ms // 1_000, -1)
        segment = segment_at(self._tz, after_s)
        from_local = after_s + 1 + segment.offset_s
        due_s = self._wall_next(segment, from_local) if self._follows_wall else self._real_next(segment, from_local)
        self._last = (after_ms, due_s * 1_000)
        return due_s * 1_000

    def count_between(self, after_ms: int, until_ms: int) -> int:
        """The number of due times in (after_ms, until_ms]; the cost grows with the days, not with the due times."""
        from_s, to_s = max(after_ms // 1_000, -1) + 1, min(until_ms, _REACH_MAX_MS) // 1_000 + 1
        count = 0
        while from_s < to_s:
            segment = segment_at(self._tz, from_s)
            end_s = min(to_s, segment.end_s)
            count += self._count_in(segment, from_s, end_s)
            from_s = end_s
        return count

    def _wall_next(self, segment: Segment, from_local: int) -> int:
        """The first real second at which the wall clock has reached or passed the next matching time."""
        local = self._times.first_from(max(from_local, segment.passed_s))
        while local - segment.offset_s >= segment.end_s:
            segment = segment_at(self._tz, segment.end_s)
        return max(local - segment.offset_s, segment.start_s)

    def _real_next(self, segment: Segment, from_local: int) -> int:
        """The first real second at which the wall clock shows a matching time; each segment needs a new search."""
        local, give_up_s = self._times.first_from(from_local), segment.end_s + _HORIZON_S
        while local - segment.offset_s >= segment.end_s:
            segment = segment_at(self._tz, segment.end_s)
            local = self._times.first_from(segment.start_s + segment.offset_s)
            if segment.start_s > give_up_s:
                raise InvalidInput(f"no local time matches within {HORIZON_YEARS} years", cure="change the hour")
        return local - segment.offset_s

    def _count_in(self, segment: Segment, from_s: int, to_s: int) -> int:
        """The number of due times in the real seconds [from_s, to_s) of one segment."""
        from_local, to_local = from_s + segment.offset_s, to_s + segment.offset_s
        if not self._follows_wall:
            return self._times.count(from_local, to_local)
        count = self._times.count(max(from_local, segment.passed_s), to_local)
        if from_s == segment.start_s and self._times.count(segment.passed_s, from_local):
            count += self._times.first_from(from_local) != from_local  # all times of the gap fire once, at its end
        return count


_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()


class _Values(Struct, frozen=True):
    """The values of one field: `at_or_after[i]` is the first one >= i (-1: none), `below[i]` counts those < i."""

    at_or_after: tuple[int, ...]
    below: tuple[int, ...]
    first: int
    count: int


@lru_cache(maxsize=1024)
def _values(members: frozenset[int], limit: int) -> _Values:
    ceilings, following = [], -1
    for index in range(limit, -1, -1):
        following = index if index in members else following
        ceilings.append(following)
    below = tuple(sum(member < index for member in members) for index in range(limit + 1))
    return _Values(tuple(reversed(ceilings)), below, min(members), len(members))


class CronMatcher:
    """The local times that a line matches, without time zones.

    A local time is an integer: seconds since 1970-01-01 00:00 *on the wall clock*.  cronsim matches the day (it handles
    L, LW, 5L, FRI#2 and when day and weekday mean "or"); hour, minute and second are looked up in tables, so that
    neither a search nor a count iterates over minutes.
    """

    __slots__ = ("_fields", "_first_of_day", "_first_of_hour", "_hours", "_minutes", "_per_hour", "_seconds")

    def __init__(self, fields: CronSim) -> None:
        self._fields = fields
        self._hours = _values(frozenset(fields.hours), 24)
        self._minutes = _values(frozenset(fields.minutes), 60)
        self._seconds = _values(frozenset(fields.seconds), 60)
        self._per_hour = self._minutes.count * self._seconds.count
        self._first_of_hour = self._minutes.first * 60 + self._seconds.first
        self._first_of_day = self._hours.first * 3600 + self._first_of_hour

    def first_from(self, local_s: int) -> int:
        """The first local time that matches, at or after `local_s`."""
        day, second_of_day = divmod(local_s, DAY_S)
        found = self._in_day_from(second_of_day) if self._matches(day) else -1
        if found >= 0:
            return day * DAY_S + found
        return self._day_from(day + 1) * DAY_S + self._first_of_day

    def count(self, from_s: int, to_s: int) -> int:
        """The number of matching local times in [from_s, to_s)."""
        if from_s >= to_s:
            return 0
        from_day, from_second = divmod(from_s, DAY_S)
        to_day, to_second = divmod(to_s, DAY_S)
        whole = sum(1 for _ in self._days(from_day, to_day)) * self._hours.count * self._per_hour
        head = self._below(from_second) if self._matches(from_day) else 0
        tail = self._below(to_second) if self._matches(to_day) else 0
        return whole - head + tail

    def _in_day_from(self, second_of_day: int) -> int:
        """The first matching second of a day at or after `second_of_day`; -1 if there is none."""
        hour, rest = divmod(second_of_day, 3600)
        if self._hours.at_or_after[hour] == hour:
            minute, second = divmod(rest, 60)
            if self._minutes.at_or_after[minute] == minute and self._seconds.at_or_after[second] >= 0:
                return hour * 3600 + minute * 60 + self._seconds.at_or_after[second]
            minute = self._minutes.at_or_after[minute + 1]
            if minute >= 0:
                return hour * 3600 + minute * 60 + self._seconds.first
            hour += 1
        hour = self._hours.at_or_after[hour]
        return hour * 3600 + self._first_of_hour if hour >= 0 else -1

    def _below(self, second_of_day: int) -> int:
        """The number of matching seconds of a day before `second_of_day`."""
        hour, rest = divmod(second_of_day, 3600)
        minute, second = divmod(rest, 60)
        count = self._hours.below[hour] * self._per_hour
        if self._hours.at_or_after[hour] == hour:
            count += self._minutes.below[minute] * self._seconds.count
            if self._minutes.at_or_after[minute] == minute:
                count += self._seconds.below[second]
        return count

    def _matches(self, day: int) -> bool:
        that_day = _date(day)
        return that_day.month in self._fields.months and self._fields.match_day(that_day)

    def _day_from(self, day: int) -> int:
        """The first matching day at or after `day`."""
        for found in self._days(day, day + HORIZON_YEARS * 366):
            return found
        raise InvalidInput(f"no date matches within {HORIZON_YEARS} years", where="line", cure="change the day")

    def _days(self, from_day: int, to_day: int) -> Iterable[int]:
        """The matching days in [from_day, to_day), month by month."""
        months, match_day = self._fields.months, self._fields.match_day
        while from_day < to_day:
            first = _date(from_day)
            end = min(to_day, from_day + _days_left(first))
            if first.month in months:
                for day in range(from_day, end):
                    if match_day(_date(day)):
                        yield day
            from_day = end


def _date(day: int) -> date:
    return date.fromordinal(day + _EPOCH_ORDINAL)


def _days_left(day: date) -> int:
    """The number of days to the first of the next month."""
    next_month = date(day.year + day.month // 12, day.month % 12 + 1, 1)
    return next_month.toordinal() - day.toordinal()
