"""The load that never ends: so many runs always wait, and the ledger is told what was asked and heard.

It also tells how much gets done: ends of handlers in windows of equal length, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from itertools import count
from statistics import median

from pollux.errors import StoreError
from pollux.model import Answer, Cause, Run, run_of
from pollux.store.contract import Store
from pollux.store.open import open_store
from tests.chaos.yard import LOOK_SECONDS, Yard

BATCH = 50
WAITING_MAX = 200
WINDOW_S = 0.6
BACKOFF_S = 3.0  # of every loop at most
SLACK_S = 10.0  # that real processes on a busy machine get on top
RATE_SHARE = 0.7  # of the rate before, which a window must reach again
FULL_S = 40.0  # a machine that is shared may have its busy moment just now
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
            await pusher
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
                made.append(run_of(job, time.time_ns() // 1_000_000, Cause.ENQUEUED, {"ms": 0}, id=run_id))
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

    async def window(self) -> int:
        """How many reach it in the next while."""
        before = self.ends()
        await asyncio.sleep(WINDOW_S)
        return self.ends() - before

    async def usual(self) -> float:
        return median([await self.window() for _ in range(3)])

    async def works_again(self, usual: float) -> str:
        """Something is done within the longest rest of a loop, and soon as much as before; in words."""
        after_s, _ = await self._reaches(1, seconds=BACKOFF_S + SLACK_S)
        full_s, rate = await self._reaches(usual * RATE_SHARE, seconds=FULL_S)
        return (
            f"{usual:g} ends a window before; works after {after_s:.1f} s, {rate} ends within {after_s + full_s:.1f} s"
        )

    async def _reaches(self, least: float, *, seconds: float) -> tuple[float, int]:
        """After how long a window holds so many, and how many it holds."""
        begun = time.monotonic()
        best = 0
        while time.monotonic() < begun + seconds:
            best = max(best, await self.window())
            if best >= least:
                return time.monotonic() - begun, best
        raise AssertionError(f"{best} ends in {WINDOW_S:g} s at best within {seconds:g} s; {least:g} are wanted")
