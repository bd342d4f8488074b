"""Counter of ended runs: counted as the feed is consumed, reported in one note an hour, every few seconds.

The ends that a plan consumes are counted once it is accepted, and so are the runs it cancels, which are in no feed.
Notes go with plans, but not with every one, so that most writes stay cheap.  Unreported counts are handed from planner
to planner, also after errors.  A leader that resigns reports them; if it dies, its last seconds are lost.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from msgspec import Struct

from pollux.model import End, Note, NotePut, Plan, RunState
from pollux.model.leader_notes import ENDS, MINUTES, HourlyCounts, Minutes, Row, added, hour_of, hour_put
from pollux.units import MINUTE_MS

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
