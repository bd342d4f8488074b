"""Job slots: the planner's cache of jobs, with the definition it plans by and the leader's columns.

The slot of a job with a timer stays while the timer does.  Of the others the oldest are evicted when there are too
many, and read again when an end or a run needs them.
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
    """One object for all equal schedules: many jobs share a few."""
    return schedule


class DueOrigin(IntEnum):
    """Origin of a next due time."""

    ANYWHERE = 0
    ON_GRID = 1  # follows a due time of the same schedule: an interval need not compute its phase
    CHOSEN = 2  # the same, and chosen among missed due times: it fires however late it is


class JobSlot(Struct, gc=False, eq=False):  # gc: there are many, and none is part of a cycle
    """A cached job without the fields that planning does not need."""

    job: Job
    next_ms: int | None = None
    last_ms: int | None = None
    memory: Memory = _BLANK
    origin: DueOrigin = DueOrigin.ANYWHERE
    placed: int = 0  # the revision whose next due time the planner computed itself

    def __post_init__(self) -> None:
        self.read(self.job)

    def read(self, job: Job) -> None:
        """Set the slot from the stored job, without the fields that planning does not need."""
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
        self.origin = DueOrigin.ANYWHERE

    def move(self, next_ms: int | None, *, is_chosen: bool = False) -> None:
        """Set the next due time, computed from a due time of this slot."""
        self.next_ms = next_ms
        self.origin = DueOrigin.CHOSEN if is_chosen else DueOrigin.ON_GRID

    def place(self, next_ms: int | None) -> None:
        """Set a next due time of any other origin."""
        self.next_ms = next_ms
        self.origin = DueOrigin.ANYWHERE


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
        """Evict the oldest idle slots beyond the limit; `needed`: the number of slots that are not idle."""
        excess = len(self._by_id) - needed - self._idle_max
        if excess <= 0:
            return
        for job_id in list(islice(self._by_id, 2 * excess)):
            slot = self._by_id.pop(job_id)
            if excess > 0 and not is_needed(job_id):
                excess -= 1
            else:
                self._by_id[job_id] = slot  # reinserted last: the next trim reaches it after all others
