"""Clock note of a version: the highest time its leaders planned with, and the corrections after a jump back.

A plan carries `aside:clock:<version>` if the note would grow by `NOTED_MS` or more, so no leader plans with a time
further beyond it.  A leader that finds the store's clock behind the note detects that the clock was ahead earlier.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from pollux.model.note import Note
from pollux.model.unreadable import ASIDE
from pollux.units import DAY_MS, SECOND_MS, format_moment, format_ms

CLOCK = f"{ASIDE}clock:"  # below `ASIDE`, so that one read gets it with the notes of unreadable records
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


class _Value(Struct, frozen=True, omit_defaults=True):
    highest_ms: int
    back: ClockSetBack | None = None


def clock_key(version: int) -> str:
    return f"{CLOCK}{version}"


def clock_value(highest_ms: int, back: ClockSetBack | None) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(_Value(highest_ms, back))
    return value


def clock_note(note: Note) -> ClockNote | None:
    """The decoded clock note; None for any other note, or if it cannot be decoded."""
    number = note.key.removeprefix(CLOCK)
    if not note.key.startswith(CLOCK) or not number.isdecimal():
        return None
    try:
        value = msgspec.convert(note.value, _Value)
    except msgspec.ValidationError:
        return None
    return ClockNote(int(number), value.highest_ms, value.back)


def clock_notes(notes: Iterable[Note]) -> tuple[ClockNote, ...]:
    return tuple([found for found in map(clock_note, notes) if found is not None])
