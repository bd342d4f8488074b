"""Which jobs are due next?  Ids in buckets of one second, so that a firing moves one id and a look sorts one bucket."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping

from pollux.model import Job

BUCKET_MS = 1_000


class DueLine:
    """Enabled jobs with a next due, readable by (next due, id) from anywhere."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._buckets: dict[int, set[str]] = {}
        self._numbers: list[int] = []  # of the buckets, sorted
        self._sorted: dict[int, list[tuple[int, str]]] = {}  # of buckets that were read; ids may have left since

    def add(self, job: Job) -> None:
        if job.next_due_ms is None or not job.enabled:
            return
        number = job.next_due_ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = set()
            insort(self._numbers, number)
        bucket.add(job.id)
        self._sorted.pop(number, None)

    def remove(self, job: Job) -> None:
        if job.next_due_ms is None or not job.enabled:
            return
        number = job.next_due_ms // BUCKET_MS
        bucket = self._buckets[number]
        bucket.remove(job.id)
        if not bucket:
            del self._buckets[number]
            del self._numbers[bisect_left(self._numbers, number)]
            self._sorted.pop(number, None)

    def read(self, after: tuple[int, str] | None, before_ms: int) -> Iterator[Job]:
        """The jobs after that pair and due before that time, in order."""
        first = 0 if after is None else bisect_left(self._numbers, after[0] // BUCKET_MS)
        for place in range(first, bisect_right(self._numbers, before_ms // BUCKET_MS)):
            number = self._numbers[place]
            order = self._order(number)
            start = 0 if after is None else bisect_right(order, after)
            for due_ms, job_id in order[start : bisect_left(order, (before_ms, ""))]:
                job = self._jobs.get(job_id)
                if job is not None and job.next_due_ms == due_ms and job.enabled:
                    yield job

    def _order(self, number: int) -> list[tuple[int, str]]:
        order = self._sorted.get(number)
        if order is None:
            due = ((self._jobs[job_id].next_due_ms, job_id) for job_id in self._buckets[number])
            order = self._sorted[number] = sorted((due_ms, job_id) for due_ms, job_id in due if due_ms is not None)
        return order
