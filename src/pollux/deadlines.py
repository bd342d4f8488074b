"""How does a wait end early, and who ended it?  By cancelling it, and by asking afterwards whose cancelling it was.

What `asyncio.timeout` does, for waits that are many and short: thousands of them are bounded by one timer, and a loop
is called out of its wait without any.  A deadline that rings late because the loop was held gives what was answered
meanwhile a moment to be heard.
"""

from __future__ import annotations

import asyncio
from typing import Any

HELD_S = 0.25  # a deadline that rings so late was held up by the loop
GRACE_S = 2.0  # then what was answered meanwhile has so long to be heard


class CutOff:
    """One wait of the task that makes it: `end` cuts the wait off, from its own loop."""

    __slots__ = ("_before", "_is_cut", "_is_left", "_waiter", "at", "held_s")

    def __init__(self, at: float = 0.0, loop: asyncio.AbstractEventLoop | None = None) -> None:
        waiter: asyncio.Task[Any] | None = asyncio.current_task(loop)
        assert waiter is not None
        self._waiter, self._before = waiter, waiter.cancelling()
        self._is_cut = self._is_left = False
        self.held_s = 0.0  # how late the loop was when its time was over
        self.at = at  # when whoever watches it is to end it

    def end(self) -> None:
        if not self._is_cut:
            self._is_cut = True
            self._waiter.cancel()

    def is_over(self) -> bool:
        """Asked of a `CancelledError`: is it ours alone?  If not, somebody cancels the waiter itself."""
        return self._is_cut and self.leave() <= self._before

    def leave(self) -> int:
        """The wait has ended, however it did: our cancelling is taken back.  Answers how many others there are."""
        if self._is_cut and not self._is_left:
            self._is_left = True
            return self._waiter.uncancel()
        return self._waiter.cancelling()


class Deadlines:
    """When do the calls that are under way have to be answered?  One timer for all of them, set to the earliest."""

    def __init__(self) -> None:
        self._open: set[CutOff] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # what the timer was set to; a loop may round it

    def enter(self, seconds: float) -> CutOff:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the timer of a loop that has ended never rings
            self._loop, self._timer, self._open = loop, None, set()
        patience = CutOff(loop.time() + seconds, loop)
        self._open.add(patience)
        if self._timer is None or patience.at < self._due:
            self._set(patience.at)
        return patience

    def leave(self, patience: CutOff) -> None:
        self._open.discard(patience)
        patience.leave()

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = at
        self._timer = asyncio.get_running_loop().call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = max(asyncio.get_running_loop().time(), self._due)  # the timer has rung: what it was set to is over
        for patience in [each for each in self._open if each.at <= now]:
            if now - patience.at > HELD_S and not patience.held_s:
                patience.held_s, patience.at = now - patience.at, now + GRACE_S
                continue
            self._open.discard(patience)
            patience.end()
        if self._open:
            self._set(min(each.at for each in self._open))
