"""Runs in the user's own transaction: they exist if and when it commits."""

import asyncio
from urllib.parse import urlsplit

import asyncpg
import pytest

from pollux import Pollux
from pollux.errors import InvalidInput, StoreRefused
from pollux.model import Node, RunState
from pollux.store.contract import BATCH_MAX, Answer
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import T0, a_run, answers, claim, given_jobs, ids
from tests.servers.postgres import QUICK, PostgresServer, own_url, shared_url


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


@pytest.fixture
async def elsewhere(store, connection):
    """A connection to a copy of the store's database: a schema of that name is in it, with the same jobs."""
    ours = urlsplit(shared_url()).path.lstrip("/")
    name = f"twin_{store.backend.address.schema}"
    other = PostgresStore(at(name, store.backend.address.schema))
    await connection.execute(f"CREATE DATABASE {name}")
    await other.open()
    await given_jobs(other, "job")
    theirs = await asyncpg.connect(at(name))
    yield theirs, name, ours
    await theirs.close()
    await other.close()
    await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def at(database, schema=None):
    url = urlsplit(shared_url())._replace(path=f"/{database}").geturl()
    return f"{url}{'&' if '?' in url else '?'}schema={schema}" if schema else url


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


@pytest.mark.usefixtures("only_rings")
async def test_a_waiting_worker_is_rung_at_the_commit(store, connection):
    waiting = asyncio.ensure_future(store.claim(node="n", token="t", limit=1, lease_ms=60_000, wait_ms=60_000))
    await asyncio.sleep(0.3)
    async with connection.transaction():
        await store.enqueue_in(connection, [a_run("a", due_ms=0)])

    assert ids((await asyncio.wait_for(waiting, 50)).runs) == ["a"]


async def test_the_counts_of_users_are_rows_of_their_own_until_gathered(store, connection):
    """Whoever may last holds no row that others must change."""
    slots = f"SELECT count(*) FROM {store.backend.address.schema}.counters"
    for n in range(5):
        async with connection.transaction():
            await store.enqueue_in(connection, [a_run(f"r{n}")])
    assert await connection.fetchval(slots) == 16 + 5

    await store.beat(Node("n"), ttl_ms=1_000)

    assert await connection.fetchval(slots) == 16
    assert (await store.counts()).ready == 5


@pytest.mark.parametrize("beats_before", [0, 1])
async def test_all_counts_of_users_are_gathered_however_many_there_are(store, connection, beats_before):
    counters = f"{store.backend.address.schema}.counters"
    for _ in range(beats_before):
        await store.beat(Node("n"), ttl_ms=60_000)
    many = f"INSERT INTO {counters} (slot, ready) SELECT n, 1 FROM generate_series(100, 25099) AS n"
    await connection.execute(many)

    await store.beat(Node("n"), ttl_ms=60_000)

    assert await connection.fetchval(f"SELECT count(*) FROM {counters}") == 16
    assert (await store.counts()).ready == 25_000


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
    with pytest.raises(InvalidInput, match=r"enqueue needs an asyncpg connection .* connection\.transaction"):
        await store.enqueue_in(connection, [a_run("a")])
    with pytest.raises(InvalidInput, match=r"get_runs needs an asyncpg connection .* connection\.transaction"):
        await store.get_runs_in(connection, ["a"])


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
            assert (await app.operations.runs.list_runs()).runs == ()
        await asyncio.wait_for(ran.wait(), 14)
        assert ids((await app.operations.runs.list_runs()).runs) == [run.id]


async def test_another_store_refuses_a_connection(connection):
    app = Pollux("memory://")

    @app.job()
    async def note(ctx):
        return "noted"

    await app.open()
    with pytest.raises(InvalidInput, match="PostgreSQL"):
        await app.enqueue("note", connection=connection)
    await app.close()


# where the connection leads


async def test_a_connection_to_another_database_is_refused_though_it_has_such_a_schema(store, elsewhere):
    """Else the run would sit in somebody else's store; and the user's transaction goes on."""
    theirs, name, ours = elsewhere
    runs = f"SELECT count(*) FROM {store.backend.address.schema}.runs"

    async with theirs.transaction():
        for _ in range(2):
            with pytest.raises(InvalidInput, match=f"it is to database '{name}', the store is in '{ours}'"):
                await store.enqueue_in(theirs, [a_run("a")])
        assert await theirs.fetchval(runs) == 0


async def test_a_connection_to_a_database_without_our_schema_does_not_make_the_tables_gone(store, elsewhere):
    theirs, name, _ = elsewhere
    await theirs.execute(f"DROP SCHEMA {store.backend.address.schema} CASCADE")

    async with theirs.transaction():
        with pytest.raises(InvalidInput, match=f"it is to database '{name}', .* nothing was written; give one to"):
            await store.enqueue_in(theirs, [a_run("a")])


async def test_a_connection_to_another_server_is_refused_though_all_names_and_numbers_are_the_same():
    """Two that were made alike: databases, schemas and their numbers are the same."""
    one, two = PostgresServer(*QUICK), PostgresServer(*QUICK)
    try:
        stores = [PostgresStore(server.start().url()) for server in (one, two)]
        for store in stores:
            await store.open()
            await given_jobs(store, "job")
        theirs = await asyncpg.connect(two.url())
        async with theirs.transaction():
            with pytest.raises(InvalidInput, match="of another server than the store's"):
                await stores[0].enqueue_in(theirs, [a_run("a")])
            assert answers(await stores[1].enqueue_in(theirs, [a_run("a")])) == [Answer.OK]
        await theirs.close()
        for store in stores:
            await store.close()
    finally:
        one.stop()
        two.stop()


async def test_each_connection_is_asked_once_where_it_leads_also_one_of_a_pool(store, connection):
    """A pool lends another wrapping of it each time."""
    async with connection.transaction():
        await store.enqueue_in(connection, [a_run("first")])  # now the store knows where it is itself
    sent = []
    async with asyncpg.create_pool(shared_url(), min_size=1, max_size=1) as pool:
        for n in range(3):
            async with pool.acquire() as lent, lent.transaction():
                before = store.statements
                await store.enqueue_in(lent, [a_run(f"r{n}")])
                sent.append(store.statements - before)

    assert sent[0] > sent[1] == sent[2]


async def test_a_user_who_may_not_ask_for_the_number_of_the_server_is_let_in(store, connection):
    """Some who sell databases do not let anybody; the name and the numbers must do."""
    schema = store.backend.address.schema
    role = f"weak_{schema}"
    await connection.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'weak'; REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC;"
        f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role};"
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}"
    )
    try:
        theirs = await asyncpg.connect(shared_url(), user=role, password="weak")
        async with theirs.transaction():
            assert answers(await store.enqueue_in(theirs, [a_run("a")])) == [Answer.OK]
        await theirs.close()
    finally:
        await connection.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")


async def test_where_our_own_schema_is_gone_that_is_said(store, connection):
    await connection.execute(f"DROP SCHEMA {store.backend.address.schema} CASCADE")

    async with connection.transaction():
        with pytest.raises(StoreRefused, match="the tables are missing"):
            await store.enqueue_in(connection, [a_run("a")])


# what the app answers


@pytest.fixture
async def app():
    app = Pollux(own_url("asked"))

    @app.job()
    async def report(ctx, n: int = 0):
        return n

    async with app:
        yield app


async def test_the_same_id_is_the_same_run_in_a_transaction_too(app, connection):
    stored = await app.enqueue("report", id="dd", delay="1h")

    async with connection.transaction():
        again = await app.enqueue("report", id="dd", delay="3h", connection=connection)
        own = await app.enqueue("report", id="own", delay="1h", connection=connection)
        own_again = await app.enqueue("report", id="own", delay="3h", connection=connection)

    assert again.due_ms == stored.due_ms
    assert own_again.due_ms == own.due_ms, "also one that only this transaction sees yet"
    assert (await app.get_run("own")).due_ms == own.due_ms


async def test_other_params_under_a_known_id_are_said_to_be_dropped_in_a_transaction_too(app, connection, caplog):
    await app.enqueue("report", {"n": 1}, id="dd", delay="1h")

    async with connection.transaction():
        again = await app.enqueue("report", {"n": 2}, id="dd", delay="1h", connection=connection)

    assert again.payload == {"n": 1}
    assert "run dd exists already and is ready; its params were kept, and what was sent now was dropped" in caplog.text


async def test_many_runs_can_be_part_of_a_transaction(app, connection):
    params = [{"n": n} for n in range(BATCH_MAX + 5)]  # several batches
    undone = connection.transaction()
    await undone.start()
    await app.enqueue_many("report", params, delay="1h", connection=connection)
    await undone.rollback()
    assert (await app.operations.runs.list_runs()).runs == ()

    async with connection.transaction():
        ids = await app.enqueue_many("report", params, delay="1h", connection=connection)
        assert (await app.operations.runs.list_runs()).runs == ()

    assert len(set(ids)) == len(params)
    assert (await app.get_run(ids[-1])).payload == params[-1]
