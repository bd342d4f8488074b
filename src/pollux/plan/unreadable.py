"""Jobs, schedules and feed entries that the leader cannot decode or plan, and the three notes that list them.

*Jobs.*  Such a job is of another release or was written by hand: it is neither fired nor written, and all others go on.
It is read again every minute, whenever the feed names it, and at the start of the next term: so the note that lists it
goes with the plan that consumes the entry that named it.  A job with an unusable schedule is rechecked as often and
listed likewise; its requested runs run.

*Feed entries.*  The plan that consumes such an entry moves its text into a note.  What it reported is unknown, so the
planner is then rebuilt from the store: a new one reads everything but jobs without a due time, and finds these by a
scan of all jobs.  The note requests that scan until all that it found is written, so it is lost with no leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pollux.model import Note, NotePut, Plan, Spoilt, UnreadableNote, feed_value, jobs_value, unreadable_note
from pollux.model.unreadable import FEED, JOBS, SCHEDULES, unreadable_note_key

AGAIN_MS = 60_000
EXPIRY_MS = 7 * 24 * 3_600_000  # expiry of the note with the raw entries
REBUILD_APART_MS = 5_000  # a planner that was rebuilt because of such entries lives at least this long


class UnreadableState:
    """The leader's state of everything it cannot decode or plan."""

    def __init__(self, version: int) -> None:
        self.jobs: dict[str, str] = {}  # those that cannot be decoded, and why
        self.schedules: dict[str, str] = {}  # those whose schedule cannot be used, and why
        self.entries: dict[int, Spoilt] = {}  # feed entries that were read and are not consumed yet
        self.rebuild_ms: int | None = None  # when the planner is to be rebuilt, because of consumed ones
        self._listed = {unreadable_note_key(JOBS, version): self.jobs}
        self._listed[unreadable_note_key(SCHEDULES, version)] = self.schedules
        self._stored: dict[str, Any] = dict.fromkeys(self._listed)  # the values of the stored notes
        self._feed_key, self._feed = unreadable_note_key(FEED, version), UnreadableNote(FEED, version)
        self._checked_ms = self._rebuild_from_ms = 0

    def recall(self, notes: Iterable[Note], now_ms: int) -> list[UnreadableNote]:
        """Read the notes of the previous leader; returns those after which jobs must be read."""
        found = {note.key: note for note in notes if note.key in self._listed or note.key == self._feed_key}
        recalled = {key: unreadable_note(note) for key, note in found.items()}
        self._stored |= {key: note.value for key, note in found.items() if key in self._listed}
        self._feed = recalled.get(self._feed_key) or self._feed
        self._rebuild_from_ms = now_ms + REBUILD_APART_MS if self._feed.requests_scan else now_ms
        return [each for each in recalled.values() if each is not None]

    @property
    def again_ms(self) -> int | None:
        """When all listed jobs are rechecked."""
        return self._checked_ms + AGAIN_MS if self.jobs or self.schedules else None

    def is_time(self, now_ms: int) -> bool:
        """Whether the listed jobs are to be rechecked now; the next recheck is a minute later."""
        is_over = self.again_ms is not None and now_ms >= self.again_ms
        if is_over or self.again_ms is None or now_ms < self._checked_ms:
            self._checked_ms = now_ms
        return is_over

    @property
    def requests_scan(self) -> bool:
        """Whether the stored note requests a scan of all jobs, and this planner makes it."""
        return self._feed.requests_scan and self.rebuild_ms is None

    def spoilt(self, consumed: Iterable[int]) -> tuple[int, ...]:
        """Those of these entries that could not be decoded."""
        return tuple([number for number in consumed if number in self.entries]) if self.entries else ()

    def job_notes(self) -> list[NotePut]:
        """The notes about jobs that differ from the stored ones."""
        values = {key: jobs_value(jobs) for key, jobs in self._listed.items()}
        return [NotePut(key, value) for key, value in values.items() if value != self._stored[key]]

    def feed_note(self, consumed: Iterable[int], now_ms: int, *, is_scanned: bool) -> list[NotePut]:
        """The note about entries for a plan that consumes these; `is_scanned`: all that the scan found is written."""
        entries = [(number, self.entries[number]) for number in self.spoilt(consumed)]
        if not entries and not (is_scanned and self.requests_scan):
            return []
        value = feed_value(self._feed, [(n, each.why, each.text) for n, each in entries], requests_scan=bool(entries))
        return [NotePut(self._feed_key, value, expires_ms=now_ms + EXPIRY_MS)]

    def accept(self, plan: Plan, now_ms: int) -> None:
        """Apply a plan that was written."""
        for put in plan.notes:
            if put.key in self._listed:
                self._stored[put.key] = put.value
            elif put.key == self._feed_key:
                self._feed = unreadable_note(Note(put.key, put.value)) or self._feed
        if plan.spoilt:
            self.rebuild_ms = max(now_ms, self._rebuild_from_ms)
            for number in plan.spoilt:
                self.entries.pop(number, None)
