"""Batching of single `POST /jobs` requests: concurrent ones share a write.

A write of twenty jobs costs little more than one of a single job: in the store, and in the loops and threads that it
wakes.  While one write is in progress the next batch collects; then it waits a moment for as many requests as there
were lately, because clients that were just answered send again.  A request that is alone is written at once.

Measured in turns with and without (2,000 creates, SQLite): with 16 clients 0.09 store calls and 0.24 ms of CPU for each
create instead of 1.03 and 0.37.  The API benchmark wants 0.3 x the rate of an empty FastAPI route.  On a busy machine,
in turns (medians of three rounds): with 16 clients 0.31 x, 0.26 x without the moment of waiting, 0.24 x without
batches; with 64 clients 0.33 x to 0.34 x each way.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from pollux.app import Operations
from pollux.app.operations.jobs import PutResult
from pollux.errors import InvalidInput, PolluxError
from pollux.model import Note
from pollux.store.contract import JobPut

AT_ONCE = 20  # as many as the audit log lists one by one
MOMENT_S = 0.002  # about the time of a disk write
MOMENTS_MAX = 3  # as long as requests arrive in each of them
QUEUES_MAX = 1_000  # remembered callers


class BatchedPut(NamedTuple):
    """The result of the store for a job, and the pauses at that time."""

    written: PutResult | PolluxError
    stops: list[Note]


class _Waiting(NamedTuple):
    put: JobPut
    answer: asyncio.Future[BatchedPut]


class _BatchQueue:
    """The waiting jobs of one caller and version."""

    def __init__(self, version: int | None) -> None:
        self.version = version
        self.waiting: list[_Waiting] = []
        self.expected = 1  # the most requests lately that waited or were being written
        self.is_full = asyncio.Event()  # as many wait as are expected
        self.writer: asyncio.Task[None] | None = None  # while any wait

    def enter(self, operations: Operations, put: JobPut) -> asyncio.Future[BatchedPut]:
        waiting = _Waiting(put, asyncio.get_running_loop().create_future())
        self.waiting.append(waiting)
        if len(self.waiting) >= min(AT_ONCE, self.expected):
            self.is_full.set()
        if self.writer is None:
            self.writer = asyncio.create_task(self._write_all(operations))
        return waiting.answer

    async def _write_all(self, operations: Operations) -> None:
        """Write batch by batch; the first includes all that arrive in the same iteration of the loop."""
        try:
            while self.waiting:
                await self._collect()
                batch = self._next_batch()
                await _write(operations, batch, self.version)
                self.expected = max(self.expected, len(batch) + len(self.waiting))
        finally:
            self.writer = None
            _fail(self.waiting, asyncio.CancelledError())  # none, unless the loop ends

    async def _collect(self) -> None:
        """Wait for the expected number of requests, at most some moments; if fewer come, expect fewer next time."""
        for _ in range(MOMENTS_MAX):
            before = len(self.waiting)
            if before >= min(AT_ONCE, self.expected):
                return
            self.is_full.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(MOMENT_S):
                    await self.is_full.wait()
            if len(self.waiting) == before:
                break
        self.expected = (self.expected + len(self.waiting)) // 2

    def _next_batch(self) -> list[_Waiting]:
        batch: dict[str, _Waiting] = {}
        while self.waiting and len(batch) < AT_ONCE and self.waiting[0].put.job.id not in batch:
            first = self.waiting.pop(0)
            batch[first.put.job.id] = first
        return list(batch.values())


class JobBatcher:
    """Batches single `POST /jobs` requests into common writes."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int | None], _BatchQueue] = {}

    async def add(self, operations: Operations, caller: str, put: JobPut, version: int | None) -> BatchedPut:
        """Add one job, in one write with concurrent ones of the same caller."""
        queue = self._queues.get((caller, version))
        if queue is None:
            if len(self._queues) >= QUEUES_MAX:
                self._queues = {key: each for key, each in self._queues.items() if each.writer is not None}
            queue = self._queues[caller, version] = _BatchQueue(version)
        return await queue.enter(operations, put)


async def _write(operations: Operations, batch: list[_Waiting], version: int | None) -> None:
    """Write the batch and answer every request of it in any case."""
    try:
        puts = [each.put for each in batch]
        written, stops = await asyncio.gather(
            operations.jobs.put_each(puts, version=version), operations.pauses.stops()
        )
    except InvalidInput as error:  # of one of them: write each by itself
        if len(batch) == 1:
            _fail(batch, error)
        try:
            for each in batch if len(batch) > 1 else ():
                await _write(operations, [each], version)
        finally:
            _fail(batch, asyncio.CancelledError())  # the ones not reached
    except BaseException as error:
        _fail(batch, error if isinstance(error, Exception) else asyncio.CancelledError())
        if not isinstance(error, Exception):
            raise
    else:
        for each, result in zip(batch, written, strict=True):
            if not each.answer.done():
                each.answer.set_result(BatchedPut(result, stops))


def _fail(batch: list[_Waiting], error: BaseException) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(error)
