"""The part of an app that changes while it runs, for reload, live settings and the registrar."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from pollux.app.declarations import Registrar
from pollux.app.setup import options_over, with_code
from pollux.config import Config
from pollux.config.descriptions import EffectiveOption, effective_options
from pollux.config.settings import is_overruled, with_live
from pollux.log_format import kind_written
from pollux.observe import attach_logs
from pollux.runtime.node import TUNABLE, NodeRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.app.declarations import Declared
    from pollux.app.reload import Reloader
    from pollux.app.watchers import SettingsWatcher
    from pollux.clock import Clock
    from pollux.events import Events
    from pollux.handlers import BuiltIn
    from pollux.model import Node
    from pollux.registry import Registry
    from pollux.runtime import RuntimeOptions
    from pollux.store.handle import StoreHandle


class ReloadableApp:
    """Base of `Pollux`: its declared jobs, options and handlers, as reload and live settings replace them."""

    options: RuntimeOptions
    events: Events
    declared: Declared
    crew: NodeRuntime | None
    node_id: str
    store_url: str
    program: str
    _store: StoreHandle
    _clock: Clock
    _registry: Registry
    _built_in: BuiltIn
    _stop_logs: Callable[[], None]

    def _stand_ready(self, per_target: int) -> None:
        """As the code made it: what a configuration and the operators say is laid over that."""
        self._usual, self._usual_per_target = self.options, per_target
        self.reloader: Reloader | None = None
        self.steward: SettingsWatcher | None = None
        self._registrar: Registrar | None = None

    # what this node declares

    async def _register(self, node: Node, *, replace: bool) -> None:
        """Write the declared jobs; where others share the store, see to it that they stay so."""
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
        """The configuration with what this app says in its code, where nothing else says it."""
        return with_code(config, self._usual, self.store_url, self._store.scheduler_version)

    def options_in_force(self) -> list[EffectiveOption]:
        """Every option by which this node runs, and who said so."""
        config = self.as_config(Config() if self.reloader is None else self.reloader.config)
        live = {} if self.steward is None else self.steward.live
        overruled = {path: f"{said.value}, {said.origin}" for path, said in live.items() if is_overruled(config, path)}
        return effective_options(with_live(config, live), overruled)

    # for the steward and the reloader

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
        """The jobs that were tried hold, and the next beat says so."""
        self._registry.forget([job.id for job in self.declared.jobs()])
        self.declared = declared.trial(self._registry)
        self._registry.add_jobs(self.declared.jobs())
        if self._registrar is not None:
            self._registrar.declare_anew(self.declared)
        if self.crew is not None:
            self.crew.declares = self.declared.declares()
            self.crew.beat.nudge()

    def know_handlers(self, trial: Registry) -> None:
        """Before the first of their jobs can come."""
        self._registry.take(trial)
        if self.crew is not None:
            self.crew.beat.nudge()

    def retune(self) -> None:
        """Run by what holds now: code < file < live < environment < arguments."""
        said = self.reloader.config if self.reloader is not None else Config()
        config = with_live(said, self.steward.live if self.steward is not None else {})
        wanted = options_over(self._usual, config, plans=self.options.plans, runs=self.options.runs)
        tuned = {name: getattr(wanted, name) for name in TUNABLE}
        self.options = msgspec.structs.replace(self.options, **tuned)
        if self.crew is not None:
            self.crew.retune(self.options)
        is_given = config.is_given("http.per_target")
        self._built_in.http.set(per_target=config.http_per_target if is_given else self._usual_per_target)
        self._log_from(config.log_level.upper())

    def _log_from(self, level: str) -> None:
        """Only where the log is ours: a program that embeds us has its own."""
        root = logging.getLogger()
        if kind_written() is None or logging.getLevelName(root.level) == level:
            return
        root.setLevel(level)
        if self.crew is not None:  # whether every run is told of is decided when the listening begins
            self._stop_logs()
            self._stop_logs = attach_logs(self.events)
