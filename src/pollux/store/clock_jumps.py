"""Detection of forward jumps of the wall clock, after which leases are not reclaimed until live nodes have renewed.

Leases end by the wall clock, because processes share it.  When it jumps forwards (a time server, a laptop that woke
up), every lease seems to have ended at once although no node died.  Wall time and monotonic time are compared at
every call; a difference of more than a second is a jump, and a grace period begins.  Jumps backwards need none: a
lease that would end too late is cut by `claim`.
"""

from __future__ import annotations

from typing import Protocol

LEAP_MS = 1_000
SLACK_MS = 2_000  # added to a third of the lease, at which its owner renews


class ClockTimes(Protocol):
    """The wall clock that leases end by, and monotonic time."""

    def now_ms(self) -> int: ...

    def mono_ms(self) -> float: ...


class JumpGuard:
    """Decides whether leases may be reclaimed."""

    def __init__(self, clock: ClockTimes, grace_ms: int = 12_000) -> None:
        self._clock = clock
        self._grace_ms = grace_ms
        self._wall_ms = clock.now_ms()
        self._mono_ms = clock.mono_ms()
        self._until_mono_ms = self._mono_ms
        self.leaps = 0

    def hold_ms(self, lease_ms: int | None = None) -> int:
        """How long no lease may be reclaimed: 0 unless the clock jumped forwards within the grace period.

        With `lease_ms` the grace period is a third of it and two seconds, else `grace_ms`.
        """
        wall, mono = self._clock.now_ms(), self._clock.mono_ms()
        leapt = (wall - self._wall_ms) - (mono - self._mono_ms)
        self._wall_ms, self._mono_ms = wall, mono
        if leapt > LEAP_MS:
            self.leaps += 1
            self._until_mono_ms = mono + (self._grace_ms if lease_ms is None else lease_ms // 3 + SLACK_MS)
        left = self._until_mono_ms - mono
        return int(left) + 1 if left > 0 else 0
