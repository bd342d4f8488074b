"""Opening on PostgreSQL: what cannot be a store is refused with its cure; a migration that was cut off begins again."""

import asyncio
import re
import sys
from pathlib import Path

import asyncpg
import pytest

import pollux.store
from pollux.errors import InvalidInput, StoreBusy, StoreError, StoreRefused, StoreTimeout
from pollux.model import SCHEDULER_VERSION
from pollux.store.postgres import schema
from pollux.store.postgres.address import read_address
from pollux.store.postgres.store import PostgresStore
from pollux.store.postgres.transaction import SchemaStatements
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import a_run, claim, given, given_jobs, ids
from tests.servers.ports import free_port
from tests.servers.postgres import own_url, shared_url


async def refused(url, kind):
    store = PostgresStore(url)
    with pytest.raises(kind) as caught:
        await store.open()
    assert "pollux:" not in str(caught.value), "the password is in the message"
    return str(caught.value)


async def plain():
    return await asyncpg.connect(shared_url())


async def test_a_server_that_is_not_there_is_named_with_the_cure():
    words = await refused(f"postgresql://me:secret@127.0.0.1:{free_port()}/db", StoreError)

    assert "cannot be reached (Connection refused); start the server, or correct the URL" in words
    assert "secret" not in words


async def test_a_wrong_password_is_refused():
    words = await refused(shared_url().replace("pollux:pollux@", "guest:wrong@"), StoreRefused)

    assert "refuses this user or password" in words


async def test_a_database_that_is_not_there_is_refused():
    words = await refused(shared_url().rsplit("/", 1)[0] + "/nowhere", StoreRefused)

    assert "createdb" in words


async def test_a_schema_of_another_program_is_refused_and_left_alone():
    url = own_url("foreign")
    name = read_address(url).schema
    connection = await plain()
    await connection.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.theirs (n int)")

    assert "belongs to another program" in await refused(url, StoreRefused)
    assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = $1", name) == 1
    await connection.close()


async def test_a_newer_schema_is_refused():
    url = own_url("newer")
    store = PostgresStore(url)
    await store.open()
    await store.close()
    connection = await plain()
    await connection.execute(f"UPDATE {read_address(url).schema}.meta SET version = 999")
    await connection.close()

    assert "upgrade Pollux" in await refused(url, StoreRefused)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"number": 120_017, "version_text": "12.17"}, "too old"),
        ({"is_standby": True}, "name the primary"),
        ({"encoding": "LATIN1"}, "ENCODING 'UTF8'"),
    ],
)
def test_a_server_that_cannot_serve_is_refused(facts, words):
    fit = {"number": 150_000, "version_text": "15.0", "is_standby": False, "encoding": "UTF8"}
    schema.refuse_unfit("here", **fit)

    with pytest.raises(StoreRefused, match=words):
        schema.refuse_unfit("here", **fit | facts)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/db?shema=x",
        "postgresql://h/db?schema=Big",
        "postgresql://h/db?schema=pg_x",
        "postgresql://h/db?listen=no",
        "postgresql://h/db?pool=0",
        "postgresql://h:port/db",
    ],
)
def test_a_url_that_is_wrong_is_refused_with_the_cure(url):
    with pytest.raises(InvalidInput, match=r"use |write "):
        read_address(url)


async def test_a_migration_that_was_cut_off_at_any_statement_begins_again():
    """Whoever dies in the middle leaves nothing; the next one does the whole."""
    statements = schema.missing(0)
    url = own_url("cut")
    space = SchemaStatements(read_address(url).schema)
    for cut in range(1, len(statements) + 1):
        connection = await plain()
        await connection.execute("BEGIN")
        for statement in statements[:cut]:
            await connection.execute(space.sql(statement))
        connection.terminate()
    store = PostgresStore(url)
    await store.open()
    assert (await store.counts()).jobs == 0
    await store.close()


async def test_the_busy_tables_leave_room_and_are_vacuumed_early():
    """As the server itself tells of them: what is written again and again stays small."""
    url = own_url("lean")
    store = PostgresStore(url)
    await store.open()
    await store.close()
    connection = await plain()
    found = await connection.fetch(
        "SELECT c.relname, c.reloptions FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = $1 AND c.relkind = 'r'",
        read_address(url).schema,
    )
    await connection.close()
    told = {row[0]: dict(each.split("=") for each in row[1] or ()) for row in found}

    for table in ("queue", "runs", "jobs"):
        assert int(told[table]["fillfactor"]) < 100, table
    for table in ("queue", "runs", "jobs", "feed"):
        assert float(told[table]["autovacuum_vacuum_scale_factor"]) <= 0.02, table
        assert told[table]["autovacuum_vacuum_cost_delay"] == "0", table


async def test_many_that_open_a_new_schema_at_once_make_it_once():
    url = own_url("race")
    stores = [PostgresStore(url) for _ in range(6)]

    await asyncio.gather(*(store.open() for store in stores))

    assert [(await store.counts()).ready for store in stores] == [0] * 6
    for store in stores:
        await store.close()


@pytest.mark.parametrize("version", [SCHEDULER_VERSION, SCHEDULER_VERSION + 1])
async def test_an_opened_again_store_claims_over_its_new_connections(version):
    store = PostgresStore(own_url("again"))
    await store.open()
    handle = store.of_version(version)
    await given(handle, a_run("a"), a_run("b"))
    assert ids(await claim(handle, limit=1)) == ["a"]
    await store.close()
    await store.open()
    sent = store.statements

    assert ids(await claim(handle, limit=1)) == ["b"]
    assert store.statements > sent + (version != SCHEDULER_VERSION), "beyond the one that makes the counts of a version"
    await store.close()


async def test_a_lock_that_is_held_too_long_is_said_and_nothing_changed():
    url = own_url("locked")
    store = PostgresStore(url, deadline_ms=3_000)
    await store.open()
    await given(store, a_run("a"))
    connection = await plain()
    async with connection.transaction():
        await connection.execute(f"LOCK TABLE {read_address(url).schema}.jobs")
        with pytest.raises((StoreBusy, StoreTimeout)):
            await store.delete_jobs(["job"])
    await connection.close()

    assert ids(await claim(store)) == ["a"]
    await store.close()


async def test_an_answer_that_does_not_come_is_a_timeout_and_the_next_call_is_answered():
    store = PostgresStore(own_url("silent"))
    await store.open()
    database = store.backend.database
    usual_s, database._deadline_s = database._deadline_s, 0.1
    with pytest.raises(StoreTimeout, match=r"within 0.1 s"):
        async with asyncio.timeout(60):
            await database.read(lambda tx: tx.fetch_text("SELECT pg_sleep(300)", ()), 2)
    database._deadline_s = usual_s

    assert (await store.counts()).ready == 0
    await store.close()


async def test_a_caller_that_is_cancelled_while_it_waits_for_an_answer_is_told_so():
    store = PostgresStore(own_url("cancelled"))
    await store.open()
    database = store.backend.database
    waiting = asyncio.ensure_future(database.read(lambda tx: tx.fetch_text("SELECT pg_sleep(300)", ()), 2))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert (await store.counts()).ready == 0
    await store.close()


async def test_a_call_that_finds_no_free_connection_in_time_is_told_that_nothing_was_changed():
    store = PostgresStore(own_url("full"), pool=1)
    await store.open()
    pool = store.backend.database._pool
    taken = await pool.take(1)
    with pytest.raises(StoreBusy, match=r"all 1 connections .* were busy"):
        await pool.take(0.05)
    pool.give(taken, is_sound=True)

    assert (await store.counts()).ready == 0
    await store.close()


async def test_a_handle_goes_on_after_the_server_cut_its_connections():
    url = own_url("cutoff")
    store = PostgresStore(url)
    await store.open()
    await given(store, a_run("a"))
    waiting = asyncio.ensure_future(store.feed(limit=0, wait_ms=5_000))
    await asyncio.sleep(0.2)
    connection = await plain()
    await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pollux'")
    await connection.close()

    assert ids(await claim(store)) == ["a"]
    await store.wake()
    await asyncio.wait_for(waiting, 60)
    await store.close()


async def test_without_a_bell_a_wait_polls():
    store = PostgresStore(f"{own_url('poll')}&listen=false")
    other = store.twin()
    await store.open()
    await other.open()
    await given_jobs(store, "job")
    waiting = asyncio.ensure_future(store.claim(node="n", token="w", limit=1, lease_ms=60_000, wait_ms=60_000))
    await asyncio.sleep(0.1)

    await other.enqueue([a_run("a", due_ms=0)])

    assert ids((await asyncio.wait_for(waiting, 50)).runs) == ["a"]
    await store.close()
    await other.close()


def test_every_url_of_the_documentation_can_be_read():
    page = Path(__file__).parents[2] / "docs" / "stores" / "postgres.md"
    urls = re.findall(r"postgresql://[^\s\"`]+", page.read_text())

    assert len(urls) >= 3
    pooled = [read_address(url) for url in urls][2]
    assert (pooled.listen, pooled.statement_cache_size) == (False, 0)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_names_it(scheme):
    store = open_store(f"{scheme}://me@h/db?schema=mine")

    assert store.capabilities.name == "postgres"
    assert store.capabilities.joins


def test_without_the_client_the_cure_is_named(monkeypatch):
    monkeypatch.setattr(pollux.store, "postgres", pollux.store.postgres)  # the import that fails leaves half a package
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for name in [name for name in sys.modules if name.startswith("pollux.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(InvalidInput, match=r'pip install "pollux-scheduler\[postgres\]"'):
        open_store("postgresql://h/db")
