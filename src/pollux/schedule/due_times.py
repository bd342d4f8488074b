"""Due times of the four kinds of schedules: the first, the next, and those missed in a downtime.

* **interval**: at once, then on the grid of the job (see `interval`).
* **cron**: not at start; at the times of the line (see `cron`).
* **once**: at its moment, or at once; a moment in the past is due too, as it may have come during a downtime.
* **event**: no due times; a trigger or a person requests runs.

After a downtime `catch_up` decides which due times fire, how many are skipped, and the next due time:

    due_ms                                                   now_ms
      x     x     x     x     x     x     x     x     x     x  |  x
      |<---------------- missed ----------------->|<- fresh ->|  next_ms

A due time is *missed* if it is older than `late_after` when it is planned: half the interval (of a cron line: half the
distance to the following due time), at least a second, at most a minute.  Fresh due times always fire.  Of the missed
ones `skip` fires none and `all` the latest hundred of the last 24 hours.  `one` fires the latest, unless a due time is
fresh or follows within `soon_ms`: that one fires on time, and a catch-up run would only delay it.  The others are
counted as skipped.  A one-shot job is never missed.

Afterwards every due time up to `now_ms` is either fired or counted, and `next_ms` is after `now_ms`.  The cost is
bounded for any downtime: an interval is counted by one division, a cron line by its days, for at most ten years (older
due times are not counted).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal, Protocol

from msgspec import Struct

from pollux.errors import InvalidInput
from pollux.model.job import INTERVAL_MIN_MS, Cron, Interval, Once, OnEvent, Schedule
from pollux.schedule import interval
from pollux.schedule.cron import CompiledCron, compile_cron
from pollux.units import DAY_MS, DURATION_MAX_MS, MOMENT_MAX_MS, format_ms


def validate(schedule: Schedule, job_id: str) -> None:
    """Refuse an unusable schedule: an interval too short or too long, an invalid line or zone."""
    match schedule:
        case Interval():
            _check_every(schedule.every_ms)
            _check_moment(schedule.start_ms, "start")
        case Cron():
            compile_cron(schedule.line, schedule.tz, job_id)
        case Once():
            _check_moment(schedule.at_ms, "at")
        case OnEvent():
            pass


def first_due(schedule: Schedule, job_id: str, *, now_ms: int, batch_size: int = 1) -> int | None:
    """The first due time of a new job; `batch_size` is the number of new jobs in the same put."""
    match schedule:
        case Interval():
            return interval.first_due(schedule, job_id, now_ms=now_ms, batch_size=batch_size)
        case Cron():
            return compile_cron(schedule.line, schedule.tz, job_id).next_after(now_ms)
        case Once():
            return now_ms if schedule.at_ms is None else schedule.at_ms
        case OnEvent():
            return None


def next_due(schedule: Schedule, job_id: str, after_ms: int) -> int | None:
    """The due time after `after_ms`, strictly later; None if there is none."""
    match schedule:
        case Interval():
            return interval.next_due(schedule, job_id, after_ms)
        case Cron():
            return compile_cron(schedule.line, schedule.tz, job_id).next_after(after_ms)
        case Once() | OnEvent():
            return None


def _check_every(every_ms: int) -> None:
    if every_ms < INTERVAL_MIN_MS:
        what, cure = f"an interval of {format_ms(every_ms)} is too short", f"give at least {format_ms(INTERVAL_MIN_MS)}"
        raise InvalidInput(what, where="every", cure=cure)
    if every_ms > DURATION_MAX_MS:
        what, cure = f"an interval of {format_ms(every_ms)} is too long", f"give at most {format_ms(DURATION_MAX_MS)}"
        raise InvalidInput(what, where="every", cure=cure)


def _check_moment(moment_ms: int | None, where: str) -> None:
    if moment_ms is not None and not 0 <= moment_ms <= MOMENT_MAX_MS:
        what = f"the moment {moment_ms} ms is out of reach"
        raise InvalidInput(what, where=where, cure="moments are UTC and go from 1970 to 9999")


LATE_AFTER_MIN_MS = 1_000
LATE_AFTER_MAX_MS = 60_000
CATCH_UP_MAX = 100
CATCH_UP_AGE_MAX_MS = DAY_MS
_FIRED_MAX = {"one": 1, "skip": 0, "all": CATCH_UP_MAX}


class Catchup(Struct, frozen=True):
    """The due times to fire, oldest first; the number of skipped ones; the first due time after now."""

    fire: tuple[int, ...]
    skipped: int
    next_ms: int | None


class _Dues(Protocol):
    """The due times from the stored one to now, at least one, without a list of all."""

    total: int
    next_ms: int
    fresh_max: int  # upper limit of how many can be fresh

    @property
    def every_ms(self) -> int | None:
        """Their distance, if it is constant."""
        ...

    def latest(self, count: int) -> list[int]:
        """At least the latest `count` due times (all if there are fewer), oldest first, contiguous."""
        ...


def catch_up(
    schedule: Schedule,
    job_id: str,
    *,
    due_ms: int,
    now_ms: int,
    misfire: Literal["one", "skip", "all"],
    soon_ms: int = LATE_AFTER_MIN_MS,
) -> Catchup:
    """Fire or skip every due time from the stored `due_ms` to `now_ms`; `soon_ms`: the expected duration of a run."""
    if due_ms > now_ms:
        return Catchup((), 0, due_ms)
    match schedule:
        case Interval():
            return _judge(_GridDues(schedule, job_id, due_ms, now_ms), now_ms, misfire, soon_ms)
        case Cron():
            cron = compile_cron(schedule.line, schedule.tz, job_id)
            return _judge(_CronDues(cron, due_ms, now_ms), now_ms, misfire, soon_ms)
        case Once():
            return Catchup((due_ms,), 0, None)
        case OnEvent():
            return Catchup((), 0, None)


def late_after_of(schedule: Schedule | None, job_id: str, due_ms: int) -> int:
    """How late this due time may be planned without being missed."""
    next_ms = None if schedule is None else next_due(schedule, job_id, due_ms)
    return LATE_AFTER_MAX_MS if next_ms is None else late_after_ms(next_ms - due_ms)


def late_after_ms(distance_ms: int) -> int:
    """How late a due time may be planned without being missed if the following one is `distance_ms` later."""
    return min(max(distance_ms // 2, LATE_AFTER_MIN_MS), LATE_AFTER_MAX_MS)


def _judge(dues: _Dues, now_ms: int, misfire: Literal["one", "skip", "all"], soon_ms: int) -> Catchup:
    fired_max = _FIRED_MAX[misfire]
    latest = dues.latest(fired_max + dues.fresh_max)
    following = [*latest[1:], dues.next_ms]
    distances = [dues.every_ms or after - due for due, after in zip(latest, following, strict=True)]
    is_late = [now_ms - due > late_after_ms(distance) for due, distance in zip(latest, distances, strict=True)]
    missed = [due for due, late in zip(latest, is_late, strict=True) if late]
    if misfire == "all":
        missed = [due for due in missed if now_ms - due <= CATCH_UP_AGE_MAX_MS]
    fresh = [due for due, late in zip(latest, is_late, strict=True) if not late]
    if misfire == "one" and (fresh or dues.next_ms - now_ms <= soon_ms):
        missed = []
    fire = (*missed[max(0, len(missed) - fired_max) :], *fresh)
    return Catchup(fire, dues.total - len(fire), dues.next_ms)


class _GridDues:
    """The stored due time, then those of the grid, counted by one division."""

    def __init__(self, spec: Interval, job_id: str, due_ms: int, now_ms: int) -> None:
        self._due_ms, self.every_ms = due_ms, spec.every_ms
        self.fresh_max = LATE_AFTER_MIN_MS // spec.every_ms + 2  # both ends, and a first due time off the grid
        self._grid_ms = interval.next_due(spec, job_id, due_ms)
        on_grid = max(0, (now_ms - self._grid_ms) // self.every_ms + 1)
        self.total = 1 + on_grid
        self.next_ms = self._grid_ms + on_grid * self.every_ms

    def latest(self, count: int) -> list[int]:
        return [self._at(index) for index in range(max(0, self.total - count), self.total)]

    def _at(self, index: int) -> int:
        return self._grid_ms + (index - 1) * self.every_ms if index else self._due_ms


class _CronDues:
    """The stored due time, then those of the line, counted by days and listed from shortly before now."""

    every_ms = None
    fresh_max = 2  # due times are at least a second apart, which is the shortest tolerance

    def __init__(self, cron: CompiledCron, due_ms: int, now_ms: int) -> None:
        self._cron, self._due_ms, self._now_ms = cron, due_ms, now_ms
        self._from_ms = max(due_ms, now_ms - DURATION_MAX_MS)
        self.total, self.next_ms = 1, cron.next_after(self._from_ms)
        if self.next_ms <= now_ms:
            self.total, self.next_ms = 1 + cron.count_between(self._from_ms, now_ms), cron.next_after(now_ms)

    def latest(self, count: int) -> list[int]:
        if self.total == 1:
            return [self._due_ms]
        if self.total <= count:
            return [self._due_ms, *self._after(self._from_ms)]
        return self._after(self._start_of(count))

    def _after(self, start_ms: int) -> list[int]:
        found, due = [], self._cron.next_after(start_ms)
        while due <= self._now_ms:
            found.append(due)
            due = self._cron.next_after(due)
        return found

    def _start_of(self, count: int) -> int:
        """A time after which at least `count` due times remain, and few more, found by doubling and bisection."""
        back_s = 64
        while self._last(back_s) < count:
            back_s *= 2
        if self._last(back_s) > 4 * count:
            back_s = bisect_left(range(back_s), count, lo=back_s // 2, key=self._last)
        return self._now_ms - back_s * 1_000

    def _last(self, seconds: int) -> int:
        """The number of due times in the last `seconds` seconds."""
        return self._cron.count_between(self._now_ms - seconds * 1_000, self._now_ms)
