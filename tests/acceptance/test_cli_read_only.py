"""Commands that only read leave nothing behind; a store that does not exist is reported, the same on every kind."""

import asyncio

import asyncpg
import pytest
import redis.asyncio

from pollux.secrets import hide
from pollux.store.postgres.address import read_address as postgres_address
from pollux.store.redis.address import read_address as redis_address
from pollux.store.urls import lacking, open_store
from tests.acceptance.terminal import SameProcess
from tests.servers import postgres
from tests.servers import redis as redis_servers

KINDS = ("sqlite", "redis", "postgres")
LOOKS = (
    ("jobs",),
    ("jobs", "show", "home"),
    ("why", "home"),
    ("runs",),
    ("dead",),
    ("nodes",),
    ("set",),
    ("token", "ls"),
    ("audit",),
    ("migrate",),
    ("top", "--json"),
    ("store", "check"),
    ("store", "dump", "-"),
    ("pause", "home"),
)


@pytest.fixture
def pollux(tmp_path):
    return SameProcess(tmp_path)


def a_place(kind, tmp_path):
    """The URL of a store that nobody made, and what is missing there."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/typo.db", f"no file {tmp_path}/typo.db"
    if kind == "redis":
        url = redis_servers.own_url("looking")
        return url, f"no key {redis_address(url).prefix}:meta"
    url = postgres.own_url("looking")
    return url, f"no schema '{postgres_address(url).schema}'"


async def left_behind(kind, url, tmp_path):
    """All that a look made there."""
    if kind == "sqlite":
        return [each.name for each in tmp_path.iterdir() if each.name.startswith("typo")]
    if kind == "redis":
        address = redis_address(url)
        client = redis.asyncio.Redis.from_url(url.partition("?")[0])
        try:
            return [key async for key in client.scan_iter(f"{address.prefix}:*")]
        finally:
            await client.aclose()
    address = postgres_address(url)
    connection = await asyncpg.connect(address.dsn)
    try:
        return await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname = $1", address.schema)
    finally:
        await connection.close()


@pytest.mark.parametrize("kind", KINDS)
def test_looking_at_a_store_that_is_not_there_says_so_and_makes_none(pollux, kind, tmp_path):
    url, missing = a_place(kind, tmp_path)
    for command in LOOKS:
        answer = pollux(*command, "--store", url)
        assert (answer.code, answer.out) == (3, ""), (command, answer)
        name = hide(url)
        quoted = f"'{name}'" if "?" in name else name
        said = f"there is no store {name} ({missing}); start one with `pollux serve --store {quoted}`"
        assert said in answer.err
    assert asyncio.run(left_behind(kind, url, tmp_path)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_compared_with_a_store_that_is_not_there_as_with_an_empty_one(pollux, kind, tmp_path):
    url, _ = a_place(kind, tmp_path)
    pollux.write("pollux.yaml", f'store: "{url}"\njobs: [{{id: a, python: "work:fine", interval: 1h}}]\n')
    assert "+ job a" in pollux.ok("check", "--diff").out
    assert "+ job a" in pollux.ok("reload", "--dry-run").out
    assert "empty store" in pollux.ok("plan", "--json").out
    assert pollux.ok("config").code == 0
    rollback = pollux("reload", "--rollback")
    assert (rollback.code, f"there is no store {hide(url)} yet" in rollback.err) == (3, True), rollback
    assert asyncio.run(left_behind(kind, url, tmp_path)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_reload_without_a_node_makes_the_store_and_writes_the_jobs(pollux, kind, tmp_path):
    url, _ = a_place(kind, tmp_path)
    pollux.write("pollux.yaml", f'store: "{url}"\njobs: [{{id: a, python: "work:fine", interval: 1h}}]\n')
    assert "+ job a" in pollux.ok("reload").out
    assert [job["id"] for job in pollux.ok("jobs", "--json").json["jobs"]] == ["a"]


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_missing_where_a_store_was_made(kind, tmp_path):
    url, missing = a_place(kind, tmp_path)
    assert await lacking(url) == missing
    store = open_store(url)
    await store.open()
    try:
        assert await lacking(url) == ""
    finally:
        await store.close()
