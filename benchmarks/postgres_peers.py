"""The peers on PostgreSQL: PgQueuer and Procrastinate, and what PostgreSQL itself costs from Python.

PgQueuer takes its jobs in batches, the best of a calibration, over one connection or a pool; it buffers completions.
Procrastinate fetches one job a query, over a pool, with psycopg's C half.  Both keep a log of finished jobs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.child import Progress, parent_is_done, run_async, say_ready
from benchmarks.ours import BATCH, PAYLOAD

BODY = json.dumps(PAYLOAD).encode()
POOL = 8


# pgqueuer


@asynccontextmanager
async def pgqueuer_queries(url: str, *, has_pool: bool = False) -> AsyncIterator[Any]:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
    from pgqueuer.queries import Queries

    logging.getLogger("pgqueuer").setLevel(logging.ERROR)
    if has_pool:
        async with asyncpg.create_pool(url, min_size=POOL, max_size=POOL) as pool:
            yield Queries(AsyncpgPoolDriver(pool))
        return
    connection = await asyncpg.connect(url)
    try:
        yield Queries(AsyncpgDriver(connection))
    finally:
        await connection.close()


def fill_pgqueuer(url: str, n: int, has_body: bool = False) -> dict[str, float]:  # noqa: FBT001, FBT002  JSON arguments
    async def fill() -> dict[str, float]:
        async with pgqueuer_queries(url) as queries:
            await queries.install()
            begun = time.monotonic()
            for start in range(0, n, BATCH):
                count = min(BATCH, n - start)
                bodies = [BODY if has_body else str(start + i).encode() for i in range(count)]
                await queries.enqueue(["noop"] * count, bodies, [0] * count)
            return {"rate": n / (time.monotonic() - begun)}

    return run_async(fill())


def drain_pgqueuer(url: str, n: int, batch: int, has_pool: bool) -> dict[str, float]:  # noqa: FBT001  JSON arguments
    async def drain() -> dict[str, float]:
        progress = Progress(n)
        async with pgqueuer_queries(url, has_pool=has_pool) as queries:
            manager = pgqueuer_manager(queries, "noop", lambda _: progress.step())
            running = asyncio.create_task(manager.run(batch_size=batch))
            await progress.all_seen.wait()
            figures = progress.figures(progress.ended)
            manager.shutdown.set()
            await running
        return figures

    return run_async(drain())


def pgqueuer_manager(queries: Any, name: str, step: Callable[[bytes], None]) -> Any:
    from pgqueuer.qm import QueueManager

    manager = QueueManager(queries)

    @manager.entrypoint(name)
    async def entry(job) -> None:
        step(job.payload)

    return manager


def serve_marks(url: str) -> list[list[int]]:
    """An idle PgQueuer with its default batch; answers when each job started."""

    async def serve() -> list[list[int]]:
        started: list[list[int]] = []

        def mark(payload: bytes) -> None:
            started.append([int(payload), time.monotonic_ns()])

        async with pgqueuer_queries(url) as queries:
            await queries.install()
            manager = pgqueuer_manager(queries, "mark", mark)
            running = asyncio.create_task(manager.run())
            await asyncio.sleep(1)
            say_ready()
            await parent_is_done()
            manager.shutdown.set()
            await running
        return started

    return run_async(serve())


def ask_marks(url: str, n: int, gap_s: float) -> list[list[int]]:
    async def ask() -> list[list[int]]:
        asked = []
        async with pgqueuer_queries(url) as queries:
            for i in range(n):
                asked.append([i, time.monotonic_ns()])
                await queries.enqueue("mark", str(i).encode())
                await asyncio.sleep(gap_s)
        return asked

    return run_async(ask())


# procrastinate


@asynccontextmanager
async def procrastinate_app(url: str, step: Callable[[], None]) -> AsyncIterator[Any]:
    import orjson
    import procrastinate

    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    connector = procrastinate.PsycopgConnector(
        conninfo=url,
        min_size=POOL,
        max_size=2 * POOL,
        json_dumps=lambda value: orjson.dumps(value).decode(),
        json_loads=orjson.loads,
    )
    app = procrastinate.App(connector=connector)

    @app.task(name="noop")
    async def noop(i: Any) -> None:  # noqa: ARG001  the same call as ours
        step()

    async with app.open_async():
        yield app


def fill_procrastinate(url: str, n: int, has_body: bool = False) -> dict[str, float]:  # noqa: FBT001, FBT002  JSON
    async def fill() -> dict[str, float]:
        async with procrastinate_app(url, lambda: None) as app:
            await app.schema_manager.apply_schema_async()
            noop = app.tasks["noop"]
            begun = time.monotonic()
            for start in range(0, n, BATCH):
                rows = [{"i": PAYLOAD["body"] if has_body else i} for i in range(start, min(start + BATCH, n))]
                await noop.batch_defer_async(*rows)
            return {"rate": n / (time.monotonic() - begun)}

    return run_async(fill())


def drain_procrastinate(url: str, n: int, slots: int) -> dict[str, float]:
    async def drain() -> dict[str, float]:
        progress = Progress(n)
        async with procrastinate_app(url, progress.step) as app:
            running = asyncio.create_task(
                app.run_worker_async(concurrency=slots, install_signal_handlers=False, shutdown_graceful_timeout=5)
            )
            await progress.all_seen.wait()
            figures = progress.figures(progress.ended)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return figures

    return run_async(drain())


# PostgreSQL itself


def raw_unnest(url: str, n: int, is_keyed: bool) -> dict[str, float]:  # noqa: FBT001  JSON arguments
    """Rows in one statement each thousand, every one its own commit; as many columns as a run needs at least."""

    async def insert() -> dict[str, float]:
        import asyncpg

        connection = await asyncpg.connect(url)
        key = "PRIMARY KEY" if is_keyed else "NOT NULL"
        await connection.execute(
            f"CREATE TABLE runs (id text {key}, job_id text, payload bytea, priority int, due_ms bigint)"
        )
        due_ms = time.time_ns() // 1_000_000
        ids = [f"{due_ms:012x}{secrets.token_hex(8)}" for _ in range(n)]
        statement = await connection.prepare(
            "INSERT INTO runs SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::int[], $5::bigint[])"
        )
        begun = time.monotonic()
        for start in range(0, n, BATCH):
            some = ids[start : start + BATCH]
            count = len(some)
            await statement.fetch(some, ["noop"] * count, [BODY] * count, [2] * count, [due_ms] * count)
        took = time.monotonic() - begun
        await connection.close()
        return {"rate": n / took}

    return run_async(insert())
