"""Who touches the audit log by hand is found, on every store that somebody can reach with a tool of their own."""

import asyncio

import apsw
import asyncpg
import msgspec
import pytest
from redis.asyncio import Redis

from pollux import Pollux
from pollux.store.contract import Pruning
from pollux.store.postgres.address import read_address as postgres_address
from pollux.store.redis.address import read_address as redis_address
from pollux.store.urls import open_store
from tests.servers import postgres, redis

LINES = 6


class OnSqlite:
    def __init__(self, tmp_path):
        self.file = tmp_path / "pollux.db"
        self.url = f"sqlite:///{self.file}"

    async def do(self, statement):
        connection = apsw.Connection(str(self.file))
        connection.execute(statement.replace("{log}", "log"))
        connection.close()


class OnPostgres:
    def __init__(self, tmp_path):
        self.url = postgres.own_url("audit")

    async def do(self, statement):
        connection = await asyncpg.connect(postgres.shared_url())
        await connection.execute(statement.replace("{log}", f'"{postgres_address(self.url).schema}".log'))
        await connection.close()


class OnRedis:
    """There is no UPDATE: whoever wants to change a line writes the whole stream anew."""

    def __init__(self, tmp_path):
        self.url = redis.own_url("audit")

    async def do(self, change):
        client = Redis.from_url(redis.shared_url())
        key = f"{redis_address(self.url).prefix}:log"
        lines = {int(name.split(b"-")[0]): fields[b"line"] for name, fields in await client.xrange(key)}
        assert len(lines) == LINES
        change(lines)
        await client.delete(key)
        for number, line in sorted(lines.items()):
            await client.xadd(key, {"line": line}, id=f"{number}-0")
        await client.aclose()


def edited(lines):
    line = msgspec.json.decode(lines[3])
    assert line["actor"] == "cli:ann"
    lines[3] = msgspec.json.encode(line | {"actor": "cli:bob"})


def deleted(lines):
    del lines[3]


def swapped(lines):
    """The lines change places and keep the numbers of their new ones."""
    third, fourth = (msgspec.json.decode(lines[number]) for number in (3, 4))
    lines[3], lines[4] = (msgspec.json.encode(new | {"seq": n}) for new, n in ((fourth, 3), (third, 4)))


def cut(lines):
    del lines[LINES]


IN_SQL = {
    edited: ["UPDATE {log} SET actor = 'cli:bob' WHERE seq = 3"],
    deleted: ["DELETE FROM {log} WHERE seq = 3"],
    swapped: [
        "UPDATE {log} SET seq = 99 WHERE seq = 3",
        "UPDATE {log} SET seq = 3 WHERE seq = 4",
        "UPDATE {log} SET seq = 4 WHERE seq = 99",
    ],
    cut: [f"DELETE FROM {{log}} WHERE seq = {LINES}"],
}


@pytest.fixture(params=[OnSqlite, OnRedis, OnPostgres], ids=["sqlite", "redis", "postgres"])
async def somebody(request, tmp_path):
    """With a store in which a few things were done, and a tool to change it behind our back."""
    there = request.param(tmp_path)
    app = Pollux(there.url, actor="cli:ann")
    await app.open()
    for number in range(LINES):
        await app.operations.tokens.create_token("viewer", name=f"t{number}")
    await app.close()
    return there


async def tamper(somebody, how):
    for step in [how] if isinstance(somebody, OnRedis) else IN_SQL[how]:
        await somebody.do(step)


async def verdict(somebody, mark=""):
    app = Pollux(somebody.url)
    await app.open()
    try:
        return await app.operations.audit.verify_audit(mark=mark)
    finally:
        await app.close()


async def test_a_log_that_nobody_touched_is_whole(somebody):
    found = await verdict(somebody)
    assert (found.is_whole, found.lines, found.first, found.last) == (True, LINES, 1, LINES)


@pytest.mark.parametrize(
    ("how", "where"),
    [(edited, "line 3 was changed"), (deleted, "line 4 follows line 2"), (swapped, "line 3 was changed")],
)
async def test_a_line_that_was_edited_deleted_or_moved_is_named(somebody, how, where):
    await tamper(somebody, how)
    found = await verdict(somebody)
    assert not found.is_whole
    assert where in found.broken


async def test_lines_cut_off_at_the_end_are_found_by_a_mark_kept_elsewhere(somebody):
    mark = (await verdict(somebody)).mark
    await tamper(somebody, cut)
    assert (await verdict(somebody)).is_whole  # the chain itself cannot tell
    assert f"ends at line {LINES - 1}" in (await verdict(somebody, mark)).broken


async def test_a_pruned_beginning_is_no_break_and_the_chain_goes_on(somebody):
    store = open_store(somebody.url)
    await store.open()
    await store.prune(Pruning(log_max=2))
    await store.close()
    app = Pollux(somebody.url, actor="cli:ann")
    await app.open()
    await app.operations.tokens.create_token("viewer")
    found = await app.operations.audit.verify_audit()
    await app.close()
    assert (found.is_whole, found.lines, found.first, found.last) == (True, 3, LINES - 1, LINES + 1)


async def test_two_who_write_at_once_make_one_chain(somebody):
    apps = [Pollux(somebody.url, actor=f"cli:{name}") for name in ("ann", "bob")]
    for app in apps:
        await app.open()
    await asyncio.gather(*(app.operations.tokens.create_token("viewer") for app in apps for _ in range(10)))
    found = await apps[0].operations.audit.verify_audit()
    for app in apps:
        await app.close()
    assert (found.is_whole, found.lines) == (True, LINES + 20)
