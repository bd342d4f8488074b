"""Which entries of the feed can the leader not read, and when does it begin anew because of them?

What such an entry told nobody knows, so the planner begins anew behind it and looks at all jobs.  That is dear: those
that come soon after are left where they are for some seconds, unapplied, and are then taken together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pollux.model import FeedItem, Spoilt

APART_MS = 5_000  # from the end of one look at all jobs to the next
WAITING_MAX = 500  # entries that are left for so long; with more of them the next look begins when the last one ends
PAGE_MAX = 1_000  # entries like that beside which the others are read


class SpoiltEntries:
    def __init__(self) -> None:
        self.known: dict[int, Spoilt] = {}  # those that the planner began behind
        self.waiting: dict[int, Spoilt] = {}
        self._busy_at = -math.inf  # when one that is known was last in the feed

    def __len__(self) -> int:
        return len(self.known) + len(self.waiting)

    @property
    def page(self) -> int:
        """How many more entries must be read so that these do not hide the others."""
        return min(PAGE_MAX, len(self))

    def behind(self, items: Iterable[FeedItem], now: float) -> dict[int, Spoilt]:
        """Those of the feed that the planner shall begin behind now; mostly none."""
        found = {item.id: item.entry for item in items if isinstance(item.entry, Spoilt)}
        self.known = {number: entry for number, entry in found.items() if number in self.known}
        self.waiting = {number: entry for number, entry in found.items() if number not in self.known}
        if self.known:  # a look that was begun ends: else the next one would never let it
            self._busy_at = now
            return {}
        if not self.waiting or (now - self._busy_at < APART_MS and len(self.waiting) < WAITING_MAX):
            return {}
        self.known, self.waiting, self._busy_at = self.waiting, {}, now
        return self.known
