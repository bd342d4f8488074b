"""Index of due jobs: ids in buckets of one second, so that a firing moves one id and a look sorts one bucket."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping

from pollux.store.memory.rows import StoredJobFields

BUCKET_MS = 1_000


class DueIndex:
    """The ids of enabled jobs with a next due, readable by (next due, id) from anywhere."""

    def __init__(self, jobs: Mapping[str, StoredJobFields]) -> None:
        self._jobs = jobs
        self._buckets: dict[int, dict[str, None]] = {}  # half the size of sets
        self._numbers: list[int] = []  # of the buckets, sorted
        self._read: tuple[int, list[tuple[int, str]]] | None = None  # the bucket read last, sorted; ids may have left

    def add(self, job_id: str, due_ms: int) -> None:
        number = due_ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            insort(self._numbers, number)
        bucket[job_id] = None
        if self._read is not None and self._read[0] == number:
            self._read = None

    def remove(self, job_id: str, due_ms: int) -> None:
        number = due_ms // BUCKET_MS
        bucket = self._buckets[number]
        del bucket[job_id]
        if not bucket:
            del self._buckets[number]
            del self._numbers[bisect_left(self._numbers, number)]

    def read(self, after: tuple[int, str] | None, before_ms: int) -> Iterator[str]:
        """The ids after that pair and due before that time, in order."""
        first = 0 if after is None else bisect_left(self._numbers, after[0] // BUCKET_MS)
        for place in range(first, bisect_right(self._numbers, before_ms // BUCKET_MS)):
            bucket, order = self._buckets[self._numbers[place]], self._order(self._numbers[place])
            start = 0 if after is None else bisect_right(order, after)
            for due_ms, job_id in order[start : bisect_left(order, (before_ms, ""))]:
                if job_id in bucket and self._jobs[job_id].next_due_ms == due_ms:  # it may be due elsewhere by now
                    yield job_id

    def _order(self, number: int) -> list[tuple[int, str]]:
        """A bucket sorted; reading on in it does not sort it again."""
        if self._read is None or self._read[0] != number:
            due = ((self._jobs[job_id].next_due_ms, job_id) for job_id in self._buckets[number])
            self._read = number, sorted((due_ms, job_id) for due_ms, job_id in due if due_ms is not None)
        return self._read[1]
