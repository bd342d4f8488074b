"""What if we are given runs that only others can run?  Let those go first.

A claim cannot ask for handlers.  Where nodes have different code (a deploy is under way, or two apps share a store) a
node that always waits at the bell may be first every time, and the node that knows the handler never.  So whoever was
given such a run stops waiting in line for a while and only looks now and then:

    waits at the bell ── a run that only they know ────▶ looks every 0.5 s, up to 2 s while that is all there is
            ▲                                                   │
            └──────────── none for half a minute ───────────────┘

A look takes more than there are seats, so that our own runs are found behind those of others.
"""

from __future__ import annotations

from random import Random

from pollux.clock import Clock

POLITE_MS = 30_000
LOOK_MS = (500.0, 2_000.0)
SIFT_MAX = 100  # runs in one look


class ClaimBackoff:
    """Is told what a claim gave, and says how to claim on."""

    def __init__(self, *, clock: Clock, dice: Random) -> None:
        self._clock, self._dice = clock, dice
        self._until = 0.0
        self._in_vain = 0  # looks in a row that found nothing for us
        self._is_full = False

    @property
    def is_polite(self) -> bool:
        return self._clock.mono_ms() < self._until

    def limit(self, free: int) -> int:
        """How many runs to ask for."""
        return max(free, SIFT_MAX) if self.is_polite else free

    def saw(self, *, seated: int, asked: int, given: int, lets_others: bool) -> None:
        """What a claim gave; `lets_others`: some of it only another living node can run."""
        if lets_others:
            self._until = self._clock.mono_ms() + POLITE_MS
        self._in_vain = self._in_vain + 1 if lets_others and not seated else 0
        self._is_full = given >= asked

    def rest_ms(self, usual_ms: float) -> float:
        """How long to stay away after a look that gave us nothing."""
        if not self.is_polite or (self._in_vain and self._is_full):  # there may be more behind them
            return usual_ms
        least, most = LOOK_MS
        rest_ms = min(most, least * 2.0 ** min(8, max(0, self._in_vain - 1)))
        return max(usual_ms, rest_ms * self._dice.uniform(0.75, 1.25))
