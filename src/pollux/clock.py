"""Clocks and timed waits, the only place that reads the machine's time.

Wall time (`now_ms`) decides when things are due; monotonic time (`mono_ms`) measures waits and leases and never
jumps.  Everything else takes a `Clock` as an argument, so that tests and simulations control time.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from typing import Any, Protocol

from pollux.deadlines import CutOff


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
