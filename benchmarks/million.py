"""Do costs follow what is due, not what exists?  1,000,000 stored jobs: start, memory, CPU a firing, and overload.

The same firing rate comes from 1,000,000 jobs every 300 s and from 10,000 every 3 s.  Every 30 s, a million jobs are
more than one process can run: what is shown is that it stays up, keeps its term, and how many fire.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks.child import rss_mb, run_async
from benchmarks.ledger import until
from benchmarks.report import percentile
from benchmarks.session import Session
from benchmarks.stocked import HANDLER, stock_file

SEATS = 100
START_MAX_S = 5.0
GROWTH_MAX_MB = 350.0
COST_TIMES = 2.0
WARM_S = 5.0
LOAD_TIMEOUT_S = 900
Seen = dict[str, float]


def measure(session: Session) -> None:
    n, slow_ms, fast_ms = (100_000, 30_000, 3_000) if session.quick else (1_000_000, 300_000, 30_000)
    small, small_ms = n // 100, slow_ms // 100
    seconds = 10 if session.quick else 30
    names = {
        f"{small:,} every {small_ms / 1000:g} s": (small, small_ms),
        f"{n:,} every {slow_ms / 1000:g} s": (n, slow_ms),
        f"{n:,} every {fast_ms / 1000:g} s": (n, fast_ms),
    }
    with session.scratch() as folder:
        empty = session.alone(run_for, file=str(folder / "empty.db"), begin_ms=0, seconds=5)
        rate = session.alone(stock_file, file=str(folder / "probe.db"), n=10_000, every_ms=60_000, first_ms=0)["rate"]
        found = {name: [stocked_run(session, folder, *jobs, rate, seconds)] for name, jobs in names.items()}
    for name, [seen] in found.items():
        session.say(f"{name}: " + ", ".join(f"{what} {value:,.4g}" for what, value in seen.items()))
    found["empty"] = [empty]
    report(session, found, *names)


def report(session: Session, found: dict[str, list[Seen]], small: str, slow: str, fast: str) -> None:
    grown = session.take(found, "rss_mb", "resident, most", "MB")
    starts = session.take({name: found[name] for name in (small, slow, fast)}, "start_s", "start to first firing", "s")
    cpu = session.take(found, "cpu_us", "CPU", "us/firing")
    fired = session.take({name: found[name] for name in (small, slow, fast)}, "rate", "fired", "1/s")
    session.take(found, "late_p99_ms", "lateness p99", "ms")
    session.at_most("start, worst", max(starts[slow], starts[fast]), START_MAX_S, "s")
    session.at_most("resident over an empty start", max(grown[slow], grown[fast]) - grown["empty"], GROWTH_MAX_MB, "MB")
    session.at_most("CPU a firing / with a hundredth of the jobs", cpu[slow] / cpu[small], COST_TIMES)
    session.at_most(
        f"terms used by {fast} (overload)", found[fast][0]["terms"], 1, "terms", note=f"{fired[fast]:,.0f}/s fire"
    )


def stocked_run(session: Session, folder: Path, n: int, every_ms: int, rate: float, seconds: int) -> Seen:
    file = folder / f"jobs-{n}-{every_ms}.db"
    session.say(f"storing {n:,} jobs every {every_ms / 1000:g} s, not timed (about {n / rate:,.0f} s)")
    begin_ms = int((time.time() + 2 * n / rate + 5) * 1000)
    session.alone(stock_file, file=str(file), n=n, every_ms=every_ms, first_ms=begin_ms, timeout_s=LOAD_TIMEOUT_S)
    late_s = time.time() - begin_ms / 1000
    if late_s > 0:
        session.say(f"storing took {late_s:.0f} s longer than thought: it starts with that backlog")
    try:
        return session.alone(run_for, file=str(file), begin_ms=begin_ms, seconds=seconds)
    finally:
        for path in folder.glob(f"{file.name}*"):
            path.unlink()


def run_for(file: str, begin_ms: int, seconds: int) -> Seen:
    return run_async(_run_for(file, begin_ms, seconds))


async def _run_for(file: str, begin_ms: int, seconds: int) -> Seen:
    from pollux import Pollux

    app = Pollux(f"sqlite:///{file}", seats=SEATS)
    first = asyncio.Event()
    late_ms: list[float] = []

    @app.handler(name=HANDLER)
    async def poll(ctx, i: int) -> None:  # noqa: ARG001  the call of the other benches
        late_ms.append(time.time() * 1000 - ctx.run.due_ms)
        first.set()

    await until(begin_ms)
    begun = time.monotonic()
    async with app:
        if begin_ms:
            await asyncio.wait_for(first.wait(), 60)
        start_s = time.monotonic() - begun
        await asyncio.sleep(WARM_S)
        seen = await window(late_ms, seconds)
        terms = app.runtime.leader.wins
    return seen | {"start_s": start_s, "rss_mb": rss_mb("VmHWM"), "terms": terms}


async def window(late_ms: list[float], seconds: int) -> dict[str, Any]:
    fired, cpu, begun = len(late_ms), time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    cpu, took = time.process_time() - cpu, time.monotonic() - begun
    counted = late_ms[fired:]
    if not counted:
        return {}
    return {
        "rate": len(counted) / took,
        "cpu_us": cpu / len(counted) * 1e6,
        "late_p50_ms": percentile(counted, 0.5),
        "late_p99_ms": percentile(counted, 0.99),
    }
