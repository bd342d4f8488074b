"""Throttle for repeated log lines: the first at once, then one a minute with the number left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

EVERY_SECONDS = 60.0
THINGS_MAX = 10_000  # beyond it everything may be said anew


class LogThrottle:
    """Counts what is left unsaid.  A job that fails, or skips, every second must not drown the log."""

    def __init__(self, *, every_seconds: float = EVERY_SECONDS, now: Callable[[], float] = time.monotonic) -> None:
        self._every, self._now = every_seconds, now
        self._said: dict[Hashable, float] = {}
        self._unsaid: dict[Hashable, int] = {}

    def left_out(self, thing: Hashable) -> int | None:
        """None: leave it out this time.  Otherwise say it, and how many were left out since the last time."""
        now = self._now()
        said_at = self._said.get(thing)
        if said_at is not None and now - said_at < self._every:
            self._unsaid[thing] = self._unsaid.get(thing, 0) + 1
            return None
        if len(self._said) >= THINGS_MAX:
            self._said.clear()
            self._unsaid.clear()
        self._said[thing] = now
        return self._unsaid.pop(thing, 0)
