"""Live runs by job: those that may overlap a firing, and separately those that become visible later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from pollux.model import Run

STALE_MIN = 1_000


class LaterRuns:
    """Runs of one job that overlap only from their visible time on, ordered by that time."""

    __slots__ = ("_heap", "_visible_ms")

    def __init__(self) -> None:
        self._visible_ms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # an entry is valid if `_visible_ms` has its run with that time

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._visible_ms

    def __iter__(self) -> Iterator[str]:
        return iter(self._visible_ms)

    def __len__(self) -> int:
        return len(self._visible_ms)

    def add(self, run: Run) -> None:
        self._visible_ms[run.id] = run.visible_ms
        heappush(self._heap, (run.visible_ms, run.id))
        if len(self._heap) > STALE_MIN + 2 * len(self._visible_ms):
            self._heap = [(visible_ms, run_id) for run_id, visible_ms in self._visible_ms.items()]
            heapify(self._heap)

    def remove(self, run_id: str) -> None:
        del self._visible_ms[run_id]

    def take_due(self, now_ms: int) -> Iterator[str]:
        """Remove and return the ids of runs that are visible now."""
        while self._heap and self._heap[0][0] <= now_ms:
            visible_ms, run_id = heappop(self._heap)
            if self._visible_ms.get(run_id) == visible_ms:
                del self._visible_ms[run_id]
                yield run_id


class JobRuns:
    """Ids of live runs by job.  A firing reads only runs that may overlap it, not those that become visible later."""

    def __init__(self, live: Mapping[str, Run]) -> None:
        self._live = live
        self._near: dict[str, list[str]] = {}
        self._later: dict[str, LaterRuns] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._near or job_id in self._later

    def of(self, job_id: str) -> list[str]:
        """Ids of all live runs of a job."""
        return [*self._near.get(job_id, ()), *self._later.get(job_id, ())]

    def add(self, run: Run, now_ms: int) -> None:
        """Add a run that becomes live."""
        if run.overlaps_at(now_ms):
            self._near.setdefault(run.job_id, []).append(run.id)
            return
        later = self._later.get(run.job_id)
        if later is None:
            later = self._later[run.job_id] = LaterRuns()
        later.add(run)

    def move(self, run: Run, now_ms: int) -> None:
        """Update a run whose state or visible time changed."""
        later = self._later.get(run.job_id)
        if (later is not None and run.id in later) or not run.overlaps_at(now_ms):
            self.remove(run)
            self.add(run, now_ms)

    def remove(self, run: Run) -> None:
        later = self._later.get(run.job_id)
        if later is not None and run.id in later:
            later.remove(run.id)
            if not later:
                del self._later[run.job_id]
            return
        near = self._near[run.job_id]
        if len(near) == 1:
            del self._near[run.job_id]
        else:
            near.remove(run.id)

    def overlapping(self, job_id: str, now_ms: int) -> Iterator[Run]:
        """Runs of a job that overlap a firing at `now_ms`."""
        later = self._later.get(job_id)
        due = list(later.take_due(now_ms)) if later is not None else []
        if due:
            self._near.setdefault(job_id, []).extend(due)
            if not later:
                del self._later[job_id]
        near = (self._live[run_id] for run_id in self._near.get(job_id, ()))
        return (run for run in near if run.overlaps_at(now_ms))
