"""Steady load: a fixed number of runs always waits, and the ledger has every request and answer.

It also measures throughput: ends of handlers in windows of equal length, one after the other.  A rate is the median of
several in a row, so that neither a burst nor a moment in which the machine stalled counts.  Handlers take their time,
so that the rate is bound by the seats of all nodes and by how long a freed seat waits for the next run, and not by
what other tests leave of the processors.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import AsyncIterator
from itertools import count
from statistics import median

from pollux.errors import StoreError
from pollux.model import Answer, Cause, Run, run_of
from pollux.store.contract import Store
from pollux.store.urls import open_store
from tests.chaos.yard import LOOK_SECONDS, Yard, wait_until
from tests.faults.bounds import WORKS_AGAIN_S

BATCH = 50
WAITING_MAX = 200
WINDOW_S = 0.6
WINDOWS = 5  # whose median is a rate
HANDLER_MS = 50
RATE_SHARE = 0.7  # of the rate before, which must be reached again
ANSWERED_S = 60.0  # what was asked for last; a store that never answers again ends the test
FULL_S = 40.0  # until the rate is what it was
END, END_OF_ASKED = re.compile(rb"^end ", re.MULTILINE), re.compile(rb"^end p\d+ ", re.MULTILINE)
KINDS = ("plain", "parent", "plain", "flaky")  # a parent has a follow-up, a flaky one fails twice


class Pressure:
    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.asked = 0
        self._batches = count()
        self._ends = 0
        self._answered = 0  # of those that were asked for; the others are follow-ups and firings
        self._offset = 0

    @contextlib.asynccontextmanager
    async def on(self) -> AsyncIterator[Pressure]:
        """Until the end of the block; what was asked for last is answered before it ends."""
        store = open_store(self.yard.store)
        await store.open()
        is_over = asyncio.Event()
        pusher = asyncio.ensure_future(self._push(store, is_over))
        try:
            yield self
        finally:
            is_over.set()
            try:
                await asyncio.wait_for(pusher, ANSWERED_S)
            finally:
                await store.close()

    async def _push(self, store: Store, is_over: asyncio.Event) -> None:
        jobs = dict(zip(KINDS, await store.get_jobs(KINDS), strict=True))
        while not is_over.is_set():
            self.ends()
            if self.asked - self._answered > WAITING_MAX:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            made = []
            for number in range(BATCH):
                job = jobs[KINDS[number % len(KINDS)]]
                assert job is not None
                run_id = f"p{next(self._batches)}"
                made.append(run_of(job, time.time_ns() // 1_000_000, Cause.ENQUEUED, {"ms": HANDLER_MS}, id=run_id))
            await self._ask(store, made)

    async def _ask(self, store: Store, runs: list[Run]) -> None:
        """The same ids until they are answered, whatever happens to the server meanwhile."""
        for run in runs:
            self.yard.ledger.write("ask", run.id)
        while True:
            try:
                answers = await store.enqueue(runs)
            except StoreError:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            assert {each.answer for each in answers} <= {Answer.OK, Answer.ALREADY}
            for run in runs:
                self.yard.ledger.write("enq", run.id, "ok")
            self.asked += len(runs)
            return

    # what gets done

    def ends(self) -> int:
        """How many handlers have reached their end so far."""
        with self.yard.ledger.path.open("rb") as file:
            file.seek(self._offset)
            news = file.read()
        self._offset += len(news)
        self._ends += len(END.findall(news))
        self._answered += len(END_OF_ASKED.findall(news))
        return self._ends

    async def window(self) -> float:
        """How many reach it in the next while; if it took longer, so many as there would have been."""
        begun, before = time.monotonic(), self.ends()
        await asyncio.sleep(WINDOW_S)
        return (self.ends() - before) * WINDOW_S / (time.monotonic() - begun)

    async def usual(self) -> float:
        """The rate, in ends a window."""
        return median([await self.window() for _ in range(WINDOWS)])

    @contextlib.asynccontextmanager
    async def as_before(self) -> AsyncIterator[None]:
        """Whatever happens in the block: afterwards as much gets done as before.  There is no load meanwhile."""
        async with self.on():
            usual = await self.usual()
        yield
        async with self.on():
            print(await self.works_again(usual))

    async def works_again(self, usual: float) -> str:
        """Something is done within the longest rest of a loop, and soon as much as before, and on; in words."""
        begun, before = time.monotonic(), self.ends()

        async def look() -> bool:
            return self.ends() > before

        await wait_until(look, "the end of any handler", seconds=WORKS_AGAIN_S)
        after_s = time.monotonic() - begun
        rate = await self._reaches(usual, seconds=FULL_S)
        full_s = time.monotonic() - begun
        words = f"{usual:.0f} ends a window before; works after {after_s:.1f} s"
        return f"{words}, {rate:.0f} ends a window within {full_s:.1f} s"

    async def _reaches(self, usual: float, *, seconds: float) -> float:
        """The first rate that is high enough.  What waited at the end of the fault is done before it is measured."""
        least, until, backlog = usual * RATE_SHARE, time.monotonic() + seconds, self.asked
        last: deque[float] = deque(maxlen=WINDOWS)
        rates = [0.0]
        while time.monotonic() < until:
            done = await self.window()
            if self._answered < backlog:
                continue
            last.append(done)
            if len(last) == WINDOWS:
                rates.append(median(last))
            if rates[-1] >= least:
                return rates[-1]
        raise AssertionError(
            f"{max(rates):.0f} ends in {WINDOW_S:g} s at best, as the median of {WINDOWS} windows in a row, within "
            f"{seconds:g} s; {least:.0f} are wanted"
        )
