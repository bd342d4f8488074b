"""Do the streams tell an operator the truth, and can no accident to them lose a run?"""

import asyncio
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from pollux.clock import FakeClock
from pollux.model import Done, Node
from pollux.store.contract import Answer
from pollux.store.redis import RedisStore
from pollux.store.redis.scripts import script, verbs
from pollux.testing.conformance.builders import (
    LEASE_MS,
    T0,
    a_run,
    claim,
    finished,
    given,
    given_jobs,
    ids,
    settlement,
    the_run,
)
from tests.servers.redis import own_url, shared_url


@pytest.fixture
async def redis():
    async with Redis.from_url(shared_url()) as client:
        yield client


@pytest.fixture
def url():
    return own_url("streams")


@pytest.fixture
async def store(url):
    async with opened(url) as store:
        yield store


@asynccontextmanager
async def opened(url, **options):
    store = RedisStore(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def prefix(url):
    return f"pollux:{url.partition('namespace=')[2]}"


async def lag_and_pending(redis, url, line="normal"):
    [group] = await redis.xinfo_groups(f"{prefix(url)}:jobs:{line}")
    assert group["name"] == b"scheduler"
    return group["lag"], group["pending"]


async def test_the_lag_of_a_line_is_what_is_ready_and_pending_is_what_is_leased(store, redis, url):
    await given(store, *(a_run(f"r{n}") for n in range(5)), a_run("later", due_ms=T0 + 60_000))
    assert await lag_and_pending(redis, url) == (5, 0)

    runs = await claim(store, 3, now_ms=T0)
    assert await lag_and_pending(redis, url) == (2, 3)

    await store.settle([settlement(run, Done()) for run in runs[:2]], now_ms=T0)
    assert await lag_and_pending(redis, url) == (2, 1)
    assert await redis.xlen(f"{prefix(url)}:jobs:normal") == 3


async def test_what_becomes_visible_by_itself_enters_the_line(store, redis, url):
    await given(store, *(a_run(f"r{n}", due_ms=T0 + 5_000, priority=1) for n in range(3)))
    assert await lag_and_pending(redis, url, "high") == (0, 0)

    assert len(await claim(store, 1, now_ms=T0 + 5_000)) == 1

    assert await lag_and_pending(redis, url, "high") == (2, 1)


async def test_the_entry_of_a_run_that_was_cancelled_goes_with_the_next_claim(store, redis, url):
    await given(store, a_run("a"), a_run("b"))
    await store.cancel(run_ids=["a"], now_ms=T0)

    assert ids(await claim(store, now_ms=T0)) == ["b"]

    assert await lag_and_pending(redis, url) == (0, 1)


async def test_a_lost_lease_leaves_nothing_pending_behind(store, redis, url):
    await given(store, a_run("a"))
    await claim(store, node="dead", now_ms=T0)

    await claim(store, node="heir", now_ms=T0 + LEASE_MS)

    assert await lag_and_pending(redis, url) == (0, 1)
    consumers = await redis.xinfo_consumers(f"{prefix(url)}:jobs:normal", "scheduler")
    assert {row["name"]: row["pending"] for row in consumers} == {b"dead": 0, b"heir": 1}


async def test_consumers_that_nobody_is_any_more_go_but_none_that_holds_a_run(store, redis, url):
    await given(store, a_run("a"))
    await claim(store, node="busy", now_ms=T0)
    await claim(store, node="idle", now_ms=T0)
    await redis.xgroup_createconsumer(f"{prefix(url)}:jobs:normal", "scheduler", "gone")

    await store.beat(Node("new"), ttl_ms=1_000, now_ms=T0)

    consumers = await redis.xinfo_consumers(f"{prefix(url)}:jobs:normal", "scheduler")
    assert [row["name"] for row in consumers] == [b"busy"]


@pytest.mark.parametrize("accident", ["group", "stream", "read by somebody", "scripts"])
async def test_no_run_is_lost_by_what_happens_to_a_stream(store, redis, url, accident):
    stream = f"{prefix(url)}:jobs:normal"
    await given(store, a_run("a"), a_run("b"))
    match accident:
        case "group":
            await redis.xgroup_destroy(stream, "scheduler")
        case "stream":
            await redis.delete(stream)
        case "read by somebody":
            await redis.xreadgroup("scheduler", "somebody", {stream: ">"}, count=9)
        case _:
            await redis.script_flush()

    runs = await claim(store, now_ms=T0)

    assert ids(runs) == ["a", "b"]
    assert await store.settle([settlement(run, Done()) for run in runs], now_ms=T0) == [Answer.OK, Answer.OK]


async def test_an_entry_that_was_put_there_by_hand_runs_nothing(store, redis, url):
    await given(store, a_run("a"))
    await redis.xadd(f"{prefix(url)}:jobs:normal", {"nonsense": "1"})

    assert ids(await claim(store, now_ms=T0)) == ["a"]
    assert await claim(store, now_ms=T0) == ()
    assert await lag_and_pending(redis, url) == (0, 1)


async def test_every_key_begins_with_the_prefix_and_namespace(redis):
    url = f"{shared_url()}?prefix=crawler-{own_url('x').rpartition('-')[2]}&namespace=two"
    before = set(await redis.keys())
    async with opened(url) as store:
        await finished(store, a_run("a", key="k"))
        await given(store, a_run("b", gated=True), a_run("c", due_ms=T0 + 1))
        await claim(store, now_ms=T0 + 1)

    new = set(await redis.keys()) - before
    ours = url.partition("prefix=")[2].replace("&namespace=", ":").encode() + b":"
    assert ours + b"jobs:normal" in new
    assert [key for key in new if b"crawler-" in key and not key.startswith(ours)] == []
    await redis.delete(*(key for key in new if key.startswith(ours)))


async def test_a_claim_costs_the_same_commands_however_much_else_there_is(store, redis, url):
    async def commands():
        await redis.config_resetstat()
        runs = await claim(store, 10, now_ms=T0)
        stats = await redis.info("commandstats")
        assert len(runs) == 10
        await store.settle([settlement(run, Done()) for run in runs], now_ms=T0)
        return {name: figures["calls"] for name, figures in stats.items() if "config" not in name}

    await given(store, *(a_run(f"r{n}") for n in range(10)))
    few = await commands()
    for n in range(3):
        await given(store, *(a_run(f"later{n}-{m}", due_ms=T0 + 10**9) for m in range(1_000)))
    await given(store, *(a_run(f"s{n}") for n in range(1_000)))

    assert await commands() == few


async def test_one_call_is_one_round_trip(store, redis, url):
    await given_jobs(store, "job")
    await store.enqueue([a_run("warm")], now_ms=T0)
    await redis.config_resetstat()

    await store.enqueue([a_run(f"r{n}") for n in range(500)], now_ms=T0)

    stats = await redis.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1


async def blocked(redis):
    """Where the readers of the bell sit, as soon as one does."""
    async with asyncio.timeout(5):
        for _ in range(500):
            if found := [row["addr"] for row in await redis.client_list() if row["cmd"] == "xread"]:
                return found
            await asyncio.sleep(0.01)
    raise AssertionError("nobody waits")


async def test_a_waiter_is_not_deaf_after_its_connection_was_killed(store, redis, url):
    await given_jobs(store, "job")
    for n in range(3):
        waits = asyncio.ensure_future(store.claim(node="n", token=f"t{n}", limit=1, lease_ms=60_000, wait_ms=20_000))
        for address in await blocked(redis):
            await redis.client_kill(address)

        await store.enqueue([a_run(f"r{n}", due_ms=0)])

        async with asyncio.timeout(10):
            assert ids((await waits).runs) == [f"r{n}"]


async def test_after_a_leap_of_the_servers_clock_the_living_keep_their_leases(url):
    """The server's clock goes on while our monotonic time stands still: to us it has leapt."""
    clock = FakeClock()
    async with opened(url, clock=clock) as store:
        await given(store, a_run("a", due_ms=0))
        [run] = (await store.claim(node="n", token="one", limit=1, lease_ms=300)).runs
        await asyncio.sleep(1.4)

        held = await store.claim(node="n", token="two", limit=1, lease_ms=300)
        assert (held.runs, (await the_run(store, "a")).token) == ((), run.token)
        await clock.advance(10_000)
        assert ids((await store.claim(node="n", token="three", limit=1, lease_ms=300)).runs) == ["a"]


def test_every_script_says_what_it_may_do():
    assert len(verbs()) > 25
    assert [verb for verb in verbs() if not script(verb).text.startswith("#!lua")] == []
