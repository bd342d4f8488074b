"""Clocks, timed waits and deadlines, the only place that reads the machine's time.

Wall time (`now_ms`) decides when things are due; monotonic time (`mono_ms`) measures waits and leases and never
jumps.  Everything else takes a `Clock` as an argument, so that tests and simulations control time.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from typing import Any, Protocol

from pollux.events import ClockJumped, Events


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, UTC, in milliseconds."""
        ...

    def mono_ms(self) -> float:
        """Monotonic milliseconds from an arbitrary zero."""
        ...

    async def wait(self, event: asyncio.Event, timeout_ms: float | None) -> bool:
        """Wait until the event is set (True) or the timeout expires (False); None waits for ever."""
        ...

    def wait_in_thread(self, flag: threading.Event, seconds: float) -> None:
        """Block this thread until the flag is set or the timeout expires."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> float:
        return time.monotonic() * 1000.0

    async def wait(self, event: asyncio.Event, timeout_ms: float | None) -> bool:
        if event.is_set():
            return True
        if timeout_ms is not None and timeout_ms <= 0:
            await asyncio.sleep(0)
            return event.is_set()
        if timeout_ms is None:
            return await event.wait()
        cut_off = CutOff()
        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000.0, cut_off.end)
        try:
            return await event.wait()
        except asyncio.CancelledError:
            if not cut_off.is_over():
                raise
            return event.is_set()
        finally:
            timer.cancel()
            cut_off.leave()

    def wait_in_thread(self, flag: threading.Event, seconds: float) -> None:
        flag.wait(seconds)


class FakeClock:
    """A clock that moves only by `advance` and `jump`.  For tests, stories and simulations."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self._now_ms = now_ms
        self._mono_ms = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._seq = 0

    def now_ms(self) -> int:
        return self._now_ms

    def mono_ms(self) -> float:
        return self._mono_ms

    def jump(self, ms: int) -> None:
        """Move the wall clock alone, forwards or backwards, as a faulty time server does."""
        self._now_ms += ms

    async def wait(self, event: asyncio.Event, timeout_ms: float | None) -> bool:
        if event.is_set():
            return True
        if timeout_ms is None:
            return await event.wait()
        alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seq += 1
        heapq.heappush(self._sleepers, (self._mono_ms + timeout_ms, self._seq, alarm))
        waiter = asyncio.ensure_future(event.wait())
        try:
            both: set[asyncio.Future[Any]] = {waiter, alarm}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
            waiter.cancel()
        return event.is_set()

    def wait_in_thread(self, flag: threading.Event, seconds: float) -> None:
        """Wait in real time: fake time cannot wake a thread."""
        flag.wait(seconds)

    async def advance(self, ms: float) -> None:
        """Move time forward; each wait that expires meanwhile wakes at its own time, in order."""
        end = self._mono_ms + ms
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, alarm = heapq.heappop(self._sleepers)
            if alarm.done():
                continue
            self._move_to(max(at, self._mono_ms))
            alarm.set_result(None)
            await self._settle()
        self._move_to(end)
        await self._settle()

    def _move_to(self, mono_ms: float) -> None:
        whole = int(mono_ms) - int(self._mono_ms)
        self._mono_ms = mono_ms
        self._now_ms += whole

    async def _settle(self) -> None:
        """Run the loop until the tasks that are ready have run."""
        for _ in range(50):
            await asyncio.sleep(0)


JUMP_MS = 1_000  # a larger difference from the expected time is a jump of the store's clock


class StoreClock:
    """The store's time, carried on from its last answer by the monotonic clock; small differences are smoothed."""

    def __init__(self, clock: Clock, events: Events) -> None:
        self.clock, self.events = clock, events
        self.jumps = 0
        self._offset: float | None = None
        self._jumped_at = float("-inf")  # when the last jump was seen, in monotonic time

    def now_ms(self) -> int:
        """Return the store's time; before its first answer, the local clock's."""
        if self._offset is None:
            return self.clock.now_ms()
        return int(self.clock.mono_ms() + self._offset)

    def learn(
        self, now_ms: int, *, asked: float | None = None, answered: float | None = None, sent: float | None = None
    ) -> None:
        """Take the time `now_ms` from an answer.  `asked` and `answered` are monotonic times (None: now).

        Where the question waited before it was sent to the store, `sent` is when it went there.
        """
        answered = self.clock.mono_ms() if answered is None else answered
        sent = asked if sent is None else sent
        if sent is not None and sent < self._jumped_at:
            return
        seen = now_ms - answered
        if self._offset is None:
            self._offset = seen
            return
        drift = seen - self._offset
        slack = 0.0 if asked is None else answered - asked
        if drift > JUMP_MS or drift + slack < -JUMP_MS:
            self.jumps += 1
            self._offset, self._jumped_at = seen, answered
            self.events.emit(ClockJumped(int(drift)))
        else:
            self._offset = seen if drift > 0 else self._offset + max(drift, -JUMP_MS) * 0.1


LATE_S = 0.25  # a timer this late was delayed by a blocked event loop
GRACE_S = 2.0  # extension of such a deadline, to read answers that have arrived


class CutOff:
    """One wait of the task that creates it; `end` cancels the wait and must be called in the same loop."""

    __slots__ = ("_before", "_is_cut", "_is_left", "_waiter", "at", "late_s")

    def __init__(self, at: float = 0.0, loop: asyncio.AbstractEventLoop | None = None) -> None:
        waiter: asyncio.Task[Any] | None = asyncio.current_task(loop)
        assert waiter is not None
        self._waiter, self._before = waiter, waiter.cancelling()
        self._is_cut = self._is_left = False
        self.late_s = 0.0  # how late the loop was at the deadline
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
        self._open: dict[CutOff, None] = {}  # in the order in which they began
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # the time the timer was set to; a loop may round it

    def enter(self, seconds: float) -> CutOff:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the timer of a loop that has ended never fires
            self._loop, self._timer, self._open = loop, None, {}
        cut_off = CutOff(loop.time() + seconds, loop)
        self._open[cut_off] = None
        if self._timer is None or cut_off.at < self._due:
            self._set_timer(cut_off.at)
        return cut_off

    def leave(self, cut_off: CutOff) -> None:
        self._open.pop(cut_off, None)
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
            if now - cut_off.at > LATE_S and not cut_off.late_s:
                cut_off.late_s, cut_off.at = now - cut_off.at, now + GRACE_S
                continue
            self._open.pop(cut_off, None)
            cut_off.end()
        if self._open:
            self._set_timer(min(each.at for each in self._open))
