"""Long streams are kept whole: one cut at a length would be wrong about what is ready."""

from redis.asyncio import Redis

from pollux.model import Done
from pollux.store.redis import RedisStore
from pollux.testing.conformance.builders import T0, a_run, claim, given_jobs, settlement
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
