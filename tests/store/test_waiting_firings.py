"""Cost of a firing that waits behind others: it reads what it must, and writes and locks nothing for that."""

import asyncio

import apsw
import asyncpg
import pytest
from redis.asyncio import Redis
from redis.exceptions import WatchError

from pollux.model import Overlap, Release
from pollux.store.contract import Answer
from pollux.store.postgres.store import PostgresStore
from pollux.store.redis import RedisStore
from pollux.store.sqlite import SqliteStore
from pollux.testing.conformance.builders import T0, a_firing, a_run, advance, given_jobs, leased, the_job
from tests.servers import postgres, redis
from tests.servers.redis import RedisServer

PATIENCE_S = 60


async def fire(store, n, overlap=Overlap.QUEUE, job="job"):
    firing = a_firing(await the_job(store, job), T0 + n * 60_000, overlap=overlap)
    [answer] = (await advance(store, now_ms=T0, firings=(firing,))).firings
    return firing.run.id, answer


async def ask(store, run_id):
    """May it begin?"""
    assert (await advance(store, now_ms=T0, releases=(Release(run_id, alone=True),))).waiting == (run_id,)


@pytest.fixture
async def on_postgres():
    url = postgres.own_url("behind")
    await postgres.empty(url)
    store = PostgresStore(url)
    await store.open()
    connection = await asyncpg.connect(postgres.shared_url())
    await connection.execute(f"SET search_path = {url.partition('schema=')[2]}")
    yield store, connection
    await connection.close()
    await store.close()


async def test_a_firing_that_waits_does_not_wait_for_who_writes_what_it_waits_for(on_postgres):
    """A worker renews the run before it, or settles it, just then."""
    store, connection = on_postgres
    await given_jobs(store, "job")
    await leased(store, a_run("asked"))
    async with asyncio.timeout(PATIENCE_S), connection.transaction():
        assert await connection.fetch("SELECT 1 FROM queue FOR UPDATE")
        assert (await fire(store, 0))[1] is Answer.WAITS
        assert (await fire(store, 1))[1] is Answer.OVERLAPPED


async def test_a_firing_that_waits_is_not_written_again_whenever_it_is_asked_about_on_postgres(on_postgres):
    store, connection = on_postgres
    await given_jobs(store, "job")
    await leased(store, a_run("asked"))
    run_id, _ = await fire(store, 0)
    before = await connection.fetch("SELECT ctid, xmin FROM queue ORDER BY seq")
    await ask(store, run_id)

    assert await connection.fetch("SELECT ctid, xmin FROM queue ORDER BY seq") == before


async def test_a_firing_that_waits_is_not_written_again_whenever_it_is_asked_about_on_sqlite(tmp_path):
    file = tmp_path / "pollux.db"
    store = SqliteStore(str(file))
    await store.open()
    try:
        await given_jobs(store, "job")
        await leased(store, a_run("asked"))
        run_id, _ = await fire(store, 0)
        connection = apsw.Connection(str(file))
        connection.execute(
            "CREATE TABLE written (id); CREATE TRIGGER watch AFTER UPDATE ON runs "
            "BEGIN INSERT INTO written VALUES (new.id); END"
        )
        await ask(store, run_id)
        assert list(connection.execute("SELECT * FROM written")) == []
        connection.close()
    finally:
        await store.close()


async def test_a_firing_that_waits_is_not_written_again_whenever_it_is_asked_about_on_redis():
    url = redis.own_url("behind")
    store = RedisStore(url)
    await store.open()
    try:
        await given_jobs(store, "job")
        await leased(store, a_run("asked"))
        run_id, _ = await fire(store, 0)
        async with Redis.from_url(redis.shared_url()) as client, client.pipeline() as watched:
            await watched.watch(f"pollux:{url.partition('namespace=')[2]}:run:{run_id}")
            await ask(store, run_id)
            watched.multi()
            watched.time()
            try:
                await watched.execute()
            except WatchError:
                pytest.fail("it was written")
    finally:
        await store.close()


async def test_a_firing_reads_no_further_than_to_the_one_that_waits_already(tmp_path):
    server = RedisServer(tmp_path).start()
    store = RedisStore(server.url)
    await store.open()
    try:
        await given_jobs(store, "job")
        await leased(store, a_run("first", due_ms=0))
        assert (await fire(store, 0))[1] is Answer.WAITS
        await store.enqueue([a_run(f"later{n:03}", due_ms=T0 + 1_000) for n in range(200)], now_ms=T0)
        reads = {}
        async with Redis.from_url(server.url) as client:
            for n, overlap in enumerate([Overlap.QUEUE, Overlap.CANCEL], start=1):
                await client.config_resetstat()
                assert (await fire(store, n, overlap))[1] is Answer.OVERLAPPED
                reads[overlap] = (await client.info("commandstats"))["cmdstat_hget"]["calls"]
        assert reads[Overlap.QUEUE] < 20
        assert reads[Overlap.CANCEL] > 200
    finally:
        await store.close()
        server.stop()


BACKLOGS = {
    "before it": {"due_ms": 0},
    "behind it": {"due_ms": T0 + 1_000},
    "at the gate": {"due_ms": 0, "gated": True},
}


@pytest.fixture
async def on_redis(tmp_path):
    """A store, and how to ask its server how many commands a firing of a job took."""
    server = RedisServer(tmp_path).start()
    store = RedisStore(server.url)
    await store.open()
    async with Redis.from_url(server.url) as client:

        async def cost(n, job, overlap=Overlap.QUEUE):
            await client.config_resetstat()
            _, answer = await fire(store, n, overlap, job)
            return answer, sum(each["calls"] for each in (await client.info("commandstats")).values())

        yield store, cost
    await store.close()
    server.stop()


@pytest.mark.parametrize("backlog", BACKLOGS)
async def test_what_a_firing_costs_does_not_grow_with_the_backlog_wherever_that_stands(on_redis, backlog):
    """Runs are found by their due: the one that waits already may stand behind all others, or before them."""
    store, cost = on_redis
    await given_jobs(store, "few", "many")
    await store.enqueue([a_run(f"first of {job}", job, due_ms=0) for job in ("few", "many")], now_ms=T0)
    await store.enqueue([a_run(f"r{n:03}", "many", **BACKLOGS[backlog]) for n in range(300)], now_ms=T0)

    costs = [(await cost(n, "few"), await cost(n, "many")) for n in range(3)]

    wanted = [Answer.WAITS, Answer.OVERLAPPED, Answer.OVERLAPPED]
    assert [(few[0], many[0]) for few, many in costs] == [(answer, answer) for answer in wanted]
    if backlog == "at the gate":
        costs.pop(0)  # it looks once at those that are held: one of them may wait so, too
    assert all(many[1] < few[1] + 20 for few, many in costs), costs
    assert (await cost(3, "many", Overlap.CANCEL))[1] > 300, "what they are counted by"
