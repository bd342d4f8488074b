"""The clock note of a version: the highest time that its leaders planned by, and what was put right after a jump back.

`aside:clock:<version>` goes with a plan if it would grow by `NOTED_MS` or more, so no leader plans by a time that lies
further beyond it.  A leader that finds the store's clock behind it knows that the clock was ahead when others planned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from pollux.model.note import Note
from pollux.model.unreadable import ASIDE
from pollux.units import DAY_MS, SECOND_MS, format_moment, format_ms

CLOCK = f"{ASIDE}clock:"  # who watches reads it with what the leader has set aside
CAME_BACK_MS = 5_000  # a time further ahead was written before the clock came back; servers in step differ by less
NOTED_MS = 5_000  # what is planned lies less far beyond the note
TOLD_MS = DAY_MS  # how long after a jump back is reported once it was put right


class ClockSetBack(Struct, frozen=True):
    """A jump back of the store's clock, and what the leader has put right since."""

    at_ms: int  # when the leader noticed it, by the clock that was set
    by_ms: int
    jobs: int = 0  # next due times that lay further ahead than the schedule allows
    runs: int = 0  # retries and visible times that lay further ahead than the policy allows
    is_over: bool = False  # has the leader looked at all of them?


class ClockNote(Struct, frozen=True):
    version: int
    highest_ms: int
    back: ClockSetBack | None = None

    def is_behind(self, now_ms: int) -> bool:
        """Is the clock behind the highest time, so that what was planned by it may lie too far ahead?"""
        return self.highest_ms > now_ms + CAME_BACK_MS

    def words(self, now_ms: int) -> str:
        """What there is to say of the clock; nothing if it did not come back lately.

        `the clock came back by 1d at 2026-03-01T08:30:00Z: 12 due times and 1 run were put right`
        """
        back = self.back
        if back is None or (back.is_over and self.is_behind(now_ms)):
            behind = format_ms((self.highest_ms - now_ms) // SECOND_MS * SECOND_MS)
            words = f"the clock is {behind} behind the latest time that was planned by: due times may lie too far ahead"
            return words if self.is_behind(now_ms) else ""
        if back.is_over and now_ms >= back.at_ms + TOLD_MS:
            return ""
        jobs, runs = (
            f"{back.jobs} due time{'' if back.jobs == 1 else 's'}",
            f"{back.runs} run{'' if back.runs == 1 else 's'}",
        )
        at, by_ms = format_moment(back.at_ms // SECOND_MS * SECOND_MS), back.by_ms // SECOND_MS * SECOND_MS
        since = f"{jobs} and {runs} were put right" if back.is_over else "the leader puts right what lies too far ahead"
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
    """What a note says, if it is a clock note that can be used."""
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
