"""How does a loop live?  `Loop` owns sleeping, waking, stopping, counting and catching; `turn()` does the work.

    start ─▶ turn ─▶ rest ─▶ turn ─▶ rest ─▶ ... ─▶ stop
               │       ▲
               │       └── ends early at `nudge` (there is work) and at `wake` (somebody wants a turn now)
               └── raises: counted, said once, rests longer each time, and goes on

Bells are cleared before a turn, never after it: what rings while a turn is under way is answered by the next one.
A rest never lasts longer than `rest_max_ms`, so that a lost bell costs time and nothing else.  The rest after an
error is deaf to nudges: a store that is down is not asked more often because there is more to ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from pollux.clock import Clock
from pollux.deadlines import CutOff
from pollux.errors import StoreTimeout
from pollux.events import Events, LoopFailed, LoopRecovered

REST_MAX_MS = 30_000
SAY_AGAIN_MS = 60_000  # a loop that keeps failing says so once a minute
STOP_PATIENCE_MS = 5_000  # what a turn under way gets before it is cut off

T = TypeVar("T")


class Rest(Struct, frozen=True):
    """How long to rest after a turn: nothing, so many milliseconds, or (None) until somebody rings."""

    ms: float | None
    did_nothing: bool = False  # it was somebody else's turn: whether what failed before works again is not known

    NONE: ClassVar[Rest]
    UNTIL_WOKEN: ClassVar[Rest]
    ASIDE: ClassVar[Rest]


Rest.NONE = Rest(0)
Rest.UNTIL_WOKEN = Rest(None)
Rest.ASIDE = Rest(None, did_nothing=True)


class LoopStatus(Struct, frozen=True):
    """What a loop says about itself; `turned_ms` is how long ago its last turn ended."""

    name: str
    is_alive: bool
    turns: int
    errors: int
    errors_in_a_row: int
    turned_ms: float | None


class Loop:
    """One activity that goes on until it is stopped.  No exception ends it."""

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
        self._failures_before = 0  # that it stood aside: nobody knows yet whether it works again
        self._bell = asyncio.Event()  # rung by nudge and wake
        self._alarm = asyncio.Event()  # rung by wake alone
        self._is_stopping = False
        self._going: asyncio.Task[None] | None = None
        self._inside: CutOff | None = None
        self._said_at: float | None = None
        self._is_said = False
        self._turned_at: float | None = None

    async def turn(self) -> Rest:
        """One round; the answer says how long to rest after it."""
        raise NotImplementedError

    @property
    def is_alive(self) -> bool:
        return self._going is not None and not self._going.done()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def is_woken(self) -> bool:
        """Did somebody ask for another turn (or the end) since this one began?  Then it does not wait."""
        return self._is_stopping or self._alarm.is_set()

    def status(self) -> LoopStatus:
        turned_ms = None if self._turned_at is None else self.clock.mono_ms() - self._turned_at
        return LoopStatus(self.name, self.is_alive, self.turns, self.errors, self.errors_in_a_row, turned_ms)

    def start(self) -> None:
        assert self._going is None, f"loop {self.name} was started twice"
        self._is_stopping = False
        self._going = asyncio.get_running_loop().create_task(self._go(), name=f"pollux {self.name}")

    def nudge(self) -> None:
        """There is work: end the rest, but no wait inside a turn."""
        self._bell.set()

    def wake(self) -> None:
        """A turn now: end the rest, and the wait inside a turn."""
        self._bell.set()
        self._alarm.set()
        self.interrupt()

    def interrupt(self) -> None:
        """End the wait that the turn under way is in, if it is in one."""
        if self._inside is not None:
            self._inside.end()

    async def stop(self, *, patience_ms: float = STOP_PATIENCE_MS) -> None:
        """End after the turn under way; one that does not end in time is cut off.  Stopping twice is harmless."""
        self._is_stopping = True
        self.wake()
        going, self._going = self._going, None
        if going is None:
            return
        try:
            await asyncio.wait({going}, timeout=patience_ms / 1000)
        finally:
            if not going.done():
                going.cancel()
                await asyncio.wait({going}, timeout=1)

    def abandon(self) -> None:
        """End here and now, in the middle of a turn if need be, as when the process dies."""
        self._is_stopping = True
        going, self._going = self._going, None
        if going is not None:
            going.cancel()

    async def interruptible(self, call: Coroutine[Any, Any, T]) -> T | None:
        """The call's answer, or None if `wake` ended it: then it may or may not have taken effect."""
        self._inside = patience = CutOff()
        try:
            return await call
        except asyncio.CancelledError:
            if patience.is_over():
                return None
            raise
        finally:
            self._inside = None
            patience.leave()

    async def guarded_turn(self) -> Rest:
        """One turn that cannot end the loop: an error is counted, said, and answered by a longer rest."""
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
            self._bell.clear()
            self._alarm.clear()
            rest = await self.guarded_turn()
            if not self._is_stopping:
                await self._take(rest)

    async def _take(self, rest: Rest) -> None:
        if rest.ms is not None and rest.ms <= 0:
            await asyncio.sleep(0)  # a loop that never rests must not starve the others
            return
        bell = self._alarm if self.errors_in_a_row else self._bell
        await asyncio.sleep(0)  # what this turn has begun is often over at once, and rings: then no timer is needed
        await self.clock.wait(bell, self.rest_max_ms if rest.ms is None else min(rest.ms, self.rest_max_ms))

    def _failed(self, error: Exception) -> Rest:
        least, most = self.backoff_ms
        rest_ms = min(most, least * 2 ** min(self.errors_in_a_row, 20))
        self.errors += 1
        self.errors_in_a_row += 1
        now = self.clock.mono_ms()
        if self._said_at is None or now - self._said_at >= SAY_AGAIN_MS:
            self._said_at = now
            self._is_said = True
            self.events.emit(LoopFailed(self.name, error, self.errors_in_a_row, int(rest_ms)))
        return Rest(rest_ms)

    def _recovered(self) -> None:
        if self._is_said:
            self.events.emit(LoopRecovered(self.name, self._failures_before + self.errors_in_a_row))
        self._is_said = False
        self._failures_before = self.errors_in_a_row = 0


async def bounded(call: Coroutine[Any, Any, T], limit_ms: float, *, what: str) -> T:
    """The call's answer within that time; later it comes too late for us, whatever the store's own deadline is."""
    try:
        async with asyncio.timeout(limit_ms / 1000):
            return await call
    except TimeoutError as error:
        raise StoreTimeout(f"no answer to {what} within {limit_ms:.0f} ms; it may have taken effect") from error
