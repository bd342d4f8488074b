"""What is measured alike on every server?  Pickup between two processes, workers side by side, and a growing stock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.child import run_async
from benchmarks.report import percentile
from benchmarks.session import Session

GAP_S = 0.02
IDLE_S = 1.0  # before the first run, so that the worker is idle indeed
CLAIM = 100
LEASE_MS = 600_000
TOP_UP = 1_000  # claimed in a round, then settled and put there again
LOAD_BATCH = 1_000
LOAD_TIMEOUT_S = 1_800
STOCK_FLOOR = 0.6
JOB = "noop"


def pickup(
    session: Session, serve: Callable[..., Any], ask: Callable[..., Any], n: int, **where: str
) -> dict[str, float]:
    """From before the enqueue call to the first line of the handler; one process asks, another is idle and runs."""
    with session.child(serve, **where) as worker:
        worker.ready()
        time.sleep(IDLE_S)
        asked = dict(session.alone(ask, n=n, gap_s=GAP_S, **where))
        time.sleep(IDLE_S)
        started = dict(worker.answer())
    took = [(started[i] - begun) / 1e6 for i, begun in asked.items() if i in started]
    return {"p50_ms": statistics.median(took), "p99_ms": percentile(took, 0.99), "lost": len(asked) - len(took)}


def side_by_side(
    session: Session, work: Callable[..., Any], workers: list[dict[str, Any]], until: Callable[[], bool]
) -> dict[str, float]:
    """The rate of some workers together, while all of them are at work, and what a run costs them."""
    with ExitStack() as stack:
        children = [stack.enter_context(session.child(work, **arguments)) for arguments in workers]
        for child in children:
            child.ready()
        while not until():
            time.sleep(0.02)
        paces = [child.answer() for child in children]
    return together(paces)


def together(paces: list[list[list[float]]]) -> dict[str, float]:
    """Runs a second and CPU a run, from when the last worker had warmed up to when the first one found no more."""
    begun = max(marks[len(marks) // 10][0] for marks in paces)
    ended = min(marks[-1][0] for marks in paces)
    inside = [[mark for mark in marks if begun <= mark[0] <= ended] for marks in paces]
    runs, cpu_s = (sum(marks[-1][n] - marks[0][n] for marks in inside if marks) for n in (1, 2))
    return {"rate": runs / (ended - begun), "cpu_us": cpu_s / runs * 1e6}


def stock(session: Session, small: str, large: str, told: str) -> None:
    """Claims at a small and at a large stock, on two stores of one server, in turns."""
    part = 100 if session.quick else 1
    sizes = {small: (1_000, 1_000, 1_000), large: (100_000 // part, 1_000_000 // part, 1_000_000 // part)}
    names = {url: "{:,} ready, {:,} delayed, {:,} finished".format(*size) for url, size in sizes.items()}
    for url, (ready, delayed, finished) in sizes.items():
        begun = time.monotonic()
        session.alone(load, timeout_s=LOAD_TIMEOUT_S, url=url, ready=ready, delayed=delayed, finished=finished)
        session.say(f"{names[url]}: loaded in {time.monotonic() - begun:.0f} s")
    found = session.interleave({name: partial(session.alone, claims, url=url) for url, name in names.items()})
    rates = session.take(found, "rate", f"claims of {CLAIM}, {told}", "runs/s")
    session.at_least(
        f"claim rate at {names[large]} / at 1,000 each", rates[names[large]] / rates[names[small]], STOCK_FLOOR
    )


def load(url: str, ready: int, delayed: int, finished: int) -> None:
    """Straight through the store's `load`, then as a leader would have left it."""

    async def load_all() -> None:
        from benchmarks.stocked import consume_feed
        from pollux.store.urls import open_store

        store = open_store(url)
        await store.open()
        now_ms = time.time_ns() // 1_000_000
        batch: list[tuple[str, Any]] = [("job", {"id": JOB, "handler": JOB, "revision": 1})]
        for record in records(ready, delayed, finished, now_ms):
            batch.append(record)
            if len(batch) == LOAD_BATCH:
                await store.load(batch)
                batch = []
        if batch:
            await store.load(batch)
        await consume_feed(store)
        await store.close()

    run_async(load_all())


def records(ready: int, delayed: int, finished: int, now_ms: int) -> Iterable[tuple[str, Any]]:
    """Finished, delayed and ready ones in turn, as they lie in a store that has been at work."""
    yield from _finished(finished, now_ms)
    yield from (("run", _run("d", i, now_ms + 86_400_000 + i)) for i in range(delayed))
    yield from (("run", _run("r", i, now_ms - 10_000)) for i in range(ready))


def _finished(n: int, now_ms: int) -> Iterator[tuple[str, Any]]:
    for i in range(n):
        at_ms = now_ms - 3_600_000 + i
        ended = {"state": "done", "fence": 1, "started_ms": at_ms, "finished_ms": at_ms, "changed": True}
        yield "run", _run("f", i, at_ms) | ended


def _run(kind: str, i: int, due_ms: int) -> dict[str, Any]:
    run_id = f"{kind}{i:09d}"
    return {
        "id": run_id,
        "job_id": JOB,
        "due_ms": due_ms,
        "visible_ms": due_ms,
        "cause": "enqueued",
        "payload": {"i": i},
    }


def claims(url: str) -> dict[str, float]:
    """Claim what is put back each time: the stock is the same at the end as at the beginning, but for the finished."""

    async def claim_all() -> dict[str, float]:
        from pollux.store.urls import open_store

        store = open_store(url)
        await store.open()
        took = cpu = 0.0
        mark = f"{time.time_ns():x}"
        for turn in range(12):
            begun, used = time.monotonic(), time.process_time()
            runs = await _claim(store, f"{mark}.{turn}")
            if turn >= 2:  # the first ones warm up
                took, cpu = took + time.monotonic() - begun, cpu + time.process_time() - used
            await _settle(store, runs)
            await _top_up(store, f"{mark}{turn}")
        await store.close()
        return {"rate": 10 * TOP_UP / took, "cpu_us": cpu / TOP_UP / 10 * 1e6}

    return run_async(claim_all())


async def _claim(store: Any, token: str) -> list[Any]:
    runs: list[Any] = []
    for number in range(TOP_UP // CLAIM):
        claimed = await store.claim(node="bench", token=f"{token}.{number}", limit=CLAIM, lease_ms=LEASE_MS)
        assert len(claimed.runs) == CLAIM
        runs += claimed.runs
    return runs


async def _settle(store: Any, runs: list[Any]) -> None:
    from benchmarks.stocked import consume_feed
    from pollux.model import Done, Outcome
    from pollux.store.contract import Settlement

    at_ms = time.time_ns() // 1_000_000
    outcome = Outcome(started_ms=at_ms, ended_ms=at_ms)
    for start in range(0, len(runs), CLAIM):
        await store.settle(
            [Settlement(run.id, run.token, Done(), outcome=outcome) for run in runs[start : start + CLAIM]]
        )
    await consume_feed(store)


async def _top_up(store: Any, mark: str) -> None:
    from pollux.model import Cause, Run

    now_ms = time.time_ns() // 1_000_000
    runs = [Run(f"{mark}-{i}", JOB, now_ms, cause=Cause.ENQUEUED, visible_ms=now_ms) for i in range(TOP_UP)]
    await store.enqueue(runs, ready_max=10_000_000)
