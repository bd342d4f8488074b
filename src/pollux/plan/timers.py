"""Timers: the due times of the next minute, or the next hundred thousand, whichever is less.

One heap of (due, job id) with lazy cancellation: an entry counts only if it is the job's current one.

    ...due times in memory...............|   only in the store
    ------------------------------------ horizon ------------->   by (next due, id), the order in which the store reads

Everything up to the horizon is in memory; the next page is read when the horizon is near.  If the memory is full, the
farthest timers are evicted and the horizon moves back to them: they are still in the store.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

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

    @property
    def horizon_ms(self) -> int | None:
        """Every due time before it is in memory; None: nothing was read yet."""
        return None if self._horizon is None else self._horizon[0]

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
