"""What does the planner know of a job?  A slot: the definition it plans by, and the leader's own columns.

Slots of jobs with a timer are kept as long as the timer is; of the others the oldest go when there are too many, and
are read again when an end or a run asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import lru_cache
from itertools import islice
from sys import intern

from msgspec import Struct
from msgspec.structs import replace

from pollux.model import Job, Memory, Schedule

IDLE_MAX = 100_000
_NOTHING: dict[str, object] = {}
_BLANK = Memory()


@lru_cache(maxsize=1_000)
def _shared(schedule: Schedule | None) -> Schedule | None:
    """The same object for equal schedules: a fleet has a few."""
    return schedule


class DueOrigin(IntEnum):
    """What is known of a next due beyond its time."""

    ANYWHERE = 0
    ON_GRID = 1  # it follows a due of the same schedule: an interval need not compute where its grid lies
    CHOSEN = 2  # it follows one, too, and stands for due times that were missed: it fires however late it is


class JobSlot(Struct, gc=False, eq=False):  # gc: there are many, and none is part of a cycle
    job: Job
    next_ms: int | None = None
    last_ms: int | None = None
    memory: Memory = _BLANK
    footing: DueOrigin = DueOrigin.ANYWHERE
    placed: int = 0  # the revision whose next due the planner decided itself

    def __post_init__(self) -> None:
        self.read(self.job)

    def read(self, job: Job) -> None:
        """Take what the store says; the bulk that planning does not need is left there."""
        self.job = replace(
            job,
            handler=intern(job.handler),  # many jobs share a few names
            group=intern(job.group),
            source=intern(job.source),
            schedule=_shared(job.schedule),
            params=_NOTHING,
            name="",
            tags=(),
            memory=_BLANK,
        )
        self.next_ms = job.next_due_ms
        self.last_ms = job.last_due_ms
        self.memory = job.memory
        self.footing = DueOrigin.ANYWHERE

    def move(self, next_ms: int | None, *, is_chosen: bool = False) -> None:
        """The next due, after a due of this slot."""
        self.next_ms = next_ms
        self.footing = DueOrigin.CHOSEN if is_chosen else DueOrigin.ON_GRID

    def place(self, next_ms: int | None) -> None:
        """A next due from anywhere else."""
        self.next_ms = next_ms
        self.footing = DueOrigin.ANYWHERE


class JobSlots:
    """Slots by job id, oldest first."""

    def __init__(self, *, idle_max: int = IDLE_MAX) -> None:
        self._by_id: dict[str, JobSlot] = {}
        self._idle_max = idle_max
        self.get = self._by_id.get

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._by_id

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def add(self, job: Job) -> JobSlot:
        slot = self._by_id[job.id] = JobSlot(job)
        return slot

    def drop(self, job_id: str) -> None:
        self._by_id.pop(job_id, None)

    def trim(self, is_needed: Callable[[str], bool], *, needed: int) -> None:
        """Forget the oldest idle slots beyond the limit; `needed` slots are not idle."""
        excess = len(self._by_id) - needed - self._idle_max
        if excess <= 0:
            return
        for job_id in list(islice(self._by_id, 2 * excess)):
            slot = self._by_id.pop(job_id)
            if excess > 0 and not is_needed(job_id):
                excess -= 1
            else:
                self._by_id[job_id] = slot  # at the young end: it is looked at again only after all others
