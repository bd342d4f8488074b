"""Servers that the Redis store refuses, with which words, and its behaviour when one fails."""

import asyncio
import contextlib
import logging
import signal
import ssl
import subprocess
import sys

import pytest
from redis.asyncio import Redis

from pollux import Pollux
from pollux.errors import InvalidInput, StoreError, StoreFull, StoreRefused
from pollux.model import Done
from pollux.observe.health import DEGRADED, HEALTHY
from pollux.store.contract import Answer
from pollux.store.redis import RedisStore, topology
from pollux.store.redis.address import read_address
from pollux.store.redis.server import check_server
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import T0, a_run, claim, given, given_jobs, ids, settlement
from tests.acceptance.hostile import CERTIFICATES
from tests.acceptance.terminal import Terminal
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer, own_url, shared_url


@pytest.fixture
def server(tmp_path):
    server = RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always").start()
    yield server
    server.stop()


async def opening(url):
    store = RedisStore(url)
    try:
        await store.open()
    finally:
        await store.close()


async def test_a_server_that_is_not_there_is_named_with_the_cure():
    for host in ("127.0.0.1", "localhost"):
        url = f"redis://{host}:{free_port()}/0"
        with pytest.raises(StoreError) as refused:
            await opening(url)
        words = "cannot be reached (Connection refused); start it, or correct the store's URL"
        assert str(refused.value) == f"the server {url} {words}"


async def test_a_wrong_password_is_refused_and_never_shown(server):
    async with Redis.from_url(server.url) as client:
        await client.config_set("requirepass", "right")

    for password in ("", ":wr0ng@"):
        with pytest.raises(StoreRefused, match="check user and password") as refused:
            await opening(f"redis://{password}127.0.0.1:{server.port}/0")
        assert "wr0ng" not in str(refused.value)
    await opening(f"redis://:right@127.0.0.1:{server.port}/0")


async def test_user_and_password_are_taken_as_they_are_encoded(server):
    async with Redis.from_url(server.url) as client:
        await client.execute_command("ACL", "SETUSER", "us@er", "on", ">p:w/d?", "~*", "&*", "+@all")

    await opening(f"redis://us%40er:p%3Aw%2Fd%3F@127.0.0.1:{server.port}/0")
    await opening(f"redis://127.0.0.1:{server.port}/0?username=us%40er&password=p%3Aw%2Fd%3F")


async def test_a_user_that_may_not_do_what_we_need_is_refused_with_the_rights_that_suffice(server, opened):
    """What the message tells to grant is enough for a run's whole way."""
    async with Redis.from_url(server.url) as client:
        for rights in ("+@all -fcall", "+@all -function|load", "+@all -info", "+@all -hset", "+@all -xgroup"):
            await client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", "~pollux:*", *rights.split())
            with pytest.raises(StoreRefused, match=r"may not do what we need .*ACL SETUSER") as refused:
                await opening(f"redis://poor:pw@127.0.0.1:{server.port}/0")
        await client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", "~other:*", "+@all")
        with pytest.raises(StoreRefused, match="may not do what we need"):
            await opening(f"redis://poor:pw@127.0.0.1:{server.port}/0")
        told = str(refused.value).partition("ACL SETUSER <user> ")[2].replace("<prefix>", "pollux").split()
        await client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", *told)

    store = await opened(f"redis://poor:pw@127.0.0.1:{server.port}/0")
    await given(store, a_run("b"))
    [run] = (await store.claim(node="n", token="t", limit=1, lease_ms=9_000, wait_ms=1, now_ms=T0)).runs
    assert await store.settle([settlement(run, Done())], now_ms=T0) == [Answer.OK]


async def test_a_database_that_is_not_there_is_refused_with_the_cure(server):
    with pytest.raises(StoreRefused, match=r"has no such database .*name one from 0 to 15"):
        await opening(f"redis://127.0.0.1:{server.port}/99")


async def test_keys_begin_with_the_prefix_and_nothing_else_is_touched(server, opened):
    async with Redis.from_url(server.url, decode_responses=True) as client:
        await client.set("crawler", "somebody else's")
        store = await opened(f"{server.url}?prefix=crawler")
        await given(store, a_run("a"))
        await claim(store)
        keys = set(await client.keys("*"))
        assert all(key.startswith("crawler:") for key in keys - {"crawler"})
        [group] = await client.xinfo_groups("crawler:jobs:normal")
        assert (group["name"], group["pending"], group["lag"]) == ("scheduler", 1, 0)


async def test_the_prefix_of_the_environment_reaches_the_keys(server, tmp_path):
    """Of a store that the command line names, and of one that an app names in its code."""
    pollux = Terminal(tmp_path)
    pollux.write("shop.py", f'from pollux import Pollux\n\napp = Pollux("{server.url}")\n')
    environ = {"SCHEDULER_QUEUE_PREFIX": "crawler"}
    async with Redis.from_url(server.url, decode_responses=True) as client:
        for where in (("--store", server.url), ("--app", "shop:app")):
            await client.flushall()
            await opening(f"{server.url}?prefix=crawler")
            answer = await asyncio.to_thread(lambda where=where: pollux("jobs", *where, environ=environ))
            assert answer.code == 0, answer.err
            without = await asyncio.to_thread(lambda where=where: pollux("jobs", *where))
            assert without.code == 3, without.out  # there is no such store
            keys = set(await client.keys("*"))
            assert "crawler:meta" in keys
            assert all(key.startswith("crawler:") for key in keys)


# TLS: the wheel's server has none, so a real one stands before it


@pytest.fixture
async def tls_port(server):
    """TLS with a certificate for localhost, whose authority is ours alone."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "good.pem", CERTIFICATES / "server.key")

    async def carry(reader, writer):
        with contextlib.suppress(OSError):
            while part := await reader.read(65_536):
                writer.write(part)
                await writer.drain()
        writer.close()

    async def meet(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(carry(reader, back), carry(there, writer))

    front = await asyncio.start_server(meet, "127.0.0.1", 0, ssl=context)
    yield front.sockets[0].getsockname()[1]
    front.close()


async def test_over_tls_with_its_authority_a_run_goes_its_way(tls_port, opened):
    store = await opened(f"rediss://localhost:{tls_port}/0?ssl_ca_certs={CERTIFICATES / 'ca.pem'}")
    await given(store, a_run("a"))
    waiting = asyncio.create_task(store.claim(node="n", token="t", limit=9, lease_ms=9_000, wait_ms=200))
    assert ids((await waiting).runs) == []
    assert ids(await claim(store)) == ["a"]
    await opening(f"rediss://127.0.0.1:{tls_port}/0?ssl_cert_reqs=none")


async def test_a_certificate_of_an_unknown_authority_is_refused_with_the_cure(tls_port):
    with pytest.raises(StoreRefused, match=r"certificate of .* is not trusted .*ssl_ca_certs"):
        await opening(f"rediss://localhost:{tls_port}/0")


async def test_a_server_without_tls_behind_a_tls_url_is_not_reached(server, monkeypatch):
    monkeypatch.setattr(topology, "CONNECT_S", 0.3)  # it waits for more of what it takes for a command
    with pytest.raises(StoreError, match=r"redis:// if it has no TLS"):
        await opening(f"rediss://127.0.0.1:{server.port}/0")


async def test_a_tls_server_behind_a_plain_url_is_not_reached(tls_port):
    with pytest.raises(StoreError, match=r"rediss:// if it wants TLS"):
        await opening(f"redis://127.0.0.1:{tls_port}/0")


async def test_a_server_that_forgets_keys_is_refused(server):
    async with Redis.from_url(server.url) as client:
        await client.config_set("maxmemory-policy", "allkeys-lru")

    with pytest.raises(StoreRefused, match="set maxmemory-policy noeviction"):
        await opening(server.url)


async def test_what_becomes_wrong_with_a_server_while_it_is_used_is_told_by_store_and_health(server):
    app = Pollux(server.url)
    async with app, Redis.from_url(server.url) as client:

        async def store_finding():
            app.watch._last = None  # look anew
            return (await app.operations.status.health()).findings[0]

        assert (await store_finding()).level == HEALTHY
        await client.config_set("maxmemory-policy", "allkeys-lru")
        [problem] = await app.backend.problems()
        assert "forgets keys when its memory is full (maxmemory-policy allkeys-lru)" in problem
        finding = await store_finding()
        assert (finding.name, finding.level) == ("store", DEGRADED)
        assert finding.cure == "set maxmemory-policy noeviction (CONFIG SET, and in redis.conf)"
        await client.config_set("maxmemory", "1")
        assert "the memory of the server" in (await store_finding()).seen
        await client.config_set("maxmemory", "0")
        await client.config_set("maxmemory-policy", "noeviction")
        assert (await store_finding()).level == HEALTHY


async def test_a_replica_is_refused(server):
    async with Redis.from_url(server.url) as client:
        await client.replicaof("127.0.0.1", free_port())

    with pytest.raises(StoreRefused, match=r"replica.*name the primary"):
        await opening(server.url)


async def test_a_server_that_becomes_a_replica_says_so_and_is_served_again_when_it_is_none(server, opened):
    store = await opened(server.url)
    async with Redis.from_url(server.url) as client:
        await client.replicaof("127.0.0.1", free_port())
        for _ in range(2):  # over the connection that there was, and over a new one
            with pytest.raises(StoreError, match=r"replica.*name the primary"):
                await given_jobs(store, "job")
        await client.execute_command("REPLICAOF", "NO", "ONE")

    await given_jobs(store, "job")
    assert (await store.counts()).jobs == 1


def test_a_server_that_is_too_old_is_refused():
    """From what it says of itself: an old server is not at hand."""
    with pytest.raises(StoreRefused, match=r"Redis 6\.2\.14; use 7\.0 or newer"):
        check_server({"redis_version": "6.2.14", "aof_enabled": 1}, read_address("redis://old"))
    check_server({"redis_version": "7.0.15", "aof_enabled": 1}, read_address("redis://new"))


async def test_a_server_without_a_file_is_warned_of_once(tmp_path, caplog):
    server = RedisServer(tmp_path).start()
    try:
        with caplog.at_level(logging.WARNING, "pollux"):
            await opening(server.url)
            await opening(server.url)
    finally:
        server.stop()
    [record] = [record for record in caplog.records if "append-only" in record.getMessage()]
    assert "set appendonly yes" in record.getMessage()


async def test_a_server_without_a_file_is_refused_where_durability_is_required(tmp_path, server):
    """Also the one that a living handle finds after its own went: it was asked for once and for all."""
    await opening(f"{server.url}?durability=required")
    pollux = Terminal(tmp_path)
    pollux.write("p.yaml", "durability: required\njobs: []")
    async with Redis.from_url(server.url) as client:
        await client.config_set("appendonly", "no")
        with pytest.raises(
            StoreRefused, match=r"no append-only file, and durability is required: .*set appendonly yes"
        ):
            await opening(f"{server.url}?durability=required")
        answer = await asyncio.to_thread(lambda: pollux("serve", "-c", "p.yaml", "--store", server.url))
        assert (answer.code, "durability is required" in answer.err) == (3, True), answer
        await opening(server.url)


async def test_a_server_that_leaves_the_disk_to_its_system_is_refused_where_durability_is_required(server):
    """As far as it tells: whoever may not ask is not refused for it."""
    asked = f"{server.url}?durability=required"
    async with Redis.from_url(server.url) as client:
        await client.config_set("appendfsync", "everysec")
        await opening(asked)
        await client.config_set("appendfsync", "no")
        with pytest.raises(StoreRefused, match=r"appendfsync no, and durability is required: .*set appendfsync"):
            await opening(asked)
        await opening(server.url)
        await client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", "~*", "&*", "+@all", "-config")
        await opening(asked.replace("redis://", "redis://poor:pw@"))


async def test_a_server_that_reads_its_file_in_is_not_said_to_keep_none(tmp_path, caplog):
    """Until it has, it says `aof_enabled:0` of itself: no reason to warn at each of its restarts."""
    server = RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "no").start()
    try:
        async with Redis.from_url(server.url) as client, client.pipeline(transaction=False) as pipeline:
            for number in range(20_000):
                pipeline.set(f"key-{number}", "")
            await pipeline.execute()
        server.kill(signal.SIGTERM)
        server.options += ("--key-load-delay", "300")  # us: it would take 6 s, and is not waited for
        server.start()
        with caplog.at_level(logging.WARNING, "pollux"), contextlib.suppress(StoreError):  # "is still loading"
            await opening(server.url)
    finally:
        server.kill()
    assert "append-only" not in caplog.text


async def test_foreign_keys_in_the_namespace_are_refused():
    url = own_url("foreign")
    prefix = f"pollux:{url.partition('namespace=')[2]}"
    async with Redis.from_url(shared_url()) as client:
        await client.set(f"{prefix}:jobs:low", "a string of somebody else")
        with pytest.raises(StoreRefused, match=r"is not ours .*choose another"):
            await opening(url)
        assert await client.get(f"{prefix}:jobs:low") == b"a string of somebody else"


async def test_a_newer_format_is_refused_and_left_alone():
    url = own_url("newer")
    meta = f"pollux:{url.partition('namespace=')[2]}:meta"
    async with Redis.from_url(shared_url()) as client:
        await client.hset(meta, "format", "99")
        with pytest.raises(StoreRefused, match="format 99"):
            await opening(url)
        assert await client.hgetall(meta) == {b"format": b"99"}


async def test_the_format_of_an_earlier_pollux_is_refused_with_the_cure_and_left_alone():
    """Format 2 had the runs for later among the others: whoever reads it as ours would lose sight of them."""
    url = own_url("older")
    meta = f"pollux:{url.partition('namespace=')[2]}:meta"
    async with Redis.from_url(shared_url()) as client:
        await client.hset(meta, "format", "2")
        cure = r"format 2, this Pollux writes format [3-9]; dump them with the Pollux .*another \?namespace="
        with pytest.raises(StoreRefused, match=cure):
            await opening(url)
        assert await client.hgetall(meta) == {b"format": b"2"}


async def test_without_room_nothing_new_is_taken_but_what_runs_is_recorded(server):
    store = RedisStore(server.url)
    await store.open()
    await given(store, a_run("a"))
    [run] = await claim(store, now_ms=T0)
    async with Redis.from_url(server.url) as client:
        await client.config_set("maxmemory", "1")

        with pytest.raises(StoreFull, match="raise maxmemory"):
            await store.enqueue([a_run("b")], now_ms=T0)
        assert await store.settle([settlement(run, Done())], now_ms=T0) == [Answer.OK]

        await client.config_set("maxmemory", "0")
    assert await store.get_runs(["b"]) == [None]
    await store.close()


async def test_what_was_answered_is_there_after_the_server_was_killed(server):
    store = RedisStore(server.url)
    await store.open()
    await given(store, a_run("a"), a_run("b"))
    [first] = await claim(store, 1, now_ms=T0)

    server.kill()
    with pytest.raises(StoreError, match="cannot be reached"):
        await store.counts()
    server.start()

    async with asyncio.timeout(60):
        while True:
            try:
                counts = await store.counts()
                break
            except StoreError:
                await asyncio.sleep(0.02)
    assert (counts.ready, counts.leased) == (1, 1)
    assert ids(await claim(store, now_ms=T0)) == ["b"]
    assert await store.settle([settlement(first, Done())], now_ms=T0) == [Answer.OK]
    await store.close()


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("redis://", "use redis://host:6379/0"),
        ("redis://host/name", "use redis://host:6379/0"),
        ("redis://host:99999999/0", "use redis://host:6379/0"),
        ("unix://", "unix:///run/redis.sock"),
        ("redis://host/0?colour=red", r"use one of \?prefix=, \?namespace=, \?wait=, \?durability="),
        ("redis://host/0?prefix=", "letters"),
        ("redis://host/0?namespace=a%20b", "letters"),
        ("redis://host/0?prefx=a", 'did you mean "prefix"'),
        ("redis://host/0?prefix=a&prefix=b", "say it once"),
        ("redis://one,two/0", r"redis\+sentinel:// or redis\+cluster://"),
        ("redis://host/1?db=2", "name one"),
        ("redis://user:a@host/0?password=b", "before the host, or options"),
        ("redis://host/0?ssl_ca_certs=x.pem", "use rediss"),
        ("rediss://host/0?ssl_ca_certs=/nowhere/x.pem", "correct the path"),
        ("rediss://host/0?ssl_cert_reqs=perhaps", "none, optional, required"),
        ("redis://host/0?wait=many", "how many replicas"),
        ("redis://host/0?wait=99", "how many replicas"),
        ("redis://host/0?durability=much", "usual or required"),
        ("redis+sentinel://host", r"redis\+sentinel://host1:26379"),
        ("redis+sentinel:///service", r"redis\+sentinel://host1:26379"),
        ("redis+sentinel://host/service/db", "redis://host:6379/0"),
        ("redis+sentinel://host/service?db=1", r"\?prefix="),
        ("redis+cluster://", r"redis\+cluster://host1:6379"),
        ("redis+cluster://host/1", r"\?namespace="),
        ("redis+cluster://host?db=1", r"\?namespace="),
        ("redis+cluster://host?prefix=a}{b", "leave the braces out"),
        ("redis+cluster://host?prefix=a{}", "leave the braces out"),
        ("redis+cluster://host?sentinel_password=x", r"\?prefix="),
    ],
)
def test_a_url_that_is_almost_right_is_refused_with_the_cure(url, cure):
    with pytest.raises(InvalidInput, match=cure):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:s3cret@host/0?colour=red",
        "redis://user:s3cret@host/x",
        "redis://user:s3cret@one,two/0",
        "redis://:s3c?s3cret@host/0",
        "redis+sentinel://user:s3cret@host",
        "redis+cluster://host/1?password=s3cret",
        "redis://user:12/s3cret@host",
        "redis://user:12#s3cret@host/0",
        "redis://user:12[s3cret@host/0",
        "redis://user:12\u2100s3cret@host/0",
        "redis+sentinel://user:12/s3cret@host",
        "reddis://user:s3cret@host/0",
        "reddis://host/0?password=s3cret",
        "postgresql://user:s3c/ret@host/db",
    ],
)
def test_a_refusal_never_shows_the_password(url):
    with pytest.raises(InvalidInput) as refused:
        open_store(url)
    assert "s3c" not in str(refused.value)


def test_a_missing_client_is_refused_with_the_cure():
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from pollux.store.urls import open_store\n"
        "try: open_store('redis://localhost')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )

    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert seen.stdout.startswith("InvalidInput")
    assert 'pip install "pollux-scheduler[redis]"' in seen.stdout


async def test_a_server_on_a_unix_socket_is_as_good(tmp_path):
    socket = tmp_path / "r.sock"
    server = RedisServer(tmp_path, "--unixsocket", str(socket), "--appendonly", "yes").start()
    try:
        store = open_store(f"unix://{socket}?namespace=x")
        await store.open()
        await given(store, a_run("a"))
        assert ids(await claim(store, now_ms=T0)) == ["a"]
        await store.close()
    finally:
        server.stop()


async def test_whoever_answers_and_is_no_redis_is_told_so():
    async def answer(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n<html></html>\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(StoreRefused, match=rf"at redis://127.0.0.1:{port}/0 is no Redis .*; correct host and port"):
            await RedisStore(f"redis://127.0.0.1:{port}/0").open()
