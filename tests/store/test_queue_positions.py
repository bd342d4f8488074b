"""Positions in the queue: how far a store counts what is claimed before a run."""

import pytest

from pollux.store import limits
from pollux.store.contract import JobPut
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import a_run
from tests.servers import postgres
from tests.store.children import JOB

T0 = 1_800_000_000_000


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request, tmp_path):
    urls = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/store.db",
        "postgres": lambda: postgres.own_url("counted"),
    }
    opened = open_store(urls[request.param]())
    await opened.open()
    yield opened
    await opened.close()


async def test_it_stops_one_beyond_the_limit_in_each_line(store, monkeypatch):
    """Where the number costs no more the longer the line is (Redis), it is exact."""
    monkeypatch.setattr(limits, "AHEAD_MAX", 6)
    await store.put_jobs([JobPut(JOB)])
    urgent = [a_run(f"u{n}", JOB.id, due_ms=T0 + n, priority=1) for n in range(9)]
    await store.enqueue([*urgent, *[a_run(f"r{n}", JOB.id, due_ms=T0 + n) for n in range(9)]], now_ms=T0 + 99)

    async def ahead(run_id):
        return [line.ready for line in await store.lines(before=run_id, now_ms=T0 + 99)]

    assert [await ahead(run_id) for run_id in ("u0", "u6", "u7", "u8")] == [[n, 0, 0] for n in (0, 6, 7, 7)]
    assert [await ahead(run_id) for run_id in ("r0", "r6", "r8")] == [[7, n, 0] for n in (0, 6, 7)]
    assert [line.ready for line in await store.lines(now_ms=T0 + 99)] == [9, 9, 0]
