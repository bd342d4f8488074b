"""`Pollux`, the app: declare handlers and jobs, start and stop, and the verbs of programs."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self, Unpack, overload

from msgspec.structs import replace as replaced

from pollux.app.blocking import Blocking
from pollux.app.declarations import Declared, NewestReleases, PendingDeclaration
from pollux.app.health import HealthWatch
from pollux.app.operations import OperationContext, Operations
from pollux.app.operations.context import default_actor
from pollux.app.process import SideServices, is_looped, run_alone
from pollux.app.reload import Reloader
from pollux.app.running_config import ReloadableApp
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
)
from pollux.app.watchers import SettingsWatcher
from pollux.clock import Clock, SystemClock
from pollux.config import Config
from pollux.errors import InvalidConfig, PolluxError
from pollux.events import Events, NodeStarted, NodeStopped
from pollux.handlers import BuiltIn
from pollux.ids import new_id
from pollux.model import Job, Node, Run, Schedule, check_version
from pollux.observe import attach_logs
from pollux.observe.metrics_table import Readings
from pollux.plan import Diff, Why
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.runtime.isolation import in_child
from pollux.secrets import Secrets, hide
from pollux.store.contract import JobAnswer, RunAnswer
from pollux.store.handle import StoreHandle
from pollux.store.move_marks import marks_of, refuse_sealed, seal_words
from pollux.store.urls import open_store
from pollux.version import __version__

Call = Callable[..., Any]


class Pollux(ReloadableApp):
    """A polling and job scheduler on one store.

    `async with app:` starts and stops everything; `await app.open()` opens the store alone, to ask and to enqueue;
    `app.run()` is the blocking form for programs that do nothing else.
    """

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
        self.crew: NodeRuntime | None = None
        self.node_id = self.program = ""  # the program: what starts this app; nothing: as the process was
        self.blocking = Blocking(self._blocking_operations)
        self._stand_ready(http_per_target)
        self.watch = HealthWatch(self)
        self._is_open = False
        self.operations = self._operations_of(actor)

    def _operations_of(self, actor: str | None) -> Operations:
        return Operations(
            OperationContext(
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
        )

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
        """Take over what the configuration says, before the app is opened."""
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
        if self.crew is not None:
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
        """Why a job that came by API may not poll its URL; nothing if it may, or polls none."""
        return self._built_in.http.out_of_reach(job.params) if job.handler == "http" else ""

    async def diff(self) -> list[Diff]:
        """What the next start would change in the store, source by source, in the place of nodes that live."""
        return [diff for diff in await self.declared.diff(self._store, coming=PendingDeclaration.DRAFT) if diff.lines()]

    # life

    async def open(self, *, sealed: bool = False) -> None:
        """Open the store alone: ask and enqueue, run nothing.

        One that was moved elsewhere, or is not yet whole, is refused, unless somebody only wants to look (`sealed`).
        """
        if not self._is_open:
            await self._store.open()
            self._is_open = True
            if not sealed:
                await self._refuse_sealed()

    async def sealed(self) -> str:
        """Why nobody works on this store, in words, if it was moved elsewhere; else nothing."""
        return seal_words(await marks_of(self._store), hide(self.store_url))

    async def _refuse_sealed(self) -> None:
        try:
            await refuse_sealed(self._store, hide(self.store_url))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop whatever runs (as `drain` does) and let go of the store."""
        if self.crew is not None:
            await self.drain()
        self.blocking.close()
        if self._is_open:
            self._is_open = False
            await self._store.close()

    async def start(self, *, replace: bool = False) -> None:
        """Write the declared jobs to the store and start planning and running.

        Raises `Conflict` if they would take away jobs that another program or file of the same name declares, or most
        of those that were declared before, unless they are to `replace` those.
        """
        if self.crew is not None:
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
        self.steward = SettingsWatcher(self)
        try:
            await self.steward.prepare()
            self.crew = await self._start_crew(replace=replace)
            await self.steward.begin(self.crew)
        except BaseException:
            self._stop_logs()
            if not was_open:
                await self.close()
            raise
        self.events.emit(NodeStarted(self.node_id, self.store_url))
        self._alongside.set_out(self.crew, self._is_well)

    async def _start_crew(self, *, replace: bool) -> NodeRuntime:
        self.node_id = f"{platform.node()}:{os.getpid()}:{new_id(self._clock.now_ms(), self._dice)[-8:]}"
        crew = NodeRuntime(
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
        await self._alongside.begin(crew, self.watch)
        try:
            node = await crew.announce()  # whoever starts now with other code sees us, or we see it
            if self.options.plans:
                await self._register(node, replace=replace)
            await crew.start()
        except BaseException:
            await self._unregister()
            await self._alongside.end()
            with suppress(PolluxError):
                await self._store.beat(Node(self.node_id), ttl_ms=0)
            raise
        return crew

    async def drain(self) -> None:
        """Stop claiming, finish what runs within the grace, hand back the rest uncharged, stop."""
        crew, self.crew = self.crew, None
        if crew is not None:
            if self.steward is not None:
                await self.steward.end()
            await self._alongside.turn_back()
            await asyncio.gather(crew.drain(), self._unregister())
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
        if self.crew is not None or self._is_open:
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

    # asking: the verbs of programs; operators have `operations`

    async def enqueue(
        self,
        job: object,
        params: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        key: str | None = None,
        at: str | datetime | None = None,
        delay: str | float | None = None,
        priority: int | str | None = None,
        connection: Any = None,
        **unknown: Any,
    ) -> Run:
        """Accept one run of a job, now, `at` a moment or after a `delay`; it survives a crash once this returns.

        With a `connection` (PostgreSQL: one of asyncpg, inside a transaction) it is part of the caller's own
        transaction: there if and when that commits.

        The same `id` again is the same run, and the answer is that run as it is now.  A `key` allows one live run: a
        second one raises `Conflict`.

        One for later lets the job's schedule go on until its time has come.
        """
        return await self.operations.runs.enqueue(
            job, params, id=id, key=key, at=at, delay=delay, priority=priority, connection=connection, **unknown
        )

    async def enqueue_many(
        self,
        job: object,
        params: Iterable[Mapping[str, Any] | None],
        *,
        at: str | datetime | None = None,
        delay: str | float | None = None,
        priority: int | str | None = None,
        connection: Any = None,
    ) -> list[str]:
        """Accept a run for each of the params, in batches; answers their ids in order.

        None is accepted if one of the params cannot be.  A batch that the store refuses ends it: those before stay.
        With a `connection` they are part of the caller's own transaction, as with `enqueue`.
        """
        return await self.operations.runs.enqueue_many(
            job, params, at=at, delay=delay, priority=priority, connection=connection
        )

    async def run_now(
        self, job: object, params: Mapping[str, Any] | None = None, *, anyway: bool = False, id: str | None = None
    ) -> Run:
        """Run a job now, whatever its schedule or pauses say; `Conflict` if one is live and they may not overlap.

        However many ask at once, one of them gets its run.  The same `id` again is the same run.
        """
        return await self.operations.runs.run_now(job, params, anyway=anyway, id=id)

    async def cancel(self, ref: object, *, reason: str = "") -> list[RunAnswer]:
        """Cancel a run by its id, or all live runs of a job: queued ones at once, running ones by request.

        The request reaches a handler of this process at once, one elsewhere when its lease is next renewed.
        """
        return await self.operations.runs.cancel(ref, reason=reason)

    async def get_run(self, run_id: str) -> Run:
        """The run as it is now; `NotFound` if there is none."""
        return await self.operations.runs.get_run(run_id)

    async def put_jobs(self, jobs: Sequence[Job]) -> list[JobAnswer]:
        """Add or change jobs; raises `Conflict` with everything that stands against it, the others are written."""
        return await self.operations.jobs.put_jobs(jobs)

    async def pause(
        self,
        job: object = None,
        *,
        group: str | None = None,
        target: str | None = None,
        everything: bool = False,
        reason: str = "",
        duration: str | float | None = None,
    ) -> str:
        """Stop a job, a group, a target or everything, for a `duration` or until resumed; answers the stop's name."""
        return await self.operations.pauses.pause(
            job, group=group, target=target, everything=everything, reason=reason, duration=duration
        )

    async def resume(
        self, job: object = None, *, group: str | None = None, target: str | None = None, everything: bool = False
    ) -> bool:
        """Take the same pause away; false if there was none."""
        return await self.operations.pauses.resume(job, group=group, target=target, everything=everything)

    async def why(self, ref: object) -> Why:
        """Why does it run, or not?  For a run or a job, in words, with the expected start and the cure."""
        return await self.operations.status.why(ref)

    async def readings(self) -> Readings:
        """All that the metrics are made of: see `pollux.observe.metrics.exposition`."""
        return await self.watch.readings()

    async def _blocking_operations(self) -> tuple[Operations, Callable[[], Coroutine[Any, Any, None]]]:
        store = self._store.twin()
        await store.open()
        try:
            await refuse_sealed(store, hide(self.store_url))
        except BaseException:
            await store.close()
            raise
        dice = Random()  # noqa: S311  ids, not secrets
        context = replaced(self.operations.context, store=store, dice=dice, node=None)
        return Operations(context), store.close


def _store_of(store: str | StoreHandle, clock: Clock) -> tuple[StoreHandle, str]:
    handle = open_store(store, clock=clock) if isinstance(store, str) else store
    url = store if isinstance(store, str) else handle.capabilities.name
    handle.refuse_if_moved(hide(url))
    return handle, url


def _name_of(function: Call) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
