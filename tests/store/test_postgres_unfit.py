"""What if the server is not as it should be, or somebody else wrote into our tables?  A clear word, and we stay up."""

import asyncio
import signal
import sys
from functools import partial
from urllib.parse import urlsplit

import asyncpg
import pytest

from pollux.errors import StoreError, StoreRefused
from pollux.model import RunState
from pollux.store.contract import Answer, RunFilter
from pollux.store.postgres.address import read_address
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_run, given_jobs, ids
from tests.chaos.yard import wait_until
from tests.servers.postgres import QUICK, PostgresServer, own_url, shared_url


@pytest.fixture
async def plain():
    connection = await asyncpg.connect(shared_url())
    yield connection
    await connection.close()


@pytest.fixture
async def database(plain):
    """A database of its own, made as told, and dropped afterwards."""
    made = []

    async def make(how=""):
        name = f"unfit_{read_address(own_url('db')).schema}"
        await plain.execute(f"CREATE DATABASE {name} {how}")
        made.append(name)
        return name, urlsplit(shared_url())._replace(path=f"/{name}").geturl()

    yield make
    for name in made:
        await plain.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_database_of_another_encoding_is_refused(database):
    _, url = await database("TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")

    with pytest.raises(StoreRefused, match=r"encoding LATIN1; create the database with ENCODING 'UTF8'"):
        await PostgresStore(url).open()


async def test_a_replica_is_refused_and_the_primary_is_asked_for():
    """A real one: the server is started again as a standby of nobody."""
    server = PostgresServer(*QUICK).start()
    try:
        server.kill(signal.SIGINT)
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        with pytest.raises(StoreRefused, match="is a replica and can only be read; name the primary server"):
            await PostgresStore(server.url()).open()
    finally:
        server.stop()


async def test_a_server_that_became_read_only_says_so_and_is_served_again_when_it_is_not(database, plain):
    name, url = await database()
    store = PostgresStore(url)
    await store.open()
    await given_jobs(store, "job")
    cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    await plain.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await plain.execute(cut)

    with pytest.raises(StoreError, match=r"is read-only .* nothing was changed; name the primary server"):
        await store.enqueue([a_run("a", due_ms=0)])
    assert (await store.get_runs(["a"])) == [None]

    await plain.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await plain.execute(cut)
    [answer] = await store.enqueue([a_run("a", due_ms=0)])
    assert answer.answer is Answer.OK
    await store.close()


async def test_a_server_that_does_not_wait_for_its_disk_is_refused_where_durability_is_required():
    server = PostgresServer().start()
    try:
        asked = f"{server.url()}?durability=required"
        await opening(asked)
        connection = await asyncpg.connect(server.url())
        await connection.execute("ALTER DATABASE postgres SET synchronous_commit = off")
        with pytest.raises(StoreRefused, match=r"synchronous_commit off, and durability is required: .*commit on"):
            await opening(asked)
        await connection.execute("ALTER DATABASE postgres RESET synchronous_commit")
        await connection.execute("ALTER SYSTEM SET fsync = off")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()
        await wait_until(partial(forgets, server), "settings that were read again")
        with pytest.raises(StoreRefused, match=r"has fsync off, and durability is required"):
            await opening(asked)
        await opening(server.url())
    finally:
        server.stop()


async def forgets(server):
    connection = await asyncpg.connect(server.url())
    fsync = await connection.fetchval("SHOW fsync")
    await connection.close()
    return fsync == "off"


async def opening(url):
    store = PostgresStore(url)
    try:
        await store.open()
    finally:
        await store.close()


OPENS = """
import asyncio, sys
from pollux.store.postgres.store import PostgresStore
async def main():
    store = PostgresStore(sys.argv[1])
    print("here", flush=True)
    sys.stdin.readline()
    await store.open()
    print((await store.counts()).jobs, flush=True)
    await store.close()
asyncio.run(main())
"""


async def test_processes_that_migrate_at_once_make_the_schema_once():
    url = own_url("migrate")
    pipe = asyncio.subprocess.PIPE
    children = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", OPENS, url, stdin=pipe, stdout=pipe)
        for _ in range(3)
    ]
    for child in children:
        assert await child.stdout.readline() == b"here\n"
    for child in children:
        child.stdin.write(b"\n")
    said = [(await child.communicate())[0] for child in children]

    assert said == [b"0\n"] * 3
    assert [child.returncode for child in children] == [0] * 3


@pytest.fixture
async def store():
    opened = PostgresStore(own_url("odd"))
    await opened.open()
    await given_jobs(opened, "job", "other")
    await opened.enqueue([a_run("good", due_ms=0), a_run("bad", due_ms=0), a_run("next", "other", due_ms=0)])
    yield opened
    await opened.close()


async def claim(store):
    return ids((await store.claim(node="n", token="t", limit=9, lease_ms=60_000)).runs)


async def spoil(plain, store, statement):
    await plain.execute(statement.format(s=store._address.schema))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("UPDATE {s}.runs SET payload = 'not json' WHERE id = 'bad'", "it cannot be read"),
        ("UPDATE {s}.runs SET cause = 77 WHERE id = 'bad'", "it cannot be read"),
        ("UPDATE {s}.line SET fence = 3; UPDATE {s}.runs SET tried = '[7]' WHERE id = 'bad'", "it cannot be read"),
    ],
)
async def test_a_run_that_cannot_be_read_dies_of_it_and_the_others_are_run(plain, store, wrong, words):
    await spoil(plain, store, wrong)

    assert sorted(await claim(store)) == ["good", "next"]
    [dead] = (await store.list_runs(RunFilter(states=(RunState.DEAD,)))).runs
    assert dead.id == "bad"
    assert words in dead.error
    counts = await store.counts()
    assert (counts.leased, counts.dead) == (2, 1)


@pytest.mark.parametrize(
    "wrong", ["UPDATE {s}.runs SET tried = '[7]' WHERE id = 'bad'", "UPDATE {s}.runs SET cause = 77 WHERE id = 'bad'"]
)
async def test_a_lease_that_was_spoilt_ends_like_any_other(plain, store, wrong):
    """Its worker is gone, and somebody wrote into it: it is taken back, and so are the others."""
    assert len(await claim(store)) == 3
    await spoil(plain, store, wrong + "; UPDATE {s}.line SET lease_until_ms = 1")
    again = await store.claim(node="n", token="again", limit=9, lease_ms=60_000)

    assert {"good", "next"} <= set(ids(again.runs))
    counts = await store.counts()
    assert (counts.ready, counts.leased + counts.dead) == (0, 3)


async def test_the_runs_of_a_job_that_cannot_be_read_wait_for_a_node_that_can_and_the_others_are_run(plain, store):
    """As while releases change: an older node must not make dead letters of what a newer one can run."""
    table = f"{store._address.schema}.jobs"
    whole = await plain.fetchval(f"SELECT definition FROM {table} WHERE id = 'other'")
    await spoil(plain, store, "UPDATE {s}.jobs SET definition = 'what', revision = 9 WHERE id = 'other'")

    claimed = await store.claim(node="n", token="t", limit=9, lease_ms=60_000)
    assert sorted(ids(claimed.runs)) == ["bad", "good"]
    [run] = await store.get_runs(["next"])
    assert (run.state, run.visible_ms - claimed.now_ms) == (RunState.READY, 60_000)
    assert (run.attempt, run.lease_losses) == (0, 0)
    assert run.progress == "node n cannot read its job; another one may"
    counts = await store.counts()
    assert (counts.ready, counts.leased, counts.dead) == (1, 2, 0)
    with pytest.raises(StoreError, match=r"job 'other' cannot be read .* `pollux store check` lists all of them"):
        await store.get_jobs(["other"])
    await plain.execute(f"UPDATE {table} SET definition = $1, revision = 10 WHERE id = 'other'", whole)
    later = run.visible_ms
    [again] = (await store.claim(node="n", token="later", limit=9, lease_ms=60_000, now_ms=later, losses_max=99)).runs[
        -1:
    ]
    assert (again.id, again.attempt, again.progress) == ("next", 0, "")


async def test_who_lists_what_cannot_be_read_is_told_which_it_is(plain, store):
    await spoil(plain, store, "UPDATE {s}.runs SET payload = 'not json' WHERE id = 'bad'")

    with pytest.raises(StoreError, match=r"run 'bad' cannot be read .* correct or delete it"):
        await store.list_runs()
    assert (await store.get_runs(["good"]))[0] is not None


async def test_an_entry_of_the_feed_that_cannot_be_read_is_named(plain, store):
    await spoil(plain, store, "INSERT INTO {s}.feed (version, ends, body) VALUES (2, 0, 'what')")

    with pytest.raises(StoreError, match=r"entry \d+ cannot be read"):
        await store.feed(limit=100)
    assert await claim(store)
