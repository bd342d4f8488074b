"""Notes of the leader: its clock, and the counts of ended runs.

*Clock.*  One note a version holds the highest time its leaders planned with, and the corrections after a jump back.

A plan carries `leader:clock:<version>` if the note would grow by `NOTED_MS` or more, so no leader plans with a time
further beyond it.  A leader that finds the store's clock behind the note detects that the clock was ahead earlier.

*Counts.*  The notes `ends:<version>:<hour>` count the runs that ended by minute.  They are complete, unlike history,
which is thinned, and are kept for a week.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from pollux.model.note import Note, NotePut
from pollux.model.unreadable import LEADER_NOTES
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, WEEK_MS, format_moment, format_ms

CLOCK = f"{LEADER_NOTES}clock:"  # below `LEADER_NOTES`, so that one read gets it with the notes of unreadable records
CAME_BACK_MS = 5_000  # a time further ahead was written before the clock came back; synchronized servers differ by less
NOTED_MS = 5_000  # plans use times less far beyond the note
REPORTED_MS = DAY_MS  # for this long a corrected jump back is reported


class ClockSetBack(Struct, frozen=True):
    """A jump back of the store's clock, and the leader's corrections since."""

    at_ms: int  # when the leader noticed it, by the corrected clock
    by_ms: int
    jobs: int = 0  # corrected next due times, further ahead than the schedule allows
    runs: int = 0  # corrected retries and visible times, further ahead than the policy allows
    is_over: bool = False  # all jobs and runs have been checked


class ClockNote(Struct, frozen=True):
    version: int
    highest_ms: int
    back: ClockSetBack | None = None

    def is_behind(self, now_ms: int) -> bool:
        """Whether the clock is behind the highest time, so that planned times may be too far ahead."""
        return self.highest_ms > now_ms + CAME_BACK_MS

    def words(self, now_ms: int) -> str:
        """The state of the clock as text; empty without a recent jump back.

        `the clock jumped back by 1d at 2026-03-01T08:30:00Z: 12 due times and 1 run were corrected`
        """
        back = self.back
        if back is None or (back.is_over and self.is_behind(now_ms)):
            behind = format_ms((self.highest_ms - now_ms) // SECOND_MS * SECOND_MS)
            words = f"the clock is {behind} behind the latest time used for planning: due times may be too far ahead"
            return words if self.is_behind(now_ms) else ""
        if back.is_over and now_ms >= back.at_ms + REPORTED_MS:
            return ""
        jobs, runs = (
            f"{back.jobs} due time{'' if back.jobs == 1 else 's'}",
            f"{back.runs} run{'' if back.runs == 1 else 's'}",
        )
        at, by_ms = format_moment(back.at_ms // SECOND_MS * SECOND_MS), back.by_ms // SECOND_MS * SECOND_MS
        since = f"{jobs} and {runs} were corrected" if back.is_over else "the leader corrects what lies too far ahead"
        return f"the clock came back by {format_ms(by_ms)} at {at}: {since}"


def clock_key(version: int) -> str:
    return f"{CLOCK}{version}"


def clock_value(highest_ms: int, back: ClockSetBack | None) -> dict[str, Any]:
    return {"highest_ms": highest_ms} | ({} if back is None else {"back": msgspec.to_builtins(back)})


def clock_note(note: Note) -> ClockNote | None:
    """The decoded clock note; None for any other note, or if it cannot be decoded."""
    number = note.key.removeprefix(CLOCK)
    if not note.key.startswith(CLOCK) or not number.isdecimal() or not isinstance(note.value, dict):
        return None
    try:
        return msgspec.convert({**note.value, "version": int(number)}, ClockNote)
    except msgspec.ValidationError:
        return None


def clock_notes(notes: Iterable[Note]) -> tuple[ClockNote, ...]:
    return tuple([found for found in map(clock_note, notes) if found is not None])


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


def hour_put(counts: HourlyCounts) -> NotePut:
    value = {
        "from_ms": counts.from_ms,
        "minutes": {str(minute % MINUTES): list(row) for minute, row in sorted(counts.minutes.items())},
    }
    expires_ms = (counts.hour + 1) * HOUR_MS + WEEK_MS
    return NotePut(f"{ENDS}{counts.version}:{counts.hour}", value, expires_ms=expires_ms)


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
