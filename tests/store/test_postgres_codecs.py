"""Type codecs on new connections: no statement makes asyncpg ask the server for one."""

import asyncpg
import pytest

from pollux.model import AuditLine, Done, Node, NotePut, Plan
from pollux.store.contract import Answer, JobPut, Pruning, RunFilter
from pollux.store.postgres.database import _ARRAYS
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_job, a_run, renewal, settlement
from tests.servers.postgres import own_url, shared_url

NODE = Node("n")


@pytest.fixture
def asked(monkeypatch):
    """The numbers of the types that connections asked the server for."""
    seen = []
    ask = asyncpg.Connection._introspect_types

    async def watched(self, numbers, *limit):
        seen.extend(numbers)
        return await ask(self, numbers, *limit)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", watched)
    return seen


async def test_no_statement_makes_the_driver_ask_for_types(asked):
    store = PostgresStore(own_url("arrays"))
    await store.open()
    await store.put_jobs([JobPut(a_job("job"))])
    assert (await store.elect("n", ttl_ms=60_000)).number == 1
    await store.beat(NODE, ttl_ms=60_000)
    await store.enqueue([a_run("a", due_ms=0)])
    await store.enqueue([a_run(f"b{n}", due_ms=0) for n in range(11)])
    await store.enqueue([a_run("c", due_ms=0, key="k")])
    runs = (await store.claim(node="n", token="t", limit=9, lease_ms=60_000)).runs
    assert len(runs) == 9
    await store.renew([renewal(run) for run in runs], lease_ms=60_000)
    assert await store.settle([settlement(runs[0], Done())]) == [Answer.OK]
    read = tuple(item.id for item in (await store.feed(limit=9)).items)
    assert (await store.advance(1, Plan(consumed=read))).answer is Answer.OK
    await store.cancel(run_ids=["b9"])
    await store.put_notes([NotePut("note", 1)])
    await store.log([AuditLine(1, "who", "what", "whom")])
    await store.list_runs(RunFilter())
    await store.dump()
    await store.versions()
    await store.lines()
    await store.prune(Pruning(finished_before_ms=1))
    await store.delete_jobs(["job"])
    await store.close()

    assert asked == []


async def test_the_numbers_are_those_of_the_server():
    connection = await asyncpg.connect(shared_url())
    rows = await connection.fetch(
        "SELECT oid::bigint, typname, typelem::bigint FROM pg_type WHERE oid::bigint = ANY($1::bigint[]) ORDER BY oid",
        [number for number, _, _ in _ARRAYS],
    )
    await connection.close()

    assert [tuple(row) for row in rows] == list(_ARRAYS)
