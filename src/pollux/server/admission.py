"""How many requests begin at once?  A few in each round of the loop; the others wait for the next ones, in their order.

The engine lives on the same loop.  A firing takes some rounds of it, so how late it is depends on how long a round
takes: sixty requests that come together would make one of them as long as all sixty.  While a run is due, or on its way
to a seat, still fewer begin.  Nobody is refused here, and who waits for the store is not counted: only beginning is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

A_ROUND = 8  # requests; a usual one keeps the loop for a fraction of a millisecond
PRESSED_ROUND = 2  # while the engine is pressed for time


class AdmissionQueue:
    def __init__(self, a_round: int = A_ROUND, *, is_pressed: Callable[[], bool] = lambda: False) -> None:
        self._is_pressed, self._a_round = is_pressed, a_round
        self._left = a_round
        self._has_begun = False  # anybody, in this round
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False

    async def enter(self) -> None:
        """Go in: at once if few came in this round, else when the turn comes."""
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
        """The next round; one in which nobody comes is the last until somebody does."""
        self._is_turning = self._has_begun or bool(self._waiting)
        self._left, self._has_begun = self._room(), False
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # somebody who left is not counted
                turn.set_result(None)
                self._begin()
        if self._is_turning:
            loop.call_soon(self._turn, loop)

    def _begin(self) -> None:
        self._left -= 1
        self._has_begun = True

    def _room(self) -> int:
        return min(self._a_round, PRESSED_ROUND) if self._is_pressed() else self._a_round
