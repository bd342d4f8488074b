"""Does the event loop keep up?  A timer that should ring twice a second, and how late it rings.

What holds the loop (a handler that computes, a call that blocks) makes everything else in this process late: claims,
renewals on the main loop, answers to people.
"""

from __future__ import annotations

import asyncio

from pollux.runtime.lateness import Lateness

EVERY_S = 0.5
RECENT = 120  # so many of the latest are remembered one by one: a minute


class LoopLag:
    def __init__(self) -> None:
        self.late = Lateness()
        self._recent = [0] * RECENT
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._expect(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def worst_ms(self) -> int:
        """The longest that the loop was held of late."""
        return max(self._recent)

    def _expect(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + EVERY_S
        self._timer = loop.call_at(self._due, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        late_ms = int((loop.time() - self._due) * 1_000)
        self._recent[self.late.count % RECENT] = late_ms
        self.late.add(late_ms)
        self._expect(loop)
