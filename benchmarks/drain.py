"""How fast is what is queued run?  Claim, run, settle of no-ops, with leases and history, next to Huey's consumer.

Huey gets the best thread count of a short calibration and no results to store; it takes a run out of the queue before
running it and remembers nothing of it.  The first tenth is warm-up for both; ours ends when all is settled.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from benchmarks import huey_peer
from benchmarks.child import Progress, run_async
from benchmarks.session import Session

FLOORS = {100: 4.0, 10: 2.0}
AIM = 6.0
WORKERS = (1, 2, 4, 8)


def measure(session: Session) -> None:
    n = 5_000 if session.quick else 20_000
    workers = calibrate(session, n // 4)
    huey = f"huey, {workers} thread{'s' if workers > 1 else ''}"
    systems = {huey: partial(drain_huey, session, n, workers)}
    systems |= {f"pollux, {seats} seats": partial(drain_ours, session, n, seats) for seats in FLOORS}
    found = session.interleave(systems)
    rates = session.take(found, "rate", f"drain {n:,} runs", "runs/s")
    session.take(found, "cpu_us", "CPU of the worker", "us/run")
    for seats, floor in FLOORS.items():
        note = f"aim {AIM:.0f} x" if seats == 100 else ""
        session.at_least(
            f"drain at {seats} seats / huey", rates[f"pollux, {seats} seats"] / rates[huey], floor, note=note
        )


def calibrate(session: Session, n: int) -> int:
    rates = {workers: drain_huey(session, n, workers)["rate"] for workers in WORKERS}
    best = max(rates, key=rates.__getitem__)
    session.say(f"huey by threads: {', '.join(f'{w}: {rate:,.0f}/s' for w, rate in rates.items())}; {best} it is")
    return best


def drain_huey(session: Session, n: int, workers: int) -> dict[str, float]:
    with session.scratch() as folder:
        file = str(folder / "huey.db")
        session.alone(huey_peer.fill, file=file, n=n)
        return session.alone(huey_peer.drain, file=file, n=n, workers=workers)


def drain_ours(session: Session, n: int, seats: int) -> dict[str, float]:
    with session.scratch() as folder:
        file = str(folder / "pollux.db")
        session.alone(fill, file=file, n=n)
        return session.alone(drain, file=file, n=n, seats=seats)


def fill(file: str, n: int) -> None:
    async def fill_all() -> None:
        app, noop = app_of(file, Progress(n), seats=1)
        await app.open()
        await app.put_jobs(app.declared_jobs())
        await app.enqueue_many(noop, [{"i": i} for i in range(n)])
        await app.close()

    run_async(fill_all())


def drain(file: str, n: int, seats: int) -> dict[str, float]:
    async def drain_all() -> dict[str, float]:
        progress = Progress(n)
        app, _ = app_of(file, progress, seats=seats)
        async with app:
            await progress.all_seen.wait()
            while (counts := await app.counts()).ready or counts.leased:  # noqa: ASYNC110  the store has no such event
                await asyncio.sleep(0.002)
            return progress.figures(time.monotonic())

    return run_async(drain_all())


def app_of(file: str, progress: Progress, *, seats: int):
    from pollux import Pollux

    app = Pollux(f"sqlite:///{file}", seats=seats)

    @app.job()
    async def noop(ctx, i: int) -> None:  # noqa: ARG001  the same call as Huey's
        progress.step()

    return app, noop
