"""How soon does another, idle process start a run?  From before the enqueue call to the first line of the handler.

Two processes on one SQLite file, CLOCK_MONOTONIC in both (on Linux it is the same clock), 200 runs 20 ms apart.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import huey_peer
from benchmarks.child import parent_is_done, run_async, say_ready
from benchmarks.report import percentile
from benchmarks.session import Session

CEILING = 0.1
GAP_S = 0.02
IDLE_S = 1.0  # before the first run, so that the worker is idle indeed


def measure(session: Session) -> None:
    n = 100 if session.quick else 200
    found = session.interleave(
        {
            "huey": partial(between, session, huey_peer.serve_marks, huey_peer.ask_marks, n),
            "pollux": partial(between, session, serve_marks, ask_marks, n),
        }
    )
    for key in ("p50_ms", "p99_ms"):
        seen = session.take(found, key, f"pickup {key[:3]}", "ms")
        session.at_most(f"pickup {key[:3]} / huey's", seen["pollux"] / seen["huey"], CEILING)
    lost = session.take(found, "lost", "runs not seen", "runs")
    session.at_most("runs lost by pollux", lost["pollux"], 0, "runs")


def between(session: Session, serve: Callable[..., Any], ask: Callable[..., Any], n: int) -> dict[str, float]:
    with session.scratch() as folder:
        file = str(folder / "bench.db")
        with session.child(serve, file=file) as worker:
            worker.ready()
            time.sleep(IDLE_S)
            asked = dict(session.alone(ask, file=file, n=n, gap_s=GAP_S))
            time.sleep(IDLE_S)
            started = dict(worker.answer())
    took = [(started[i] - begun) / 1e6 for i, begun in asked.items() if i in started]
    return {
        "p50_ms": statistics.median(took),
        "p99_ms": percentile(took, 0.99),
        "lost": len(asked) - len(took),
    }


def serve_marks(file: str) -> list[list[int]]:
    async def serve() -> list[list[int]]:
        app, _, started = app_of(file)
        async with app:
            say_ready()
            await parent_is_done()
        return started

    return run_async(serve())


def ask_marks(file: str, n: int, gap_s: float) -> list[list[int]]:
    async def ask() -> list[list[int]]:
        app, mark, _ = app_of(file)
        await app.open()
        asked = []
        for i in range(n):
            asked.append([i, time.monotonic_ns()])
            await app.enqueue(mark, {"i": i})
            await asyncio.sleep(gap_s)
        await app.close()
        return asked

    return run_async(ask())


def app_of(file: str):
    from pollux import Pollux

    app = Pollux(f"sqlite:///{file}")
    started: list[list[int]] = []

    @app.job()
    async def mark(ctx, i: int) -> None:  # noqa: ARG001  the same call as Huey's
        started.append([i, time.monotonic_ns()])

    return app, mark, started
