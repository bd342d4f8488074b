"""How many runs ended here?  Counted as the feed is consumed, told in a note of each hour every few seconds.

What a plan consumes is counted once it is accepted, and so is what it cancels: no feed tells of that.  A note goes with
a plan, but not with each: a write that only learns stays cheap.  What no note tells yet goes from planner to planner,
whatever error made a new one of them; a leader that goes tells it, and with one that dies its last seconds are lost.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from msgspec import Struct

from pollux.model import End, Note, NotePut, Plan, RunState
from pollux.model.run_counts import ENDS, MINUTES, HourlyCounts, Minutes, Row, added, hour_of, hour_put
from pollux.units import MINUTE_MS

TELL_MS = 5_000
BACK_MAX = 24 * MINUTES  # what ended longer ago counts as of then: so many notes can be in a plan, at most
NONE: Row = (0, 0, 0, 0)
_DONE, _DEAD, _CANCELLED = RunState.DONE, RunState.DEAD, RunState.CANCELLED  # an enum in a set is slow to find


class UnreportedCounts(Struct, frozen=True):
    """What one planner leaves to the next."""

    from_ms: int
    minutes: Minutes  # what was counted in each, and stands in no note
    doubtful: tuple[NotePut, ...] = ()  # notes that tell it, if they were written: nobody heard


class RunCounter:
    def __init__(self, version: int, now_ms: int) -> None:
        self.again_ms: int | None = None  # when there is something to tell
        self._version, self._from_ms = version, now_ms
        self._entries: dict[int, tuple[int, Row]] = {}  # that are still in the feed: the minute, and what ended
        self._minutes: Minutes = {}
        self._untold: Minutes = {}  # of them: what no note tells
        self._told_ms: int | None = None

    def recall(self, notes: Iterable[Note], now_ms: int, left: UnreportedCounts | None = None) -> None:
        """What the leaders before have counted, and what was `left` untold."""
        oldest = now_ms // MINUTE_MS // MINUTES - BACK_MAX // MINUTES
        for hour in map(hour_of, notes):
            if hour is not None and hour.version == self._version:
                self._from_ms = min(self._from_ms, hour.from_ms)
                if hour.hour >= oldest:
                    self._minutes |= hour.minutes
        if left is not None and not self._tells(left.doubtful):
            self._from_ms = min(self._from_ms, left.from_ms)
            self._untold = {minute: row for minute, row in left.minutes.items() if minute // MINUTES >= oldest}
            self._minutes |= _sums(self._minutes, self._untold)
            self.again_ms = now_ms if self._untold else None

    def _tells(self, doubtful: Sequence[NotePut]) -> bool:
        """Were these written?  A count only grows: what is there by now is at least what they said."""
        hours = [hour_of(Note(put.key, put.value)) for put in doubtful]
        rows = [each for hour in hours if hour is not None for each in hour.minutes.items()]
        return bool(rows) and all(self._minutes.get(minute, NONE)[0] >= row[0] for minute, row in rows)

    def leave(self, doubtful: Plan | None) -> UnreportedCounts:
        """For the next planner.  `doubtful`: a plan that may have been written; its own ends are not counted here."""
        puts = () if doubtful is None else tuple([put for put in doubtful.notes if put.key.startswith(ENDS)])
        return UnreportedCounts(self._from_ms, self._untold, puts)

    def read(self, feed: int, ends: Sequence[End]) -> None:
        """An entry came.  All that is in one ended at about the same time."""
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
        """What a plan writes that consumes these, and cancels so many runs."""
        if self._told_ms is not None and 0 <= now_ms - self._told_ms < TELL_MS:
            return ()
        return self.untold(self._news(consumed, cancelled, now_ms))

    def untold(self, news: Minutes | None = None) -> tuple[NotePut, ...]:
        """All that was counted and no note tells, and these minutes."""
        news = news or {}
        hours = sorted({minute // MINUTES for minute in (*self._untold, *news)})
        minutes = self._minutes | _sums(self._minutes, news) if hours else {}
        return tuple([self._put(hour, minutes) for hour in hours])

    def accept(self, plan: Plan, now_ms: int, kept: Container[int] = ()) -> None:
        """It was written at that time: what it consumed is counted, what it told is told.

        Entries that were `kept` count when they go, unless a note tells of them already.
        """
        if not (self._entries or self._untold or plan.cancels):
            return
        has_told = any(put.key.startswith(ENDS) for put in plan.notes)
        gone = plan.consumed if has_told else [feed for feed in plan.consumed if feed not in kept]
        news = self._news(gone, len(plan.cancels), now_ms)
        self._minutes |= _sums(self._minutes, news)
        self._untold |= _sums(self._untold, news)
        for feed in gone:
            self._entries.pop(feed, None)
        if has_told:
            self._untold = {}
            self._told_ms = now_ms
            oldest = (now_ms // MINUTE_MS - BACK_MAX) // MINUTES * MINUTES
            self._minutes = {minute: row for minute, row in self._minutes.items() if minute >= oldest}
        self.again_ms = (self._told_ms or now_ms) + TELL_MS if self._untold else None

    def _news(self, consumed: Sequence[int], cancelled: int, now_ms: int) -> Minutes:
        """What ended of these, by the minute; what is cancelled ends now."""
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
    """The minutes of `news`, with what was there before."""
    return {minute: added(before.get(minute, NONE), row) for minute, row in news.items()}
