"""The load that never ends: so many runs always wait, and the ledger is told what was asked and heard.

It also tells how much gets done: ends of handlers in windows of equal length, one after the other.  A rate is the
median of several in a row: neither a burst is one nor a moment in which the machine stood still.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from pollux.errors import StoreError
from pollux.model import Answer, Cause, Run, run_of
from pollux.store.contract import Store
from pollux.store.open import open_store
from tests.chaos.yard import LOOK_SECONDS, Yard, wait_until
from tests.faults.bounds import WORKS_AGAIN_S

BATCH = 50
WAITING_MAX = 200
WINDOW_S = 0.6
WINDOWS = 5  # whose median is a rate
HELP_MAX = 1.5  # by how much at most a window counts for more, if the machine is busier than it was
RATE_SHARE = 0.7  # of the rate before, which must be reached again
ANSWERED_S = 60.0  # what was asked for last; a store that never answers again ends the test
FULL_S = 120.0  # a machine that is shared may have its busy minute just now
END, END_OF_ASKED = re.compile(rb"^end ", re.MULTILINE), re.compile(rb"^end p\d+ ", re.MULTILINE)
KINDS = ("plain", "parent", "plain", "flaky")  # a parent has a follow-up, a flaky one fails twice


class Pace(NamedTuple):
    """How much gets done in a window, and the share of it in which a node was not kept from the processors."""

    ends: float
    share: float

    def under(self, share: float) -> float:
        """How much it had been with that share: how busy others are is not the doing of a fault."""
        return self.ends * min(HELP_MAX, max(1.0, share / max(self.share, 0.01)))


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

    async def pace(self) -> Pace:
        """The same, and how far the machine let the nodes work meanwhile."""
        begun, waited = time.monotonic(), self._waited_s()
        done = await self.window()
        took_s, now = time.monotonic() - begun, self._waited_s()
        kept_s = mean([now[pid] - waited[pid] for pid in now.keys() & waited.keys()] or [0.0])
        return Pace(done * WINDOW_S / took_s, max(0.0, 1 - kept_s / took_s))

    def _waited_s(self) -> dict[int, float]:
        """For how long each living node has waited for a processor so far, by its pid."""
        waited = {}
        for process in self.yard.processes:
            with contextlib.suppress(OSError):  # it has ended, or this kernel does not tell
                if process.is_alive:
                    waited[process.pid] = int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9
        return waited

    async def usual(self) -> Pace:
        paces = [await self.pace() for _ in range(WINDOWS)]
        return Pace(median(pace.ends for pace in paces), median(pace.share for pace in paces))

    @contextlib.asynccontextmanager
    async def as_before(self) -> AsyncIterator[None]:
        """Whatever happens in the block: afterwards as much gets done as before.  There is no load meanwhile."""
        async with self.on():
            usual = await self.usual()
        yield
        async with self.on():
            print(await self.works_again(usual))

    async def works_again(self, usual: Pace) -> str:
        """Something is done within the longest rest of a loop, and soon as much as before, and on; in words."""
        begun, before = time.monotonic(), self.ends()

        async def look() -> bool:
            return self.ends() > before

        await wait_until(look, "the end of any handler", seconds=WORKS_AGAIN_S)
        after_s = time.monotonic() - begun
        rate = await self._reaches(usual, seconds=FULL_S)
        full_s = time.monotonic() - begun
        words = f"{usual.ends:.0f} ends a window before; works after {after_s:.1f} s"
        return f"{words}, {rate:.0f} ends a window within {full_s:.1f} s"

    async def _reaches(self, usual: Pace, *, seconds: float) -> float:
        """The first rate that is high enough.  What waited at the end of the fault is done before it is measured."""
        least, until, backlog = usual.ends * RATE_SHARE, time.monotonic() + seconds, self.asked
        last: deque[float] = deque(maxlen=WINDOWS)
        rates = [0.0]
        while time.monotonic() < until:
            pace = await self.pace()
            if self._answered < backlog:
                continue
            last.append(pace.under(usual.share))
            if len(last) == WINDOWS:
                rates.append(median(last))
            if rates[-1] >= least:
                return rates[-1]
        raise AssertionError(
            f"{max(rates):.0f} ends in {WINDOW_S:g} s at best, as the median of {WINDOWS} windows in a row, within "
            f"{seconds:g} s; {least:.0f} are wanted"
        )
