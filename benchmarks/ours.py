"""What does Pollux do in these benches, whatever the server?  Take runs in, run them, wait for them; one app each.

Every function runs in a process of its own (`benchmarks.child`) and is told the store by its URL.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.child import Pace, Progress, parent_is_done, run_async, say_ready

BATCH = 1_000  # what `enqueue_many` sends at once
PAYLOAD = {"body": "x" * 189}  # 200 bytes as JSON


def fill(url: str, n: int) -> None:
    """Declare the job and queue `n` runs of it."""

    async def fill_all() -> None:
        app, noop = noop_app(url, lambda: None)
        await app.open()
        await app.put_jobs(app.declared_jobs())
        await app.enqueue_many(noop, [{"i": i} for i in range(n)])
        await app.close()

    run_async(fill_all())


def drain(url: str, n: int, seats: int) -> dict[str, float]:
    """Run what `fill` queued in one process that also leads, until the last run is settled."""

    async def drain_all() -> dict[str, float]:
        progress = Progress(n)
        app, _ = noop_app(url, progress.step, seats=seats)
        async with app:
            await progress.all_seen.wait()
            while (counts := await app.operations.status.counts()).ready or counts.leased:  # noqa: ASYNC110  the store has no such event
                await asyncio.sleep(0.002)
            return progress.figures(time.monotonic())

    return run_async(drain_all())


def work(url: str, seats: int) -> list[list[float]]:
    """A worker beside others: it leads nothing and tells when it had run how many."""

    async def work_on() -> list[list[float]]:
        pace = Pace()
        app, _ = noop_app(url, pace.step, seats=seats, plans=False)
        async with app:
            say_ready()
            await parent_is_done()
        return pace.marks

    return run_async(work_on())


def enqueue(url: str, n: int) -> dict[str, float]:
    async def enqueue_all() -> dict[str, float]:
        from pollux import Pollux

        app = Pollux(url)

        @app.job()
        async def noop(ctx, body: str) -> None: ...

        await app.open()
        await app.put_jobs(app.declared_jobs())
        await app.enqueue_many(noop, [PAYLOAD] * BATCH)  # warm
        begun, cpu = time.monotonic(), time.process_time()
        await app.enqueue_many(noop, [PAYLOAD] * n)
        took, cpu = time.monotonic() - begun, time.process_time() - cpu
        await app.close()
        return {"rate": n / took, "cpu_us": cpu / n * 1e6}

    return run_async(enqueue_all())


def serve_marks(url: str) -> list[list[int]]:
    """An idle node; answers when each run started."""

    async def serve() -> list[list[int]]:
        app, _, started = marking_app(url)
        async with app:
            say_ready()
            await parent_is_done()
        return started

    return run_async(serve())


def ask_marks(url: str, n: int, gap_s: float) -> list[list[int]]:
    """Queue `n` runs, some time apart; answers when each was about to be queued."""

    async def ask() -> list[list[int]]:
        app, mark, _ = marking_app(url)
        await app.open()
        asked = []
        for i in range(n):
            asked.append([i, time.monotonic_ns()])
            await app.enqueue(mark, {"i": i})
            await asyncio.sleep(gap_s)
        await app.close()
        return asked

    return run_async(ask())


def idle(url: str, plans: bool, runs: bool, settled_s: float) -> dict[str, float]:  # noqa: FBT001  JSON arguments
    """A node with nothing to do: a worker, or a leader that runs nothing itself."""

    async def rest() -> dict[str, float]:
        app, _ = noop_app(url, lambda: None, plans=plans, runs=runs)
        async with app:
            await asyncio.sleep(settled_s)
            begun, cpu = time.monotonic(), time.process_time()
            say_ready()
            await parent_is_done()
            return {"seconds": time.monotonic() - begun, "cpu_s": time.process_time() - cpu}

    return run_async(rest())


def declare(url: str) -> None:
    """Write the job and let go, so that nodes find a store at rest."""

    async def put() -> None:
        app, _ = noop_app(url, lambda: None)
        await app.open()
        await app.put_jobs(app.declared_jobs())
        await app.close()

    run_async(put())


def noop_app(url: str, step: Any, **options: Any):
    from pollux import Pollux

    app = Pollux(url, **options)

    @app.job()
    async def noop(ctx, i: int) -> None:  # noqa: ARG001  the same call as the peers'
        step()

    return app, noop


def marking_app(url: str):
    from pollux import Pollux

    app = Pollux(url)
    started: list[list[int]] = []

    @app.job()
    async def mark(ctx, i: int) -> None:  # noqa: ARG001  the same call as the peers'
        started.append([i, time.monotonic_ns()])

    return app, mark, started
