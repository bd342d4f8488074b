"""Counts of the runs that ended in a version, by minute, in one note an hour.

The notes `ends:<version>:<hour>` are complete, unlike history, which is thinned; they are kept for a week.  The leader
of the version writes them.
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
Minutes = dict[int, Row]  # by minute since 1970


class HourlyCounts(Struct, frozen=True):
    """The content of one note."""

    version: int
    hour: int  # since 1970
    from_ms: int  # when the leaders of this version began to count
    minutes: Minutes


class RunCounts(Struct, frozen=True):
    """The runs that ended in a version."""

    from_ms: int | None = None  # from this time on; None: there are no counts
    ended: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0


def ends_key(version: int, hour: int) -> str:
    return f"{ENDS}{version}:{hour}"


def hour_put(counts: HourlyCounts) -> NotePut:
    value = {
        "from_ms": counts.from_ms,
        "minutes": {str(minute % MINUTES): list(row) for minute, row in sorted(counts.minutes.items())},
    }
    expires_ms = (counts.hour + 1) * HOUR_MS + WEEK_MS
    return NotePut(ends_key(counts.version, counts.hour), value, expires_ms=expires_ms)


def hour_of(note: Note) -> HourlyCounts | None:
    """The counts of a note; None for any other note, or if it cannot be decoded."""
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


def _row(values: Iterable[Any]) -> Row:
    ended, failed, dead, cancelled = map(int, values)
    return ended, failed, dead, cancelled


def added(one: Row, other: Row) -> Row:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def counted_since(notes: Iterable[Note], version: int, since_ms: int, now_ms: int) -> RunCounts:
    """The runs that ended in a version since `since_ms`, in whole minutes, the minute of `since_ms` included."""
    hours = [hour for hour in map(hour_of, notes) if hour is not None and hour.version == version]
    if not hours:
        return RunCounts()
    first = since_ms // MINUTE_MS
    total: Row = (0, 0, 0, 0)
    for row in (row for hour in hours for minute, row in hour.minutes.items() if minute >= first):
        total = added(total, row)
    began_ms = max(min(hour.from_ms for hour in hours), now_ms - WEEK_MS)
    return RunCounts(max(first * MINUTE_MS, began_ms), *total)
