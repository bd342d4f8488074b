"""A store is thrown away whole, and nothing else with it; so a move that was given up leaves a way out."""

import asyncio
import contextlib

import asyncpg
import pytest
from redis.asyncio import Redis

from pollux import Pollux
from pollux.app.move import Move, MoveEnd
from pollux.clock import SystemClock
from pollux.errors import StoreError, StoreMoved, StoreRefused
from pollux.model import Job, Node
from pollux.secrets import hide
from pollux.store.contract import JobPut
from pollux.store.move_marks import unseal
from pollux.store.postgres.address import read_address as postgres_address
from pollux.store.postgres.drop import drop as drop_postgres
from pollux.store.redis.connection import BlockingConnection
from pollux.store.redis.drop import drop as drop_redis
from pollux.testing.conformance.records import whole_dump
from pollux.units import shell_word
from tests.acceptance.move_world import Counted, Cut, carried, opened, populate, url_of
from tests.acceptance.terminal import SameProcess, Terminal
from tests.acceptance.test_cli_tables import at_a_terminal
from tests.servers import postgres, redis

REAL = ("sqlite", "redis", "postgres")


async def half_moved(source, target):
    """A move that is killed half-way, by the names of its ends; what the source holds."""
    one, two = await opened(source), await opened(target)
    try:
        await populate(one)
        clock = {"calls": 0, "at": 18, "after": True}
        ends = MoveEnd(Counted(one, clock), hide(source)), MoveEnd(Counted(two, clock), hide(target))
        with pytest.raises(Cut):
            await Move(*ends, clock=SystemClock(), report=lambda _: None, page=4).run(
                "m", actor="test", live=False, wait_ms=0
            )
        assert carried(await whole_dump(two)), "a part of it is there"
        return carried(await whole_dump(one))
    finally:
        await one.close()
        await two.close()


async def held(url):
    store = await opened(url)
    try:
        return carried(await whole_dump(store))
    finally:
        await store.close()


async def given(url, act):
    store = await opened(url)
    try:
        return await act(store)
    finally:
        await store.close()


@pytest.mark.parametrize("kind", REAL)
def test_a_move_that_was_given_up_leaves_a_target_with_a_way_out(kind, tmp_path):
    """Every refusal on the way names the next command, and that one is not refused."""
    here, source, target = SameProcess(tmp_path), f"sqlite:///{tmp_path}/from.db", url_of(kind, tmp_path, "to")
    before = asyncio.run(half_moved(source, target))
    drop = f"pollux store drop {shell_word(hide(target))}"
    asyncio.run(given(source, unseal))

    for refused, code in (
        (here("enqueue", "job0", "--store", target), 3),
        (here("store", "move", source, target), 1),
        (here("store", "unseal", target), 1),
        (here("store", "unseal", target, "--force"), 1),
    ):
        assert (refused.code, f"`{drop}`" in refused.err) == (code, True), refused
    assert "which was abandoned; delete what was copied" in here("store", "move", source, target).err
    unasked = here("store", "drop", target)
    assert (unasked.code, "add --force" in unasked.err) == (2, True), unasked
    assert asyncio.run(held(target)), "nothing was dropped unasked"

    told = here.ok("store", "drop", target, "--force").out
    assert told.startswith(f"dropped {hide(target)}: ")
    here.ok("store", "move", source, target)
    assert asyncio.run(held(target)).items() >= before.items()


@pytest.mark.parametrize("kind", REAL)
def test_the_health_of_a_store_that_is_being_filled_speaks_of_the_move_and_of_nothing_else(kind, tmp_path):
    """Nobody is told to start a node on it."""
    here, source, target = SameProcess(tmp_path), f"sqlite:///{tmp_path}/from.db", url_of(kind, tmp_path, "to")
    asyncio.run(half_moved(source, target))
    answer = here("health", "--json", "--store", target)
    [found] = answer.json["findings"]
    assert (answer.code, answer.json["status"], found["name"]) == (1, "unhealthy", "store")
    assert found["seen"].startswith(f"this store is being filled from {hide(source)}")
    assert "pollux store drop" in found["cure"]


def test_at_a_terminal_the_name_has_to_be_said_once_more(tmp_path):
    here, url = Terminal(tmp_path), "sqlite:///asked.db"
    asyncio.run(given(f"sqlite:///{tmp_path}/asked.db", populate))
    code, seen = at_a_terminal(here, "store", "drop", url, types="sqlite:///other.db\n")
    assert (code, "nothing was dropped" in seen) == (1, True), seen
    assert (tmp_path / "asked.db").exists()
    code, seen = at_a_terminal(here, "store", "drop", url, types=f"{url}\n")
    assert (code, f"dropped {url}: 3 jobs, " in seen) == (0, True), seen
    assert not (tmp_path / "asked.db").exists()


@pytest.mark.parametrize("kind", REAL)
def test_a_move_begins_anew_if_its_half_filled_target_is_dropped(kind, tmp_path):
    here, source, target = SameProcess(tmp_path), f"sqlite:///{tmp_path}/from.db", url_of(kind, tmp_path, "to")
    before = asyncio.run(half_moved(source, target))
    here.ok("store", "drop", target, "--force")
    here.ok("store", "move", source, target)
    assert asyncio.run(held(target)).items() >= before.items()


@pytest.mark.parametrize("kind", REAL)
def test_a_dropped_store_is_gone_and_made_anew_by_the_next_who_opens_it(kind, tmp_path):
    here, url = SameProcess(tmp_path), url_of(kind, tmp_path, "gone")
    asyncio.run(given(url, populate))
    here.ok("store", "drop", url, "--force")
    assert "there is no store" in here("jobs", "--store", url).err
    assert "there is no store" in here("store", "drop", url, "--force").err
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("gone.db")] == []
    assert asyncio.run(held(url)) == {}


@pytest.mark.parametrize("kind", REAL)
def test_a_store_on_which_a_node_lives_is_not_dropped(kind, tmp_path):
    here, url = SameProcess(tmp_path), url_of(kind, tmp_path, "lived")
    asyncio.run(given(url, lambda store: store.put_jobs([JobPut(Job(id="a", handler="h"))])))
    asyncio.run(given(url, lambda store: store.beat(Node("somebody"), ttl_ms=60_000)))
    refused = here("store", "drop", url, "--force")
    assert refused.code == 1
    assert "1 node lives on" in refused.err
    assert "somebody" in refused.err
    assert asyncio.run(held(url)), "it is there still"


def test_the_only_whole_end_of_a_move_is_not_dropped(tmp_path):
    here, source, target = SameProcess(tmp_path), f"sqlite:///{tmp_path}/from.db", f"sqlite:///{tmp_path}/to.db"
    before = asyncio.run(half_moved(source, target))
    refused = here("store", "drop", source, "--force")
    assert (refused.code, "which is not whole yet" in refused.err) == (1, True), refused
    assert asyncio.run(held(source)) == before


def test_a_file_that_somebody_has_open_is_not_dropped(tmp_path):
    here, url = SameProcess(tmp_path), f"sqlite:///{tmp_path}/used.db"
    asyncio.run(given(url, populate))
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        store = loop.run_until_complete(opened(url))
        try:
            refused = here("store", "drop", url, "--force")
        finally:
            loop.run_until_complete(store.close())
    assert (refused.code, "busy: " in refused.err) == (3, True), refused
    assert asyncio.run(held(url))


async def test_on_redis_only_our_own_keys_go():
    """Other stores under `?namespace=` stay, also one called as our claims or a version are; and a stranger's key."""
    prefix = redis.own_url("beside").rpartition("=")[2]
    outer = f"{redis.shared_url()}?prefix={prefix}"
    inner = [f"{outer}&namespace={name}" for name in ("jobs", "claim", "v2", "other")]
    for url in (outer, *inner):
        await given(url, populate)
    async with Redis.from_url(redis.shared_url()) as client:
        await client.set(f"{prefix}:theirs", 1)
        await given(outer, lambda store: store.of_version(3).put_jobs([JobPut(Job(id="x", handler="h"))]))
        kept = {key for name in ("jobs", "claim", "v2", "other") for key in await client.keys(f"{prefix}:{name}:*")}
        kept -= {f"{prefix}:jobs:{level}".encode() for level in ("high", "normal", "low")}

        left = await drop_redis(outer)

        there = set(await client.keys(f"{prefix}:*"))
        assert kept < there
        ours = {key for key in there - kept if not key.startswith(f"{prefix}:claim:".encode())}
        assert ours == {f"{prefix}:theirs".encode()}
        assert left == len(there)
    for url in inner:
        assert await held(url), "it is whole"


async def test_on_redis_a_drop_that_was_cut_off_leaves_what_can_be_dropped_again(monkeypatch):
    """Whatever went before, it is known as a store, and still bears the mark of its move."""
    source, url = redis.own_url("cut-from"), redis.own_url("cut")
    await half_moved(source, url)
    whole = BlockingConnection.ask

    async def cut_off(listener, *command, **options):
        if command[0] == "UNLINK" and isinstance(command[1], str):  # the last step, by names of its own
            raise ConnectionError("cut off")
        return await whole(listener, *command, **options)

    monkeypatch.setattr(BlockingConnection, "ask", cut_off)
    with pytest.raises(StoreError, match="cut off"):
        await drop_redis(url)
    monkeypatch.setattr(BlockingConnection, "ask", whole)
    with pytest.raises(StoreMoved, match="is being filled from"):
        await Pollux(url).open()
    assert await drop_redis(url) == 0
    async with Redis.from_url(redis.shared_url()) as client:
        assert await client.keys(f"pollux:{url.rpartition('=')[2]}:*") == []


async def in_postgres(url, *statements):
    """Statements of somebody else, and which tables the schema has afterwards."""
    schema = postgres_address(url).schema
    connection = await asyncpg.connect(postgres.shared_url())
    try:
        for statement in statements:
            await connection.execute(statement.format(s=schema))
        found = await connection.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind IN ('r', 'S', 'v')",
            schema,
        )
        functions = await connection.fetch(
            "SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace($1)", schema
        )
        return {row[0] for row in (*found, *functions)}
    finally:
        await connection.close()


async def test_on_postgres_what_others_put_into_the_schema_stays():
    url = postgres.own_url("theirs")
    await given(url, populate)
    assert await in_postgres(url, "CREATE TABLE {s}.theirs (id int)") > {"theirs", "runs", "now_ms", "run_seq"}
    assert await drop_postgres(url) == 1
    assert await in_postgres(url) == {"theirs"}


async def test_on_postgres_nothing_goes_that_somebody_else_needs():
    url = postgres.own_url("needed")
    await given(url, populate)
    before = await in_postgres(url, "CREATE VIEW {s}.seen AS SELECT id FROM {s}.jobs")
    with pytest.raises(StoreRefused, match=r"another object depends .*seen.*nothing was changed; drop that first"):
        await drop_postgres(url)
    assert await in_postgres(url) == before
    assert await held(url)
