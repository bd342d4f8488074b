"""How fast may missed due times be made up for?  A bucket that fills with time: no herd after a downtime."""

from __future__ import annotations

from math import ceil

BURST_S = 0.1


class Pace:
    """At most `per_s` a second; one is free at the start."""

    def __init__(self, now_ms: int, per_s: float) -> None:
        self.per_s = per_s
        self._left, self._at_ms = 1.0, now_ms

    def left(self, now_ms: int) -> float:
        """How many may go now."""
        filled = self._left + max(0, now_ms - self._at_ms) * self.per_s / 1000.0
        return min(filled, max(1.0, self.per_s * BURST_S))

    def spend(self, now_ms: int, count: int) -> None:
        self._left, self._at_ms = self.left(now_ms) - count, now_ms

    def ready_ms(self) -> int:
        """When the next one may go."""
        missing = max(0.0, 1.0 - self._left)
        return self._at_ms + ceil(missing * 1000.0 / max(self.per_s, 0.001))
