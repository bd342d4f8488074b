"""Clock jumps: the highest time that leaders planned with, and the correction of times written before a jump back.

A clock that was ahead leaves due times, retries and visible times that are ahead, too.  A leader that finds the clock
behind the highest time of the version's clock note (at the start of its term, or later) scans all jobs and all waiting
runs, a page a turn, between its firings, and corrects times further ahead than schedule and policy allow.
The note keeps the highest time until all corrections are written, so that the next leader scans again if this one dies.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from pollux.ids import made_ms_of
from pollux.model import Cause, Earlier, Note, NotePut, Plan, Run
from pollux.model.leader_notes import (
    CAME_BACK_MS,
    NOTED_MS,
    REPORTED_MS,
    ClockSetBack,
    clock_key,
    clock_note,
    clock_value,
)
from pollux.outcome import RETRY_AFTER_MAX_MS

EARLIER_MAX = 100  # runs of one plan


class TermClock:
    """The highest time known in a term, and the scan after a jump back."""

    def __init__(self, version: int) -> None:
        self.is_scanning = False
        self.runs_after: str | None = None  # cursor of the next page of waiting runs; "": the first; None: none is left
        self.earlier: dict[str, int] = {}  # run -> its corrected visible time
        self._key = clock_key(version)
        self._highest_ms = 0
        self._noted_ms = 0  # the highest time in the note
        self._back: ClockSetBack | None = None
        self._is_noted = True  # the note records the current scan

    def recall(self, notes: Iterable[Note]) -> None:
        """Read the note of earlier leaders."""
        for found in [clock_note(note) for note in notes if note.key == self._key]:
            if found is not None:
                self._highest_ms = self._noted_ms = found.highest_ms
                self._back = found.back

    def saw(self, at_ms: int) -> None:
        """Record a time that the store's clock has reached."""
        self._highest_ms = max(self._highest_ms, at_ms)

    def begins_scan(self, now_ms: int, seen_ms: int) -> bool:
        """Start a scan if the clock, at `now_ms` after `seen_ms`, is behind the highest time; False if none is needed.

        A scan in progress restarts only after another jump back.
        """
        if now_ms >= self._highest_ms - CAME_BACK_MS or (self.is_scanning and now_ms >= seen_ms - CAME_BACK_MS):
            self._highest_ms = max(self._highest_ms, now_ms)
            return False
        self.is_scanning, self._is_noted = True, False
        self.runs_after = ""
        self.earlier.clear()
        self._back = ClockSetBack(at_ms=now_ms, by_ms=self._highest_ms - now_ms)
        return True

    def count_corrected(self, jobs: int) -> None:
        """Count the jobs of a page whose due time was too far ahead."""
        if self._back is not None:
            self._back = replace(self._back, jobs=self._back.jobs + jobs)

    def scan(self, runs: Iterable[Run], after: str | None, now_ms: int) -> None:
        """Scan a page of waiting runs; `after`: where the next page begins."""
        times = {run.id: earlier_ms(run, highest_ms=self._highest_ms, now_ms=now_ms) for run in runs}
        found = {run_id: at_ms for run_id, at_ms in times.items() if at_ms is not None}
        self.earlier |= found
        self.runs_after = after
        if self._back is not None:
            self._back = replace(self._back, runs=self._back.runs + len(found))

    def next_earlier(self) -> tuple[Earlier, ...]:
        """The runs whose visible time the next plan corrects."""
        return tuple([Earlier(*item) for item in list(self.earlier.items())[:EARLIER_MAX]])

    def notes(self, now_ms: int, *, is_written: bool) -> tuple[NotePut, ...]:
        """The clock note for a plan; `is_written`: all corrected due times are in the store."""
        is_over = self.is_scanning and is_written and self.runs_after is None and not self.earlier
        if self.is_scanning and not is_over and self._is_noted:
            return ()
        if not self.is_scanning and now_ms < self._noted_ms + NOTED_MS:
            return ()
        back = self._back
        if back is not None and is_over:
            back = replace(back, is_over=True)
        elif back is not None and not self.is_scanning and now_ms >= back.at_ms + REPORTED_MS:
            back = None
        highest_ms = self._highest_ms if self.is_scanning and not is_over else now_ms
        return (NotePut(self._key, clock_value(highest_ms, back)),)

    def accept(self, plan: Plan) -> None:
        """Apply a plan that was written."""
        for each in plan.earlier:
            self.earlier.pop(each.run_id, None)
        noted = [clock_note(Note(put.key, put.value)) for put in plan.notes if put.key == self._key]
        for found in [each for each in noted if each is not None]:
            self._noted_ms, self._is_noted = found.highest_ms, True
            if self.is_scanning and found.back is not None and found.back.is_over:
                self.is_scanning, self._back = False, found.back
                self._highest_ms = found.highest_ms


def earlier_ms(run: Run, *, highest_ms: int, now_ms: int) -> int | None:
    """The corrected visible time of a waiting run, if it was computed before the clock jumped back; None: no change.

    A retry keeps its delay from the end of its attempt.  A run whose last delivery was handed back waits for a short
    while only, for a seat.  A firing was due when it was made.  A run that was requested while the clock was ahead
    becomes visible if it had been visible before the jump back.  All other times are the caller's choice: those of runs
    that were made after the jump back, or before the clock went ahead.
    """
    if run.visible_ms <= now_ms:
        return None
    if _was_handed_back(run):
        return now_ms if run.visible_ms > now_ms + CAME_BACK_MS else None
    if run.tried and (run.attempt or run.lease_losses or run.crashes):
        ended_ms = run.tried[-1].ended_ms
        delay_ms = min(max(0, run.visible_ms - ended_ms), RETRY_AFTER_MAX_MS)
        return now_ms + delay_ms if ended_ms > now_ms else None
    if run.cause is Cause.SCHEDULE:
        return now_ms
    made_ms = made_ms_of(run.id)
    is_from_ahead = made_ms is not None and now_ms + CAME_BACK_MS < made_ms <= run.visible_ms
    return now_ms if is_from_ahead and run.visible_ms <= highest_ms + NOTED_MS else None


def _was_handed_back(run: Run) -> bool:
    """Whether its last delivery ended without an attempt."""
    last = run.tried[-1].fence or run.fence if run.tried else 0
    return run.fence > last
