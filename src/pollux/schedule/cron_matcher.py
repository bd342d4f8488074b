"""Search and count of the local times that a cron line matches, without time zones.

A local time is an integer: seconds since 1970-01-01 00:00 *on the wall clock*.  cronsim matches the day (it knows L,
LW, 5L, FRI#2 and when day and weekday mean "or"); hour, minute and second are looked up in tables, so that neither a
search nor a count iterates over minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from functools import lru_cache

from cronsim import CronSim
from msgspec import Struct

from pollux.errors import InvalidInput

DAY_S = 86_400
HORIZON_YEARS = 50  # the rarest date, 29 February on one weekday, recurs after 40 years at most
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
    """The local times that a line matches."""

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
