"""First and next due time of the four kinds of schedules.

* **interval**: at once, then on the grid of the job (see `interval`).
* **cron**: not at start; at the times of the line (see `cron`).
* **once**: at its moment, or at once; a moment in the past is due too, as it may have come during a downtime.
* **event**: no due times; a trigger or a person requests runs.
"""

from __future__ import annotations

from pollux.errors import InvalidInput
from pollux.model.schedule import INTERVAL_MIN_MS, Cron, Interval, Once, OnEvent, Schedule
from pollux.schedule import interval
from pollux.schedule.cron import compile_cron
from pollux.units import DURATION_MAX_MS, MOMENT_MAX_MS, format_ms


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


def first_due(schedule: Schedule, job_id: str, *, now_ms: int, crowd: int = 1) -> int | None:
    """The first due time of a new job; `crowd` is the number of new jobs in the same put."""
    match schedule:
        case Interval():
            return interval.first_due(schedule, job_id, now_ms=now_ms, crowd=crowd)
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
