"""Context of the operations: the fields that all groups share, and the node of this process."""

from __future__ import annotations

import getpass
from random import Random
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from pollux.app.declarations import NewestReleases
from pollux.app.operations.audit import AuditRecorder
from pollux.clock import Clock
from pollux.registry import Registry
from pollux.store.contract import Store

if TYPE_CHECKING:
    from pollux.app.health import HealthWatch
    from pollux.app.operations.contract import Operations
    from pollux.app.reload import Reloader
    from pollux.app.watchers import SettingsWatcher
    from pollux.config.descriptions import EffectiveOption
    from pollux.runtime.node import NodeRuntime


class LocalNode(Protocol):
    """The app of this process.  Requests reach its own loops at once, those of other nodes by notes."""

    runtime: NodeRuntime | None  # None while it does not run
    node_id: str
    reloader: Reloader | None
    settings_watcher: SettingsWatcher | None
    watch: HealthWatch

    def options_in_force(self) -> list[EffectiveOption]:
        """Every option by which this node runs, with its origin."""
        ...


class OperationContext(Struct):
    """Fields of the operations; `as_actor` replaces two of them and shares the rest."""

    store: Store
    registry: Registry
    clock: Clock
    dice: Random
    actor: str  # the name under which changes are recorded
    releases: NewestReleases
    ready_max: int = 1_000_000
    is_named: bool = False  # False: the actor is only the user that started the program
    trace_namespace: str = ""  # of the traces of runs, which the caller's span is linked to
    node: LocalNode | None = None  # of this process


class OperationGroup:
    """The operations of one subject.  A group has no state of its own, and finds the others in `_operations`."""

    def __init__(self, operations: Operations) -> None:
        context = operations.context
        self._operations, self._context = operations, context
        self._store, self._registry = context.store, context.registry
        self._clock, self._dice, self._actor = context.clock, context.dice, context.actor
        self._audit = AuditRecorder(context.store, context.clock, context.actor, is_named=context.is_named)


def default_actor(kind: str) -> str:
    """`cli:ann`, `app:ann`: the user of this process, as far as the machine knows."""
    try:
        return f"{kind}:{getpass.getuser()}"
    except (KeyError, OSError):
        return kind
