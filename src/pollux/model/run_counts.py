"""How many runs ended in a version, and how?  A note for each hour of each version counts them, minute by minute.

History is thinned, this is not: `ends:<version>:<hour>` stands for a week.  The leader of the version writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from pollux.model.note import Note, NotePut
from pollux.units import HOUR_MS, MINUTE_MS, WEEK_MS

ENDS = "ends:"
MINUTES = HOUR_MS // MINUTE_MS
Row = tuple[int, int, int, int]  # ended, and of them failed, dead, cancelled
Minutes = dict[int, Row]  # by the minute, counted from 1970


class HourlyCounts(Struct, frozen=True):
    """What one note says."""

    version: int
    hour: int  # from 1970
    from_ms: int  # since then the leaders of this version have counted
    minutes: Minutes


class RunCounts(Struct, frozen=True):
    """The runs that ended in a version."""

    from_ms: int | None = None  # from this moment on; None: nobody has counted
    ended: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0


def ends_key(version: int, hour: int) -> str:
    return f"{ENDS}{version}:{hour}"


def hour_put(told: HourlyCounts) -> NotePut:
    value = {
        "from_ms": told.from_ms,
        "minutes": {str(minute % MINUTES): list(row) for minute, row in sorted(told.minutes.items())},
    }
    expires_ms = (told.hour + 1) * HOUR_MS + WEEK_MS
    return NotePut(ends_key(told.version, told.hour), value, expires_ms=expires_ms)


def hour_of(note: Note) -> HourlyCounts | None:
    """What a note counts; None: it is another one, or nobody can read it."""
    kind, _, name = note.key.partition(":")
    try:
        if f"{kind}:" != ENDS:
            return None
        version, hour = map(int, name.split(":"))
        value: Any = note.value
        rows = {hour * MINUTES + int(minute): _row(row) for minute, row in value["minutes"].items()}
        return HourlyCounts(version, hour, int(value["from_ms"]), rows)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _row(told: Iterable[Any]) -> Row:
    ended, failed, dead, cancelled = map(int, told)
    return ended, failed, dead, cancelled


def added(one: Row, other: Row) -> Row:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def counted_since(notes: Iterable[Note], version: int, since_ms: int, now_ms: int) -> RunCounts:
    """What ended in a version since then: whole minutes, the first of them is the one of `since_ms`."""
    hours = [hour for hour in map(hour_of, notes) if hour is not None and hour.version == version]
    if not hours:
        return RunCounts()
    first = since_ms // MINUTE_MS
    total: Row = (0, 0, 0, 0)
    for row in (row for hour in hours for minute, row in hour.minutes.items() if minute >= first):
        total = added(total, row)
    began_ms = max(min(hour.from_ms for hour in hours), now_ms - WEEK_MS)
    return RunCounts(max(first * MINUTE_MS, began_ms), *total)
