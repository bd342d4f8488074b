"""How do many cost less who add one job each?  Whoever comes while a write is under way goes with the next one.

A write of twenty jobs costs the store little more than one of a single job, and the leader hears of them at once.
Nobody waits for company but those who come in the same round of the loop.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pollux.app import Pollux
from pollux.app.batches import Written
from pollux.errors import InvalidInput, PolluxError
from pollux.model import Note
from pollux.store.contract import JobPut

AT_ONCE = 20  # as many as the audit log tells one by one
LANES = 2  # while one write is under way, the next one may wait in the store itself


class Added(NamedTuple):
    """What the store said to a job, and what stood still at that time."""

    written: Written | PolluxError
    stops: list[Note]


class _Waiting(NamedTuple):
    put: JobPut
    answer: asyncio.Future[Added]


class _Line:
    """Those of one caller for one version."""

    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
        self.under_way: set[asyncio.Future[None]] = set()

    def next_batch(self) -> list[_Waiting]:
        batch: dict[str, _Waiting] = {}
        while self.waiting and len(batch) < AT_ONCE and self.waiting[0].put.job.id not in batch:
            first = self.waiting.pop(0)
            batch[first.put.job.id] = first
        return list(batch.values())


class Together:
    """Jobs that are added one by one."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int | None], _Line] = {}

    async def add(self, verbs: Pollux, caller: str, put: JobPut, version: int | None) -> Added:
        """Add one; it is written together with others of this caller, if there are others."""
        key = (caller, version)
        answer: asyncio.Future[Added] = asyncio.get_running_loop().create_future()
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        line.waiting.append(_Waiting(put, answer))
        if len(line.under_way) < LANES:
            self._go_on(verbs, key, line)
        return await answer

    def _go_on(self, verbs: Pollux, key: tuple[str, int | None], line: _Line) -> None:
        """One more write; it takes along all who come in the same round of the loop."""
        writing = asyncio.ensure_future(self._write_next(verbs, line, key[1]))
        line.under_way.add(writing)

        def ended(done: asyncio.Future[None]) -> None:
            line.under_way.discard(done)
            if line.waiting:
                self._go_on(verbs, key, line)
            elif not line.under_way:
                self._lines.pop(key, None)

        writing.add_done_callback(ended)

    async def _write_next(self, verbs: Pollux, line: _Line, version: int | None) -> None:
        if batch := line.next_batch():
            await self._write(verbs, batch, version)

    async def _write(self, verbs: Pollux, batch: list[_Waiting], version: int | None) -> None:
        """Answer all of them, whatever happens."""
        try:
            puts = [each.put for each in batch]
            written, stops = await asyncio.gather(verbs.put_each(puts, version=version), verbs.stops())
        except InvalidInput as error:  # of one of them: each for itself, then
            if len(batch) == 1:
                _fail(batch, error)
            for each in batch if len(batch) > 1 else ():
                await self._write(verbs, [each], version)
        except BaseException as error:
            _fail(batch, error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
        else:
            for each, said in zip(batch, written, strict=True):
                if not each.answer.done():
                    each.answer.set_result(Added(said, stops))


def _fail(batch: list[_Waiting], error: BaseException) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(error)
