"""Nodes of a world: the app as it ships, in a virtual process, on a link to the shared store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import Context as ContextVariables
from random import Random
from typing import Any

import msgspec

from pollux.app import Pollux
from pollux.errors import PolluxError
from pollux.registry import Context
from pollux.runtime.handler_threads import unguard
from pollux.testing.world.handlers import HANDLER, WorldHandlers
from pollux.testing.world.loop import ProcessClock, VirtualProcess, WorldLoop
from pollux.testing.world.script import Script
from pollux.testing.world.store import SharedStore
from pollux.testing.world.trace import WorldTrace

KEPT_RUNS = 1_000_000
KEPT_MS = 366 * 86_400_000
RETRY_START_S = 2.0
_NO_PROCESS = ContextVariables()


class WorldNode:
    """One machine: its clock goes on while the processes on it come and go."""

    def __init__(
        self, number: int, loop: WorldLoop, store: SharedStore, script: Script, trace: WorldTrace, work: WorldHandlers
    ) -> None:
        self.number, self.name = number, f"node-{number}"
        self._loop, self._store, self._script, self._trace, self._work = loop, store, script, trace, work
        skew_ms = script.skews_ms[number] if number < len(script.skews_ms) else 0
        self.clock = ProcessClock(loop, script.start_ms, skew_ms=skew_ms)
        self.starts = 0
        self.process: VirtualProcess | None = None
        self.app: Pollux | None = None
        self.is_ready = False
        self._coroutines: list[asyncio.Task[Any]] = []  # of dead processes too: nothing of them is cleaned up
        self._leaving: asyncio.Task[Any] | None = None

    @property
    def is_up(self) -> bool:
        """Whether a process is there, perhaps frozen, perhaps still starting."""
        return self.process is not None and self.process.state.value != "dead"

    def start(self, *, seats: int | None = None) -> None:
        """Start a process, as a supervisor does: one whose start fails is started again."""
        if self.is_up:
            return
        self.starts += 1
        self.is_ready = False
        process = self.process = VirtualProcess(f"{self.name}.{self.starts}")
        process.on_death = self._died
        self._trace.note(self._loop.us, self.name, f"starts ({process.name})")
        self._coroutines.append(
            self._loop.create_task(self._live(process, seats or self._script.seats), context=process.context)
        )

    async def _live(self, process: VirtualProcess, seats: int) -> None:
        while True:
            app = self.app = self._make_app(process, seats)
            try:
                await app.start()
            except PolluxError as error:
                self._trace.add(self._loop.us, process.name, f"does not start: {type(error).__name__}")
                self._trace.reach("start refused")
                with suppress(PolluxError):
                    await app.close()
                await asyncio.sleep(RETRY_START_S)
            else:
                self.is_ready = True
                return

    def _make_app(self, process: VirtualProcess, seats: int) -> Pollux:
        script = self._script
        app = Pollux(
            self._store.connect(process, self.clock),
            name="fleet",
            actor=f"user-of-{self.name}",
            clock=self.clock,
            dice=Random(f"node {script.seed} {process.name}"),  # noqa: S311
            seats=seats,
            lease=script.lease_ms / 1_000,
            leader_ttl=script.leader_ttl_ms / 1_000,
            grace=5,
            keep_history=KEPT_RUNS,
            history_age=KEPT_MS / 1_000,
            keep_dead=KEPT_RUNS,
            dead_age=KEPT_MS / 1_000,
        )
        app.options = app._usual = msgspec.structs.replace(
            app.options, renews_apart=False, isolates=False, unchanged_ms=KEPT_MS
        )

        app.place = process.name

        async def work(ctx: Context) -> str:
            return await self._work.run(process, ctx)

        app.handler(work, name=HANDLER)
        return app

    # faults

    def _died(self) -> None:
        assert self.process is not None
        self._trace.note(self._loop.us, self.name, "dies")
        self._store.disconnect(self.process)
        self.is_ready = False

    def die(self, *, steps: int = 0) -> None:
        """Die, after so many more steps: at any await."""
        if self.process is not None and self.process.is_running:
            if steps:
                self.process.dies_in = steps
            else:
                self.process.die()

    def freeze(self) -> None:
        if self.process is not None:
            self.process.freeze()

    def thaw(self) -> None:
        if self.process is not None:
            self.process.thaw(self._loop)

    def restart(self, *, seats: int | None = None) -> None:
        """Drain and start again, as a deployment does; killed if the drain takes too long."""
        if self.process is None or not self.process.is_running or not self.is_ready:
            return
        assert self.app is not None
        process = self.process
        self._trace.note(self._loop.us, self.name, "is asked to leave, and starts again")
        leaving = self._loop.create_task(self._leave(self.app), context=process.context)
        self._coroutines.append(leaving)

        def start_again(_: object = None) -> None:
            if self.process is process:
                process.die()
                self.start(seats=seats)

        leaving.add_done_callback(start_again, context=_NO_PROCESS)
        self._loop.call_later(40, start_again, context=_NO_PROCESS)

    @staticmethod
    async def _leave(app: Pollux) -> None:
        with suppress(PolluxError):
            await app.close()

    @property
    def link(self) -> Any:
        return None if self.process is None else self._store.links.get(self.process)

    def forget(self) -> None:
        """After the world's end: nothing of it may be reported or kept."""
        unguard(self._loop)
        for each in self._coroutines:
            each._log_destroy_pending = False  # type: ignore[attr-defined]
