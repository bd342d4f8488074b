"""Lease renewal loop: leases are renewed at a third of their length, all in one batch.

It runs in a thread with a loop and a store handle of its own: a handler that blocks the main loop must not cost the
others their leases.  Trust is measured from before the request on the monotonic clock:

    sent ── renewed at a third ──────────────────── trust ends ── margin ── the lease ends in the store

Results (lease lost, cancel requested) are passed to the main loop, which owns the attempts.  The progress of handlers
is sent with the renewals: at most once a second, all that is new in one batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pollux.clock import Clock
from pollux.events import Event, Events
from pollux.runtime.loop import Loop, LoopStatus, Rest, bounded
from pollux.runtime.loop_lag import LoopSampler
from pollux.store.contract import BATCH_MAX, Answer, Renewal, Store

if TYPE_CHECKING:
    from pollux.runtime.attempt import Attempt

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0
RENEW_ALL_APART_MS = 1_000
PROGRESS_APART_MS = 1_000

OnMain = Callable[..., Any]  # calls a function on the main loop, with these arguments


def margin_ms(lease_ms: int) -> float:
    """Return how long before its end a lease is no longer trusted: 2 s or a tenth, of short leases a third."""
    return min(max(2_000.0, lease_ms / 10), lease_ms / 3)


class Renewer(Loop):
    """Renew every lease of this node until its settle is answered."""

    def __init__(
        self, store: Store, leases: dict[str, Attempt], *, lease_ms: int, on_main: OnMain, clock: Clock, events: Events
    ) -> None:
        super().__init__(
            "renewer",
            clock=clock,
            events=events,
            rest_max_ms=min(1_000.0, lease_ms / 6),
            backoff_ms=(min(100.0, lease_ms / 30), min(3_000.0, lease_ms / 10)),
        )
        self.store, self.leases, self.on_main = store, leases, on_main
        self.lease_ms = lease_ms
        self._is_requested = False
        self._renewed_all_at: float | None = None
        self._progress_sent_at: float | None = None

    def renew_now(self) -> None:
        """Renew all now: the answers contain cancel requests.  At most once a second."""
        self._is_requested = True
        self.nudge()

    async def turn(self) -> Rest:
        now = self.clock.mono_ms()
        # Copying is atomic in the interpreter, so the main loop may change the dict at any time.
        held = list(self.leases.copy().values())
        if self._may_renew_all(now):
            due = held
        else:
            may_send = self._progress_sent_at is None or now - self._progress_sent_at >= PROGRESS_APART_MS
            due = [a for a in held if a.renew_at <= now + self.lease_ms / 12 or (may_send and a.new_progress)]
        for start in range(0, len(due), BATCH_MAX):
            await self._renew(due[start : start + BATCH_MAX])
        return Rest(self.rest_max_ms, did_nothing=not due)

    def _may_renew_all(self, now: float) -> bool:
        if not self._is_requested or (
            self._renewed_all_at is not None and now - self._renewed_all_at < RENEW_ALL_APART_MS
        ):
            return False
        self._is_requested = False
        self._renewed_all_at = now
        return True

    async def _renew(self, attempts: Sequence[Attempt]) -> None:
        sent = self.clock.mono_ms()
        renewals = [Renewal(a.run.id, a.token, a.new_progress) for a in attempts]
        ask = self.store.renew(renewals, lease_ms=self.lease_ms)
        answers = await bounded(ask, max(100.0, self.lease_ms / 3), what="renew")
        for attempt, renewal, renewed in zip(attempts, renewals, answers, strict=True):
            if renewed.answer is Answer.LOST:
                attempt.renew_at = float("inf")
                self.on_main(attempt.lose, "another claim has the run")
                continue
            attempt.trust_until = sent + self.lease_ms - margin_ms(self.lease_ms)
            attempt.renew_at = sent + self.lease_ms / 3
            if renewal.progress:
                attempt.sent_progress = renewal.progress
                self._progress_sent_at = sent
            if renewed.cancel:
                self.on_main(attempt.cancel, renewed.cancel)


class RelayedEvents(Events):
    """Events of the thread, emitted on the main loop, where the listeners run."""

    def __init__(self, main: Events, on_main: OnMain) -> None:
        super().__init__()
        self._main, self._on_main = main, on_main

    def wants(self, kind: type[Event]) -> bool:
        return self._main.wants(kind)

    def emit(self, event: Event) -> None:
        self._on_main(self._main.emit, event)


class RenewerThread:
    """The Renewer in a thread of its own, on a store handle of its own, with the sampler of the main loop."""

    def __init__(
        self,
        store: Store,
        make: Callable[[Store, OnMain], Renewer],
        make_sampler: Callable[[Store, OnMain], LoopSampler],
    ) -> None:
        self._store, self._make, self._make_sampler = store, make, make_sampler
        self._main = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._renewer: Renewer | None = None
        self._ready: asyncio.Future[None] = self._main.create_future()
        self._over: asyncio.Future[None] = self._main.create_future()

    def status(self) -> LoopStatus | None:
        return None if self._renewer is None else self._renewer.status()

    async def start(self) -> None:
        threading.Thread(target=self._live, name="pollux-renewer", daemon=True).start()
        await asyncio.wait_for(asyncio.shield(self._ready), START_SECONDS_MAX)

    def renew_now(self) -> None:
        if self._renewer is not None:
            self._inside(self._renewer.renew_now)

    async def stop(self) -> None:
        if self._stop is not None:
            self._inside(self._stop.set)
            await asyncio.wait({self._over}, timeout=STOP_SECONDS_MAX)

    def _inside(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(call)

    def _live(self) -> None:
        try:
            asyncio.run(self._renew_until_stopped())
        except BaseException as error:  # noqa: BLE001  passed to the caller of `start`
            self._on_main(_fail, self._ready, error)
        finally:
            self._on_main(_resolve, self._over)

    async def _renew_until_stopped(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        store = self._store.twin()
        await store.open()
        try:
            self._renewer = renewer = self._make(store, self._on_main)
            sampler = self._make_sampler(store, self._on_main)
            renewer.start()
            sampler.start()
            self._on_main(_resolve, self._ready)
            await self._stop.wait()
            await asyncio.gather(renewer.stop(), sampler.stop())
        finally:
            await store.close()

    def _on_main(self, call: Callable[..., Any], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the main loop is closed
            self._main.call_soon_threadsafe(call, *args)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
