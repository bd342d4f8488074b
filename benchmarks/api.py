"""What does the HTTP API cost?  Next to an empty FastAPI route, to the same verbs in process, and to the firings.

Every server is a process of its own on loopback, every load another one: plain sockets that are kept open.  The stores
are SQLite files, so that a create is a durable one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.child import parent_is_done, run_async, say_ready
from benchmarks.session import Child, Session
from benchmarks.stocked import stock_file

TOKEN = "pf_bench_" + "x" * 43
SINGLE_FLOOR = 0.3
BATCH_FLOOR = 0.3
LIST_TIMES = 2.0
METRICS_MAX_MS = 50.0
METRICS_TIMES = 3.0
LATE_TIMES, LATE_MORE_MS = 2.0, 20.0
RATE = 500  # requests a second beside the firings
FEW_CONNECTIONS, CONNECTIONS = 16, 64
BATCH = 1_000
JOB = '{"url": "https://example.com", "schedule_type": "cron", "cron_expression": "0 */6 * * *", "source_id": "uuid"}'
Seen = dict[str, float]


def measure(session: Session) -> None:
    _creates(session)
    _batches(session)
    _pages(session)
    _lateness(session)


def _creates(session: Session) -> None:
    """Few clients leave little to share: they wait for the disk more than many do."""
    n = 1_000 if session.quick else 5_000

    def against(server: Any, path: str, connections: int) -> Any:
        def once() -> Seen:
            with session.scratch() as folder, session.child(server, file=str(folder / "bench.db")) as child:
                asked = {"method": "POST", "path": path, "body": JOB, "n": n, "connections": connections}
                return session.alone(load, port=child.ready(), **asked)

        return once

    for connections in (FEW_CONNECTIONS, CONNECTIONS):
        found = session.interleave(
            {
                "empty FastAPI POST": against(serve_empty, "/jobs", connections),
                "pollux": against(serve, "/api/v2/jobs", connections),
            }
        )
        rates = session.take(found, "rate", f"create {n:,} jobs, one request each, {connections} connections", "1/s")
        times = rates["pollux"] / rates["empty FastAPI POST"]
        session.at_least(f"single create / empty FastAPI POST, {connections} connections", times, SINGLE_FLOOR)


def _batches(session: Session) -> None:
    n = 5_000 if session.quick else 20_000

    def in_scratch(function: Any) -> Any:
        def once() -> Seen:
            with session.scratch() as folder:
                return session.alone(function, file=str(folder / "bench.db"), n=n)

        return once

    def over_http(kind: str) -> Any:
        def once() -> Seen:
            with session.scratch() as folder, session.child(serve, file=str(folder / "bench.db")) as child:
                return session.alone(load_batches, port=child.ready(), kind=kind, n=n)

        return once

    for kind, verb in (("jobs", "put_jobs"), ("runs", "enqueue_many")):
        direct = put_in_process if kind == "jobs" else enqueue_in_process
        found = session.interleave({f"{verb} in process": in_scratch(direct), "pollux": over_http(kind)})
        rates = session.take(found, "rate", f"{n:,} {kind} in batches of {BATCH:,}", "1/s")
        session.at_least(
            f"batch of {kind} / {verb} in process", rates["pollux"] / rates[f"{verb} in process"], BATCH_FLOOR
        )


def _pages(session: Session) -> None:
    """A page of jobs, and the metrics, of few and of many."""
    few, many, some = 1_000, 100_000 if session.quick else 1_000_000, 100_000
    pages: dict[int, float] = {}
    scrapes: dict[int, float] = {}
    for n in sorted({100, few, some, many}):
        with session.scratch() as folder:
            file = str(folder / "bench.db")
            session.say(f"storing {n:,} jobs, not timed")
            far_ms = int(time.time() * 1000) + 3_600_000
            session.alone(stock_file, file=file, n=n, every_ms=3_600_000, first_ms=far_ms, timeout_s=900)
            with session.child(serve, file=file) as child:
                port = child.ready()
                page = session.alone(load, port=port, method="GET", path="/api/v2/jobs?limit=100", n=300, connections=1)
                scrape = session.alone(load_paced, port=port, paths=["/metrics"], rate=0.9, seconds=15, connections=1)
        pages[n] = session.figure(f"{n:,} jobs", "a page of 100 jobs", [page["p50_ms"]], "ms")
        scrapes[n] = session.figure(f"{n:,} jobs", "a scrape of /metrics", [scrape["p50_ms"]], "ms")
    session.at_most(f"a page with {many:,} jobs / with {few:,}", pages[many] / pages[few], LIST_TIMES)
    times = scrapes[some] / scrapes[100]
    if scrapes[some] <= METRICS_MAX_MS:
        session.at_most(
            f"/metrics with {some:,} jobs", scrapes[some], METRICS_MAX_MS, "ms", note=f"{times:.2g} x with 100"
        )
    else:
        session.at_most(f"/metrics with {some:,} jobs / with 100", times, METRICS_TIMES)


def _lateness(session: Session) -> None:
    """Firings beside a load of the API: how late they are, with and without."""
    seconds = 10 if session.quick else 30
    quiet, loaded, rates = [], [], []
    for number in range(3):
        for is_loaded in (False, True):
            with session.scratch() as folder, session.child(serve_busy, file=str(folder / "bench.db")) as child:
                late, rate = _one(session, child, seconds, is_loaded=is_loaded)
            (loaded if is_loaded else quiet).append(late)
            rates += [rate] if is_loaded else []
            session.say(f"round {number + 1} of 3, {'with' if is_loaded else 'without'} load: p99 {late:.1f} ms")
    before = session.figure("no load", "firing lateness p99", quiet, "ms")
    after = session.figure(f"{RATE} requests/s", "firing lateness p99", loaded, "ms")
    got = session.figure("pollux", "requests beside the firings", rates, "1/s")
    limit = LATE_TIMES * before + LATE_MORE_MS
    session.at_most(f"firing lateness p99 at {RATE} requests/s", after, limit, "ms", note=f"{got:,.0f} requests/s came")


def _one(session: Session, child: Child, seconds: int, *, is_loaded: bool) -> tuple[float, float]:
    port = child.ready()
    rate = 0.0
    if is_loaded:
        paths = [f"/api/v2/jobs/job{number}" for number in range(16)]
        paths += ["/api/v2/jobs?limit=10", "/api/v2/scheduler/health", "/api/v2/runs?limit=10&state=done", "/live"]
        rate = session.alone(load_paced, port=port, paths=paths, rate=RATE, seconds=seconds)["rate"]
    else:
        time.sleep(seconds)
    return child.answer()["p99_ms"], rate


# servers


def serve(file: str) -> None:
    run_async(_serve(file))


async def _serve(file: str) -> None:
    from pollux import Pollux

    app = Pollux(f"sqlite:///{file}", runs=False)

    @app.job()
    async def noop(ctx: Any, **more: Any) -> None: ...

    async with app:
        server = await _listening(app)
        say_ready(server.port)
        await parent_is_done()
        await server.stop()


async def _listening(app: Any) -> Any:
    from pollux.server import ApiServer, ServerOptions
    from pollux.server.limits import ApiLimits

    server = ApiServer(app, ServerOptions(host="127.0.0.1", port=0, token=TOKEN, limits=ApiLimits(rate=0)))
    await server.start()
    return server


def serve_busy(file: str) -> Seen:
    """A node that fires 200 jobs a second, and its API."""
    return run_async(_serve_busy(file))


async def _serve_busy(file: str) -> Seen:
    from pollux import Pollux, every

    app, late = Pollux(f"sqlite:///{file}", seats=50), []

    @app.handler
    async def noop(ctx: Any) -> None:
        late.append(time.time() * 1000 - ctx.run.due_ms)

    for number in range(1_000):
        app.add(noop, every("5s"), id=f"job{number}")
    async with app:
        server = await _listening(app)
        await asyncio.sleep(6)  # every job has found its place
        late.clear()
        say_ready(server.port)
        await parent_is_done()
        await server.stop()
        return {"p99_ms": statistics.quantiles(late, n=100)[98], "fired": len(late)}


def serve_empty(file: str) -> None:  # noqa: ARG001  as the others
    run_async(_serve_empty())


async def _serve_empty() -> None:
    import uvicorn
    from fastapi import FastAPI

    api = FastAPI()

    @api.post("/jobs")
    async def empty() -> dict[str, str]:
        return {}

    config = uvicorn.Config(api, port=0, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110  uvicorn has no such event
        await asyncio.sleep(0.01)
    say_ready(server.servers[0].sockets[0].getsockname()[1])
    await parent_is_done()
    server.should_exit = True
    await serving


# loads


def load(port: int, method: str, path: str, n: int, body: str = "", connections: int = CONNECTIONS) -> Seen:
    """So many requests over so many connections, each with one under way."""

    async def run() -> Seen:
        lines = [await Line.open(port) for _ in range(connections)]
        for line in lines:
            await line.ask(method, path, body)
        begun = time.monotonic()
        await asyncio.gather(*(line.many(method, path, body, n // connections) for line in lines))
        took = time.monotonic() - begun
        spent = sorted(each for line in lines for each in line.took)
        return {"rate": len(spent) / took, "p50_ms": 1000 * statistics.median(spent)}

    return run_async(run())


def load_paced(port: int, paths: list[str], rate: float, seconds: int, connections: int = CONNECTIONS) -> Seen:
    """So many requests a second, over a few connections."""

    async def run() -> Seen:
        lines = [await Line.open(port) for _ in range(connections)]
        end = time.monotonic() + seconds
        await asyncio.gather(*(line.paced(paths, connections / rate, end) for line in lines))
        spent = [each for line in lines for each in line.took]
        return {"rate": len(spent) / seconds, "p50_ms": 1000 * statistics.median(spent)}

    return run_async(run())


def load_batches(port: int, kind: str, n: int) -> Seen:
    import json

    async def run() -> Seen:
        line = await Line.open(port)
        begun = time.monotonic()
        for start in range(0, n, BATCH):
            if kind == "jobs":
                items = [{**json.loads(JOB), "id": f"job{number}"} for number in range(start, start + BATCH)]
                answer = await line.ask("POST", "/api/v2/jobs/batch", json.dumps({"jobs": items}))
            else:
                items = [{"params": {"i": number}} for number in range(start, start + BATCH)]
                answer = await line.ask("POST", "/api/v2/runs/batch", json.dumps({"job_id": "noop", "runs": items}))
            assert json.loads(answer)["ok"] == BATCH, answer[:300]
        return {"rate": n / (time.monotonic() - begun)}

    return run_async(run())


class Line:
    """One connection that is kept, and how long each answer took."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.took: list[float] = []

    @classmethod
    async def open(cls, port: int) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**24))

    async def ask(self, method: str, path: str, body: str = "") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        text = await self.reader.readexactly(length)
        assert answer[9:10] == b"2", (answer, text[:300])
        return text

    async def many(self, method: str, path: str, body: str, n: int) -> None:
        for _ in range(n):
            begun = time.monotonic()
            await self.ask(method, path, body)
            self.took.append(time.monotonic() - begun)

    async def paced(self, paths: list[str], every_s: float, end: float) -> None:
        due, number = time.monotonic(), 0
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            begun = time.monotonic()
            await self.ask("GET", paths[number % len(paths)])
            self.took.append(time.monotonic() - begun)
            due, number = max(due + every_s, begun - 1), number + 1


# in process


def put_in_process(file: str, n: int) -> Seen:
    async def run() -> Seen:
        from pollux import Pollux, cron
        from pollux.model import Job

        app = Pollux(f"sqlite:///{Path(file)}")
        await app.open()
        begun = time.monotonic()
        for start in range(0, n, BATCH):
            numbers = range(start, start + BATCH)
            params = {"url": "https://example.com"}
            await app.put_jobs(
                [
                    Job(id=f"job{n}", handler="http", schedule=cron("0 */6 * * *"), params=params, source_id="uuid")
                    for n in numbers
                ]
            )
        took = time.monotonic() - begun
        await app.close()
        return {"rate": n / took}

    return run_async(run())


def enqueue_in_process(file: str, n: int) -> Seen:
    async def run() -> Seen:
        from pollux import Pollux

        app = Pollux(f"sqlite:///{Path(file)}")

        @app.job()
        async def noop(ctx: Any, **more: Any) -> None: ...

        await app.open()
        await app.put_jobs(app.declared_jobs())
        begun = time.monotonic()
        for start in range(0, n, BATCH):
            await app.enqueue_many(noop, [{"i": number} for number in range(start, start + BATCH)])
        took = time.monotonic() - begun
        await app.close()
        return {"rate": n / took}

    return run_async(run())
