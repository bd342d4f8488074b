"""`Operations`: one group of operations for each subject, on behalf of one actor."""

from __future__ import annotations

from functools import cached_property

from msgspec.structs import replace

from pollux.app.operations.audit import AuditOperations
from pollux.app.operations.config_file import ConfigFileOperations
from pollux.app.operations.context import OperationContext
from pollux.app.operations.dead_letters import DeadLetterOperations
from pollux.app.operations.jobs import JobOperations
from pollux.app.operations.listing import ListingOperations
from pollux.app.operations.pauses import PauseOperations
from pollux.app.operations.runs import RunOperations
from pollux.app.operations.settings import SettingOperations
from pollux.app.operations.status import StatusOperations
from pollux.app.operations.storage import StorageOperations
from pollux.app.operations.tokens import TokenOperations
from pollux.app.operations.versions import VersionOperations
from pollux.app.operations.workers import WorkerOperations
from pollux.ids import new_id


class Operations:
    """Everything that can be asked of a store full of jobs and runs.

    A group is made when it is first used: a request uses one or two of them.
    """

    def __init__(self, context: OperationContext) -> None:
        self.context = context

    def as_actor(self, actor: str) -> Operations:
        """The same on behalf of another actor: the audit log records its changes under that name."""
        return Operations(replace(self.context, actor=actor, is_named=True))

    @cached_property
    def jobs(self) -> JobOperations:
        return JobOperations(self.context)

    @cached_property
    def runs(self) -> RunOperations:
        return RunOperations(self.context)

    @cached_property
    def dead_letters(self) -> DeadLetterOperations:
        return DeadLetterOperations(self.context)

    @cached_property
    def pauses(self) -> PauseOperations:
        return PauseOperations(self.context)

    @cached_property
    def listing(self) -> ListingOperations:
        return ListingOperations(self.context)

    @cached_property
    def status(self) -> StatusOperations:
        return StatusOperations(self.context)

    @cached_property
    def audit(self) -> AuditOperations:
        return AuditOperations(self.context.store)

    @cached_property
    def settings(self) -> SettingOperations:
        return SettingOperations(self.context)

    @cached_property
    def tokens(self) -> TokenOperations:
        return TokenOperations(self.context)

    @cached_property
    def versions(self) -> VersionOperations:
        return VersionOperations(self.context)

    @cached_property
    def workers(self) -> WorkerOperations:
        return WorkerOperations(self.context)

    @cached_property
    def config_file(self) -> ConfigFileOperations:
        return ConfigFileOperations(self.context)

    @cached_property
    def storage(self) -> StorageOperations:
        return StorageOperations(self.context)

    def now_ms(self) -> int:
        """The clock of this process."""
        return self.context.clock.now_ms()

    def new_id(self) -> str:
        """For a job that was sent without one.  Its time is our own clock's and decides nothing; see 0045 for runs."""
        return new_id(self.context.clock.now_ms(), self.context.dice)

    @property
    def scheduler_version(self) -> int:
        """The version that these operations serve."""
        return self.context.store.scheduler_version
