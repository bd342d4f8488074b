"""Contract of the operations: what HTTP routes, the command line and `client.Remote` share.

`Operations` implements it on a store, `Remote` through the API of a node.  The names of the methods are unique over all
groups: they are the names of the verbs in `POST /api/v2/verbs/<name>`, whose arguments and answers are read from the
annotations here.  What each method does is written at its implementation, in the module of the group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from pollux.app.operations.audit import AuditVerdict
from pollux.app.operations.jobs import PutResult
from pollux.app.operations.listing import JobRows
from pollux.app.operations.run_answers import RunAccepted
from pollux.app.operations.runs import RunRequest
from pollux.app.operations.settings import Setting
from pollux.app.operations.status import JobState, Overview
from pollux.app.operations.tokens import OVERLAP, MadeToken, Token, TokenRecord
from pollux.app.operations.versions import VersionFigures, VersionRemainder
from pollux.app.operations.workers import TriggerResult
from pollux.app.reload import ReloadResult, RunningConfig
from pollux.config.descriptions import EffectiveOption
from pollux.config.file_history import SavedText
from pollux.errors import PolluxError, Unreadable
from pollux.model import Drained, Job, Node, Note, Run, Version
from pollux.observe.health import Health
from pollux.plan import Why
from pollux.store.contract import (
    Answer,
    Counts,
    DumpPage,
    JobAnswer,
    JobFilter,
    JobPage,
    JobPut,
    LogPage,
    RunAnswer,
    RunFilter,
    RunPage,
)


class JobProtocol(Protocol):
    """Jobs."""

    async def get_job(self, job: object) -> Job: ...

    async def find_job(self, job: object) -> Job | Unreadable: ...

    async def jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]: ...

    async def list_jobs(
        self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100
    ) -> JobPage: ...

    async def put_jobs(self, jobs: Sequence[Job]) -> list[JobAnswer]: ...

    async def delete_jobs(self, ids: Sequence[str], *, reason: str = "") -> None: ...

    async def put_each(
        self, puts: Sequence[JobPut], *, version: int | None = None
    ) -> list[PutResult | PolluxError]: ...


class RunProtocol(Protocol):
    """Runs."""

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
    ) -> Run: ...

    async def accept(
        self,
        job: object,
        params: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        key: str | None = None,
        at: str | datetime | None = None,
        delay: str | float | None = None,
        priority: int | str | None = None,
    ) -> RunAccepted: ...

    async def enqueue_many(
        self,
        job: object,
        params: Iterable[Mapping[str, Any] | None],
        *,
        at: str | datetime | None = None,
        delay: str | float | None = None,
        priority: int | str | None = None,
        connection: Any = None,
    ) -> list[str]: ...

    async def enqueue_each(self, asks: Sequence[RunRequest]) -> list[RunAccepted | PolluxError]: ...

    async def run_now(
        self, job: object, params: Mapping[str, Any] | None = None, *, anyway: bool = False, id: str | None = None
    ) -> Run: ...

    async def cancel(self, ref: object, *, reason: str = "") -> list[RunAnswer]: ...

    async def cancel_runs(self, run_ids: Sequence[str], *, reason: str = "") -> list[RunAnswer]: ...

    async def get_run(self, run_id: str) -> Run: ...

    async def find_run(self, run_id: str) -> Run | Unreadable: ...

    async def list_runs(
        self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100
    ) -> RunPage: ...


class DeadLetterProtocol(Protocol):
    """Dead letters."""

    async def revive(self, run_ids: Sequence[str] | None = None, *, job: object = None) -> list[RunAnswer]: ...

    async def drop(self, run_ids: Sequence[str] | None = None, *, job: object = None) -> int: ...

    async def revive_where(self, where: RunFilter) -> list[RunAnswer]: ...

    async def drop_where(self, where: RunFilter) -> int: ...


class PauseProtocol(Protocol):
    """Pauses and breakers."""

    async def pause(
        self,
        job: object = None,
        *,
        group: str | None = None,
        target: str | None = None,
        everything: bool = False,
        reason: str = "",
        duration: str | float | None = None,
    ) -> str: ...

    async def resume(
        self, job: object = None, *, group: str | None = None, target: str | None = None, everything: bool = False
    ) -> bool: ...

    async def stops(self) -> list[Note]: ...

    async def reset_breaker(self, name: str) -> None: ...


class ListingProtocol(Protocol):
    """Jobs with their states."""

    async def job_rows(
        self,
        where: JobFilter | None = None,
        *,
        state: str | None = None,
        after: str | None = None,
        offset: int = 0,
        limit: int = 50,
    ) -> JobRows: ...

    async def job_row(self, job_id: str) -> JobState: ...

    async def new_row(self, job: Job, stops: Sequence[Note]) -> JobState: ...


class StatusProtocol(Protocol):
    """State of the deployment."""

    async def overview(self, *, limit: int = 50) -> Overview: ...

    async def why(self, ref: object) -> Why: ...

    async def nodes(self) -> list[Node]: ...

    async def overdue(self, *, limit: int = 1) -> list[Job]: ...

    async def counts(self) -> Counts: ...

    async def health(self) -> Health: ...

    async def health_document(self) -> dict[str, Any]: ...


class AuditProtocol(Protocol):
    """Audit log."""

    async def list_audit(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage: ...

    async def verify_audit(self, *, mark: str = "") -> AuditVerdict: ...


class SettingProtocol(Protocol):
    """Live settings."""

    async def list_settings(self) -> list[Setting]: ...

    async def set_setting(self, path: str, value: Any) -> Setting: ...

    async def unset_setting(self, path: str) -> bool: ...


class TokenProtocol(Protocol):
    """API tokens."""

    async def create_token(self, role: str, *, name: str = "", expires: str | float | None = None) -> MadeToken: ...

    async def needs_first_token(self) -> bool: ...

    async def first_token(self) -> MadeToken | None: ...

    async def list_tokens(self) -> list[Token]: ...

    async def token_records(self) -> list[TokenRecord]: ...

    async def revoke_token(self, ref: str) -> Token: ...

    async def rotate_token(self, ref: str, *, overlap: str | float = OVERLAP) -> MadeToken: ...

    async def tokens_used(self, records: Sequence[TokenRecord]) -> None: ...


class VersionProtocol(Protocol):
    """Scheduler versions."""

    async def list_versions(self) -> list[Version]: ...

    async def move_jobs(self, ids: Sequence[str], to: int) -> dict[str, Answer]: ...

    async def compare(self, versions: Sequence[int], *, since_ms: int) -> list[VersionFigures]: ...

    async def left_in(self, number: int) -> VersionRemainder: ...

    async def finish_version(self, number: int) -> None: ...


class WorkerProtocol(Protocol):
    """Workers and planning turns."""

    async def drain_workers(self, node: str | None = None, *, reason: str = "") -> None: ...

    async def resume_workers(self, node: str | None = None) -> bool: ...

    async def drained_workers(self) -> list[Drained]: ...

    async def drain_here(self) -> Drained | None: ...

    async def trigger(self) -> TriggerResult: ...


class ConfigFileProtocol(Protocol):
    """The config file of a node."""

    async def reload(
        self,
        *,
        dry_run: bool = False,
        text: str | None = None,
        called: str = "",
        source: str = "",
        only: str = "",
        replace: bool = False,
    ) -> ReloadResult: ...

    async def file_in_force(self) -> RunningConfig: ...

    async def rollback(self, to: str | None = None, *, replace: bool = False) -> ReloadResult: ...

    async def file_versions(self) -> list[SavedText]: ...

    async def options_in_force(self) -> list[EffectiveOption]: ...


class StorageProtocol(Protocol):
    """The store itself."""

    def dump(self) -> AsyncIterator[DumpPage]: ...

    async def load(self, records: Sequence[tuple[str, Any]]) -> int: ...

    async def store_now(self) -> int: ...

    async def kept(self, prefix: str) -> list[Note]: ...

    async def keep(self, values: Mapping[str, Any], *, keep_ms: int, revision: int | None = None) -> bool: ...

    async def forget(self, keys: Sequence[str]) -> None: ...


class OperationsProtocol(Protocol):
    """All operations, by subject."""

    @property
    def jobs(self) -> JobProtocol: ...

    @property
    def runs(self) -> RunProtocol: ...

    @property
    def dead_letters(self) -> DeadLetterProtocol: ...

    @property
    def pauses(self) -> PauseProtocol: ...

    @property
    def listing(self) -> ListingProtocol: ...

    @property
    def status(self) -> StatusProtocol: ...

    @property
    def audit(self) -> AuditProtocol: ...

    @property
    def settings(self) -> SettingProtocol: ...

    @property
    def tokens(self) -> TokenProtocol: ...

    @property
    def versions(self) -> VersionProtocol: ...

    @property
    def workers(self) -> WorkerProtocol: ...

    @property
    def config_file(self) -> ConfigFileProtocol: ...

    @property
    def storage(self) -> StorageProtocol: ...


GROUPS = {  # by their names in `OperationsProtocol`
    "jobs": JobProtocol,
    "runs": RunProtocol,
    "dead_letters": DeadLetterProtocol,
    "pauses": PauseProtocol,
    "listing": ListingProtocol,
    "status": StatusProtocol,
    "audit": AuditProtocol,
    "settings": SettingProtocol,
    "tokens": TokenProtocol,
    "versions": VersionProtocol,
    "workers": WorkerProtocol,
    "config_file": ConfigFileProtocol,
    "storage": StorageProtocol,
}
