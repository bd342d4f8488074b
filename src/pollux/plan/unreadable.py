"""Jobs, schedules and feed entries that the leader cannot decode or plan, and the three notes that list them.

Such a job is of another release or was written by hand: it is neither fired nor written, and all others go on.  It is
read again every minute, whenever the feed names it, and at the start of the next term: so the note that lists it goes
with the plan that consumes the entry that named it.  A job with an unusable schedule is rechecked as often and listed
likewise; its requested runs run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pollux.model import (
    Note,
    NotePut,
    Plan,
    Spoilt,
    UnreadableNote,
    feed_value,
    jobs_value,
    unreadable_note,
    unreadable_note_key,
)
from pollux.model.unreadable import FEED, JOBS, SCHEDULES

AGAIN_MS = 60_000
KEPT_MS = 7 * 24 * 3_600_000  # expiry of the note with the raw entries


class NamedJobs:
    """Jobs with the reason of each, and the note that lists them."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.why: dict[str, str] = {}
        self._stored: dict[str, Any] | None = None  # the value of the stored note
        self._is_stored = True

    def recall(self, note: Note) -> UnreadableNote | None:
        self._stored, self._is_stored = note.value, False
        return unreadable_note(note)

    def put(self, job_id: str, why: str) -> None:
        if self.why.get(job_id) != why:
            self.why[job_id], self._is_stored = why, False

    def drop(self, job_id: str) -> None:
        if self.why.pop(job_id, None) is not None:
            self._is_stored = False

    def notes(self) -> tuple[NotePut, ...]:
        if self._is_stored or (value := jobs_value(self.why)) == self._stored:
            return ()
        return (NotePut(self.key, value),)

    def accept(self, put: NotePut) -> None:
        self._stored, self._is_stored = put.value, put.value == jobs_value(self.why)


class UnreadableState:
    """The leader's state of everything it cannot decode or plan."""

    def __init__(self, version: int) -> None:
        self._unread = NamedJobs(unreadable_note_key(JOBS, version))
        self._unplanned = NamedJobs(unreadable_note_key(SCHEDULES, version))
        self._named = {each.key: each for each in (self._unread, self._unplanned)}
        self.jobs, self.schedules = self._unread.why, self._unplanned.why
        self.entries: dict[int, Spoilt] = {}  # open feed entries that cannot be decoded
        self.again_ms: int | None = None
        self._feed_key = unreadable_note_key(FEED, version)
        self._kept: UnreadableNote | None = None

    def recall(self, notes: Iterable[Note]) -> list[UnreadableNote]:
        """Read the notes of the previous leader; returns those about jobs, which are to be rechecked."""
        found = {note.key: note for note in notes if note.key in self._named or note.key == self._feed_key}
        kept = found.pop(self._feed_key, None)
        self._kept = None if kept is None else unreadable_note(kept)
        recalled = [self._named[key].recall(note) for key, note in found.items()]
        return [each for each in recalled if each is not None]

    def put(self, job_id: str, why: str, now_ms: int) -> None:
        """Add a job that cannot be decoded; its schedule is then unknown."""
        self._unplanned.drop(job_id)
        self._unread.put(job_id, why)
        self._schedule_recheck(now_ms)

    def put_schedule(self, job_id: str, why: str, now_ms: int) -> None:
        """Add a job whose schedule cannot be used."""
        self._unplanned.put(job_id, why)
        self._schedule_recheck(now_ms)

    def drop(self, job_id: str) -> None:
        """Remove a job that can be decoded, or was deleted."""
        self._unread.drop(job_id)
        self._cancel_recheck()

    def drop_schedule(self, job_id: str) -> None:
        """Remove a job whose schedule can be used, or that was deleted."""
        self._unplanned.drop(job_id)
        self._cancel_recheck()

    @property
    def has_notes(self) -> bool:
        """Whether there is a note to write."""
        return bool(self._unread.notes() or self._unplanned.notes())

    def _schedule_recheck(self, now_ms: int) -> None:
        if self.again_ms is None:
            self.again_ms = now_ms + AGAIN_MS

    def _cancel_recheck(self) -> None:
        if not (self.jobs or self.schedules):
            self.again_ms = None

    def is_time(self, now_ms: int) -> bool:
        """Whether all jobs are to be rechecked now; the next recheck is a minute later."""
        if self.again_ms is None or self.again_ms - AGAIN_MS <= now_ms < self.again_ms:
            return False
        is_over = now_ms >= self.again_ms
        self.again_ms = now_ms + AGAIN_MS
        return is_over

    def spoilt(self, consumed: Iterable[int]) -> tuple[int, ...]:
        """Those of these entries that could not be decoded."""
        return tuple([number for number in consumed if number in self.entries]) if self.entries else ()

    def notes(self, consumed: Iterable[int], now_ms: int, *, looks: bool) -> tuple[NotePut, ...]:
        """The notes for a plan that consumes these.  During a scan of all jobs (`looks`) those about jobs stay."""
        puts = [] if looks else [*self._unread.notes(), *self._unplanned.notes()]
        entries = [(number, self.entries[number]) for number in self.spoilt(consumed)]
        if entries:
            value = feed_value(self._kept, [(number, entry.why, entry.text) for number, entry in entries])
            puts.append(NotePut(self._feed_key, value, expires_ms=now_ms + KEPT_MS))
        return tuple(puts)

    def accept(self, plan: Plan) -> None:
        for put in plan.notes:
            if put.key in self._named:
                self._named[put.key].accept(put)
            elif put.key == self._feed_key:
                self._kept = unreadable_note(Note(put.key, put.value))
        for number in plan.consumed if self.entries else ():
            self.entries.pop(number, None)
