"""Lock order of writers: jobs before runs, the counts last of all, so that they never deadlock.

Where somebody else keeps to no order, the server undoes one of both after a second; then it is done once more.
"""

import asyncio

import asyncpg
import pytest

from pollux.errors import StoreMoved
from pollux.model import Done, Ended, NotePut, Outcome, RetryAt
from pollux.store.contract import Answer, JobPut
from pollux.store.move_marks import SEAL
from pollux.store.postgres import settle
from pollux.store.postgres.store import PostgresBackend, PostgresStore
from pollux.testing.conformance.builders import T0, a_job, a_run, claim, given_jobs, settlement
from tests.chaos.yard import wait_until
from tests.servers.postgres import own_url, shared_url

WAITS_FOR_US = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pg_backend_pid() = ANY(pg_blocking_pids(pid))
"""


@pytest.fixture
async def store():
    store = PostgresStore(own_url("locks"))
    await store.open()
    await given_jobs(store, "job", "other")
    yield store
    await store.close()


@pytest.fixture
async def psql():
    connection = await asyncpg.connect(shared_url())
    yield connection
    await connection.close()


async def until_it_waits(psql):
    async def waits():
        await psql.execute("SELECT pg_stat_clear_snapshot()")  # a transaction sees the connections of its first look
        return await psql.fetchval(WAITS_FOR_US)

    await wait_until(waits, "somebody waits for us")


def tried_again(run):
    return settlement(run, RetryAt(T0 + 1), outcome=Outcome(T0, T0 + 1))


def with_a_follow_up(run):
    return settlement(run, Done(), outcome=Outcome(T0, T0 + 1), follow_ups=(a_run("next"),))


@pytest.mark.parametrize("ended", [tried_again, with_a_follow_up])
async def test_a_settlement_locks_the_job_before_its_run(store, psql, ended):
    """As who moves or deletes the job does: it may still take the run while the settlement waits for the job."""
    await store.enqueue([a_run("a")], now_ms=T0)
    [run] = await claim(store)
    schema = store.backend.address.schema
    async with psql.transaction():
        await psql.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'job' FOR UPDATE")
        settling = asyncio.ensure_future(store.settle([ended(run)], now_ms=T0))
        await until_it_waits(psql)
        await psql.execute(f"SELECT 1 FROM {schema}.queue FOR UPDATE NOWAIT")

    assert await settling == [Answer.OK]


async def test_a_plain_settlement_that_meets_a_deadlock_goes_the_long_way(store, psql, monkeypatch):
    """Somebody holds the counts, and then wants the run: the server undoes one of both, which is us."""
    taken = []
    short = settle.settle_plainly

    async def watched(*args, **named):
        taken.append(await short(*args, **named))
        return taken[-1]

    monkeypatch.setitem(PostgresBackend.settle.__globals__, "settle_plainly", watched)
    await store.enqueue([a_run("a")], now_ms=T0)
    [run] = await claim(store)
    schema = store.backend.address.schema
    # For as long the ring can be closed.
    await store.backend._read(None, lambda tx: tx.fetch_text("SET deadlock_timeout = '3s'", ()))
    await psql.execute("SET deadlock_timeout = '1min'")  # it is the other one who finds out
    async with psql.transaction():
        await psql.execute(f"UPDATE {schema}.counters SET wakes = wakes")
        settling = asyncio.ensure_future(
            store.settle([settlement(run, Done(), outcome=Outcome(T0, T0 + 1))], now_ms=T0)
        )
        await until_it_waits(psql)
        await psql.execute(f"SELECT 1 FROM {schema}.queue FOR UPDATE")

    assert await settling == [Answer.OK]
    assert taken == [False]
    entries = [item.entry for item in (await store.feed(limit=9)).items]
    assert [end.run_id for entry in entries if isinstance(entry, Ended) for end in entry.ends] == ["a"]


async def test_a_seal_waits_for_a_write_that_found_none(store, psql):
    """What was accepted before the seal is there when the seal is: a move carries it."""
    store.refuse_if_moved("postgresql://here")
    async with psql.transaction():
        await store.enqueue_in(psql, [a_run("a")])
        sealing = asyncio.ensure_future(store.put_notes([NotePut(SEAL, value=True)]))
        await until_it_waits(psql)
        assert not sealing.done()

    await sealing
    assert (await store.get_runs(["a"]))[0] is not None


CHANGES = {
    "one run": lambda s: s.enqueue([a_run("b")]),
    "runs that are alike": lambda s: s.enqueue([a_run("b"), a_run("c")]),
    "a run with a key": lambda s: s.enqueue([a_run("b", key="k")]),
    "a job": lambda s: s.put_jobs([JobPut(a_job("new"))]),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_that_waited_for_a_seal_is_refused(store, psql, name):
    """It looks again once the seal is there, in the same statement."""
    store.refuse_if_moved("postgresql://here")
    notes = f"{store.backend.address.schema}.notes"
    async with psql.transaction():
        await psql.execute(f"SELECT pg_advisory_xact_lock('{notes}'::regclass::oid::int, 5)")
        await psql.execute(f"INSERT INTO {notes} (key, value, revision) VALUES ('{SEAL}', 'true', 1)")
        changing = asyncio.ensure_future(CHANGES[name](store))
        await until_it_waits(psql)

    with pytest.raises(StoreMoved):
        await changing
    assert (await store.counts()).ready == 0
    assert await store.get_jobs(["new"]) == [None]
