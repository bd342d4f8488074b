"""Can a run be part of the user's own transaction?  It is there if and when they commit."""

import asyncio

import asyncpg
import pytest

from pollux import Pollux
from pollux.errors import InvalidInput
from pollux.model import Node, RunState
from pollux.store.contract import Answer
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import T0, a_run, answers, claim, given_jobs, ids
from tests.servers.postgres import own_url, shared_url


@pytest.fixture
async def store():
    store = PostgresStore(own_url("joined"))
    await store.open()
    await given_jobs(store, "job")
    yield store
    await store.close()


@pytest.fixture
async def connection():
    connection = await asyncpg.connect(shared_url())
    yield connection
    await connection.close()


async def test_what_commits_is_there_and_counted(store, connection):
    async with connection.transaction():
        assert answers(await store.enqueue_in(connection, [a_run("a"), a_run("g", gated=True)])) == [Answer.OK] * 2
        assert await claim(store) == ()

    assert ids(await claim(store)) == ["a"]
    counts = await store.counts()
    assert (counts.held, counts.ready, counts.leased) == (1, 0, 1)


async def test_what_is_undone_never_was(store, connection):
    transaction = connection.transaction()
    await transaction.start()
    await store.enqueue_in(connection, [a_run("a", gated=True)])
    await transaction.rollback()

    assert await store.get_runs(["a"]) == [None]
    counts = await store.counts()
    assert (counts.held, counts.ready) == (0, 0)


async def test_an_open_transaction_keeps_nobody_waiting(store, connection):
    """It may last: others enqueue, claim and settle meanwhile."""
    async with connection.transaction():
        await store.enqueue_in(connection, [a_run("theirs")])
        async with asyncio.timeout(60):
            for n in range(40):
                await store.enqueue([a_run(f"r{n}")], now_ms=T0)
            assert len(await claim(store, 100)) == 40


async def test_a_waiting_worker_is_rung_at_the_commit(store, connection):
    waiting = asyncio.ensure_future(store.claim(node="n", token="t", limit=1, lease_ms=60_000, wait_ms=20_000))
    await asyncio.sleep(0.3)
    async with connection.transaction():
        await store.enqueue_in(connection, [a_run("a", due_ms=0)])

    assert ids((await asyncio.wait_for(waiting, 14)).runs) == ["a"]  # by itself it looks every 15 s


async def test_the_counts_of_users_are_rows_of_their_own_until_gathered(store, connection):
    """Whoever may last holds no row that others must change."""
    slots = f"SELECT count(*) FROM {store._address.schema}.tally"
    for n in range(5):
        async with connection.transaction():
            await store.enqueue_in(connection, [a_run(f"r{n}")])
    assert await connection.fetchval(slots) == 16 + 5

    await store.beat(Node("n"), ttl_ms=1_000)

    assert await connection.fetchval(slots) == 16
    assert (await store.counts()).ready == 5


async def test_a_job_cannot_go_while_a_run_of_it_is_being_made(store, connection):
    """Else the run would wait for ever, for a job that is not there."""
    async with connection.transaction():
        await store.enqueue_in(connection, [a_run("a", gated=True)])
        deleting = asyncio.ensure_future(store.delete_jobs(["job"]))
        await asyncio.wait([deleting], timeout=0.3)
        assert not deleting.done()

    assert await deleting == [Answer.OK]
    [run] = await store.get_runs(["a"])
    assert run.state is RunState.CANCELLED


async def test_outside_of_a_transaction_it_is_refused(store, connection):
    with pytest.raises(InvalidInput, match=r"connection\.transaction"):
        await store.enqueue_in(connection, [a_run("a")])


async def test_the_app_passes_the_connection_on(connection):
    app = Pollux(own_url("app"))
    ran = asyncio.Event()

    @app.job()
    async def note(ctx):
        ran.set()

    async with app:
        async with connection.transaction():
            run = await app.enqueue("note", connection=connection)
            assert run.state is RunState.READY
            assert (await app.list_runs()).runs == ()
        await asyncio.wait_for(ran.wait(), 14)
        assert ids((await app.list_runs()).runs) == [run.id]


async def test_another_store_refuses_a_connection(connection):
    app = Pollux("memory://")

    @app.job()
    async def note(ctx):
        return "noted"

    await app.open()
    with pytest.raises(InvalidInput, match="PostgreSQL"):
        await app.enqueue("note", connection=connection)
    await app.close()
