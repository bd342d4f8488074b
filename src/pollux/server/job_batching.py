"""Batching of single `POST /jobs` requests: concurrent ones share a write.

A write of twenty jobs costs little more than one of a single job: in the store, and in the loops and threads that it
wakes.  So a write waits a moment for as many requests as there were lately:

    no other request lately     written at once
    as many as lately waiting   written at once
    fewer                       they wait a moment for others; then fewer are expected
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pollux.app import Operations
from pollux.app.operations.jobs import PutResult
from pollux.errors import InvalidInput, PolluxError
from pollux.model import Note
from pollux.store.contract import JobPut

AT_ONCE = 20  # as many as the audit log lists one by one
LANES = 2  # concurrent writes: while one is in progress, the next one may wait in the store itself
MOMENT_S = 0.002  # about the time of a disk write
MOMENTS_MAX = 3  # as long as requests arrive in each of them
LINES_MAX = 1_000  # remembered queues


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
        self.under_way: set[asyncio.Future[None]] = set()
        self.called = 0  # writes that have begun and not yet taken their batch
        self.inside = 0  # waiting or being written
        self.expected = 1  # the largest recent `inside`
        self.moment: asyncio.TimerHandle | None = None  # while the batch collects
        self.moments = 0  # delays so far
        self.came = 0  # size of `waiting` when the last delay began

    @property
    def is_empty(self) -> bool:
        return not self.inside

    def enter(self, put: JobPut) -> asyncio.Future[BatchedPut]:
        waiting = _Waiting(put, asyncio.get_running_loop().create_future())
        self.waiting.append(waiting)
        self.inside += 1
        self.expected = max(self.expected, self.inside)
        return waiting.answer

    def next_batch(self) -> list[_Waiting]:
        batch: dict[str, _Waiting] = {}
        while self.waiting and len(batch) < AT_ONCE and self.waiting[0].put.job.id not in batch:
            first = self.waiting.pop(0)
            batch[first.put.job.id] = first
        return list(batch.values())


class JobBatcher:
    """Batches single `POST /jobs` requests into common writes."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int | None], _BatchQueue] = {}

    async def add(self, operations: Operations, caller: str, put: JobPut, version: int | None) -> BatchedPut:
        """Add one job, in one write with concurrent ones of the same caller."""
        line = self._line(caller, version)
        answer = line.enter(put)
        self._look(operations, line)
        return await answer

    def _line(self, caller: str, version: int | None) -> _BatchQueue:
        line = self._lines.get((caller, version))
        if line is None:
            if len(self._lines) >= LINES_MAX:
                self._lines = {key: each for key, each in self._lines.items() if not each.is_empty}
            line = self._lines[caller, version] = _BatchQueue(version)
        return line

    def _look(self, operations: Operations, line: _BatchQueue) -> None:
        """Write now, or let the batch collect: first until the current write ends, as its callers mostly send again."""
        here = len(line.waiting) - AT_ONCE * line.called
        if here <= 0 or len(line.under_way) >= LANES:
            return
        if here >= min(AT_ONCE, line.expected):
            self._go_on(operations, line)
        elif not line.under_way and line.moment is None:
            self._wait(operations, line)

    def _wait(self, operations: Operations, line: _BatchQueue) -> None:
        line.moments, line.came = line.moments + 1, len(line.waiting)
        line.moment = asyncio.get_running_loop().call_later(MOMENT_S, self._waited, operations, line)

    def _waited(self, operations: Operations, line: _BatchQueue) -> None:
        """After a delay: another one if the batch grew; otherwise write, and expect fewer next time."""
        if len(line.waiting) > line.came and line.moments < MOMENTS_MAX:
            self._wait(operations, line)
        else:
            line.expected = (line.expected + line.inside) // 2
            self._go_on(operations, line)

    def _go_on(self, operations: Operations, line: _BatchQueue) -> None:
        """Begin one more write; it includes all that arrive in the same iteration of the loop."""
        if line.moment is not None:
            line.moment.cancel()
        line.moment, line.moments, line.called = None, 0, line.called + 1
        writing = asyncio.ensure_future(self._write_next(operations, line))
        line.under_way.add(writing)

        def ended(done: asyncio.Future[None]) -> None:
            line.under_way.discard(done)
            self._look(operations, line)

        writing.add_done_callback(ended)

    async def _write_next(self, operations: Operations, line: _BatchQueue) -> None:
        line.called -= 1
        batch = line.next_batch()
        try:
            await self._write(operations, batch, line.version)
        finally:
            line.inside -= len(batch)

    async def _write(self, operations: Operations, batch: list[_Waiting], version: int | None) -> None:
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
                    await self._write(operations, [each], version)
            finally:
                _fail(batch, asyncio.CancelledError())  # the ones not reached
        except BaseException as error:
            _fail(batch, error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
        else:
            for each, said in zip(batch, written, strict=True):
                if not each.answer.done():
                    each.answer.set_result(BatchedPut(said, stops))


def _fail(batch: list[_Waiting], error: BaseException) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(error)
