"""Entries of the stream and records of runs that end together, in any order and of several claims."""

import pytest

from pollux.model import Done, NotePut
from pollux.store.contract import Answer
from pollux.store.redis import RedisStore
from pollux.testing.conformance.builders import T0, a_run, an_outcome, claim, given_jobs, settlement, the_run
from tests.servers.redis import own_url


@pytest.fixture
async def store():
    store = RedisStore(own_url("settle"))
    await store.open()
    await given_jobs(store, "job")
    yield store
    await store.close()


async def stream_counts(redis, store):
    """How many are ready, leased, and in the stream at all."""
    stream = f"{store.backend.address.prefix}:jobs:normal"
    [group] = await redis.xinfo_groups(stream)
    return group["lag"], group["pending"], await redis.xlen(stream)


def ends(runs, now_ms=T0, **fields):
    return [settlement(run, Done(), outcome=an_outcome(now_ms, **fields)) for run in runs]


async def test_entries_go_with_their_runs_in_whatever_order_they_end(store, redis):
    await store.enqueue([a_run(f"r{n}") for n in range(10)], now_ms=T0)
    runs = await claim(store, 5, now_ms=T0)
    assert await stream_counts(redis, store) == (5, 5, 10)

    await store.settle(ends(runs[2:4]), now_ms=T0)
    assert await stream_counts(redis, store) == (5, 3, 8)
    await store.settle(ends(runs[4:]), now_ms=T0)  # the entry that was delivered last stays for now
    assert await stream_counts(redis, store) == (5, 2, 8)
    await store.settle(ends(runs[:2]), now_ms=T0)
    assert await stream_counts(redis, store) == (5, 0, 5)
    await store.settle(ends(await claim(store, 5, now_ms=T0)), now_ms=T0)
    assert await stream_counts(redis, store) == (0, 0, 0)


async def test_each_of_a_call_gets_its_own_end(store):
    await store.enqueue([a_run(f"r{n}") for n in range(5)], now_ms=T0)
    runs = [*await claim(store, 4, now_ms=T0), *await claim(store, 1, now_ms=T0)]
    told = [*ends(runs[:1], T0 + 1), *ends(runs[1:2], T0 + 2), *ends(runs[2:], T0 + 2, result={"a": 2})]

    assert await store.settle(told, now_ms=T0 + 3) == [Answer.OK] * 5

    found = [await the_run(store, run.id) for run in runs]
    assert [run.finished_ms for run in found] == [T0 + 1, *[T0 + 2] * 4]
    assert [run.result for run in found] == [None, None, *[{"a": 2}] * 3]
    assert [run.token for run in found] == [run.token for run in runs]


async def test_a_note_that_is_written_twice_and_deleted_in_one_call_leaves_no_trace(redis, store):
    await store.put_notes(
        [NotePut("a", 1, expires_ms=T0 + 1), NotePut("a", 2, expires_ms=T0 + 2), NotePut("a")], now_ms=T0
    )

    mine = f"{store.backend.address.prefix}:notes"
    assert await redis.exists(mine, f"{mine}:keys", f"{mine}:ends") == 0
