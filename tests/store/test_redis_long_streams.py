"""Long streams are kept whole: one cut at a length would be wrong about what is ready."""

from redis.asyncio import Redis

from pollux.model import Answer, Done
from pollux.store.redis import RedisStore
from pollux.testing.conformance.builders import T0, a_run, advance, claim, given_jobs, settlement
from tests.servers.redis import own_url, shared_url

LENGTH = 3_000
BATCH = 1_000


async def test_no_entry_of_a_long_line_is_cut_off():
    url = own_url("long")
    store = RedisStore(url)
    await store.open()
    stream = f"pollux:{url.partition('namespace=')[2]}:jobs:normal"
    try:
        async with Redis.from_url(shared_url()) as client:
            await given_jobs(store, "job")
            for start in range(0, LENGTH, BATCH):
                await store.enqueue([a_run(f"r{start + n}") for n in range(BATCH)], now_ms=T0)
            [group] = await client.xinfo_groups(stream)
            assert (await client.xlen(stream), group["lag"], group["pending"]) == (LENGTH, LENGTH, 0)

            runs = await claim(store, BATCH, now_ms=T0)
            await store.settle([settlement(run, Done()) for run in runs], now_ms=T0)
            [group] = await client.xinfo_groups(stream)
            assert (group["lag"], group["pending"]) == (LENGTH - BATCH, 0)
    finally:
        await store.close()


async def test_a_plan_consumes_any_number_of_foreign_entries_of_the_feed(redis):
    """Many under each number: more than one command may have arguments."""
    store = RedisStore(own_url("long"))
    await store.open()
    feed = f"{store.backend.address.prefix}:feed"
    try:
        add = "for n = 0, 9999 do redis.call('XADD', KEYS[1], (n - n % 100) / 100 + 1 .. '-' .. n % 100, 'a', 'b') end"
        await redis.eval(add, 1, feed)

        assert (await advance(store, now_ms=T0, consumed=tuple(range(1, 101)))).answer is Answer.OK

        assert await redis.xlen(feed) == 0
    finally:
        await store.close()
