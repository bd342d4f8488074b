"""State that the leader keeps in notes: what it cannot read, the highest time of the clock, and counts of ended runs.

Each is recalled from the notes when a term begins, adds notes to plans, and accepts them once a plan was written.

*Jobs* that cannot be decoded are of another release or were written by hand: they are neither fired nor written, and
all others go on.  Each is read again every minute, whenever the feed names it, and at the start of the next term: so
the note that lists it goes with the plan that consumes the entry that named it.  A job with an unusable schedule is
rechecked as often and listed likewise; its requested runs run.

*Feed entries.*  The plan that consumes one that cannot be decoded moves its text into a note.  What it reported is
unknown, so the planner is then rebuilt from the store: a new one reads everything but jobs without a due time, and
finds these by a scan of all jobs.  The note requests that scan until all that it found is written, so it is lost with
no leader.

*Clock.*  A clock that was ahead leaves due times, retries and visible times that are ahead, too.  A leader that finds
the clock behind the highest time that leaders planned with (at the start of its term, or later) scans all jobs and all
waiting runs, a page a turn, between its firings, and corrects times further ahead than schedule and policy allow.  The
note keeps the highest time until all corrections are written, so that the next leader scans again if this one dies.

*Counts.*  The ends that a plan consumes are counted once it is accepted, and so are the runs it cancels, which are in
no feed.  They are reported in one note an hour, every few seconds, so that most writes stay cheap.  Unreported counts
are handed from planner to planner, also after errors.  A leader that resigns reports them; if it dies, its last seconds
are lost.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pollux.ids import made_ms_of
from pollux.model import (
    Cause,
    Earlier,
    End,
    Note,
    NotePut,
    Plan,
    Run,
    RunState,
    Spoilt,
    UnreadableNote,
    feed_value,
    jobs_value,
    unreadable_note,
)
from pollux.model.leader_notes import (
    CAME_BACK_MS,
    ENDS,
    FEED,
    JOBS,
    MINUTES,
    NOTED_MS,
    REPORTED_MS,
    SCHEDULES,
    ClockSetBack,
    HourlyCounts,
    Minutes,
    Row,
    added,
    clock_key,
    clock_note,
    clock_value,
    hour_of,
    hour_put,
    unreadable_note_key,
)
from pollux.outcome import RETRY_AFTER_MAX_MS
from pollux.units import MINUTE_MS

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


REPORT_MS = 5_000
BACK_MAX = 24 * MINUTES  # older ends are counted in the oldest minute, which bounds the notes of a plan
NONE: Row = (0, 0, 0, 0)
_DONE, _DEAD, _CANCELLED = RunState.DONE, RunState.DEAD, RunState.CANCELLED  # an enum in a set is slow to find


class UnreportedCounts(Struct, frozen=True):
    """Counts that one planner hands to the next."""

    from_ms: int
    minutes: Minutes  # counts that are in no note
    doubtful: tuple[NotePut, ...] = ()  # notes with these counts whose write has no known answer


class RunCounter:
    """Counts of the ended runs of a version, by minute."""

    def __init__(self, version: int, now_ms: int) -> None:
        self.again_ms: int | None = None  # when counts are to be reported
        self._version, self._from_ms = version, now_ms
        self._entries: dict[int, tuple[int, Row]] = {}  # open feed entries: the minute, and the counts of its ends
        self._minutes: Minutes = {}
        self._unreported: Minutes = {}  # of them: counts that are in no note
        self._reported_ms: int | None = None

    def recall(self, notes: Iterable[Note], now_ms: int, left: UnreportedCounts | None = None) -> None:
        """Read the counts of earlier leaders, and those `left` unreported by the previous planner."""
        oldest = now_ms // MINUTE_MS // MINUTES - BACK_MAX // MINUTES
        for hour in map(hour_of, notes):
            if hour is not None and hour.version == self._version:
                self._from_ms = min(self._from_ms, hour.from_ms)
                if hour.hour >= oldest:
                    self._minutes |= hour.minutes
        if left is not None and not self._are_written(left.doubtful):
            self._from_ms = min(self._from_ms, left.from_ms)
            self._unreported = {minute: row for minute, row in left.minutes.items() if minute // MINUTES >= oldest}
            self._minutes |= _sums(self._minutes, self._unreported)
            self.again_ms = now_ms if self._unreported else None

    def _are_written(self, doubtful: Sequence[NotePut]) -> bool:
        """Whether these notes were written: counts only grow, so the stored ones are then no lower."""
        hours = [hour_of(Note(put.key, put.value)) for put in doubtful]
        rows = [each for hour in hours if hour is not None for each in hour.minutes.items()]
        return bool(rows) and all(self._minutes.get(minute, NONE)[0] >= row[0] for minute, row in rows)

    def leave(self, doubtful: Plan | None) -> UnreportedCounts:
        """The counts for the next planner.  `doubtful`: a plan that may have been written; without its ends."""
        puts = () if doubtful is None else tuple([put for put in doubtful.notes if put.key.startswith(ENDS)])
        return UnreportedCounts(self._from_ms, self._unreported, puts)

    def read(self, feed: int, ends: Sequence[End]) -> None:
        """Count the ends of a feed entry, to be added when it is consumed; they ended at about the same time."""
        ended = failed = dead = cancelled = 0
        for end in ends:
            state = end.state
            if state is _DONE:
                failed += end.failed
            elif state is _DEAD:
                failed += 1
                dead += 1
            elif state is _CANCELLED:
                failed += end.failed
                cancelled += 1
            else:
                continue
            ended += 1
        if ended:
            self._entries[feed] = (ends[0].ended_ms // MINUTE_MS, (ended, failed, dead, cancelled))

    def notes(self, consumed: Sequence[int], cancelled: int, now_ms: int) -> tuple[NotePut, ...]:
        """The notes for a plan that consumes these entries and cancels so many runs."""
        if self._reported_ms is not None and 0 <= now_ms - self._reported_ms < REPORT_MS:
            return ()
        return self.unreported(self._news(consumed, cancelled, now_ms))

    def unreported(self, news: Minutes | None = None) -> tuple[NotePut, ...]:
        """The notes of all counts that are in no note yet, with `news` added."""
        news = news or {}
        hours = sorted({minute // MINUTES for minute in (*self._unreported, *news)})
        minutes = self._minutes | _sums(self._minutes, news) if hours else {}
        return tuple([self._put(hour, minutes) for hour in hours])

    def accept(self, plan: Plan, now_ms: int, kept: Container[int] = ()) -> None:
        """Apply a plan that was written at that time: its consumed entries are counted, its notes are reported.

        Entries that stay in the feed (`kept`) are counted when they are consumed, unless a note of the plan includes
        them.
        """
        if not (self._entries or self._unreported or plan.cancels):
            return
        has_report = any(put.key.startswith(ENDS) for put in plan.notes)
        counted = plan.consumed if has_report else [feed for feed in plan.consumed if feed not in kept]
        news = self._news(counted, len(plan.cancels), now_ms)
        self._minutes |= _sums(self._minutes, news)
        self._unreported |= _sums(self._unreported, news)
        for feed in counted:
            self._entries.pop(feed, None)
        if has_report:
            self._unreported = {}
            self._reported_ms = now_ms
            oldest = (now_ms // MINUTE_MS - BACK_MAX) // MINUTES * MINUTES
            self._minutes = {minute: row for minute, row in self._minutes.items() if minute >= oldest}
        self.again_ms = (self._reported_ms or now_ms) + REPORT_MS if self._unreported else None

    def _news(self, consumed: Sequence[int], cancelled: int, now_ms: int) -> Minutes:
        """The counts of these entries by minute; cancelled runs end now."""
        now = now_ms // MINUTE_MS
        news: Minutes = {now: (cancelled, 0, 0, cancelled)} if cancelled else {}
        for feed in consumed if self._entries else ():
            found = self._entries.get(feed)
            if found is not None:
                minute, row = min(max(found[0], now - BACK_MAX), now), found[1]
                before = news.get(minute)
                news[minute] = row if before is None else added(before, row)
        return news

    def _put(self, hour: int, minutes: Minutes) -> NotePut:
        its = {minute: row for minute, row in minutes.items() if minute // MINUTES == hour}
        return hour_put(HourlyCounts(self._version, hour, self._from_ms, its))


def _sums(before: Minutes, news: Minutes) -> Minutes:
    """The minutes of `news`, each with the counts of `before` added."""
    return {minute: added(before.get(minute, NONE), row) for minute, row in news.items()}
