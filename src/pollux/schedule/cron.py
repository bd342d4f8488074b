"""Due times of a cron line in its time zone: matched in local time, returned in UTC, exact at DST transitions.

There are two kinds of lines, distinguished by the hour field:

* `*` or `*/n` follows **real time**: an instant is due if the local time at it matches.  Local times in a gap have no
  such instant, those in a fold have two.
* Any other follows **the wall clock**: a matching local time is due at the first instant at which the wall clock has
  reached *or passed* it.  So the times inside a gap fire once, together, at the end of the gap; the times inside a
  fold fire the first time only.

The first instant at which the wall clock has reached or passed a time never decreases, so due times only grow and none
occurs twice.  One search for the next matching local time (`cron_matcher`) is mapped to real time segment by segment
(`timezones`), without stepping through minutes.
"""

from __future__ import annotations

from functools import lru_cache

from pollux.errors import InvalidConfig, InvalidInput
from pollux.schedule.cron_matcher import DAY_S, HORIZON_YEARS, CronMatcher
from pollux.schedule.cron_parser import CronLine, names_a_hash, read_line
from pollux.schedule.timezones import Segment, segment_at
from pollux.units import MOMENT_MAX_MS, zone_of

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
