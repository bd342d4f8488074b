"""How do many cost less who add one job each?  Whoever comes while others do goes with them in one write.

A write of twenty jobs costs little more than one of a single job: of the store, and of the loops and threads that it
wakes.  So a write waits for company, but only for as much as it lately had, and for a moment:

    nobody else was here lately    written at once
    as many as lately are here     written at once
    fewer                          they wait a moment; whoever comes meanwhile goes along, then fewer are expected
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pollux.app import Pollux
from pollux.app.batches import PutResult
from pollux.errors import InvalidInput, PolluxError
from pollux.model import Note
from pollux.store.contract import JobPut

AT_ONCE = 20  # as many as the audit log tells one by one
LANES = 2  # while one write is under way, the next one may wait in the store itself
MOMENT_S = 0.002  # about what a disk takes
MOMENTS_MAX = 3  # as long as others come in each of them
LINES_MAX = 1_000  # callers whose company is remembered


class BatchedPut(NamedTuple):
    """What the store said to a job, and what stood still at that time."""

    written: PutResult | PolluxError
    stops: list[Note]


class _Waiting(NamedTuple):
    put: JobPut
    answer: asyncio.Future[BatchedPut]


class _BatchQueue:
    """Those of one caller for one version."""

    def __init__(self, version: int | None) -> None:
        self.version = version
        self.waiting: list[_Waiting] = []
        self.under_way: set[asyncio.Future[None]] = set()
        self.called = 0  # writes that are about to take along who waits
        self.inside = 0  # those who wait, and those who are being written
        self.expected = 1  # so many were inside together
        self.moment: asyncio.TimerHandle | None = None  # while they wait for company
        self.moments = 0  # that they have waited
        self.came = 0  # how many waited when the latest moment began

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
    """Jobs that are added one by one."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int | None], _BatchQueue] = {}

    async def add(self, verbs: Pollux, caller: str, put: JobPut, version: int | None) -> BatchedPut:
        """Add one; it is written together with others of this caller, if there are others."""
        line = self._line(caller, version)
        answer = line.enter(put)
        self._look(verbs, line)
        return await answer

    def _line(self, caller: str, version: int | None) -> _BatchQueue:
        line = self._lines.get((caller, version))
        if line is None:
            if len(self._lines) >= LINES_MAX:
                self._lines = {key: each for key, each in self._lines.items() if not each.is_empty}
            line = self._lines[caller, version] = _BatchQueue(version)
        return line

    def _look(self, verbs: Pollux, line: _BatchQueue) -> None:
        """Write now, or wait for company: first for those who are being written, for they mostly come again."""
        here = len(line.waiting) - AT_ONCE * line.called
        if here <= 0 or len(line.under_way) >= LANES:
            return
        if here >= min(AT_ONCE, line.expected):
            self._go_on(verbs, line)
        elif not line.under_way and line.moment is None:
            self._wait(verbs, line)

    def _wait(self, verbs: Pollux, line: _BatchQueue) -> None:
        line.moments, line.came = line.moments + 1, len(line.waiting)
        line.moment = asyncio.get_running_loop().call_later(MOMENT_S, self._waited, verbs, line)

    def _waited(self, verbs: Pollux, line: _BatchQueue) -> None:
        """A moment is over: another one if somebody came in it; else fewer are expected, but not at once so few."""
        if len(line.waiting) > line.came and line.moments < MOMENTS_MAX:
            self._wait(verbs, line)
        else:
            line.expected = (line.expected + line.inside) // 2
            self._go_on(verbs, line)

    def _go_on(self, verbs: Pollux, line: _BatchQueue) -> None:
        """One more write; it takes along all who come in the same round of the loop."""
        if line.moment is not None:
            line.moment.cancel()
        line.moment, line.moments, line.called = None, 0, line.called + 1
        writing = asyncio.ensure_future(self._write_next(verbs, line))
        line.under_way.add(writing)

        def ended(done: asyncio.Future[None]) -> None:
            line.under_way.discard(done)
            self._look(verbs, line)

        writing.add_done_callback(ended)

    async def _write_next(self, verbs: Pollux, line: _BatchQueue) -> None:
        line.called -= 1
        batch = line.next_batch()
        try:
            await self._write(verbs, batch, line.version)
        finally:
            line.inside -= len(batch)

    async def _write(self, verbs: Pollux, batch: list[_Waiting], version: int | None) -> None:
        """Answer all of them, whatever happens."""
        try:
            puts = [each.put for each in batch]
            written, stops = await asyncio.gather(verbs.put_each(puts, version=version), verbs.stops())
        except InvalidInput as error:  # of one of them: each for itself, then
            if len(batch) == 1:
                _fail(batch, error)
            try:
                for each in batch if len(batch) > 1 else ():
                    await self._write(verbs, [each], version)
            finally:
                _fail(batch, asyncio.CancelledError())  # whom nobody came to
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
