"""Do 100,000 interval jobs fire, how late, and at what cost?  Next to bare timers and to APScheduler in memory.

1,667 firings a second for one whole interval, in which every job is due exactly once; each system in a process of
its own.  Lateness is the handler's first line minus the due time, held against the bare timers' twice: the whole
minute, and the calmest quarter of each, in which the machine's own hiccups neither help nor hurt.  Memory is the
growth of the resident set by the jobs, added through the public API, each with one int to be called with, before any
has fired.
"""

from __future__ import annotations

import asyncio
import gc
import time
from functools import partial
from typing import Any

from benchmarks import timers_peer
from benchmarks.child import rss_mb, run_async
from benchmarks.ledger import Ledger
from benchmarks.session import Session
from benchmarks.stocked import HANDLER, stock, stock_file

SEATS = 100
LEAD_S = 10.0
FAR_S = 40.0
LATE_TIMES = 10.0
LATE_DURABLE_MS = 50.0
ADVANCES_MAX = 60.0
RUNS = 3
Seen = dict[str, float]


def measure(session: Session) -> None:
    n, every_s = (20_000, 12) if session.quick else (100_000, 60)
    in_memory(session, n, every_s)
    weights(session, n)
    durable(session, n, every_s)


def in_memory(session: Session, n: int, every_s: int) -> None:
    found = session.interleave(
        {
            "bare timers": partial(session.alone, timers_peer.bare_timers, n=n, every_s=every_s),
            "apscheduler, memory": partial(session.alone, timers_peer.apscheduler_fires, n=n, every_s=every_s),
            "pollux, memory": partial(session.alone, fires, url="memory://", n=n, every_s=every_s),
        },
        rounds=1 if session.quick else RUNS,
    )
    ours, peer, bare = "pollux, memory", "apscheduler, memory", "bare timers"
    cpu = session.take(found, "cpu_us", "CPU", "us/firing")
    late = session.take(found, "p99_ms", "lateness p99", "ms")
    session.take(found, "p50_ms", "lateness p50", "ms")
    calm = session.take(found, "calm_ms", "lateness p99, calmest quarter", "ms")
    session.take(found, "missed", f"missed of {n:,}", "firings")
    session.take(found, "doubled", "doubled", "firings")
    wrong = max(each["missed"] + each["doubled"] for each in found[ours])
    session.at_most("memory: missed or doubled, worst run", wrong, 0, "firings")
    session.at_most("memory: CPU a firing / apscheduler's", cpu[ours] / cpu[peer], 1.0)
    session.at_most("memory: lateness p99 / bare timers'", late[ours] / late[bare], LATE_TIMES)
    session.at_most("memory: lateness p99 / bare timers', calmest", calm[ours] / calm[bare], LATE_TIMES)


def weights(session: Session, n: int) -> None:
    rounds = min(session.rounds, 3)
    found = session.interleave(
        {
            "apscheduler, memory": partial(session.alone, timers_peer.apscheduler_weighs, n=n),
            "pollux, memory": partial(session.alone, weighs, n=n),
        },
        rounds=rounds,
    )
    heavy = session.take(found, "bytes", "resident growth", "bytes/job")
    session.at_most("memory: bytes a job / apscheduler's", heavy["pollux, memory"] / heavy["apscheduler, memory"], 1.0)


def durable(session: Session, n: int, every_s: int) -> None:
    rounds = 1 if session.quick else RUNS
    system = "pollux, sqlite"
    found = session.interleave({system: partial(fires_durably, session, n, every_s)}, rounds=rounds)
    for key, what, unit in (
        ("cpu_us", "CPU", "us/firing"),
        ("p50_ms", "lateness p50", "ms"),
        ("p99_ms", "lateness p99", "ms"),
        ("advances", "commits of the leader", "1/s"),
        ("commits", "commits in all", "1/s"),
    ):
        session.take(found, key, what, unit)
    runs = found[system]
    late = sorted(each["p99_ms"] for each in runs)
    wrong = max(each["missed"] + each["doubled"] for each in runs)
    session.at_most("sqlite: missed or doubled, worst run", wrong, 0, "firings")
    session.at_most(
        f"sqlite: lateness p99, 2nd best of {len(runs)}", late[min(1, len(late) - 1)], LATE_DURABLE_MS, "ms"
    )
    session.at_most("sqlite: commits of the leader, worst run", max(e["advances"] for e in runs), ADVANCES_MAX, "1/s")


def fires_durably(session: Session, n: int, every_s: int) -> Seen:
    with session.scratch() as folder:
        file = str(folder / "pollux.db")
        rate = session.alone(stock_file, file=str(folder / "probe.db"), n=5_000, every_ms=60_000, first_ms=0)["rate"]
        first_ms = int((time.time() + 1.5 * n / rate + LEAD_S) * 1000)
        session.alone(stock_file, file=file, n=n, every_ms=every_s * 1000, first_ms=first_ms)
        return session.alone(fires, url=f"sqlite:///{file}", n=n, every_s=every_s, first_ms=first_ms)


def fires(url: str, n: int, every_s: int, first_ms: int = 0) -> Seen:
    return run_async(_fires(url, n, every_s, first_ms))


async def _fires(url: str, n: int, every_s: int, first_ms: int) -> Seen:
    from pollux import Pollux
    from pollux.store.urls import open_store

    store = open_store(url)
    app = Pollux(store, seats=SEATS)
    begin_ms = first_ms or int((time.time() + LEAD_S) * 1000)
    ledger = Ledger(n, begin_ms, every_s * 1000)

    @app.handler(name=HANDLER)
    async def poll(ctx, i: int) -> None:
        ledger.enter(i, ctx.run.due_ms)

    await app.open()
    if not first_ms:
        await stock(store, n, every_s * 1000, begin_ms)
    count = count_advances(store)
    async with app:
        watched = asyncio.ensure_future(ledger.watch())
        await asyncio.sleep(max(begin_ms / 1000 - time.time(), 0))
        before, commits = count[0], commits_of(store)
        await asyncio.sleep(every_s)
        seen = {"advances": (count[0] - before) / every_s, "commits": (commits_of(store) - commits) / every_s}
        return seen | await watched


def count_advances(store: Any) -> list[int]:
    """Counts the leader's writes from now on."""
    count, advance = [0], store.advance

    async def counted(*args: Any, **options: Any) -> Any:
        count[0] += 1
        return await advance(*args, **options)

    store.advance = counted
    return count


def commits_of(store: Any) -> int:
    stats = getattr(store, "stats", None)
    return 0 if stats is None else stats.commits


def weighs(n: int) -> Seen:
    return run_async(_weighs(n))


async def _weighs(n: int) -> Seen:
    from pollux import Pollux
    from pollux.model import Interval, Job

    app = Pollux("memory://", seats=SEATS)

    @app.handler(name=HANDLER)
    async def poll(ctx, i: int) -> None: ...

    first_ms = int((time.time() + FAR_S) * 1000)

    def jobs(numbers: range) -> list[Job]:
        return [
            Job(id=f"job-{i}", handler=HANDLER, schedule=Interval(60_000, start_ms=first_ms), params={"i": i})
            for i in numbers
        ]

    async with app:
        await app.put_jobs(jobs(range(n, n + 1)))
        await asyncio.sleep(0.5)
        gc.collect()
        before = rss_mb()
        for start in range(0, n, 1_000):
            await app.put_jobs(jobs(range(start, min(start + 1_000, n))))
        await asyncio.sleep(2.0)
        while (await app.operations.status.counts()).feed:  # noqa: ASYNC110  until the leader has given each its first due
            await asyncio.sleep(0.1)
        gc.collect()
        return {"bytes": (rss_mb() - before) * 1024 * 1024 / n}
