"""Settlements are written with all that follows from them, or not at all, on servers that refuse the last write."""

import asyncpg
import pytest
from redis.asyncio import Redis

from pollux.errors import PolluxError
from pollux.model import Done
from pollux.store.contract import Answer
from pollux.store.postgres.address import read_address
from pollux.store.postgres.store import PostgresStore
from pollux.store.redis import RedisStore
from pollux.testing.conformance.builders import LEASE_MS, T0, a_run, claim, given, renewal, settlement
from tests.servers import postgres, redis

REFUSE = """
CREATE FUNCTION {s}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no room for %', NEW.id; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON {s}.runs FOR EACH ROW WHEN (NEW.id = 'next') EXECUTE FUNCTION {s}.refuse();
"""


async def is_refused_whole(store):
    """The run that was to end is as it was: its owner can go on, and nothing came after it."""
    [run] = await claim(store, 1, now_ms=T0)
    with pytest.raises(PolluxError):
        await store.settle([settlement(run, Done(), follow_ups=(a_run("next", key="k"),))], now_ms=T0)

    [renewed] = await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=T0)
    assert (renewed.answer, await store.get_runs(["next"])) == (Answer.OK, [None])
    return run


async def test_on_postgresql_a_settlement_whose_follow_up_cannot_be_written_is_not_there_either():
    url = postgres.own_url("whole")
    store = PostgresStore(url)
    await store.open()
    connection = await asyncpg.connect(postgres.shared_url())
    try:
        await given(store, a_run("a"))
        schema = read_address(url).schema
        await connection.execute(REFUSE.replace("{s}", schema))
        run = await is_refused_whole(store)
        await connection.execute(f"DROP TRIGGER refuse ON {schema}.runs")

        follow_up = settlement(run, Done(), follow_ups=(a_run("next", key="k"),))
        assert await store.settle([follow_up], now_ms=T0) == [Answer.OK]
        assert (await store.counts()).ready == 1
    finally:
        await connection.close()
        await store.close()


async def test_on_redis_a_settlement_whose_follow_up_cannot_be_written_is_not_there_either():
    url = redis.own_url("whole")
    store = RedisStore(url)
    await store.open()
    keys = f"pollux:{url.partition('namespace=')[2]}:keys"
    try:
        async with Redis.from_url(redis.shared_url()) as client:
            await given(store, a_run("a"))
            await client.set(keys, "somebody else's")
            run = await is_refused_whole(store)
            await client.delete(keys)

            follow_up = settlement(run, Done(), follow_ups=(a_run("next", key="k"),))
            assert await store.settle([follow_up], now_ms=T0) == [Answer.OK]
            assert (await store.counts()).ready == 1
    finally:
        await store.close()
