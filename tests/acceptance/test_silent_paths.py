"""A few silent paths of one host: neither its healthy paths nor other hosts are polled any less for them.

The size is that of the promise: 300 jobs of 1 s on one host and port, each with a target of its own, 15 of them silent,
100 seats, and jobs of another host beside them.  What is counted are due times, not seconds: a slow machine polls a
part of them only, so a quarter is enough; with the seats taken by waiting it was a twentieth.
"""

import asyncio
from collections import Counter
from typing import Self

import pytest

from pollux import Pollux, every
from pollux.model import Job
from tests.http_world import until

HEALTHY, SILENT, ELSEWHERE, SEATS = 285, 15, 20, 100
ROUNDS = 3  # times that each silent path has failed


class Paths:
    """The smallest server that keeps connections: paths that begin with /silent are never answered."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    def url(self, path: str) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode()
                self.asked[path] += 1
                if not path.startswith("/silent"):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


def dues(job: Job) -> int:
    """The due times of a job that have passed so far: polled, or skipped for whatever reason."""
    return job.memory.ended + sum(job.memory.skips.values())


def add(app: Pollux, id: str, url: str, target: str) -> str:
    app.add("http", every("1s"), id=id, params={"url": url}, target=target, timeout="5s", retry=False)
    return id


@pytest.fixture
async def host():
    async with Paths() as paths:
        yield paths


@pytest.fixture
async def another():
    async with Paths() as paths:
        yield paths


async def test_a_few_silent_paths_of_one_host_starve_neither_its_healthy_ones_nor_another_host(host, another):
    app = Pollux("memory://", seats=SEATS)
    healthy = [add(app, f"ok-{n}", host.url(f"/ok-{n}"), f"device-{n}") for n in range(HEALTHY)]
    silent = [add(app, f"silent-{n}", host.url(f"/silent-{n}"), f"silent-{n}") for n in range(SILENT)]
    elsewhere = [add(app, f"other-{n}", another.url(f"/{n}"), f"other-{n}") for n in range(ELSEWHERE)]
    async with app:

        async def failed_often() -> bool:
            jobs = await app.backend.get_jobs(silent)
            return all(job.memory.failures >= ROUNDS for job in jobs)

        await until(failed_often, patience_s=240)
        jobs = {job.id: job for job in await app.backend.get_jobs([*healthy, *silent, *elsewhere])}
        document = await app.operations.status.health_document()

    seldom = {id: (jobs[id].memory.ended, dues(jobs[id])) for id in [*healthy, *elsewhere]}
    assert min(total for _, total in seldom.values()) >= 5
    assert not {id: seen for id, seen in seldom.items() if seen[0] * 4 < seen[1]}
    assert not [jobs[id].memory.last_error for id in [*healthy, *elsewhere] if jobs[id].memory.last_error]
    assert not {id: error for id in silent if "AnswerTimeout" not in (error := jobs[id].memory.last_error)}
    told = {each["instance"] for each in document["instances"] if each["warnings"]}
    assert told >= set(silent)
    scores = {each["instance"]: each["score"] for each in document["staleness"]}
    assert all(scores[id] == 1.0 for id in silent)
