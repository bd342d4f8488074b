"""Contract of the operations, by subject, shared by HTTP routes, the command line and `client.Remote`.

`Operations` implements it on a store, `Remote` through the API of a node.  The public coroutines of the groups are the
verbs.  Their names are unique over all groups: they are the names in `POST /api/v2/verbs/<name>`, and the annotations
of the methods define its arguments and answers.
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

    jobs = cached_property(JobOperations)
    runs = cached_property(RunOperations)
    dead_letters = cached_property(DeadLetterOperations)
    pauses = cached_property(PauseOperations)
    listing = cached_property(ListingOperations)
    status = cached_property(StatusOperations)
    audit = cached_property(AuditOperations)
    settings = cached_property(SettingOperations)
    tokens = cached_property(TokenOperations)
    versions = cached_property(VersionOperations)
    workers = cached_property(WorkerOperations)
    config_file = cached_property(ConfigFileOperations)
    storage = cached_property(StorageOperations)

    def __init__(self, context: OperationContext) -> None:
        self.context = context

    @classmethod
    def on_store(cls, store: Store, *, clock: Clock, actor: str) -> Operations:
        """The operations on a store in a process that is no node."""
        registry, dice = Registry(), Random()  # noqa: S311  ids, not secrets
        BuiltIn(registry)  # the built-in handlers check the params of their jobs
        return cls(OperationContext(store, registry, clock, dice, actor, NewestReleases(clock), is_named=True))

    def as_actor(self, actor: str) -> Operations:
        """The same for another actor, under whose name the audit log records the changes."""
        return Operations(replace(self.context, actor=actor, is_named=True))

    def now_ms(self) -> int:
        """The clock of this process."""
        return self.context.clock.now_ms()

    def new_id(self) -> str:
        """An id for a job that has none; its time is the local clock's (see decision 0056 for runs)."""
        return new_id(self.context.clock.now_ms(), self.context.dice)

    @property
    def scheduler_version(self) -> int:
        """The version that these operations serve."""
        return self.context.store.scheduler_version
