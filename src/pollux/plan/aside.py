"""What can the leader not read?  Jobs that it leaves alone, and entries of its feed; two notes tell of them.

A job like that is another release's, or somebody wrote it by hand: nothing of it is fired or written, all others go on.
It is looked at again every minute, whenever the feed names it, and first of all in the next term: so the note says
which they are, in the very plan that consumes the entry that named it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pollux.model import Note, NotePut, Plan, SetAside, Spoilt, aside_key, feed_value, jobs_value, set_aside
from pollux.model.aside import FEED, JOBS

AGAIN_MS = 60_000
KEPT_MS = 7 * 24 * 3_600_000  # an entry, as it stood there


class Aside:
    def __init__(self, version: int) -> None:
        self.jobs: dict[str, str] = {}  # and why
        self.entries: dict[int, Spoilt] = {}  # that are still in the feed
        self.again_ms: int | None = None
        self._jobs_key, self._feed_key = aside_key(JOBS, version), aside_key(FEED, version)
        self._told: dict[str, Any] | None = None  # what the note says of jobs
        self._kept: SetAside | None = None
        self._is_told = True

    def recall(self, notes: Iterable[Note]) -> SetAside | None:
        """What the leader before could not read: of entries that is kept, of jobs it is answered."""
        found = {note.key: note for note in notes if note.key in {self._jobs_key, self._feed_key}}
        self._kept = None if self._feed_key not in found else set_aside(found[self._feed_key])
        if self._jobs_key not in found:
            return None
        self._told, self._is_told = found[self._jobs_key].value, False
        return set_aside(found[self._jobs_key])

    def put(self, job_id: str, why: str, now_ms: int) -> None:
        if self.jobs.get(job_id) != why:
            self.jobs[job_id], self._is_told = why, False
        if self.again_ms is None:
            self.again_ms = now_ms + AGAIN_MS

    def drop(self, job_id: str) -> None:
        """It can be read, or is gone."""
        if self.jobs.pop(job_id, None) is not None:
            self._is_told = False
            if not self.jobs:
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
        """What a plan writes that consumes these.  While it `looks` at all jobs the note of the jobs stays as it is."""
        puts: list[NotePut] = []
        if not (self._is_told or looks) and (value := jobs_value(self.jobs)) != self._told:
            puts.append(NotePut(self._jobs_key, value))
        gone = [(number, self.entries[number]) for number in self.spoilt(consumed)]
        if gone:
            told = feed_value(self._kept, [(number, entry.why, entry.text) for number, entry in gone])
            puts.append(NotePut(self._feed_key, told, expires_ms=now_ms + KEPT_MS))
        return tuple(puts)

    def accept(self, plan: Plan) -> None:
        for put in plan.notes:
            if put.key == self._jobs_key:
                self._told, self._is_told = put.value, put.value == jobs_value(self.jobs)
            elif put.key == self._feed_key:
                self._kept = set_aside(Note(put.key, put.value))
        for number in plan.consumed if self.entries else ():
            self.entries.pop(number, None)
