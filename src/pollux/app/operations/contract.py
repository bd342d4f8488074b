"""Contract of the operations, by subject: what HTTP routes, the command line and `client.Remote` share.

`Operations` implements it on a store, `Remote` through the API of a node.  The public coroutines of the groups are the
verbs.  Their names are unique over all groups: they are the names in `POST /api/v2/verbs/<name>`, whose arguments and
answers are read from the annotations of the methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from random import Random
from typing import Any, Protocol, get_type_hints

from msgspec.structs import replace

from pollux.app.declarations import NewestReleases
from pollux.app.operations.audit import AuditOperations
from pollux.app.operations.context import OperationContext
from pollux.app.operations.control import ConfigFileOperations, PauseOperations, SettingOperations, WorkerOperations
from pollux.app.operations.jobs import JobOperations
from pollux.app.operations.runs import DeadLetterOperations, RunOperations
from pollux.app.operations.status import ListingOperations, StatusOperations
from pollux.app.operations.storage import StorageOperations, VersionOperations
from pollux.app.operations.tokens import TokenOperations
from pollux.clock import Clock
from pollux.handlers import BuiltIn
from pollux.ids import new_id
from pollux.registry import Registry
from pollux.store.contract import Store


class OperationsProtocol(Protocol):
    """All operations: one group for each subject."""

    jobs: JobOperations
    runs: RunOperations
    dead_letters: DeadLetterOperations
    pauses: PauseOperations
    listing: ListingOperations
    status: StatusOperations
    audit: AuditOperations
    settings: SettingOperations
    tokens: TokenOperations
    versions: VersionOperations
    workers: WorkerOperations
    config_file: ConfigFileOperations
    storage: StorageOperations


GROUPS: dict[str, type[Any]] = get_type_hints(OperationsProtocol)


def verbs_of(group: type[Any]) -> dict[str, Callable[..., Any]]:
    """The public coroutines and asynchronous generators of a group."""
    public = {name: value for name, value in vars(group).items() if not name.startswith("_")}
    is_verb = inspect.iscoroutinefunction, inspect.isasyncgenfunction
    return {name: value for name, value in public.items() if any(check(value) for check in is_verb)}


class Operations:
    """The operations on a store, on behalf of one actor.

    A group is made when it is first used: a request uses one or two of them.
    """

    jobs = cached_property(lambda self: JobOperations(self.context))
    runs = cached_property(lambda self: RunOperations(self.context))
    dead_letters = cached_property(lambda self: DeadLetterOperations(self.context))
    pauses = cached_property(lambda self: PauseOperations(self.context))
    listing = cached_property(lambda self: ListingOperations(self.context))
    status = cached_property(lambda self: StatusOperations(self.context))
    audit = cached_property(lambda self: AuditOperations(self.context))
    settings = cached_property(lambda self: SettingOperations(self.context))
    tokens = cached_property(lambda self: TokenOperations(self.context))
    versions = cached_property(lambda self: VersionOperations(self.context))
    workers = cached_property(lambda self: WorkerOperations(self.context))
    config_file = cached_property(lambda self: ConfigFileOperations(self.context))
    storage = cached_property(lambda self: StorageOperations(self.context))

    def __init__(self, context: OperationContext) -> None:
        self.context = context

    @classmethod
    def on_store(cls, store: Store, *, clock: Clock, actor: str) -> Operations:
        """The operations on a store in a process that is no node."""
        registry, dice = Registry(), Random()  # noqa: S311  ids, not secrets
        BuiltIn(registry)  # the built-in handlers check the params of their jobs
        return cls(OperationContext(store, registry, clock, dice, actor, NewestReleases(clock), is_named=True))

    def as_actor(self, actor: str) -> Operations:
        """The same on behalf of another actor: the audit log records its changes under that name."""
        return Operations(replace(self.context, actor=actor, is_named=True))

    def now_ms(self) -> int:
        """The clock of this process."""
        return self.context.clock.now_ms()

    def new_id(self) -> str:
        """An id for a job that was sent without one; its time is the local clock's (see decision 0056 for runs)."""
        return new_id(self.context.clock.now_ms(), self.context.dice)

    @property
    def scheduler_version(self) -> int:
        """The version that these operations serve."""
        return self.context.store.scheduler_version
