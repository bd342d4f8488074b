"""`Pollux`, the app: declare handlers and jobs, start and stop, and the verbs of programs."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self, Unpack, overload

from msgspec.structs import replace as replaced

from pollux.app.declarations import Declared, NewestReleases, PendingDeclaration, Registrar
from pollux.app.health import HealthWatch
from pollux.app.operations import OperationContext, Operations
from pollux.app.operations.context import default_actor
from pollux.app.operations.control import PauseOperations
from pollux.app.operations.jobs import JobOperations
from pollux.app.operations.runs import RunOperations
from pollux.app.operations.status import StatusOperations
from pollux.app.process import SideServices, is_looped, run_alone
from pollux.app.reload import Reloader
from pollux.app.setup import (
    NodeOptions,
    as_configured,
    check_isolation,
    load_app,
    missing_secrets,
    options_of,
    options_over,
    register_python,
    set_up,
    with_code,
)
from pollux.app.verbs import AppVerb, Blocking
from pollux.app.watchers import SettingsWatcher
from pollux.clock import Clock, SystemClock
from pollux.config import Config
from pollux.config.descriptions import EffectiveOption, effective_options
from pollux.config.settings import is_overruled, with_live
from pollux.errors import InvalidConfig, PolluxError
from pollux.events import Events, NodeStarted, NodeStopped
from pollux.handlers import BuiltIn
from pollux.ids import new_id
from pollux.log_format import kind_written
from pollux.model import Job, Node, Schedule, check_version
from pollux.observe import attach_logs
from pollux.observe.metrics_table import Readings
from pollux.plan import Diff
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.runtime.isolation import in_child
from pollux.runtime.node import TUNABLE
from pollux.secrets import Secrets, hide
from pollux.store.handle import StoreHandle
from pollux.store.move_marks import marks_of, refuse_sealed, seal_words
from pollux.store.urls import open_store
from pollux.version import __version__

Call = Callable[..., Any]


class Pollux:
    """A polling and job scheduler on one store.

    `async with app:` starts and stops everything; `await app.open()` opens the store alone, to ask and to enqueue;
    `app.run()` is the blocking form for programs that do nothing else.
    """

    node_id = ""
    program = ""  # the command that starts this app; empty: the one that started this process
    place = ""  # machine and process in the node's id; empty: those that it runs in
    runtime: NodeRuntime | None = None  # while it runs
    reloader: Reloader | None = None
    settings_watcher: SettingsWatcher | None = None
    _registrar: Registrar | None = None
    _is_open = False

    def __init__(
        self,
        store: str | StoreHandle = "sqlite:///pollux.db",
        *,
        name: str = "app",
        release: int = 0,
        actor: str | None = None,
        clock: Clock | None = None,
        dice: Random | None = None,
        allow_exec: bool = False,
        http_per_target: int = 4,
        http_allow_networks: Sequence[str] = (),
        scheduler_version: int | None = None,
        **options: Unpack[NodeOptions],
    ) -> None:
        self.options = options_of(**options)
        self.events = Events()
        clock, dice = clock or SystemClock(), dice or Random()  # noqa: S311  ids, not secrets
        handle, self.store_url = _store_of(store, clock)
        if scheduler_version is not None:
            handle = handle.of_version(check_version(scheduler_version))
        self._store, self._clock, self._dice = handle, clock, dice
        self._registry = Registry()
        self._built_in = BuiltIn(self._registry)
        if allow_exec:
            self._allow_exec()
        self._built_in.http.set(per_target=http_per_target, allow_networks=http_allow_networks)
        self.declared = Declared(self._registry, source=f"code:{name}", release=release)
        self.secrets = Secrets()
        self.blocking = Blocking(self)
        # As the code made it; a configuration and live settings are laid over that.
        self._usual, self._usual_per_target = self.options, http_per_target
        self.watch = HealthWatch(self)
        context = OperationContext(
            self._store,
            self._registry,
            self._clock,
            self._dice,
            actor=actor or default_actor("app"),
            releases=NewestReleases(self._clock),
            ready_max=self.options.ready_max,
            is_named=actor is not None,
            trace_namespace=self.options.traces_namespace,
            node=self,
        )
        self.operations = Operations(context)

    def _recompose(self, **others: Any) -> None:
        """New operations, after a field that they share was replaced."""
        shared = {"store": self._store, "registry": self._registry, "clock": self._clock, "dice": self._dice}
        self.operations = Operations(replaced(self.operations.context, **shared, **others))

    @classmethod
    def from_config(cls, config: Config, *, plans: bool = True, runs: bool = True) -> Pollux:
        """The app that a configuration describes: the code it names (or none), its options, its jobs."""
        beside = Path(config.path).resolve().parent if config.path else None
        app = load_app(config.app, cls, beside=beside) if config.app else cls(config.store, release=config.release)
        app.configure(config, plans=plans, runs=runs)
        return app

    def configure(self, config: Config, *, plans: bool, runs: bool) -> None:
        """Apply the configuration, before the app is opened."""
        beside = Path(config.path).resolve().parent if config.path else None
        version = config.scheduler_version if config.is_given("scheduler_version") else self._store.scheduler_version
        if config.is_given("store"):
            self._store, self.store_url = _store_of(config.store, self._clock)
        elif (url := as_configured(self.store_url, config)) != self.store_url:
            self._store, self.store_url = _store_of(url, self._clock)
        if version != self._store.scheduler_version:
            self._store = self._store.of_version(version)
        self.options = options_over(self.options, config, plans=plans, runs=runs)
        self._recompose(trace_namespace=self.options.traces_namespace)
        self.secrets.folder = beside
        missing = missing_secrets(config.jobs, self.secrets, config.places) if runs else []
        set_up(self._built_in, config)
        if config.allow_exec:
            self._allow_exec()
        register_python(self._registry, config, beside=beside, also=missing)
        if config.is_given("release"):
            self.declared.take_release(config.release)
        if config.source:
            jobs = [self._registry.adopt(job) for job in config.jobs]
            self.declared.take_file(config.source, jobs, release=config.release)
        self.reloader = Reloader(self, config, plans=self.options.plans, runs=runs)

    def _allow_exec(self) -> None:
        self._built_in.allow_exec(lambda: self.options.child_memory)

    # declaring

    def handler(self, call: Call | None = None, *, name: str | None = None, timeout: str | float | None = None) -> Any:
        """Register a function under its name; jobs of it are added with `add`.  With or without parentheses."""

        def register(function: Call) -> Call:
            self._registry.add(name or _name_of(function), function, timeout=timeout)
            return function

        return register if call is None else register(call)

    def add(
        self,
        handler: Call | str,
        schedule: Schedule | None = None,
        *,
        id: str | None = None,
        params: dict[str, Any] | None = None,
        **options: Any,
    ) -> Job:
        """Declare a job of a handler; it is written to the store when the app starts."""
        if self.runtime is not None:
            raise PolluxError(
                "this app runs already: declare jobs before it starts, or use `await app.put_jobs([...])`"
            )
        return self.declared.add(handler, schedule, id=id, params=params, **options)

    @overload
    def job(self, schedule: Call) -> Call: ...

    @overload
    def job(
        self,
        schedule: Schedule | None = None,
        *,
        id: str | None = None,
        params: dict[str, Any] | None = None,
        timeout: str | float | None = None,
        **options: Any,
    ) -> Callable[[Call], Call]: ...

    def job(
        self,
        schedule: Schedule | Call | None = None,
        *,
        id: str | None = None,
        params: dict[str, Any] | None = None,
        timeout: str | float | None = None,
        **options: Any,
    ) -> Call:
        """`handler` and `add` in one.  Without a schedule the job runs when asked, with or without parentheses."""
        if callable(schedule):
            return self.job()(schedule)

        def declare(function: Call) -> Call:
            name = id or _name_of(function)
            self._registry.add(name, function, timeout=timeout)
            job = self.add(name, schedule, id=name, params=params, timeout=timeout, **options)
            function.pollux_job_id = job.id  # type: ignore[attr-defined]
            return function

        return declare

    def declared_jobs(self) -> list[Job]:
        return self.declared.jobs()

    def check_secrets(self) -> None:
        """Raise `InvalidConfig` with every reference of a declared job that cannot be resolved in this process."""
        missing = missing_secrets(self.declared.jobs(), self.secrets, {})
        if missing:
            raise InvalidConfig(missing)

    def check_jobs(self) -> None:
        """Raise for the first declared job that a start would refuse, or for its secrets that cannot be resolved."""
        check_isolation(self._registry, self.declared.jobs())
        self.check_secrets()

    def out_of_reach(self, job: Job) -> str:
        """Why a job of the API may not poll its URL; empty if it may, or polls none."""
        return self._built_in.http.out_of_reach(job.params) if job.handler == "http" else ""

    async def diff(self) -> list[Diff]:
        """What the next start would change in the store, source by source, if no other node were alive."""
        return [diff for diff in await self.declared.diff(self._store, coming=PendingDeclaration.DRAFT) if diff.lines()]

    # life

    async def open(self, *, sealed: bool = False) -> None:
        """Open the store alone: ask and enqueue, run nothing.

        A store that was moved elsewhere, or is being filled, is refused unless it is only read (`sealed`).
        """
        if self._is_open:
            return
        await self._store.open()
        self._is_open = True
        try:
            if not sealed:
                await refuse_sealed(self._store, hide(self.store_url))
        except BaseException:
            await self.close()
            raise

    async def sealed(self) -> str:
        """Why nothing may work on this store, if it was moved elsewhere; else empty."""
        return seal_words(await marks_of(self._store), hide(self.store_url))

    async def close(self) -> None:
        """Drain, if it runs, and close the store."""
        if self.runtime is not None:
            await self.drain()
        self.blocking.close()
        if self._is_open:
            self._is_open = False
            await self._store.close()

    async def start(self, *, replace: bool = False) -> None:
        """Write the declared jobs to the store and start planning and running.

        Raises `Conflict` if that would remove jobs that another program or file of the same name declares, or most of
        those that were declared before, unless `replace` is set.
        """
        if self.runtime is not None:
            raise PolluxError("this app runs already; stop it first")
        if in_child():
            raise PolluxError(
                "an app cannot start inside the child process of one of its own handlers; "
                'put what starts it under `if __name__ == "__main__":`'
            )
        check_isolation(self._registry, self.declared.jobs())
        if self.options.runs:
            self.check_secrets()
        was_open = self._is_open
        await self.open()
        if was_open:
            await refuse_sealed(self._store, hide(self.store_url))  # it may have been moved since
        self._stop_logs = attach_logs(self.events)
        self.settings_watcher = SettingsWatcher(self)
        try:
            await self.settings_watcher.prepare()
            self.runtime = await self._start_crew(replace=replace)
            await self.settings_watcher.begin(self.runtime)
        except BaseException:
            if self.runtime is not None:
                await self.drain()
            self._stop_logs()
            if not was_open:
                await self.close()
            raise
        self.events.emit(NodeStarted(self.node_id, self.store_url))
        self._alongside.set_out(self.runtime, self._is_well)

    async def _start_crew(self, *, replace: bool) -> NodeRuntime:
        place = self.place or f"{platform.node()}:{os.getpid()}"
        self.node_id = f"{place}:{new_id(self._clock.now_ms(), self._dice)[-8:]}"
        runtime = NodeRuntime(
            self._store,
            self._registry,
            options=self.options,
            clock=self._clock,
            events=self.events,
            dice=self._dice,
            node_id=self.node_id,
            version=__version__,
            declares=self.declared.declares(),
            secrets=self.secrets,
        )
        self._alongside = SideServices(self.options, clock=self._clock, events=self.events)
        await self._alongside.begin(runtime, self.watch)
        try:
            node = await runtime.announce()  # of two nodes that start at once with other code, one sees the other
            if self.options.plans:
                await self._register(node, replace=replace)
            await runtime.start()
        except BaseException:
            await self._unregister()
            await self._alongside.end()
            with suppress(PolluxError):
                await self._store.beat(Node(self.node_id), ttl_ms=0)
            raise
        return runtime

    async def drain(self) -> None:
        """Stop claiming, let runs finish within the grace, hand back the others uncharged, and stop."""
        runtime, self.runtime = self.runtime, None
        if runtime is not None:
            if self.settings_watcher is not None:
                await self.settings_watcher.end()
            await self._alongside.turn_back()
            await asyncio.gather(runtime.drain(), self._unregister())
            await self._alongside.end()
            self.events.emit(NodeStopped(self.node_id, drained=True))
            self._stop_logs()

    async def _is_well(self) -> bool:
        return (await self.watch.health()).is_well

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def serve(self, until: asyncio.Event) -> None:
        """Run until the event is set, then drain."""
        async with self:
            await until.wait()

    def run(self, *, replace: bool = False) -> None:
        """Run until SIGTERM or SIGINT, then drain; a second signal ends at once.  `replace` as with `start`.

        It is the program, and behaves as `pollux serve` does: it waits for a store that does not answer yet, ends by a
        line on stderr and `SystemExit` (2: an option, 3: the store), and logs to stderr unless logging is set up.
        In a child that was started for a handler (`isolate`) it does nothing: there the module is only imported.
        """
        if in_child():
            return
        if is_looped():
            raise PolluxError(
                "app.run() has an event loop of its own, and here one runs already; use `async with app:`"
            )
        run_alone(self, replace=replace)

    @contextmanager
    def relocated(
        self, store: StoreHandle, *, clock: Clock, dice: Random, registry: Registry, options: RuntimeOptions
    ) -> Iterator[None]:
        """The same app on another store and clock until the block ends, for tests; it must not be open meanwhile."""
        if self.runtime is not None or self._is_open:
            raise PolluxError("this app is open already; close it first, and start it inside the block")
        self.blocking.close()
        before = self._store, self.store_url, self._clock, self._dice, self._registry, self.options, self._usual
        self._store, self.store_url = _store_of(store, clock)
        self._clock, self._dice, self._registry = clock, dice, registry
        self.options = self._usual = options
        self._recompose()
        try:
            yield
        finally:
            self.blocking.close()
            self._store, self.store_url, self._clock, self._dice, self._registry, self.options, self._usual = before
            self._recompose()

    # what this node declares

    async def _register(self, node: Node, *, replace: bool) -> None:
        """Write the declared jobs; on a shared store go on comparing them."""
        registrar = Registrar(
            self._store,
            self.declared,
            node,
            clock=self._clock,
            events=self.events,
            beat_ms=self.options.beat_ms,
            reloader=self.reloader,
            program=self.program,
            replace=replace,
        )
        await registrar.begin()
        self._registrar = registrar
        if self._store.capabilities.shared:
            registrar.start()

    async def _unregister(self) -> None:
        registrar, self._registrar = self._registrar, None
        if registrar is not None:
            await registrar.stop()

    def as_config(self, config: Config) -> Config:
        """The configuration with the options of this app's code, where nothing else sets them."""
        return with_code(config, self._usual, self.store_url, self._store.scheduler_version)

    def options_in_force(self) -> list[EffectiveOption]:
        """Every option by which this node runs, with its origin."""
        config = self.as_config(Config() if self.reloader is None else self.reloader.config)
        live = {} if self.settings_watcher is None else self.settings_watcher.live
        overruled = {
            path: f"{found.value}, {found.origin}" for path, found in live.items() if is_overruled(config, path)
        }
        return effective_options(with_live(config, live), overruled)

    # for reload, live settings and the registrar

    @property
    def backend(self) -> StoreHandle:
        return self._store

    @property
    def clock(self) -> Clock:
        return self._clock

    def node(self) -> Node | None:
        """This node, if it writes what it declares."""
        return None if self._registrar is None else self._registrar.me

    def registry_on_trial(self, *, allow_exec: bool) -> Registry:
        """A registry to try a file on."""
        trial = self._registry.trial()
        if allow_exec and trial.get("exec") is None:
            from pollux.handlers.exec import register_exec

            register_exec(trial, memory=lambda: self.options.child_memory)
        return trial

    def declare_anew(self, declared: Declared) -> None:
        """Declare these jobs from now on, also in the heartbeat."""
        self._registry.forget([job.id for job in self.declared.jobs()])
        self.declared = declared.trial(self._registry)
        self._registry.add_jobs(self.declared.jobs())
        if self._registrar is not None:
            self._registrar.declare_anew(self.declared)
        if self.runtime is not None:
            self.runtime.declares = self.declared.declares()
            self.runtime.beat.nudge()

    def know_handlers(self, trial: Registry) -> None:
        """Take over the handlers, before the first of their jobs can be claimed."""
        self._registry.take(trial)
        if self.runtime is not None:
            self.runtime.beat.nudge()

    def retune(self) -> None:
        """Apply the options in force: code < file < live < environment < arguments."""
        config = self.reloader.config if self.reloader is not None else Config()
        config = with_live(config, self.settings_watcher.live if self.settings_watcher is not None else {})
        wanted = options_over(self._usual, config, plans=self.options.plans, runs=self.options.runs)
        tuned = {name: getattr(wanted, name) for name in TUNABLE}
        self.options = replaced(self.options, **tuned)
        if self.runtime is not None:
            self.runtime.retune(self.options)
        is_given = config.is_given("http.per_target")
        self._built_in.http.set(per_target=config.http_per_target if is_given else self._usual_per_target)
        self._log_from(config.log_level.upper())

    def _log_from(self, level: str) -> None:
        """Only where the log is ours: a program that embeds us has its own."""
        root = logging.getLogger()
        if kind_written() is None or logging.getLevelName(root.level) == level:
            return
        root.setLevel(level)
        if self.runtime is not None:  # which events are logged is decided when listening begins
            self._stop_logs()
            self._stop_logs = attach_logs(self.events)

    # the verbs of programs; operators have `operations`

    enqueue = AppVerb(RunOperations.enqueue)
    enqueue_many = AppVerb(RunOperations.enqueue_many)
    run_now = AppVerb(RunOperations.run_now)
    cancel = AppVerb(RunOperations.cancel)
    get_run = AppVerb(RunOperations.get_run)
    put_jobs = AppVerb(JobOperations.put_jobs)
    pause = AppVerb(PauseOperations.pause)
    resume = AppVerb(PauseOperations.resume)
    why = AppVerb(StatusOperations.why)

    async def readings(self) -> Readings:
        """Values of the metrics: see `pollux.observe.metrics.exposition`."""
        return await self.watch.readings()

    async def open_twin(self) -> Operations:
        """The operations on a store handle of their own, for another thread and loop."""
        store = self._store.twin()
        await store.open()
        try:
            await refuse_sealed(store, hide(self.store_url))
        except BaseException:
            await store.close()
            raise
        dice = Random()  # noqa: S311  ids, not secrets
        return Operations(replaced(self.operations.context, store=store, dice=dice, node=None))


def _store_of(store: str | StoreHandle, clock: Clock) -> tuple[StoreHandle, str]:
    handle = open_store(store, clock=clock) if isinstance(store, str) else store
    url = store if isinstance(store, str) else handle.capabilities.name
    handle.refuse_if_moved(hide(url))
    return handle, url


def _name_of(function: Call) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
