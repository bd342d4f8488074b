"""What can the leader not read, or not plan?  Jobs, schedules, and entries of its feed; three notes tell of them.

A job like that is another release's, or somebody wrote it by hand: nothing of it is fired or written, all others go on.
It is looked at again every minute, whenever the feed names it, and first of all in the next term: so the note says
which they are, in the very plan that consumes the entry that named it.  A job whose schedule cannot be used is looked
at as often and named as well; what somebody asks of it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pollux.model import Note, NotePut, Plan, Spoilt, UnreadableNote, aside_key, feed_value, jobs_value, set_aside
from pollux.model.unreadable import FEED, JOBS, SCHEDULES

AGAIN_MS = 60_000
KEPT_MS = 7 * 24 * 3_600_000  # an entry, as it stood there


class NamedJobs:
    """Jobs and why they stand aside, and the note that names them."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.why: dict[str, str] = {}
        self._told: dict[str, Any] | None = None  # what the note says
        self._is_told = True

    def recall(self, note: Note) -> UnreadableNote | None:
        self._told, self._is_told = note.value, False
        return set_aside(note)

    def put(self, job_id: str, why: str) -> None:
        if self.why.get(job_id) != why:
            self.why[job_id], self._is_told = why, False

    def drop(self, job_id: str) -> None:
        if self.why.pop(job_id, None) is not None:
            self._is_told = False

    def notes(self) -> tuple[NotePut, ...]:
        if self._is_told or (value := jobs_value(self.why)) == self._told:
            return ()
        return (NotePut(self.key, value),)

    def accept(self, put: NotePut) -> None:
        self._told, self._is_told = put.value, put.value == jobs_value(self.why)


class UnreadableState:
    def __init__(self, version: int) -> None:
        self._unread = NamedJobs(aside_key(JOBS, version))
        self._unplanned = NamedJobs(aside_key(SCHEDULES, version))
        self._named = {each.key: each for each in (self._unread, self._unplanned)}
        self.jobs, self.schedules = self._unread.why, self._unplanned.why
        self.entries: dict[int, Spoilt] = {}  # that are still in the feed
        self.again_ms: int | None = None
        self._feed_key = aside_key(FEED, version)
        self._kept: UnreadableNote | None = None

    def recall(self, notes: Iterable[Note]) -> list[UnreadableNote]:
        """What the leader before could not read or plan: of entries that is kept, of jobs it is answered."""
        found = {note.key: note for note in notes if note.key in self._named or note.key == self._feed_key}
        kept = found.pop(self._feed_key, None)
        self._kept = None if kept is None else set_aside(kept)
        told = [self._named[key].recall(note) for key, note in found.items()]
        return [each for each in told if each is not None]

    def put(self, job_id: str, why: str, now_ms: int) -> None:
        """It cannot be read; what is known of its schedule is not known any more."""
        self._unplanned.drop(job_id)
        self._unread.put(job_id, why)
        self._look_later(now_ms)

    def put_schedule(self, job_id: str, why: str, now_ms: int) -> None:
        """Its schedule cannot be used."""
        self._unplanned.put(job_id, why)
        self._look_later(now_ms)

    def drop(self, job_id: str) -> None:
        """It can be read, or is gone."""
        self._unread.drop(job_id)
        self._look_no_more()

    def drop_schedule(self, job_id: str) -> None:
        """It has none that cannot be used, or is gone."""
        self._unplanned.drop(job_id)
        self._look_no_more()

    @property
    def is_untold(self) -> bool:
        """Is there a note to write?"""
        return bool(self._unread.notes() or self._unplanned.notes())

    def _look_later(self, now_ms: int) -> None:
        if self.again_ms is None:
            self.again_ms = now_ms + AGAIN_MS

    def _look_no_more(self) -> None:
        if not (self.jobs or self.schedules):
            self.again_ms = None

    def is_time(self, now_ms: int) -> bool:
        """Shall all be looked at again?  Then not before another minute."""
        if self.again_ms is None or self.again_ms - AGAIN_MS <= now_ms < self.again_ms:
            return False
        is_over = now_ms >= self.again_ms
        self.again_ms = now_ms + AGAIN_MS
        return is_over

    def spoilt(self, consumed: Iterable[int]) -> tuple[int, ...]:
        """Which of these could not be read."""
        return tuple([number for number in consumed if number in self.entries]) if self.entries else ()

    def notes(self, consumed: Iterable[int], now_ms: int, *, looks: bool) -> tuple[NotePut, ...]:
        """What a plan writes that consumes these.  While it `looks` at all jobs those of jobs stay as they are."""
        puts = [] if looks else [*self._unread.notes(), *self._unplanned.notes()]
        gone = [(number, self.entries[number]) for number in self.spoilt(consumed)]
        if gone:
            told = feed_value(self._kept, [(number, entry.why, entry.text) for number, entry in gone])
            puts.append(NotePut(self._feed_key, told, expires_ms=now_ms + KEPT_MS))
        return tuple(puts)

    def accept(self, plan: Plan) -> None:
        for put in plan.notes:
            if put.key in self._named:
                self._named[put.key].accept(put)
            elif put.key == self._feed_key:
                self._kept = set_aside(Note(put.key, put.value))
        for number in plan.consumed if self.entries else ():
            self.entries.pop(number, None)
