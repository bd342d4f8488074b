"""Deadlines of awaited calls: one timer for many waits.

Like `asyncio.timeout`, for waits that are many and short: one timer bounds thousands of them, and a `CutOff` without a
deadline wakes a loop out of its wait.  A wait ends by cancelling its task; `CutOff.is_over` tells this cancellation
from one of the task itself.  A timer that fires late because the event loop was blocked extends the deadlines once, so
that answers that have arrived meanwhile are read.
"""

from __future__ import annotations

import asyncio
from typing import Any

HELD_S = 0.25  # a timer this late was delayed by a blocked event loop
GRACE_S = 2.0  # extension of such a deadline, to read answers that have arrived


class CutOff:
    """One wait of the task that creates it; `end` cancels the wait and must be called in the same loop."""

    __slots__ = ("_before", "_is_cut", "_is_left", "_waiter", "at", "held_s")

    def __init__(self, at: float = 0.0, loop: asyncio.AbstractEventLoop | None = None) -> None:
        waiter: asyncio.Task[Any] | None = asyncio.current_task(loop)
        assert waiter is not None
        self._waiter, self._before = waiter, waiter.cancelling()
        self._is_cut = self._is_left = False
        self.held_s = 0.0  # how late the loop was at the deadline
        self.at = at  # deadline, in loop time

    def end(self) -> None:
        if not self._is_cut:
            self._is_cut = True
            self._waiter.cancel()

    def is_over(self) -> bool:
        """Whether a caught `CancelledError` comes from `end` alone, not from a cancellation of the task itself."""
        return self._is_cut and self.leave() <= self._before

    def leave(self) -> int:
        """Withdraw the cancellation of `end` after the wait, if there was one; returns how many others are pending."""
        if self._is_cut and not self._is_left:
            self._is_left = True
            return self._waiter.uncancel()
        return self._waiter.cancelling()


class Deadlines:
    """Deadlines of all calls in progress, with one timer set to the earliest."""

    def __init__(self) -> None:
        self._open: set[CutOff] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # the time the timer was set to; a loop may round it

    def enter(self, seconds: float) -> CutOff:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the timer of a loop that has ended never fires
            self._loop, self._timer, self._open = loop, None, set()
        cut_off = CutOff(loop.time() + seconds, loop)
        self._open.add(cut_off)
        if self._timer is None or cut_off.at < self._due:
            self._set_timer(cut_off.at)
        return cut_off

    def leave(self, cut_off: CutOff) -> None:
        self._open.discard(cut_off)
        cut_off.leave()

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = at
        self._timer = asyncio.get_running_loop().call_at(at, self._end_overdue)

    def _end_overdue(self) -> None:
        self._timer = None
        now = max(asyncio.get_running_loop().time(), self._due)  # a loop may fire the timer a little early
        for cut_off in [each for each in self._open if each.at <= now]:
            if now - cut_off.at > HELD_S and not cut_off.held_s:
                cut_off.held_s, cut_off.at = now - cut_off.at, now + GRACE_S
                continue
            self._open.discard(cut_off)
            cut_off.end()
        if self._open:
            self._set_timer(min(each.at for each in self._open))
