"""The peer for queues: Huey on SQLite with its default settings, its own consumer, no results stored."""

from __future__ import annotations

import logging
import time
from typing import Any

from benchmarks.child import Progress, say_ready, wait_for_parent


def open_huey(file: str) -> Any:
    from huey import SqliteHuey

    logging.getLogger("huey").setLevel(logging.ERROR)
    return SqliteHuey("bench", filename=file, results=False)


def fill(file: str, n: int) -> dict[str, float]:
    """Queue `n` no-ops one after the other, as Huey does."""
    huey = open_huey(file)

    @huey.task(name="noop")
    def noop(i: int) -> None: ...

    begun = time.monotonic()
    for i in range(n):
        noop(i)
    return {"rate": n / (time.monotonic() - begun)}


def drain(file: str, n: int, workers: int) -> dict[str, float]:
    """Run what `fill` queued, in this many threads."""
    huey = open_huey(file)
    progress = Progress(n)

    @huey.task(name="noop")
    def noop(i: int) -> None:  # noqa: ARG001  the same call as ours
        progress.step()

    consumer = huey.create_consumer(workers=workers, periodic=False)
    consumer.start()
    while progress.ended == 0.0:
        time.sleep(0.005)
    figures = progress.figures(progress.ended)
    consumer.stop(graceful=True)
    return figures


def serve_marks(file: str) -> list[list[int]]:
    """An idle consumer with Huey's defaults (one thread, its own polling); answers when each run started."""
    huey = open_huey(file)
    started: list[list[int]] = []

    @huey.task(name="mark")
    def mark(i: int) -> None:
        started.append([i, time.monotonic_ns()])

    consumer = huey.create_consumer(periodic=False)
    consumer.start()
    say_ready()
    wait_for_parent()
    consumer.stop(graceful=True)
    return started


def ask_marks(file: str, n: int, gap_s: float) -> list[list[int]]:
    """Queue `n` runs, some time apart; answers when each was about to be queued."""
    huey = open_huey(file)

    @huey.task(name="mark")
    def mark(i: int) -> None: ...

    asked: list[list[int]] = []
    for i in range(n):
        asked.append([i, time.monotonic_ns()])
        mark(i)
        time.sleep(gap_s)
    return asked
