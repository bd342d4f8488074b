"""How late and how costly is a poll of 10,000 HTTP targets every 60 s?  Next to a bare aiohttp loop that does the same.

Every target is a host and port of its own on loopback (127.1.x.y), served by one process that does nothing but answer.
Each system polls each target once in one interval, evenly spread, in a process of its own.  Lateness is the handler's
start minus the due time; CPU is the polling process's alone.  Ours has polled every target once before the window, so
that what is measured is the second poll and all later ones.  Then 3 % of the targets are dead, half of them refuse, the
others accept and never answer, and the healthy ones must not notice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.child import parent_is_done, run_async, say_ready
from benchmarks.ledger import Ledger
from benchmarks.session import Session
from benchmarks.stocked import stock_jobs

SEATS = 200
LEAD_S = 4.0
WARM_UP_PER_S = 1_000
RUNS = 3
PORTS = 40  # the same ones on every address
FIRST_PORT = 21_000
TIMEOUT_S = 10
LATE_MS = 100.0
CPU_TIMES = 1.6
HEALTHY_TIMES, HEALTHY_PLUS_MS = 1.5, 20.0
BODY = b'{"status": "up", "load": 0.2517}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
Seen = dict[str, float]


def measure(session: Session) -> None:
    n, every_s = (1_000, 6) if session.quick else (10_000, 60)
    rounds = 1 if session.quick else RUNS
    sizes = {"n": n, "every_s": every_s}
    found = session.interleave(
        {
            "bare aiohttp": partial(beside_server, session, bare, **sizes),
            "pollux, memory": partial(beside_server, session, polls, url="memory://", **sizes),
            "pollux, sqlite": partial(durably, session, **sizes),
            "pollux, memory, 3 % dead": partial(beside_server, session, polls, url="memory://", dead=True, **sizes),
        },
        rounds=rounds,
    )
    for key, what, unit in (("p50_ms", "lateness p50", "ms"), ("p99_ms", "lateness p99", "ms")):
        session.take(found, key, what, unit)
    cpu = session.take(found, "cpu_us", "CPU", "us/poll")
    ours, dead = found["pollux, memory"], found["pollux, memory, 3 % dead"]
    wrong = max(each["missed"] + each["doubled"] + each["failed"] for each in ours + found["pollux, sqlite"])
    session.at_most(f"missed, doubled or failed of {n:,}, worst run", wrong, 0, "polls")
    late = sorted(each["p99_ms"] for each in ours)
    session.at_most(f"lateness p99, 2nd best of {len(late)}", late[min(1, len(late) - 1)], LATE_MS, "ms")
    durable = sorted(each["p99_ms"] for each in found["pollux, sqlite"])
    session.at_most(
        f"sqlite: lateness p99, 2nd best of {len(durable)}", durable[min(1, len(durable) - 1)], LATE_MS, "ms"
    )
    session.at_most("CPU a poll / bare aiohttp's", cpu["pollux, memory"] / cpu["bare aiohttp"], CPU_TIMES)
    healthy = sorted(each["p99_ms"] for each in dead)[len(dead) // 2]
    limit = HEALTHY_TIMES * late[len(late) // 2] + HEALTHY_PLUS_MS
    session.at_most("3 % dead: lateness p99 of the healthy", healthy, limit, "ms", note="1.5 x without dead + 20 ms")
    session.at_most("3 % dead: healthy missed, worst run", max(each["missed"] for each in dead), 0, "polls")


def durably(session: Session, n: int, every_s: int) -> Seen:
    with session.scratch() as folder:
        return beside_server(session, polls, url=f"sqlite:///{folder / 'pollux.db'}", n=n, every_s=every_s)


def beside_server(session: Session, function: Any, *, n: int, dead: bool = False, **arguments: Any) -> Seen:
    with session.child(serve, n=n, dead=dead) as server:
        server.ready()
        return session.alone(function, n=n, dead=dead, **arguments)


# the targets


def address_of(i: int) -> tuple[str, int]:
    host, port = divmod(i, PORTS)
    return f"127.1.{host // 250}.{host % 250 + 1}", FIRST_PORT + port


def is_dead(i: int) -> bool:
    return i % 200 < 6


class Target(asyncio.Protocol):
    """Answers whatever it is asked."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(ANSWER)
        if b"Connection: close" in data:
            self.transport.close()


class Silent(asyncio.Protocol):
    """Accepts, and never answers."""


def serve(n: int, dead: bool) -> None:  # noqa: FBT001  arguments come as JSON
    async def run() -> None:
        loop = asyncio.get_running_loop()
        for i in range(n):
            if dead and i % 200 < 3:
                continue  # nobody listens: refused
            kind = Silent if dead and is_dead(i) else Target
            await loop.create_server(kind, *address_of(i), backlog=16)
        say_ready()
        await parent_is_done()

    run_async(run())


# the pollers


def bare(n: int, every_s: int, dead: bool = False) -> Seen:  # noqa: ARG001, FBT001, FBT002  arguments come as JSON
    """A timer for each poll, a task, one session: what anybody would write."""

    async def run() -> Seen:
        import aiohttp

        loop = asyncio.get_running_loop()
        begin_ms = (time.time() + LEAD_S / 2) * 1000
        ledger = Ledger(n, begin_ms, every_s * 1000)
        ahead = loop.time() - time.time()
        running, failed = set(), [0]
        urls = [url_of(i) for i in range(n)]
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
        ) as http:

            async def poll(i: int, due_ms: float) -> None:
                ledger.enter(i, due_ms)
                async with http.get(urls[i]) as response:
                    await response.read()
                    failed[0] += response.status != 200

            def start(i: int, due_ms: float) -> None:
                begun = loop.create_task(poll(i, due_ms))
                running.add(begun)
                begun.add_done_callback(running.discard)

            for i in range(n):
                due_ms = begin_ms + i * every_s * 1000 / n
                loop.call_at(due_ms / 1000 + ahead, start, i, due_ms)
            return await ledger.watch() | {"failed": failed[0]}

    return run_async(run())


def polls(url: str, n: int, every_s: int, dead: bool = False) -> Seen:  # noqa: FBT001, FBT002
    return run_async(_polls(url, n, every_s, dead=dead))


async def _polls(url: str, n: int, every_s: int, *, dead: bool) -> Seen:
    import pollux.handlers.http.client  # noqa: F401  the first poll would bring it, in the middle of what is measured
    from pollux import Pollux
    from pollux.events import RunFailed, RunStarted
    from pollux.store.urls import open_store

    store = open_store(url)
    app = Pollux(store, seats=SEATS)
    healthy = [i for i in range(n) if not (dead and is_dead(i))]
    places = {f"job-{i}": place for place, i in enumerate(healthy)}
    warm_ms = int((time.time() + LEAD_S) * 1000)
    rest_s = max(LEAD_S, every_s / 2 + 1)  # a new interval job is on its own grid half an interval after its first due
    begin_ms = warm_ms + n * 1000 // WARM_UP_PER_S + int(rest_s * 1000)
    ledger, failed = Ledger(len(healthy), begin_ms, every_s * 1000), [0]

    def started(event: RunStarted) -> None:
        place = places.get(event.job_id)
        if place is not None:
            ledger.enter(place, int(event.run_id.rpartition("@")[2]))

    def fell(event: RunFailed) -> None:
        failed[0] += event.job_id in places

    app.events.listen(RunStarted, started)
    app.events.listen(RunFailed, fell)
    await app.open()
    await stock_jobs(store, jobs_of(n, every_s * 1000, warm_ms))
    async with app:
        return await ledger.watch() | {"failed": failed[0]}


def url_of(i: int) -> str:
    host, port = address_of(i)
    return f"http://{host}:{port}/health"


def jobs_of(n: int, every_ms: int, warm_ms: int) -> Iterator[Any]:
    """The first due of each is in the warm-up; from then on it goes by its own grid."""
    from pollux.model import Interval, Job

    spec = Interval(every_ms)
    for i in range(n):
        job_id, (host, port) = f"job-{i}", address_of(i)
        yield Job(
            id=job_id,
            handler="http",
            schedule=spec,
            params={"url": url_of(i), "timeout": f"{TIMEOUT_S}s"},
            target=f"{host}:{port}",
            source="code:bench",
            revision=1,
            next_due_ms=warm_ms + i * 1000 // WARM_UP_PER_S,
        )
