"""Base class of all loops: `Loop` sleeps, wakes, stops, counts and catches; `turn()` does the work.

    start ─▶ turn ─▶ rest ─▶ turn ─▶ rest ─▶ ... ─▶ stop
               │       ▲
               │       └── ends early at `nudge` (there is work) and at `wake` (a turn is wanted now)
               └── raises: counted, reported once, a longer rest each time, and goes on

Signals are cleared before a turn, never after it: one that arrives during a turn is answered by the next one.
A rest never lasts longer than `rest_max_ms`, so that a lost signal costs time and nothing else.  The rest after an
error ignores nudges: a store that is down is not asked more often because there is more to ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from pollux.clock import Clock, CutOff
from pollux.errors import StoreTimeout
from pollux.events import Events, LoopFailed, LoopRecovered

REST_MAX_MS = 30_000
REPORT_AGAIN_MS = 60_000  # a loop that keeps failing is reported once a minute
STOP_TIMEOUT_MS = 5_000  # time for the current turn before it is cancelled

T = TypeVar("T")


class Rest(Struct, frozen=True):
    """How long to rest after a turn: not at all, so many milliseconds, or (None) until a signal."""

    ms: float | None
    did_nothing: bool = False  # not this node's turn: whether an earlier failure is over is unknown

    NONE: ClassVar[Rest]
    UNTIL_WOKEN: ClassVar[Rest]
    STANDBY: ClassVar[Rest]


Rest.NONE = Rest(0)
Rest.UNTIL_WOKEN = Rest(None)
Rest.STANDBY = Rest(None, did_nothing=True)


class LoopStatus(Struct, frozen=True):
    """Counters of a loop; `turned_ms` is how long ago its last turn ended."""

    name: str
    is_alive: bool
    turns: int
    errors: int
    errors_in_a_row: int
    turned_ms: float | None


class Loop:
    """An activity that repeats until it is stopped.  No exception ends it."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        events: Events,
        rest_max_ms: float = REST_MAX_MS,
        backoff_ms: tuple[float, float] = (100, 3_000),
    ) -> None:
        self.name, self.clock, self.events = name, clock, events
        self.rest_max_ms = rest_max_ms
        self.backoff_ms = backoff_ms
        self.turns = 0
        self.errors = 0
        self.errors_in_a_row = 0
        self._failures_before = 0  # before turns that did nothing: unknown whether it works again
        self._nudged = asyncio.Event()  # set by nudge and wake
        self._woken = asyncio.Event()  # set by wake alone
        self._is_stopping = False
        self._running: asyncio.Task[None] | None = None
        self._current_call: CutOff | None = None
        self._reported_at: float | None = None
        self._is_reported = False
        self._turned_at: float | None = None

    async def turn(self) -> Rest:
        """Do one round; return how long to rest after it."""
        raise NotImplementedError

    @property
    def is_alive(self) -> bool:
        return self._running is not None and not self._running.done()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def is_woken(self) -> bool:
        """Whether another turn (or the end) was requested since this one began.  Then it does not wait."""
        return self._is_stopping or self._woken.is_set()

    def status(self) -> LoopStatus:
        turned_ms = None if self._turned_at is None else self.clock.mono_ms() - self._turned_at
        return LoopStatus(self.name, self.is_alive, self.turns, self.errors, self.errors_in_a_row, turned_ms)

    def start(self) -> None:
        assert self._running is None, f"loop {self.name} was started twice"
        self._is_stopping = False
        self._running = asyncio.get_running_loop().create_task(self._go(), name=f"pollux {self.name}")

    def nudge(self) -> None:
        """End the rest, but no wait inside a turn: there is work."""
        self._nudged.set()

    def wake(self) -> None:
        """End the rest, and the wait inside a turn: a turn is wanted now."""
        self._nudged.set()
        self._woken.set()
        self.interrupt()

    def interrupt(self) -> None:
        """End the wait inside the current turn, if there is one."""
        if self._current_call is not None:
            self._current_call.end()

    async def stop(self, *, timeout_ms: float = STOP_TIMEOUT_MS) -> None:
        """End after the current turn, or cancel it when the time is over.  Stopping twice is harmless."""
        self._is_stopping = True
        self.wake()
        running, self._running = self._running, None
        if running is None:
            return
        try:
            await asyncio.wait({running}, timeout=timeout_ms / 1000)
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running}, timeout=1)

    def abandon(self) -> None:
        """End at once, also in the middle of a turn, as when the process dies."""
        self._is_stopping = True
        running, self._running = self._running, None
        if running is not None:
            running.cancel()

    async def interruptible(self, call: Coroutine[Any, Any, T]) -> T | None:
        """Return the call's answer, or None if `wake` ended it: then it may or may not have taken effect."""
        self._current_call = cut_off = CutOff()
        try:
            return await call
        except asyncio.CancelledError:
            if cut_off.is_over():
                return None
            raise
        finally:
            self._current_call = None
            cut_off.leave()

    async def guarded_turn(self) -> Rest:
        """Run one turn; an error is counted, reported, and followed by a longer rest."""
        try:
            rest = await self.turn()
        except Exception as error:  # noqa: BLE001  a loop outlives whatever its turn runs into
            return self._failed(error)
        else:
            if rest.did_nothing:
                self._failures_before += self.errors_in_a_row
                self.errors_in_a_row = 0
            elif self.errors_in_a_row or self._failures_before:
                self._recovered()
            return rest
        finally:
            self.turns += 1
            self._turned_at = self.clock.mono_ms()

    async def _go(self) -> None:
        while not self._is_stopping:
            self._nudged.clear()
            self._woken.clear()
            rest = await self.guarded_turn()
            if not self._is_stopping:
                await self._pause(rest)

    async def _pause(self, rest: Rest) -> None:
        if rest.ms is not None and rest.ms <= 0:
            await asyncio.sleep(0)  # a loop that never rests must not starve the others
            return
        signal = self._woken if self.errors_in_a_row else self._nudged
        await asyncio.sleep(0)  # work that this turn began is often over at once, and signals: then no timer is needed
        await self.clock.wait(signal, self.rest_max_ms if rest.ms is None else min(rest.ms, self.rest_max_ms))

    def _failed(self, error: Exception) -> Rest:
        least, most = self.backoff_ms
        rest_ms = min(most, least * 2 ** min(self.errors_in_a_row, 20))
        self.errors += 1
        self.errors_in_a_row += 1
        now = self.clock.mono_ms()
        if self._reported_at is None or now - self._reported_at >= REPORT_AGAIN_MS:
            self._reported_at = now
            self._is_reported = True
            self.events.emit(LoopFailed(self.name, error, self.errors_in_a_row, int(rest_ms)))
        return Rest(rest_ms)

    def _recovered(self) -> None:
        if self._is_reported:
            self.events.emit(LoopRecovered(self.name, self._failures_before + self.errors_in_a_row))
        self._is_reported = False
        self._failures_before = self.errors_in_a_row = 0


async def bounded(call: Coroutine[Any, Any, T], limit_ms: float, *, what: str) -> T:
    """Return the call's answer, or raise `StoreTimeout` after that time, whatever the store's own deadline is."""
    try:
        async with asyncio.timeout(limit_ms / 1000):
            return await call
    except TimeoutError as error:
        raise StoreTimeout(f"no answer to {what} within {limit_ms:.0f} ms; it may have taken effect") from error
