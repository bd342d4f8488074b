"""The clock of a server, carried on between its answers by our monotonic one.

What is due "now" or after a delay counts from the store's clock, not from that of whoever asks.  The server is asked
anew every few seconds, and when our own clocks part (a leap, a machine that slept).  What is answered is never ahead
of the server, so that a run for now is visible at once, and behind it by no more than one trip of a message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pollux.clock import Clock

AGE_MAX_MS = 10_000  # for so long an answer is carried on
APART_MAX_MS = 500  # by which our two clocks may part meanwhile


class ServerClock:
    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[int]]) -> None:
        self._clock, self._ask = clock, ask
        self._ahead_ms: float | None = None  # of our monotonic clock
        self._heard_ms = self._apart_ms = 0.0

    async def now_ms(self) -> int:
        if not self._is_known():
            told_ms = await self._ask()
            self._heard_ms = self._clock.mono_ms()
            self._ahead_ms, self._apart_ms = told_ms - self._heard_ms, self._apart()
        assert self._ahead_ms is not None
        return int(self._clock.mono_ms() + self._ahead_ms)

    def _is_known(self) -> bool:
        is_young = self._ahead_ms is not None and self._clock.mono_ms() - self._heard_ms < AGE_MAX_MS
        return is_young and abs(self._apart() - self._apart_ms) < APART_MAX_MS

    def _apart(self) -> float:
        return self._clock.now_ms() - self._clock.mono_ms()
