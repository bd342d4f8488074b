"""What goes along with a node besides its crew?  Traces, a heartbeat and a word to systemd, each only if asked for.

    begin ─▶ (the crew starts) ─▶ set_out ─▶ ... ─▶ turn_back ─▶ (the crew drains) ─▶ end
    traces listen                heartbeat, ready     stopping                       the last spans are sent

Whatever goes wrong here is said and stops nothing, but for one thing: traces that were asked for and cannot be had.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

from pollux.app.health import Watch
from pollux.app.heartbeat import Heartbeat
from pollux.app.process import OWNS_PROCESS
from pollux.app.supervised import READY, STOPPING, Supervisor, Watchdog, supervisor_of
from pollux.clock import Clock
from pollux.events import Events, TracesLost
from pollux.observe.metrics_port import MetricsPort
from pollux.observe.traces import TraceOptions, Traces, endpoint_of, open_traces
from pollux.runtime import Crew, CrewOptions
from pollux.runtime.loop import Loop


class Alongside:
    def __init__(self, options: CrewOptions, *, clock: Clock, events: Events) -> None:
        self.options, self.clock, self.events = options, clock, events
        self.traces: Traces | None = None
        self.heartbeat: Heartbeat | None = None
        self._supervisor: Supervisor | None = None
        self._loops: list[Loop] = []
        self._leave: Callable[[], None] | None = None
        self._watch: Watch | None = None
        self.port: MetricsPort | None = None

    async def begin(self, crew: Crew, watch: Watch) -> None:
        """Before the first run: traces must not miss it, and a port that is taken is an error of the start."""
        await self._trace(crew)
        watch.crew, watch.traces, self._watch = crew, self.traces, watch
        if self.options.metrics_port is not None:
            self.port = MetricsPort(watch, self.options.metrics_host, self.options.metrics_port)
            try:
                await self.port.start()
            except BaseException:
                await self.end()
                raise

    async def _trace(self, crew: Crew) -> None:
        said = TraceOptions(
            endpoint=self.options.traces_endpoint,
            sample=self.options.traces_sample,
            namespace=self.options.traces_namespace,
        )
        if not endpoint_of(said, os.environ)[0]:
            return
        loop = asyncio.get_running_loop()

        def on_lost(count: int, why: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
                loop.call_soon_threadsafe(self.events.emit, TracesLost(count, why))

        self.traces = await asyncio.to_thread(open_traces, said, crew.node_id, on_lost)  # its imports take a while
        if self.traces is not None:
            self.traces.export.start()
            self._leave = self.traces.listen(self.events)
            crew.kit.tracing = self.traces

    def set_out(self, crew: Crew, is_well: Callable[[], Awaitable[bool]]) -> None:
        """The node works: say so to whoever wants to know."""
        options, clock, events = self.options, self.clock, self.events
        if options.heartbeat_url and options.plans:
            self.heartbeat = Heartbeat(
                options.heartbeat_url,
                options.heartbeat_every_ms,
                leads=lambda: crew.leader.term is not None,
                is_well=is_well,
                clock=clock,
                events=events,
            )
            self._loops.append(self.heartbeat)
        self._supervisor = supervisor = supervisor_of(os.environ) if OWNS_PROCESS.get() else None
        if supervisor is not None:
            supervisor.tell(READY)
            if supervisor.watchdog_ms is not None:
                every_ms = supervisor.watchdog_ms / 3
                self._loops.append(
                    Watchdog(supervisor, lambda: _is_alive(crew), every_ms=every_ms, clock=clock, events=events)
                )
        for loop in self._loops:
            loop.start()

    async def turn_back(self) -> None:
        """The node is about to drain; the watchdog goes on, for that may take a while."""
        if self._supervisor is not None:
            self._supervisor.tell(STOPPING)
        if self.heartbeat is not None:
            await self.heartbeat.stop(patience_ms=0)

    async def end(self) -> None:
        await asyncio.gather(*(loop.stop(patience_ms=0) for loop in self._loops))
        if self._leave is not None:
            self._leave()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.export.stop)
        if self._watch is not None:
            self._watch.crew = self._watch.traces = None
        if self.port is not None:
            await self.port.stop()


def _is_alive(crew: Crew) -> bool:
    """A node that drains stops its loops one after the other, and lives."""
    status = crew.status()
    return status.is_draining or all(loop.is_alive for loop in status.loops)
