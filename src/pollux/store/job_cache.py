"""Cache of decoded jobs: a definition is decoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from pollux.model import Job, Memory
from pollux.store.decoding import UNREADABLE, BatchDecoder

Row = tuple[Any, ...]

_decode_job = msgspec.json.Decoder(Job).decode
_decode_memory = msgspec.json.Decoder(Memory).decode
_NO_MEMORY = Memory()


class JobCache:
    """Jobs as last read: a definition is decoded once, an unchanged job not at all."""

    def __init__(self, size_max: int = 10_000) -> None:
        self._size_max = size_max
        self._read: dict[str, tuple[Row, Job]] = {}

    def job(self, row: Row) -> Job:
        """From (id, revision, next_due_ms, last_due_ms, memory, definition, version)."""
        known = self._read.get(row[0])
        if known is not None:
            if known[0] == row:
                return known[1]
            if known[0][1] == row[1] and known[0][5] == row[5]:  # a job that was deleted and loaded may have both
                return self._keep(row, _current(known[1], row))
        return self._keep(row, _current(_decode_job(row[5]), row))

    def revision(self, job_id: str) -> int | None:
        """The revision of a job as last read."""
        known = self._read.get(job_id)
        return None if known is None else known[0][1]

    def _keep(self, row: Row, job: Job) -> Job:
        if len(self._read) >= self._size_max:
            self._read.clear()
        self._read[row[0]] = (row, job)
        return job


class JobDecoder(BatchDecoder[Row, Job]):
    """Decoder of the jobs of one call; unreadable ones are reported with its answer."""

    def __init__(self, read: Callable[[Row], Job]) -> None:
        super().__init__("job", read)

    def job(self, row: Row) -> Job | None:
        try:
            return self._read(row)
        except UNREADABLE as error:
            self.report(error, row[0], row[6], row[2])
            return None

    def jobs(self, rows: Iterable[Row]) -> list[Job]:
        return [job for row in rows if (job := self.job(row)) is not None]


def _current(job: Job, row: Row) -> Job:
    memory = _NO_MEMORY if row[4] is None else _decode_memory(row[4])
    return replace(
        job, scheduler_version=row[6], revision=row[1], next_due_ms=row[2], last_due_ms=row[3], memory=memory
    )
