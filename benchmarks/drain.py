"""How fast is what is queued run?  Claim, run, settle of no-ops, with leases and history, next to Huey's consumer.

Huey gets the best thread count of a short calibration and no results to store; it takes a run out of the queue before
running it and remembers nothing of it.  The first tenth is warm-up for both; ours ends when all is settled.
"""

from __future__ import annotations

from functools import partial

from benchmarks import huey_peer, ours
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
        url = f"sqlite:///{folder / 'pollux.db'}"
        session.alone(ours.fill, url=url, n=n)
        return session.alone(ours.drain, url=url, n=n, seats=seats)
