"""Detection of jumps of the wall clock, after which no lease is taken back for a while, so that live nodes renew first.

Leases end by the wall clock, because processes share it.  When it jumps forwards (a time server, a laptop that woke
up), every lease seems to have ended at once although no node died.  Wall time and monotonic time are compared at
every call; a difference of more than a second is a jump, and a grace period begins.  Jumps backwards need none: a
lease that would end too late is cut by `claim`.
"""

from __future__ import annotations

from typing import Protocol

LEAP_MS = 1_000
SLACK_MS = 2_000  # beside a third of the lease, at which its owner renews


class ClockTimes(Protocol):
    """The wall clock that leases end by, and monotonic time beside it."""

    def now_ms(self) -> int: ...

    def mono_ms(self) -> float: ...


class JumpGuard:
    """Ask it before taking leases back."""

    def __init__(self, clock: ClockTimes, grace_ms: int = 12_000) -> None:
        self._clock = clock
        self._grace_ms = grace_ms
        self._wall_ms = clock.now_ms()
        self._mono_ms = clock.mono_ms()
        self._until_mono_ms = self._mono_ms
        self.leaps = 0

    def hold_ms(self, lease_ms: int | None = None) -> int:
        """For how long no lease may be taken back: 0 unless the clock has leapt forwards just now.

        With `lease_ms` the grace is a third of it and two seconds, else what was given at the start.
        """
        wall, mono = self._clock.now_ms(), self._clock.mono_ms()
        leapt = (wall - self._wall_ms) - (mono - self._mono_ms)
        self._wall_ms, self._mono_ms = wall, mono
        if leapt > LEAP_MS:
            self.leaps += 1
            self._until_mono_ms = mono + (self._grace_ms if lease_ms is None else lease_ms // 3 + SLACK_MS)
        left = self._until_mono_ms - mono
        return int(left) + 1 if left > 0 else 0
