"""Do writers lock in one order?  Jobs before runs, the counts last of all: then they never wait in a ring.

Where somebody else keeps to no order, the server undoes one of both after a second; then it is done once more.
"""

import asyncio

import asyncpg
import pytest

from pollux.model import Done, Ended, Outcome, RetryAt
from pollux.store.contract import Answer
from pollux.store.postgres import settle
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import T0, a_run, claim, given_jobs, settlement
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
    await wait_until(lambda: psql.fetchval(WAITS_FOR_US), "somebody waits for us")


def tried_again(run):
    return settlement(run, RetryAt(T0 + 1), outcome=Outcome(T0, T0 + 1))


def with_a_follow_up(run):
    return settlement(run, Done(), outcome=Outcome(T0, T0 + 1), follow_ups=(a_run("next"),))


@pytest.mark.parametrize("ended", [tried_again, with_a_follow_up])
async def test_a_settlement_locks_the_job_before_its_run(store, psql, ended):
    """As who moves or deletes the job does: it may still take the run while the settlement waits for the job."""
    await store.enqueue([a_run("a")], now_ms=T0)
    [run] = await claim(store)
    schema = store._address.schema
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

    monkeypatch.setitem(PostgresStore.settle.__globals__, "settle_plainly", watched)
    await store.enqueue([a_run("a")], now_ms=T0)
    [run] = await claim(store)
    schema = store._address.schema
    await store._read(None, lambda tx: tx.rows("SET deadlock_timeout = '3s'"))  # for as long the ring can be closed
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
