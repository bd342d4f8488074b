"""Clock of a server, extrapolated between its answers with the monotonic clock.

Times that are "now" or after a delay count from the store's clock, not from the caller's.  The server is queried again
every few seconds, and when the local wall and monotonic clocks drift apart (a clock jump, a suspended machine).  The
result is never ahead of the server, so that a run for now is visible at once, and at most one network trip behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pollux.clock import Clock

AGE_MAX_MS = 10_000  # how long an answer is extrapolated
APART_MAX_MS = 500  # allowed drift between the two local clocks


class ServerClock:
    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[int]]) -> None:
        self._clock, self._ask = clock, ask
        self._ahead_ms: float | None = None  # server time minus monotonic time
        self._heard_ms = self._apart_ms = 0.0

    async def now_ms(self) -> int:
        if not self._is_known():
            server_ms = await self._ask()
            self._heard_ms = self._clock.mono_ms()
            self._ahead_ms, self._apart_ms = server_ms - self._heard_ms, self._apart()
        assert self._ahead_ms is not None
        return int(self._clock.mono_ms() + self._ahead_ms)

    def _is_known(self) -> bool:
        is_young = self._ahead_ms is not None and self._clock.mono_ms() - self._heard_ms < AGE_MAX_MS
        return is_young and abs(self._apart() - self._apart_ms) < APART_MAX_MS

    def _apart(self) -> float:
        return self._clock.now_ms() - self._clock.mono_ms()
