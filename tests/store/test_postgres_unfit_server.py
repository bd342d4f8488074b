"""Unfit servers and foreign rows on PostgreSQL: a clear error, and the node stays up."""

import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from pollux.errors import StoreAway, StoreError, StoreRefused
from pollux.model import RunState, Spoilt
from pollux.store.contract import Answer, RunFilter
from pollux.store.postgres.address import read_address
from pollux.store.postgres.check import check
from pollux.store.postgres.inspect import look_at_server
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_run, given_jobs, ids
from tests.chaos.yard import wait_until
from tests.servers.postgres import QUICK, PostgresServer, own_url, shared_url
from tests.servers.redis import shared_url as redis_url

CERTIFICATES = Path(__file__).parents[1] / "acceptance" / "certificates"
UNANSWERED = (
    "no answer as PostgreSQL gives it; if something else listens there, correct host and port of the URL; "
    "if the server hangs, restart it; if the way to it is cut, repair the network or open the firewall"
)


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


async def test_a_second_user_is_told_what_to_grant_and_that_helps(plain):
    """The owner made the schema; another user gets right after right, by what the message says."""
    url = own_url("second")
    owner = PostgresStore(url)
    await owner.open()
    schema, theirs = read_address(url).schema, f"second_{read_address(url).schema}"
    await plain.execute(f"CREATE ROLE {theirs} LOGIN PASSWORD 'weak'")
    other = PostgresStore(url.replace("pollux:pollux@", f"{theirs}:weak@"))
    helps = r"; the owner of the schema can let it: GRANT USAGE ON SCHEMA, then ALL ON ALL TABLES IN SCHEMA and"

    with pytest.raises(StoreRefused, match=helps):
        await other.open()
    await plain.execute(f"GRANT USAGE ON SCHEMA {schema} TO {theirs}")
    with pytest.raises(StoreRefused, match=helps):
        await other.open()
    await plain.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {theirs}")
    await other.open()
    with pytest.raises(StoreRefused, match=helps):
        await other.elect("n", ttl_ms=15_000)
    await plain.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {theirs}")
    await plain.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {theirs}")
    assert (await other.elect("n", ttl_ms=15_000)).holder == "n"
    await given_jobs(other, "job")
    await other.enqueue([a_run("a")])
    await other.close()

    elsewhere = PostgresStore(url.replace("pollux:pollux@", f"{theirs}:weak@").replace(f"={schema}", "=not_there"))
    with pytest.raises(StoreRefused, match=r"may not make or change the schema 'not_there'.* GRANT CREATE ON DATABASE"):
        await elsewhere.open()
    await elsewhere.close()
    await owner.close()


async def test_a_user_who_may_not_connect_is_told_that_right_and_it_helps(database, plain):
    """Rights on a schema are of no use to who cannot come in."""
    name, url = await database()
    role = f"outside_{name}"
    await plain.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'weak'; REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")
    theirs = url.replace("pollux:pollux@", f"{role}:weak@")
    for ask in (PostgresStore(theirs).open, partial(look_at_server, theirs), partial(check, theirs, lambda *_: None)):
        with pytest.raises(StoreRefused, match=r"may not connect .*: GRANT CONNECT ON DATABASE$"):
            await ask()

    await plain.execute(f"GRANT CONNECT, CREATE ON DATABASE {name} TO {role}")
    store = PostgresStore(theirs)
    await store.open()
    await store.close()


@pytest.mark.parametrize("sslmode", ["require", "verify-full"])
async def test_a_server_without_tls_is_refused_where_the_url_wants_it(sslmode):
    """Refused, not away: nobody waits for a server that is there."""
    url = own_url("plain") + f"&sslmode={sslmode}&sslrootcert={CERTIFICATES / 'ca.pem'}"
    words = f"speaks no TLS, and sslmode={sslmode} wants it; switch it on there .* or take sslmode out of the URL"
    for ask in (PostgresStore(url).open, partial(look_at_server, url), partial(check, url, lambda *_: None)):
        with pytest.raises(StoreRefused, match=words):
            await ask()


async def test_a_file_of_the_url_that_is_not_there_is_named():
    """The server is well: it is of no use to start it, or to wait for it."""
    with pytest.raises(StoreRefused, match=r"the URL names /not/there\.pem, which cannot be read .*; correct it"):
        await PostgresStore(own_url("file") + "&sslmode=verify-full&sslrootcert=/not/there.pem").open()


async def test_a_server_whose_certificate_nobody_vouches_for_is_refused():
    server = PostgresServer(*QUICK)
    for name in ("good.pem", "server.key"):
        own(server, CERTIFICATES / name)
    server.settings += ("ssl=on", f"ssl_cert_file={server.folder}/good.pem", f"ssl_key_file={server.folder}/server.key")
    try:
        url = f"{server.start().url()}?sslmode=verify-ca&sslrootcert={CERTIFICATES}"
        store = PostgresStore(f"{url}/ca.pem")
        await store.open()
        await store.close()
        with pytest.raises(
            StoreRefused, match=r"the certificate of .* is not trusted .*; name its authority by sslroot"
        ):
            await PostgresStore(f"{url}/other.pem").open()
        with pytest.raises(StoreRefused, match="`sslmode` parameter must be one of"):
            await PostgresStore(f"{server.url()}?sslmode=maybe").open()
    finally:
        server.stop()


def own(server, path):
    """A file that the server takes: it belongs to whom it runs as, and nobody else may read it."""
    copy = server.folder / path.name
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    if server.user is not None:
        os.chown(copy, server.user.pw_uid, server.user.pw_gid)


async def test_who_does_not_answer_as_a_postgres_does_is_told_as_such():
    """A Redis, say: it waits for the end of a line.  Nothing was asked of it, so nothing may have taken effect."""
    redis = urlsplit(redis_url())
    store = PostgresStore(f"postgresql://pollux:x@{redis.hostname}:{redis.port}/monitor", deadline_ms=1_000)

    with pytest.raises(StoreAway, match=UNANSWERED) as caught:
        await store.open()
    assert "taken effect" not in str(caught.value)
    await store.close()


async def test_a_server_that_stands_still_is_told_with_the_cure_for_it():
    """From outside nobody can tell it from a way that is cut, or from somebody who waits for other words."""
    server = PostgresServer(*QUICK).start()
    try:
        os.kill(server.pid, signal.SIGSTOP)
        store = PostgresStore(server.url(), deadline_ms=1_000)
        with pytest.raises(StoreAway, match=UNANSWERED):
            await store.open()
        await store.close()
        os.kill(server.pid, signal.SIGCONT)
        await (await asyncpg.connect(server.url())).close()  # whoever came meanwhile is gone: nobody holds up its end
    finally:
        os.kill(server.pid, signal.SIGCONT)
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
    await plain.execute(statement.format(s=store.backend.address.schema))


@pytest.mark.parametrize(
    "wrong",
    [
        "UPDATE {s}.runs SET payload = 'not json' WHERE id = 'bad'",
        "UPDATE {s}.runs SET cause = 77 WHERE id = 'bad'",
        "UPDATE {s}.queue SET fence = 3; UPDATE {s}.runs SET tried = '[7]' WHERE id = 'bad'",
    ],
    ids=["payload", "cause", "tried"],
)
async def test_a_run_that_cannot_be_read_dies_of_it_and_the_others_are_run(plain, store, wrong):
    """The dead letter keeps what cannot be read as it was."""
    await spoil(plain, store, wrong)

    assert sorted(await claim(store)) == ["good", "next"]
    schema = store.backend.address.schema
    error = await plain.fetchval(f"SELECT error FROM {schema}.history WHERE id = 'bad' AND state = 4")
    assert "it cannot be read" in error
    with pytest.raises(StoreError, match="run 'bad' cannot be read"):
        await store.list_runs(RunFilter(states=(RunState.DEAD,)))
    counts = await store.counts()
    assert (counts.leased, counts.dead) == (2, 1)


@pytest.mark.parametrize(
    "wrong",
    ["UPDATE {s}.runs SET tried = '[7]' WHERE id = 'bad'", "UPDATE {s}.runs SET cause = 77 WHERE id = 'bad'"],
    ids=["tried", "cause"],
)
async def test_a_lease_that_was_spoilt_ends_like_any_other(plain, store, wrong):
    """Its worker is gone, and somebody wrote into it: it is taken back, and so are the others."""
    assert len(await claim(store)) == 3
    await spoil(plain, store, wrong + "; UPDATE {s}.queue SET lease_until_ms = 1")
    again = await store.claim(node="n", token="again", limit=9, lease_ms=60_000)

    assert {"good", "next"} <= set(ids(again.runs))
    counts = await store.counts()
    assert (counts.ready, counts.leased + counts.dead) == (0, 3)


async def test_the_runs_of_a_job_that_cannot_be_read_wait_for_a_node_that_can_and_the_others_are_run(plain, store):
    """As while releases change: an older node must not make dead letters of what a newer one can run."""
    table = f"{store.backend.address.schema}.jobs"
    whole = await plain.fetchval(f"SELECT definition FROM {table} WHERE id = 'other'")
    await spoil(plain, store, "UPDATE {s}.jobs SET definition = 'what', revision = 9 WHERE id = 'other'")

    claimed = await store.claim(node="n", token="t", limit=9, lease_ms=60_000)
    assert sorted(ids(claimed.runs)) == ["bad", "good"]
    [run] = await store.get_runs(["next"])
    assert (run.state, 1_000 <= run.visible_ms - claimed.now_ms < 2_000) == (RunState.READY, True)
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


async def test_an_entry_of_the_feed_that_cannot_be_read_is_told_as_such_and_all_else_goes_on(plain, store):
    await spoil(plain, store, "INSERT INTO {s}.feed (version, ends, body) VALUES (2, 0, 'what')")

    [*ours, spoilt] = (await store.feed(limit=100)).items
    assert ours
    assert isinstance(spoilt.entry, Spoilt)
    assert spoilt.entry.text == "what"
    assert await claim(store)
