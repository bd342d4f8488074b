"""Schedule builders `every("30s")`, `cron("0 6 * * *")`, `once()`, `on_event()`, and their description for tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pollux.errors import InvalidInput, did_you_mean
from pollux.model.job import Cron, Interval, Once, OnEvent, Schedule
from pollux.units import duration_ms, format_moment, format_ms, moment_ms


def every(
    interval: str | float = "", *, start: str | datetime | None = None, spread: bool = True, **unknown: Any
) -> Interval:
    """A fixed interval, at a phase hashed from the job's id; `spread=False`: on the full minute or hour; `start`: the
    earliest due time.
    """
    if interval == "":
        _refuse_no_interval(unknown)
    _refuse("every", unknown, ("start", "spread"))
    return Interval(
        every_ms=duration_ms(interval), start_ms=None if start is None else moment_ms(start), spread=bool(spread)
    )


def cron(line: str, *, tz: str = "UTC", **unknown: Any) -> Cron:
    """The times of a cron line (5 fields, 6 with seconds first, or @daily) in a time zone."""
    _refuse("cron", unknown, ("tz",))
    return Cron(line=line, tz=tz)


def once(at: str | datetime | None = None) -> Once:
    """A single time: now, or a moment with an offset ("2026-12-01T06:00:00+01:00")."""
    return Once(at_ms=None if at is None else moment_ms(at))


def _refuse_no_interval(options: Mapping[str, Any]) -> None:
    units = {"seconds": "s", "minutes": "m", "hours": "h", "days": "d"}
    text = "".join(f"{str(options[name])[:10]}{unit}" for name, unit in reversed(units.items()) if name in options)
    raise InvalidInput("every() needs how often, as text", cure=f'write it like every("{text or "30s"}")')


def _refuse(schedule: str, unknown: Iterable[str], options: Sequence[str]) -> None:
    for name in unknown:
        what = f"{schedule}() has no option {name!r}{did_you_mean(name, options)}"
        raise InvalidInput(what, cure=f"it takes {' and '.join(options)}")


def on_event() -> OnEvent:
    """No due times: runs are requested by a trigger or a person."""
    return OnEvent()


def describe_schedule(schedule: Schedule | None) -> str:
    """A schedule in a few words."""
    match schedule:
        case None:
            return "when asked"
        case Interval(every_ms=every_ms):
            return f"every {format_ms(every_ms)}"
        case Cron(line=line, tz=tz):
            return f"cron {line}" + ("" if tz == "UTC" else f" {tz}")
        case Once():
            return "once" if schedule.at_ms is None else f"once at {format_moment(schedule.at_ms)}"
        case OnEvent():
            return "on event"
