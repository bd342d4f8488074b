"""Does anything grow?  One server under load and faults for many minutes, and everything that could leak counted.

A few hundred jobs (quick, failing, hanging, telling progress, http, exec) are planned and run by one server and one
worker.  Every few seconds something bad happens: the worker is killed or stands still, or somebody holds the lock.  The
server counts itself: objects, descriptors, threads, memory, log, database, feed.  The verdict is the growth over
the last two thirds, by a straight line through the samples: the first third is for warming up.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.child import parent_is_done, rss_mb, run_async, say_ready
from benchmarks.session import Child, Session

SAMPLE_S = 10.0
FAULT_S = 15.0  # between two of them
STALL_S = 5.0
LOCK_S = 3.0
JOBS = {"quick": 150, "failing": 50, "hanging": 10, "telling": 20, "http": 40, "exec": 8}
# How much each may grow over the last two thirds: so many percent of its median, or so much whatever that is.
FLAT = {"objects": (3.0, 2_000), "descriptors": (0.0, 4), "threads": (0.0, 4), "memory": (5.0, 8.0), "feed": (0.0, 200)}
LOG_MB_MAX = 16.0  # a log is cut at 32 MB, carried over at 4
DATABASE_MB_MAX = 40.0
KEEP = 5  # finished runs of each job, so that the database is full-grown after a minute


def measure(session: Session) -> None:
    seconds = session.minutes * 60
    session.say(f"{sum(JOBS.values())} jobs for {session.minutes:g} min, a fault every {FAULT_S:.0f} s")
    with session.scratch() as folder:
        file, samples = folder / "pollux.db", folder / "samples.jsonl"
        limit = {"timeout_s": seconds + 300}
        with session.child(targets, **limit) as web:
            about = {"file": str(file), "port": web.ready()}
            with session.child(server, samples=str(samples), **about, **limit) as served:
                served.ready()
                faults = _disturb(session, file, about, seconds, samples)
                ended = served.answer()
        seen = [json.loads(line) for line in samples.read_text().splitlines()]
    session.figure("pollux", "runs ended", [ended["ended"]], "")
    session.figure("pollux", "faults", [faults], "")
    _judge(session, seen)


def _judge(session: Session, seen: list[dict[str, float]]) -> None:
    steady = seen[len(seen) // 3 :]
    for what, (percent, least) in FLAT.items():
        values = [sample[what] for sample in steady]
        session.figure("pollux", what, [sample[what] for sample in seen], "MB" if what == "memory" else "")
        middle = sorted(values)[len(values) // 2]
        allowed = max(least, middle * percent / 100)
        session.at_most(f"growth of {what}", growth([sample["at"] for sample in steady], values), allowed, "")
    for what, most in (("log", LOG_MB_MAX), ("database", DATABASE_MB_MAX)):
        session.figure("pollux", what, [sample[what] for sample in seen], "MB")
        session.at_most(f"largest {what}", max(sample[what] for sample in seen), most, "MB")


def growth(times: list[float], values: list[float]) -> float:
    """By how much the straight line through the samples rises from the first to the last."""
    if len(times) < 2:
        return 0.0
    mean_t, mean_v = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - mean_t) ** 2 for t in times)
    slope = sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values, strict=True)) / spread
    return slope * (times[-1] - times[0])


# faults


def _disturb(session: Session, file: Path, about: dict[str, Any], seconds: float, samples: Path) -> int:
    """Until the time is over; answers how many faults there were."""
    end = time.monotonic() + seconds
    worker = Child(server, {**about, "samples": ""}, timeout_s=seconds + 300)
    faults = 0
    try:
        worker.ready()
        while (left := end - time.monotonic()) > FAULT_S:
            time.sleep(min(FAULT_S, left))
            match faults % 3:
                case 0:
                    worker.end()
                    worker = Child(server, {**about, "samples": ""}, timeout_s=seconds + 300)
                    worker.ready()
                case 1:
                    _stall(worker.pid)
                case _:
                    _hold_lock(file)
            faults += 1
            session.say(f"{left / 60:.1f} min left, {faults} faults; {_latest(samples)}")
        time.sleep(max(0.0, end - time.monotonic()))
    finally:
        worker.end()
    return faults


def _stall(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STALL_S)
    finally:
        os.kill(pid, signal.SIGCONT)


def _hold_lock(file: Path) -> None:
    fd = os.open(f"{file}.lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        time.sleep(LOCK_S)
    finally:
        os.close(fd)


def _latest(samples: Path) -> str:
    lines = samples.read_text().splitlines() if samples.exists() else []
    if not lines:
        return "no sample yet"
    return ", ".join(f"{what} {value:,.4g}" for what, value in json.loads(lines[-1]).items() if what != "at")


# the processes


def server(file: str, port: int, samples: str) -> dict[str, int]:
    """A node; one that is told where samples go plans, too."""
    return run_async(_serve(file, port, samples))


async def _serve(file: str, port: int, samples: str) -> dict[str, int]:
    from pollux import Pollux
    from pollux.events import RunSettled
    from pollux.store.urls import open_store

    store = open_store(f"sqlite:///{file}")
    app = Pollux(
        store,
        name="soak",
        seats=40,
        lease="10s",
        keep_history=KEEP,
        plans=bool(samples),
        allow_exec=True,
        http_allow_networks=["127.0.0.0/8"],
    )
    declare(app, port)
    ended = 0

    def count(_event: RunSettled) -> None:
        nonlocal ended
        ended += 1

    app.events.listen(RunSettled, count)
    async with app:
        say_ready()
        sampling = asyncio.create_task(_sample(store, Path(file), Path(samples))) if samples else None
        await parent_is_done()
        if sampling is not None:
            sampling.cancel()
    return {"ended": ended}


def declare(app: Any, port: int) -> None:
    from pollux import every
    from pollux.model import Retry

    for name, handler in {"quick": _quick, "failing": _failing, "hanging": _hanging, "telling": _telling}.items():
        app.handler(name=name)(handler)
    soon = Retry(attempts_max=3, base_ms=200, factor=2, max_ms=1_000)
    options: dict[str, dict[str, Any]] = {
        "quick": {"every": "2s"},
        "failing": {"every": "5s", "retry": soon},
        "hanging": {"every": "20s", "timeout": "2s", "retry": False},
        "telling": {"every": "10s"},
        "http": {"every": "5s", "params": {"url": f"http://127.0.0.1:{port}/"}},
        "exec": {"every": "20s", "params": {"argv": ["true"]}},
    }
    for name, number in JOBS.items():
        given = dict(options[name])
        interval = given.pop("every")
        for n in range(number):
            app.add(name, every(interval), id=f"{name}/{n}", **given)


async def _quick(ctx: Any) -> dict[str, int]:
    return {"due": ctx.run.due_ms}


async def _failing(ctx: Any) -> None:
    raise ConnectionError(f"attempt {ctx.attempt} fails, as it always does")


async def _hanging(ctx: Any) -> None:  # noqa: ARG001
    await asyncio.Event().wait()


async def _telling(ctx: Any) -> None:
    for step in range(10):
        ctx.progress(step, of=10)
        await asyncio.sleep(0.3)


async def _sample(store: Any, file: Path, samples: Path) -> None:
    begun = time.monotonic()
    while True:
        await asyncio.sleep(SAMPLE_S)
        gc.collect()
        found = {
            "at": time.monotonic() - begun,
            "objects": len(gc.get_objects()),
            "descriptors": _descriptors(),
            "threads": threading.active_count(),
            "memory": rss_mb(),
            "log": _megabytes(file.with_name(file.name + "-wal")),
            "database": _megabytes(file),
            "feed": await _feed(store),
        }
        with samples.open("a") as out:
            out.write(json.dumps(found) + "\n")


async def _feed(store: Any) -> float:
    from pollux.errors import StoreError

    with suppress(StoreError):
        return (await store.counts()).feed
    return 0.0


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _megabytes(path: Path) -> float:
    return path.stat().st_size / 1e6 if path.exists() else 0.0


def targets() -> None:
    """Something to poll."""
    run_async(_targets())


async def _targets() -> None:
    from aiohttp import web

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"now": int(time.time())})

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [address] = runner.addresses
    say_ready(address[1])
    await parent_is_done()
    await runner.cleanup()
