"""How do many jobs come into a store at once?  By its own `load`, with their next due on the grid: nothing is timed.

The entries that loading leaves in the feed are consumed here, as a leader would have done long ago: what is measured
afterwards is a store at rest, not one that is taking in a million new jobs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from benchmarks.child import run_async

BATCH = 1_000
HANDLER = "poll"


def jobs_of(n: int, every_ms: int, first_ms: int) -> Iterator[Any]:
    """Interval jobs, each due at the first instant of its own grid from `first_ms` on."""
    from pollux.model import Interval, Job
    from pollux.schedule.interval import next_after

    spec = Interval(every_ms)
    for i in range(n):
        job_id = f"job-{i}"
        yield Job(
            id=job_id,
            handler=HANDLER,
            schedule=spec,
            params={"i": i},
            revision=1,
            next_due_ms=next_after(spec, job_id, first_ms - 1),
        )


async def stock(store: Any, n: int, every_ms: int, first_ms: int) -> None:
    await stock_jobs(store, jobs_of(n, every_ms, first_ms))


async def stock_jobs(store: Any, jobs: Iterable[Any]) -> None:
    records = []
    for job in jobs:
        records.append(("job", msgspec.to_builtins(job)))
        if len(records) == BATCH:
            await store.load(records)
            records = []
    if records:
        await store.load(records)
    await consume_feed(store)


async def consume_feed(store: Any) -> None:
    from pollux.model import Plan

    term = await store.elect("bench", ttl_ms=60_000)
    while items := (await store.feed(limit=100)).items:
        await store.advance(term.number, Plan(consumed=tuple(item.id for item in items)))
    await store.resign("bench", term=term.number)


def stock_file(file: str, n: int, every_ms: int, first_ms: int) -> dict[str, float]:
    async def fill() -> dict[str, float]:
        from pollux.store.urls import open_store

        store = open_store(f"sqlite:///{file}")
        await store.open()
        begun = time.monotonic()
        await stock(store, n, every_ms, first_ms)
        took = time.monotonic() - begun
        await store.close()
        return {"rate": n / took}

    return run_async(fill())
