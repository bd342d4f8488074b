"""Services beside the engine: traces, the health ping, systemd notifications and the metrics port.

The leader calls the ping's URL at intervals as long as health is good.  The service behind that URL raises the alarm
when the calls stop: every node is dead, there is no leader, the network is cut, or health is bad.  A node that
is down cannot report any of these.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping

from pollux.app.health import HealthWatch
from pollux.app.process import OWNS_PROCESS
from pollux.clock import Clock
from pollux.errors import PolluxError
from pollux.events import Events, TracesLost
from pollux.observe.metrics import MetricsPort
from pollux.observe.traces import TraceOptions, Traces, endpoint_of, open_traces
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.runtime.loop import Loop, Rest

TIMEOUT_SECONDS = 10.0


class HealthPingFailed(PolluxError):
    """The call did not get through; its URL is a secret and in no message."""


class HealthPing(Loop):
    """Call `url` every so often, from the leader, while `is_well`."""

    def __init__(
        self,
        url: str,
        every_ms: int,
        *,
        leads: Callable[[], bool],
        is_well: Callable[[], Awaitable[bool]],
        clock: Clock,
        events: Events,
    ) -> None:
        least = min(5_000, every_ms)
        super().__init__("heartbeat", clock=clock, events=events, rest_max_ms=every_ms, backoff_ms=(least, every_ms))
        self.url, self.every_ms, self.leads, self.is_well = url, every_ms, leads, is_well
        self.calls = 0  # that got through

    async def turn(self) -> Rest:
        if self.leads() and await self.is_well():
            await call(self.url)
            self.calls += 1
        return Rest(self.every_ms)


async def call(url: str) -> None:
    """GET it; anything but a success within the time is `HealthPingFailed`."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            status = response.status
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
        raise HealthPingFailed(f"the heartbeat URL cannot be called: {type(error).__name__}") from None
    if not 200 <= status < 300:
        raise HealthPingFailed(f"the heartbeat URL answered {status}")


READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Supervisor:
    """The line to whoever supervises this process."""

    def __init__(self, address: str, watchdog_ms: float | None) -> None:
        self.address, self.watchdog_ms = address, watchdog_ms

    def tell(self, *words: str) -> None:
        """One datagram; nobody there is nobody's fault."""
        where = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto("\n".join(words).encode(), socket.MSG_DONTWAIT, where)


def supervisor_of(environ: MutableMapping[str, str]) -> Supervisor | None:
    """Whoever the environment names.  The names are taken out: no child of ours speaks for us."""
    address, usec, pid = (environ.pop(name, "") for name in _VARIABLES)
    if not address.startswith(("/", "@")):
        return None
    is_watched = usec.isdecimal() and int(usec) > 0 and pid in ("", str(os.getpid()))
    return Supervisor(address, int(usec) / 1000 if is_watched else None)


class Watchdog(Loop):
    """Say that we live, three times as often as it is asked for."""

    def __init__(
        self, supervisor: Supervisor, lives: Callable[[], bool], *, every_ms: float, clock: Clock, events: Events
    ) -> None:
        super().__init__("watchdog", clock=clock, events=events, rest_max_ms=every_ms)
        self.supervisor, self.lives, self.every_ms = supervisor, lives, every_ms

    async def turn(self) -> Rest:
        if self.lives():
            self.supervisor.tell(ALIVE)
        return Rest(self.every_ms)


class SideServices:
    def __init__(self, options: RuntimeOptions, *, clock: Clock, events: Events) -> None:
        self.options, self.clock, self.events = options, clock, events
        self.traces: Traces | None = None
        self.heartbeat: HealthPing | None = None
        self._supervisor: Supervisor | None = None
        self._loops: list[Loop] = []
        self._leave: Callable[[], None] | None = None
        self._watch: HealthWatch | None = None
        self.port: MetricsPort | None = None

    async def begin(self, crew: NodeRuntime, watch: HealthWatch) -> None:
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

    async def _trace(self, crew: NodeRuntime) -> None:
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

    def set_out(self, crew: NodeRuntime, is_well: Callable[[], Awaitable[bool]]) -> None:
        """The node works: say so to whoever wants to know."""
        options, clock, events = self.options, self.clock, self.events
        if options.heartbeat_url and options.plans:
            self.heartbeat = HealthPing(
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


def _is_alive(crew: NodeRuntime) -> bool:
    """A node that drains stops its loops one after the other, and lives."""
    status = crew.status()
    return status.is_draining or all(loop.is_alive for loop in status.loops)
