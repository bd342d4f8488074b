"""Life of an app as a process: signals, the event loop, its start command, and the services beside the engine.

`serve` and `app.run()` share it.  They wait for a store that does not answer yet; an invalid configuration ends the
process with its cure.

The services are traces, the health ping, systemd notifications and the metrics port.  The leader calls the ping's URL
at intervals as long as health is good.  The service behind that URL raises the alarm when the calls stop: every node is
dead, there is no leader, the network is cut, or health is bad.  A node that is down cannot report any of these.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from contextlib import suppress
from contextvars import ContextVar, copy_context
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from pollux.clock import Clock
from pollux.errors import Conflict, PolluxError, StoreAway, StoreBusy, StoreError, StoreFull, StoreTimeout, exit_code_of
from pollux.events import Events, TracesLost
from pollux.log_format import complaint, write_lines
from pollux.model import START, Job, NotePut, Run, StartCommand, starts_in, with_start
from pollux.observe.metrics import MetricsPort
from pollux.observe.traces import TraceOptions, Traces, endpoint_of, open_traces
from pollux.plan import Why
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.runtime.loop import Loop, Rest
from pollux.secrets import hide
from pollux.store.contract import Store
from pollux.store.decoding import readable_part
from pollux.units import shell_word

if TYPE_CHECKING:
    from pollux.app.health import HealthWatch
    from pollux.app.pollux import Pollux

ECHO_SECONDS = 0.3  # a second signal that is meant comes later than this
OWNS_PROCESS: ContextVar[bool] = ContextVar("owns_process", default=False)  # False: the app is embedded
LEAVE_SECONDS = 1.0  # for handlers that are left after the drain to end once cancelled


def listen_for_signals(stop: asyncio.Event) -> None:
    """SIGTERM or SIGINT sets `stop`; a second one ends the process at once (its leases then expire).

    A second one within `ECHO_SECONDS` is the same request: shells, supervisors and `timeout` often signal the process
    and then its whole group.
    """
    loop = asyncio.get_running_loop()
    received: list[float] = []

    def on_signal(number: int) -> None:
        received.append(loop.time())
        is_echo = len(received) > 1 and received[-1] - received[0] < ECHO_SECONDS
        if stop.is_set() and not is_echo:
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def is_looped() -> bool:
    """Does an event loop run in this thread?"""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop where it is installed (`pip install pollux-scheduler[fast]`), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_to_end(program: Coroutine[Any, Any, None]) -> None:
    """Run a program on a loop of its own, and end with it.

    `asyncio.run` would wait for ever for a handler that ignores its cancellation, or that waits for a thread.  Its run
    was settled or handed back by the drain, so nothing is lost.
    """
    runner = asyncio.Runner(loop_factory=fast_loop())
    inside = copy_context()
    inside.run(OWNS_PROCESS.set, True)  # noqa: FBT003  of a context variable
    try:
        runner.run(program, context=inside)
    finally:
        loop = runner.get_loop()
        if not runner.run(_cancel_others()):
            loop.set_exception_handler(lambda *_: None)  # the drain has logged which run it is
        runner.run(loop.shutdown_asyncgens())
        loop.close()
        asyncio.set_event_loop(None)


async def _cancel_others() -> bool:
    """Cancel all other coroutines of this loop; false if one of them ignores that."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    if not others:
        return True
    _, pending = await asyncio.wait(others, timeout=LEAVE_SECONDS)
    return not pending


def program_words() -> str:
    """The command that started this process, without its arguments, which may be secrets.

    Empty if it is unknown: for `python -c`, and a script whose current folder is deleted.
    """
    main, script = sys.modules.get("__main__"), sys.argv[0]
    spec = getattr(main, "__spec__", None)
    more = " ..." if len(sys.argv) > 1 else ""
    if spec is not None:
        return f"python -m {spec.name.removesuffix('.__main__')}{more}"
    if script in ("", "-", "-c"):
        return ""
    path = Path(script)
    if path.suffix != ".py":
        return f"{path.name}{more}"
    try:
        return f"python {os.path.relpath(script)}{more}"
    except OSError:
        return ""


def threads_left() -> list[str]:
    """Threads that would keep the process from ending, after a moment to end by themselves."""
    deadline = time.monotonic() + LEAVE_SECONDS
    ours = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for thread in ours:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in ours if thread.is_alive()]


AWAY_S = (0.5, 3.0)  # between two attempts to start while the store does not answer: at first, at most
SAY_AGAIN_S = 60.0

log = logging.getLogger("pollux")


async def has_started(
    app: Pollux, stop: asyncio.Event, say: Callable[[str], None] = log.warning, *, replace: bool = False
) -> bool:
    """Start the app; false if `stop` was set first.  Reports once a minute that the store does not answer or is full.

    Nodes that declare other jobs of the same sources may be dead: the start waits for their next heartbeat.
    """
    rest_s, logged_at, logged = AWAY_S[0], 0.0, ""
    conflicting = _ConflictingNodes(app.options.beat_ttl_ms / 1000 + AWAY_S[1])
    while not stop.is_set():
        try:
            await app.start(replace=replace)
        except (StoreAway, StoreBusy, StoreTimeout, StoreFull, Conflict) as error:
            words, at = str(error), time.monotonic()
            if isinstance(error, Conflict):
                until = conflicting.wait_for(error, at)
            else:
                until = f"trying again until {'there is room' if isinstance(error, StoreFull) else 'it answers'}"
            if words != logged or at >= logged_at + SAY_AGAIN_S:
                say(f"{words}; {until}, Ctrl-C stops")
                logged_at, logged = at, words
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), rest_s)
            rest_s = min(2 * rest_s, AWAY_S[1])
        else:
            if conflicting.beats:
                say(f"no longer alive: {conflicting.names}; this start replaces them, and their jobs")
            return True
    return False


class _ConflictingNodes:
    """Nodes that declare other jobs of the same sources.  One that beats again is alive; the others expire."""

    def __init__(self, patience_s: float) -> None:
        self.beats: dict[str, int] = {}  # the first beat that was seen of each
        self._patience_s, self._until = patience_s, 0.0

    @property
    def names(self) -> str:
        return f"{'node' if len(self.beats) == 1 else 'nodes'} {', '.join(self.beats)}"

    def wait_for(self, error: Conflict, at: float) -> str:
        """What the start waits for, in words; raises the refusal if a node is alive or the time is over."""
        living = error.found.get("living", {})
        self._until = self._until if self.beats else at + self._patience_s
        has_beaten = any(beat_ms > self.beats.get(node, beat_ms) for node, beat_ms in living.items())
        if not living or has_beaten or at >= self._until:
            raise error
        self.beats = living | self.beats
        return (
            f"waiting up to {self._until - at:.0f} s for a heartbeat of {self.names}: if one comes, this start ends; "
            "if none comes, or all stop, it replaces them"
        )


def run_alone(app: Pollux, *, replace: bool = False) -> None:
    """Run the app until SIGTERM or SIGINT; an error of ours is a line on stderr and `SystemExit`."""
    if not log.hasHandlers() and log.propagate:  # the program has not configured logging
        colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        write_lines(logging.StreamHandler(), "text", logging.INFO, colours=colours)
    try:
        run_to_end(_until_signalled(app, replace=replace))
    except PolluxError as error:
        sys.stderr.write(f"{complaint(str(error))}\n")
        raise SystemExit(exit_code_of(error)) from error


async def _until_signalled(app: Pollux, *, replace: bool) -> None:
    """Run until a signal, with a socket for commands on this machine."""
    server = import_module("pollux.server")  # decision 0041: by name, since the server is built on the app
    stop = asyncio.Event()
    listen_for_signals(stop)
    nearby = server.nearby_options(app.store_url, os.environ)
    async with server.served(app, nearby, stop=stop, replace=replace):
        await stop.wait()


async def starts_of(store: Store) -> tuple[StartCommand, ...]:
    """The start commands of nodes that are noted in this store."""
    notes, _ = await readable_part(store.notes(START))
    return starts_in(notes)


async def named_start(store: Store, why: Why, job: Job | None, run: Run | None = None) -> Why:
    """The answer, with the start command of this app in a cure that is to start a node."""
    if "start " not in why.cure or (job is None and run is None):
        return why
    version = job.scheduler_version if job is not None else run.scheduler_version if run is not None else 0
    source = job.source if job is not None else ""
    return replace(why, cure=with_start(why.cure, await starts_of(store), version=version, source=source))


async def note_start(store: Store, sources: Iterable[str], program: str, *, revision: int | None = None) -> None:
    """Note the start command of these sources in a shared store; `revision` as in `NotePut`.

    Only cures use the note: a store that refuses it, or a deleted current folder, is no error.
    """
    if not store.capabilities.shared or not program:
        return
    with suppress(StoreError, OSError):
        made = (hide(program), str(Path.cwd()), platform.node(), store.scheduler_version)
        starts = [StartCommand(each, *made) for each in sources]
        puts = [NotePut(f"{START}{each.source}", msgspec.to_builtins(each), revision) for each in starts]
        await store.put_notes(puts)


def app_words(registry: Registry, job: Job) -> str:
    """`pollux serve --app shop:app`, if the module of the job's handler has a name for the app; else empty."""
    handler = registry.get(job.handler)
    module = sys.modules.get(getattr(handler and handler.call, "__module__", None) or "")
    if module is None:
        return ""
    names = [name for name, value in list(vars(module).items()) if _registry_of(value) is registry]
    place = _importable(module.__name__)
    return f"pollux serve --app {shell_word(f'{place}:{names[0]}')}" if names and place else ""


def _registry_of(value: object) -> object:
    """The registry of a value that is an app; without calling its code, as a proxy (`flask.request`) may raise."""
    try:
        return object.__getattribute__(value, "__dict__").get("_registry")
    except AttributeError:  # it has no attributes of its own
        return None


def _importable(module: str) -> str:
    """The name by which another process imports the module; empty for a script of another or a deleted folder."""
    if module != "__main__":
        return module
    if (spec := getattr(sys.modules[module], "__spec__", None)) is not None:
        return str(spec.name)
    script = Path(sys.argv[0])
    with suppress(OSError):
        if script.suffix == ".py" and script.resolve().parent == Path.cwd():
            return script.stem
    return ""


TIMEOUT_SECONDS = 10.0


class HealthPingFailed(PolluxError):
    """The call failed.  The URL is a secret, so no message has it."""


class HealthPing(Loop):
    """Calls `url` at intervals, on the leader, while `is_well`."""

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
        super().__init__("health_ping", clock=clock, events=events, rest_max_ms=every_ms, backoff_ms=(least, every_ms))
        self.url, self.every_ms, self.leads, self.is_well = url, every_ms, leads, is_well
        self.calls = 0  # successful ones

    async def turn(self) -> Rest:
        if self.leads() and await self.is_well():
            await call(self.url)
            self.calls += 1
        return Rest(self.every_ms)


async def call(url: str) -> None:
    """GET the URL; anything but a success in time is `HealthPingFailed`."""
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
    """The notification socket of systemd."""

    def __init__(self, address: str, watchdog_ms: float | None) -> None:
        self.address, self.watchdog_ms = address, watchdog_ms

    def tell(self, *words: str) -> None:
        """Send one datagram; errors are ignored."""
        where = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto("\n".join(words).encode(), socket.MSG_DONTWAIT, where)


def supervisor_of(environ: MutableMapping[str, str]) -> Supervisor | None:
    """The supervisor in the environment, whose variables are removed, as children must not notify it."""
    address, usec, pid = (environ.pop(name, "") for name in _VARIABLES)
    if not address.startswith(("/", "@")):
        return None
    is_watched = usec.isdecimal() and int(usec) > 0 and pid in ("", str(os.getpid()))
    return Supervisor(address, int(usec) / 1000 if is_watched else None)


class Watchdog(Loop):
    """Notifies the supervisor at a third of its interval while the node is alive."""

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
    """Traces, health ping, systemd notifications and metrics port of one node."""

    def __init__(self, options: RuntimeOptions, *, clock: Clock, events: Events) -> None:
        self.options, self.clock, self.events = options, clock, events
        self.traces: Traces | None = None
        self.heartbeat: HealthPing | None = None
        self._supervisor: Supervisor | None = None
        self._loops: list[Loop] = []
        self._leave: Callable[[], None] | None = None
        self._watch: HealthWatch | None = None
        self.port: MetricsPort | None = None

    async def begin(self, runtime: NodeRuntime, watch: HealthWatch) -> None:
        """Start traces and the metrics port before the first run; a port in use is an error of the start."""
        await self._trace(runtime)
        watch.runtime, watch.traces, self._watch = runtime, self.traces, watch
        if self.options.metrics_port is not None:
            self.port = MetricsPort(watch, self.options.metrics_host, self.options.metrics_port)
            try:
                await self.port.start()
            except BaseException:
                await self.end()
                raise

    async def _trace(self, runtime: NodeRuntime) -> None:
        options = TraceOptions(
            endpoint=self.options.traces_endpoint,
            sample=self.options.traces_sample,
            namespace=self.options.traces_namespace,
        )
        if not endpoint_of(options, os.environ)[0]:
            return
        loop = asyncio.get_running_loop()

        def on_lost(count: int, why: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self.events.emit, TracesLost(count, why))

        self.traces = await asyncio.to_thread(
            open_traces, options, runtime.node_id, on_lost
        )  # its imports take a while
        if self.traces is not None:
            self.traces.export.start()
            self._leave = self.traces.listen(self.events)
            runtime.worker.tracing = self.traces

    def set_out(self, runtime: NodeRuntime, is_well: Callable[[], Awaitable[bool]]) -> None:
        """Start the health ping, and notify systemd that the node is ready."""
        options, clock, events = self.options, self.clock, self.events
        if options.heartbeat_url and options.plans:
            self.heartbeat = HealthPing(
                options.heartbeat_url,
                options.heartbeat_every_ms,
                leads=lambda: runtime.leader.term is not None,
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
                    Watchdog(supervisor, lambda: _is_alive(runtime), every_ms=every_ms, clock=clock, events=events)
                )
        for loop in self._loops:
            loop.start()

    async def turn_back(self) -> None:
        """Stop the health ping before the drain; the watchdog goes on, as a drain may take a while."""
        if self._supervisor is not None:
            self._supervisor.tell(STOPPING)
        if self.heartbeat is not None:
            await self.heartbeat.stop(timeout_ms=0)

    async def end(self) -> None:
        await asyncio.gather(*(loop.stop(timeout_ms=0) for loop in self._loops))
        if self._leave is not None:
            self._leave()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.export.stop)
        if self._watch is not None:
            self._watch.runtime = self._watch.traces = None
        if self.port is not None:
            await self.port.stop()


def _is_alive(runtime: NodeRuntime) -> bool:
    """Do all loops run?  While the node drains they stop one by one."""
    status = runtime.status()
    return status.is_draining or all(loop.is_alive for loop in status.loops)
