"""The function library on real servers: SHA-256, two releases, lost libraries, users with few rights."""

import hashlib
import os
import re
from importlib.resources import files

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from pollux.errors import StoreError, StoreRefused
from pollux.model import Done, NotePut
from pollux.store.contract import Answer
from pollux.store.redis import RedisStore, connection
from pollux.store.redis.library import MODULES, Library, library
from pollux.testing.conformance.builders import T0, a_run, claim, given, ids, settlement
from tests.servers.redis import RedisServer, find_binary, find_other, own_url

KINDS = {"usual": find_binary, "other": find_other}


@pytest.fixture(params=KINDS)
def program(request):
    """Redis and Valkey; where one of them is missing, nothing is proved of it."""
    try:
        return KINDS[request.param]()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def server(tmp_path, program):
    server = RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always", program=program).start()
    yield server
    server.stop()


async def goes_its_way(store, name):
    """A run is accepted, claimed and settled."""
    await given(store, a_run(name))
    runs = await claim(store, now_ms=T0)
    assert ids(runs) == [name]
    assert await store.settle([settlement(run, Done()) for run in runs], now_ms=T0) == [Answer.OK]


async def loaded(server):
    """The names of our libraries."""
    async with Redis.from_url(server.url, decode_responses=True) as client:
        found = await client.execute_command("FUNCTION", "LIST", "LIBRARYNAME", "pollux_*")
        return sorted(
            name for row in found for name in (row.values() if isinstance(row, dict) else row) if _is_ours(name)
        )


def _is_ours(name):
    return isinstance(name, str) and re.fullmatch("pollux_[0-9a-f]{12}", name) is not None


def another_release():
    """The same functions in another text, under another name."""
    ours = library()
    name = "pollux_0123456789ab"
    return Library(name, ours.text.replace(ours.name, name) + "-- another release\n", ours.writing, ours.reading)


async def test_sha256_is_that_of_hashlib_for_any_length():
    text = files("pollux.store.redis").joinpath("functions", "sha256.lua").read_text()
    code = f"local sha256 = (function() {text} end)() return sha256(ARGV[1])"
    async with Redis.from_url(own_url("sha").partition("?")[0], decode_responses=True) as client:
        for size in (*range(200), 1_000, 4_095, 4_096, 70_000):
            message = os.urandom(size)
            assert await client.eval(code, 0, message) == hashlib.sha256(message).hexdigest(), size


def test_every_file_is_in_the_library_and_every_function_has_a_name_of_its_own():
    ours = library()
    names = {entry.name.removesuffix(".lua") for entry in files("pollux.store.redis").joinpath("functions").iterdir()}
    assert set(MODULES) < names
    assert len(ours.functions) == len(re.findall(r"^register\.", ours.text, re.MULTILINE))
    assert ours.text.startswith(f"#!lua name={ours.name}\n")


async def test_what_only_records_may_run_when_the_memory_is_full_and_nothing_else_may():
    """As registered; reading functions are refused any write by the server."""
    ours = library()
    flags = dict(re.findall(r'^register\.write\("(\w+)", "([\w-]*)"', ours.text, re.MULTILINE))
    assert set(flags) == set(ours.writing)
    assert {name for name, flag in flags.items() if flag == ""} == {"put_jobs", "enqueue", "load", "advance"}
    assert set(flags.values()) == {"", "allow-oom"}


async def test_two_releases_work_on_one_server(server, monkeypatch):
    ours, theirs = RedisStore(server.url), RedisStore(server.url)
    await ours.open()
    monkeypatch.setattr(connection, "library", another_release)
    await theirs.open()
    try:
        await goes_its_way(ours, "a")
        await goes_its_way(theirs, "b")
        await goes_its_way(ours, "c")
        assert await loaded(server) == sorted([library().name, "pollux_0123456789ab"])
    finally:
        await ours.close()
        await theirs.close()


async def test_a_library_that_was_flushed_is_loaded_again_and_nothing_is_lost(server):
    async with Redis.from_url(server.url) as client:
        store = RedisStore(server.url)
        await store.open()
        try:
            await given(store, a_run("a"))
            await client.execute_command("FUNCTION", "FLUSH")
            runs = await claim(store, now_ms=T0)
            await client.execute_command("FUNCTION", "FLUSH")
            assert await store.settle([settlement(run, Done()) for run in runs], now_ms=T0) == [Answer.OK]
            await client.execute_command("FUNCTION", "FLUSH")
            assert (await store.counts()).ready == 0  # also by a call that only reads
            await client.flushall()
            assert await loaded(server) == [library().name], "no data is in it, and it is none"
        finally:
            await store.close()


@pytest.mark.parametrize("options", [("--appendonly", "yes", "--appendfsync", "always"), ("--appendonly", "no")])
async def test_a_restart_with_or_without_a_file_loses_no_call(tmp_path, program, options):
    server = RedisServer(tmp_path, *options, program=program).start()
    store = RedisStore(server.url)
    try:
        await store.open()
        await goes_its_way(store, "a")
        server.kill()
        server.start()
        with pytest.raises(StoreError):  # its connection broke: whether the call took effect is not known
            await store.counts()
        await goes_its_way(store, "b")
        assert await loaded(server) == [library().name]
    finally:
        await store.close()
        server.stop()


async def test_a_replica_has_the_library_before_it_is_promoted(tmp_path, program):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    primary = RedisServer(tmp_path / "one", "--repl-diskless-sync-delay", "0", program=program).start()
    replica = RedisServer(tmp_path / "two", "--replicaof", "127.0.0.1", str(primary.port), program=program).start()
    store = RedisStore(f"{primary.url}?wait=1")
    try:
        async with Redis.from_url(replica.url) as client:
            while (await client.info("replication"))["master_link_status"] != "up":
                pass
            await store.open()
            await goes_its_way(store, "a")
            assert await loaded(replica) == [library().name]
            await client.execute_command("REPLICAOF", "NO", "ONE")
        promoted = RedisStore(replica.url)
        await promoted.open()
        await goes_its_way(promoted, "b")
        await promoted.close()
    finally:
        await store.close()
        replica.stop()
        primary.stop()


async def read_and_written(store):
    await store.open()
    await store.counts()


async def test_a_user_without_the_right_to_load_or_call_functions_is_refused_with_the_rule(server):
    async with Redis.from_url(server.url) as client:
        for rights in ("-fcall", "-function", "-fcall_ro"):
            await client.execute_command("FUNCTION", "FLUSH")
            await client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", "~pollux:*", "+@all", rights)
            store = RedisStore(f"redis://poor:pw@127.0.0.1:{server.port}/0")
            with pytest.raises(StoreRefused, match=r"load and call functions .*ACL SETUSER <user> ~<prefix>:\* \+@all"):
                await read_and_written(store)
            await store.close()


async def test_a_user_who_may_call_but_not_load_needs_a_library_that_is_there(server):
    async with Redis.from_url(server.url) as client:
        rules = ("reset", "on", ">pw", "~pollux:*", "+@all", "-function")
        await client.execute_command("ACL", "SETUSER", "caller", *rules)
        await client.execute_command("FUNCTION", "LOAD", library().text)
    store = RedisStore(f"redis://caller:pw@127.0.0.1:{server.port}/0")
    await store.open()
    try:
        await goes_its_way(store, "a")
    finally:
        await store.close()


async def test_a_full_server_still_records_and_refuses_what_is_new(server):
    async with Redis.from_url(server.url) as client:
        store = RedisStore(server.url)
        await store.open()
        try:
            await given(store, a_run("a"))
            await client.config_set("maxmemory", "1")
            runs = await claim(store, now_ms=T0)
            assert await store.settle([settlement(run, Done()) for run in runs], now_ms=T0) == [Answer.OK]
            assert await store.put_notes([NotePut("n", 1)]) == [Answer.OK]
            with pytest.raises(StoreError, match="has no room"):
                await store.enqueue([a_run("b")], now_ms=T0)
        finally:
            await store.close()


async def test_a_function_that_only_reads_may_not_write(server):
    """As the server sees it: it would run on a replica, too."""
    store = RedisStore(server.url)
    await store.open()
    await store.close()
    name, packed = library().full_name("put_notes"), msgspec.msgpack.encode({"puts": []})
    async with Redis.from_url(server.url) as client:
        with pytest.raises(ResponseError, match="write flag"):
            await client.execute_command("FCALL_RO", name, 1, "pollux:meta", packed)
