"""When does a cron line fire next in its zone?  Computed in local time, answered in UTC, decided at transitions.

Two kinds of lines, told apart by the hour field:

* `*` or `*/n` follows **real time**: an instant fires if the clock on the wall then shows a time that matches.
  A gap has no such instants, a fold has them twice.
* Any other follows **the clock on the wall**: a time that matches fires at the first instant at which the wall
  clock has come to it *or past it*.  So the times inside a gap fire once, together, at the end of the gap; the
  times inside a fold fire the first time only.

"The first instant at which the wall clock has come to it or past it" never goes back, so dues only grow and none
comes twice.  One search for the next matching local time (see `localtimes`) is mapped to real time segment by
segment (see `zone`); nothing here steps through minutes.
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
_PROBE_MS = 1_704_067_200_000  # 2024-01-01: what never comes after it never comes


def compile_cron(line: str, tz: str, job_id: str) -> CompiledCron:
    """The line made ready for asking; refused if it is not understood or never comes.  Cached: call it each time."""
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
    """The line, if it and the zone are ones; what is wrong with either is told at once."""
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
    """One line in one zone: the answer depends on nothing but the question.

    The last one is kept, for whoever asks about a moment between that question and its answer is answered the same:
    a thousand jobs of one line, put together, ask once.
    """

    __slots__ = ("_follows_wall", "_last", "_times", "_tz")

    def __init__(self, line: CronLine, tz: str) -> None:
        self._times, self._follows_wall, self._tz = CronMatcher(line.fields), line.follows_wall, tz
        self._last = (0, 0)  # a question, and its answer

    def next_after(self, after_ms: int) -> int:
        """The first due strictly after `after_ms`, counted from 1970 on; refused near the end of the calendar."""
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
        """How many dues lie in (after_ms, until_ms]; the cost grows with the days between, not with the dues."""
        from_s, to_s = max(after_ms // 1_000, -1) + 1, min(until_ms, _REACH_MAX_MS) // 1_000 + 1
        count = 0
        while from_s < to_s:
            segment = segment_at(self._tz, from_s)
            end_s = min(to_s, segment.end_s)
            count += self._count_in(segment, from_s, end_s)
            from_s = end_s
        return count

    def _wall_next(self, segment: Segment, from_local: int) -> int:
        """The first real second at which the wall clock has come to the next matching time, or past it."""
        local = self._times.first_from(max(from_local, segment.passed_s))
        while local - segment.offset_s >= segment.end_s:
            segment = segment_at(self._tz, segment.end_s)
        return max(local - segment.offset_s, segment.start_s)

    def _real_next(self, segment: Segment, from_local: int) -> int:
        """The first real second at which the wall clock shows a matching time; after each jump it is sought anew."""
        local, give_up_s = self._times.first_from(from_local), segment.end_s + _HORIZON_S
        while local - segment.offset_s >= segment.end_s:
            segment = segment_at(self._tz, segment.end_s)
            local = self._times.first_from(segment.start_s + segment.offset_s)
            if segment.start_s > give_up_s:
                raise InvalidInput(f"no local time matches within {HORIZON_YEARS} years", cure="change the hour")
        return local - segment.offset_s

    def _count_in(self, segment: Segment, from_s: int, to_s: int) -> int:
        """How many dues lie at the real seconds [from_s, to_s) of one segment."""
        from_local, to_local = from_s + segment.offset_s, to_s + segment.offset_s
        if not self._follows_wall:
            return self._times.count(from_local, to_local)
        count = self._times.count(max(from_local, segment.passed_s), to_local)
        if from_s == segment.start_s and self._times.count(segment.passed_s, from_local):
            count += self._times.first_from(from_local) != from_local  # the gap's times, together, at its end
        return count
