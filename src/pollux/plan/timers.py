"""Timers and job slots: the due times that are near, and the planner's cache of jobs.

`Timers` holds the due times of the next minute, or the next hundred thousand, whichever is less.

One heap of (due, job id) with lazy cancellation: an entry counts only if it is the job's current one.

    ...due times in memory...............|   only in the store
    ------------------------------------ horizon ------------->   by (next due, id), the order in which the store reads

Everything up to the horizon is in memory; the next page is read when the horizon is near.  If the memory is full, the
farthest timers are evicted and the horizon moves back to them: they are still in the store.

A job slot is the definition that the planner plans by, with the leader's columns.  The slot of a job with a timer stays
while the timer does.  Of the others the oldest are evicted when there are too many, and read again when an end or a run
needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import islice
from sys import intern
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pollux.model import Job, Memory, Schedule

TIMERS_MAX = 100_000
WINDOW_MS = 60_000
PAGE = 1_000  # timers in one read


class TimerWindow(NamedTuple):
    """A page of due jobs to read: after that pair of (next due, id), due before that time, at most `limit`."""

    after: tuple[int, str] | None
    before_ms: int
    limit: int


class Timers:
    """One timer for each job that is due before the horizon."""

    def __init__(self, *, limit: int = TIMERS_MAX, window_ms: int = WINDOW_MS, page: int = PAGE) -> None:
        self._limit, self._window_ms, self._page = max(1, limit), window_ms, page
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._horizon: tuple[int, str] | None = None

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._due

    def put(self, job_id: str, due_ms: int, *, anyway: bool = False) -> bool:
        """Set the timer of a job; beyond the horizon it stays in the store only, unless `anyway`."""
        entry = (due_ms, job_id)
        if not anyway and (self._horizon is None or entry > self._horizon):
            self._due.pop(job_id, None)
            return False
        if self._due.get(job_id) != due_ms:
            self._due[job_id] = due_ms
            heappush(self._heap, entry)
            if len(self._due) > self._limit:
                self._forget_farthest()
            elif len(self._heap) > 2 * len(self._due) + 64:
                self._rebuild()
        return True

    def drop(self, job_id: str) -> None:
        self._due.pop(job_id, None)

    def pop_due(self, now_ms: int, limit: int) -> list[str]:
        """Remove the timers that are due and return the ids of their jobs, earliest first."""
        heap, due = self._heap, self._due
        popped: list[str] = []
        while heap and heap[0][0] <= now_ms and len(popped) < limit:
            due_ms, job_id = heappop(heap)
            if due.get(job_id) == due_ms:
                del due[job_id]
                popped.append(job_id)
        return popped

    def next_due_ms(self) -> int | None:
        heap, due = self._heap, self._due
        while heap:
            due_ms, job_id = heap[0]
            if due.get(job_id) == due_ms:
                return due_ms
            heappop(heap)
        return None

    def count_before(self, at_ms: int, limit: int) -> int:
        """The number of timers due before that time, counted up to the limit, in the top of the heap only."""
        heap, due, places = self._heap, self._due, [0]
        found: set[str] = set()  # an entry may be there twice
        while places and len(found) < limit:
            place = places.pop()
            if place < len(heap) and heap[place][0] < at_ms:
                due_ms, job_id = heap[place]
                if due.get(job_id) == due_ms:
                    found.add(job_id)
                places += (2 * place + 1, 2 * place + 2)
        return len(found)

    # the window

    def needs_refill(self, now_ms: int, *, busy: int = 0) -> bool:
        """Whether the horizon is near and there is room; `busy`: the number of jobs in memory without a timer."""
        if len(self._due) + busy > self._limit // 2:
            return False
        return self._horizon is None or self._horizon[0] <= now_ms + self._window_ms // 2

    def refill_ms(self, *, busy: int = 0) -> int | None:
        """When the horizon will be near; None: there is no room until jobs have fired."""
        if len(self._due) + busy > self._limit // 2:
            return None
        return 0 if self._horizon is None else self._horizon[0] - self._window_ms // 2

    def window(self, now_ms: int) -> TimerWindow:
        """The next page to read."""
        room = max(1, self._limit - len(self._due))
        return TimerWindow(self._horizon, now_ms + self._window_ms, min(self._page, room))

    def reach(self, window: TimerWindow, read: int, last: tuple[int, str] | None) -> None:
        """Move the horizon after `read` jobs of that window, the last of them at `last`."""
        reached = (window.before_ms, "") if read < window.limit or last is None else last
        if self._horizon is None or reached > self._horizon:
            self._horizon = reached

    def _forget_farthest(self) -> None:
        """Evict the farthest fifth, so that the cost is amortized over many puts."""
        kept = sorted((due_ms, job_id) for job_id, due_ms in self._due.items())[: max(1, self._limit * 4 // 5)]
        self._due = {job_id: due_ms for due_ms, job_id in kept}
        self._heap = kept  # sorted, so it is a heap
        if self._horizon is not None:
            self._horizon = min(self._horizon, kept[-1])

    def _rebuild(self) -> None:
        self._heap = [(due_ms, job_id) for job_id, due_ms in self._due.items()]
        heapify(self._heap)


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
