"""The peers for timers: the bare event loop, which is the floor, and APScheduler 3 with its jobs in memory."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from datetime import UTC, datetime
from typing import Any

from benchmarks.child import rss_mb, run_async
from benchmarks.ledger import Ledger

LEAD_S = 10.0  # enough to add everything before the first is due
FAR_S = 40.0


def bare_timers(n: int, every_s: float) -> dict[str, float]:
    """`call_at` for each firing of the window, doing nothing but entering itself."""

    async def run() -> dict[str, float]:
        loop = asyncio.get_running_loop()
        begin_ms = (time.time() + LEAD_S / 2) * 1000
        ledger = Ledger(n, begin_ms, every_s * 1000)
        ahead = loop.time() - time.time()
        for i in range(n):
            due_ms = begin_ms + i * every_s * 1000 / n
            loop.call_at(due_ms / 1000 + ahead, ledger.enter, i, due_ms)
        return await ledger.watch()

    return run_async(run())


def apscheduler_fires(n: int, every_s: float) -> dict[str, float]:
    async def run() -> dict[str, float]:
        begin_ms = (time.time() + LEAD_S) * 1000
        step_ms = every_s * 1000 / n
        ledger = Ledger(n, begin_ms, every_s * 1000)
        firings = [0] * n

        async def poll(i: int) -> None:
            ledger.enter(i, begin_ms + i * step_ms + firings[i] * every_s * 1000)
            firings[i] += 1

        scheduler = scheduler_of()
        for i in range(n):
            add(scheduler, poll, i, every_s, begin_ms + i * step_ms)
        scheduler.start()
        seen = await ledger.watch()
        scheduler.shutdown(wait=False)
        return seen

    return run_async(run())


def apscheduler_weighs(n: int) -> dict[str, float]:
    """Resident bytes a job, once all are added, the scheduler runs, and none has fired yet."""

    async def poll(i: int) -> None: ...

    async def run() -> dict[str, float]:
        scheduler = scheduler_of()
        first_ms = (time.time() + FAR_S) * 1000
        add(scheduler, poll, n, 60.0, first_ms)
        gc.collect()
        before = rss_mb()
        for i in range(n):  # before the start, which is lighter: a running one is woken by each
            add(scheduler, poll, i, 60.0, first_ms)
        scheduler.start()
        await asyncio.sleep(2.0)
        gc.collect()
        grown = rss_mb() - before
        scheduler.shutdown(wait=False)
        return {"bytes": grown * 1024 * 1024 / n}

    return run_async(run())


def scheduler_of() -> Any:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # it complains of what is cut off at the end
    return AsyncIOScheduler(timezone=UTC)


def add(scheduler: Any, poll: Any, i: int, every_s: float, first_ms: float) -> None:
    from apscheduler.triggers.interval import IntervalTrigger

    first = datetime.fromtimestamp(first_ms / 1000, UTC)
    scheduler.add_job(poll, IntervalTrigger(seconds=every_s, start_date=first), id=f"job-{i}", args=[i])
