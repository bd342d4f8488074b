"""Admission queue of requests: a few begin in each iteration of the event loop, the others wait in order.

The engine runs on the same loop.  A firing takes several iterations, so its delay depends on how long one takes: sixty
requests at once would make an iteration as long as all sixty.  While a run is due, or on its way to a seat, still fewer
begin.  No request is refused here, and one that waits for the store does not count: only the beginning is limited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

A_ROUND = 8  # requests; a usual one occupies the loop for a fraction of a millisecond
PRESSED_ROUND = 2  # while a run is due or being started


class AdmissionQueue:
    """Requests that wait to begin."""

    def __init__(self, a_round: int = A_ROUND, *, is_pressed: Callable[[], bool] = lambda: False) -> None:
        self._is_pressed, self._a_round = is_pressed, a_round
        self._left = a_round
        self._has_begun = False  # any request, in this iteration
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False

    async def enter(self) -> None:
        """Return at once if few requests began in this iteration, otherwise when the turn comes."""
        loop = asyncio.get_running_loop()
        if not self._is_turning:
            self._is_turning = True
            self._left = self._room()
            loop.call_soon(self._turn, loop)
        if self._left and not self._waiting:
            self._begin()
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Admit the next batch; stop when an iteration admitted no request."""
        self._is_turning = self._has_begun or bool(self._waiting)
        self._left, self._has_begun = self._room(), False
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # a cancelled request does not count
                turn.set_result(None)
                self._begin()
        if self._is_turning:
            loop.call_soon(self._turn, loop)

    def _begin(self) -> None:
        self._left -= 1
        self._has_begun = True

    def _room(self) -> int:
        return min(self._a_round, PRESSED_ROUND) if self._is_pressed() else self._a_round
