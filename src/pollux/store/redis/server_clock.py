"""The server's time, and detection of its jumps.

Leases end by the server's clock.  Between two answers our own monotonic time is the expected difference.
"""

from __future__ import annotations

from pollux.clock import Clock
from pollux.store.clock_jumps import SLACK_MS, JumpGuard


class RedisClock:
    """The server's clock as far as its last answer tells."""

    def __init__(self, clock: Clock, now_ms: int) -> None:
        self._clock = clock
        self._now_ms, self._at_ms = now_ms, clock.mono_ms()
        self._guard = JumpGuard(self)

    def now_ms(self) -> int:
        """What it should show now."""
        return int(self._now_ms + self._clock.mono_ms() - self._at_ms)

    def mono_ms(self) -> float:
        return self._clock.mono_ms()

    def before(self, lease_ms: int) -> dict[str, int]:
        """What a claim is told: for how long no lease may be taken back, and what time it should find."""
        grace_ms = lease_ms // 3 + SLACK_MS
        return {"hold_ms": self._guard.hold_ms(lease_ms), "expected": self.now_ms(), "grace_ms": grace_ms}

    def learn(self, now_ms: int, asked_ms: float, lease_ms: int) -> None:
        """What it showed when it was asked at that monotonic time; a leap begins a grace."""
        self._now_ms, self._at_ms = now_ms, asked_ms
        self._guard.hold_ms(lease_ms)
