"""Cost of a firing grows with what is due of its job, not with what is queued for later; work is counted."""

from urllib.parse import urlsplit

import asyncpg
import pytest

from pollux.model import PREVIOUS_RUN, Overlap, RetryAt
from pollux.store.contract import BATCH_MAX, Answer, Store
from pollux.store.memory import MemoryStore
from pollux.store.postgres.address import read_address
from pollux.store.postgres.database import PLANS
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import (
    a_failure,
    a_firing,
    a_job,
    a_run,
    advance,
    claim,
    forget_feed,
    given_jobs,
    settlement,
    the_job,
)
from tests.servers.postgres import own_url
from tests.servers.postgres import shared_url as postgres_url
from tests.servers.redis import own_url as own_redis_url
from tests.store.test_postgres_plans import House, buffers

T0 = 1_800_000_000_000
HOUR = 3_600_000
FEW, MANY = 20, 20_000
GUARDED = [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL]


async def asked_for_later(store: Store, how_many: int) -> None:
    """By each way into a store: many alike, one alone, and one that the others are not like, because it has a key."""
    await given_jobs(store, a_job("job"))
    later = [a_run(f"later-{n}", due_ms=T0 + HOUR) for n in range(how_many)]
    parts = [later[n : n + BATCH_MAX] for n in range(0, how_many, BATCH_MAX)]
    for part in [*parts, [a_run("single", due_ms=T0 + HOUR)], [a_run("keyed", due_ms=T0 + HOUR, key="k")]]:
        assert {answer.answer for answer in await store.enqueue(part, now_ms=T0)} == {Answer.OK}


async def waiting_for_a_retry(store: Store, how_many: int) -> None:
    """Asked for now, tried once, and to be tried again in an hour."""
    await given_jobs(store, a_job("job"))
    for first in range(0, how_many, BATCH_MAX):
        await store.enqueue([a_run(f"r-{n}") for n in range(first, min(first + BATCH_MAX, how_many))], now_ms=T0)
    while held := await claim(store, BATCH_MAX, now_ms=T0):
        again = [settlement(run, RetryAt(T0 + HOUR), outcome=a_failure()) for run in held]
        assert set(await store.settle(again, now_ms=T0)) == {Answer.OK}
        await forget_feed(store)


async def gated_for_later(store: Store, how_many: int) -> None:
    """Held at the gate, also while they are for later."""
    await given_jobs(store, a_job("job"))
    for first in range(0, how_many, BATCH_MAX):
        part = [a_run(f"g-{n}", due_ms=T0 + HOUR, gated=True) for n in range(first, min(first + BATCH_MAX, how_many))]
        await store.enqueue(part, now_ms=T0)
    await forget_feed(store)


WAITING = {"asked for later": (asked_for_later, MANY), "waiting for a retry": (waiting_for_a_retry, 2_000)}
WAITING["gated for later"] = gated_for_later, MANY


async def fires(store: Store, overlap: Overlap) -> None:
    firing = a_firing(await the_job(store), T0, overlap=overlap)
    assert (await advance(store, now_ms=T0, firings=(firing,))).firings == (Answer.OK,)


LOOKS = {
    "facts": ("advance", "facts", [["job"], 2, True, [], 1_000, T0]),
    "live": ("advance", "live", [["job"], PREVIOUS_RUN, 1_001, T0]),
    "crowds": ("advance", "crowds", [["job"], PREVIOUS_RUN, 1_001, T0]),
    "alone": ("advance", "alone", [["gated"], 2, PREVIOUS_RUN, T0]),
    "overlapping": ("enqueue", "overlapping", ["job", T0]),
}


@pytest.mark.parametrize("is_kept", [False, True], ids=["free", "kept"])
@pytest.mark.parametrize("waiting", WAITING)
async def test_postgres_reads_a_few_pages_however_many_are_for_later(waiting, is_kept):
    fill, many = WAITING[waiting]
    few, full = [await _pages_read(fill, size, is_kept=is_kept) for size in (FEW, many)]

    for name, pages in full.items():
        assert pages <= few[name] + 20, f"{name}: {few[name]} pages with {FEW}, {pages} with {many}"


async def _pages_read(fill, how_many: int, *, is_kept: bool) -> dict[str, int]:
    """In a database of its own: where a transaction of another test is open, old row versions stay and are read."""
    url = urlsplit(own_url("later"))
    schema = read_address(url.geturl()).schema
    admin = await asyncpg.connect(postgres_url())
    await admin.execute(f"CREATE DATABASE {schema}")
    try:
        store = PostgresStore(url._replace(path=f"/{schema}").geturl())
        await store.open()
        try:
            await fill(store, how_many)
            await store.enqueue([a_run("gated", gated=True)], now_ms=T0)
        finally:
            await store.close()
        return await _looks_at(urlsplit(postgres_url())._replace(path=f"/{schema}").geturl(), schema, is_kept=is_kept)
    finally:
        await admin.execute(f"DROP DATABASE {schema} WITH (FORCE)")
        await admin.close()


async def _looks_at(url: str, schema: str, *, is_kept: bool) -> dict[str, int]:
    connection, found = await asyncpg.connect(url, server_settings=PLANS if is_kept else None), {}
    try:
        await connection.execute(f"VACUUM {schema}.runs, {schema}.queue")
        await connection.execute("ANALYZE; BEGIN; SET LOCAL enable_seqscan = off")
        house = House(connection, schema, is_kept=is_kept)
        for name, (verb, statement, args) in LOOKS.items():
            found[name] = buffers(await house.plan(verb, statement, *args))
            await connection.execute("DEALLOCATE kept") if is_kept else None
    finally:
        await connection.close()
    return found


class Counted(dict):
    """Live runs, and how often one was looked at."""

    looks = 0

    def __getitem__(self, run_id):
        self.looks += 1
        return super().__getitem__(run_id)


@pytest.mark.parametrize("overlap", GUARDED)
@pytest.mark.parametrize("waiting", WAITING)
async def test_memory_looks_at_no_run_that_is_for_later(waiting, overlap):
    """Not even at the first firing, and not at those whose time has come more than once."""
    fill, many = WAITING[waiting]
    store = MemoryStore()
    await store.open()
    await fill(store, many)
    runs = store.backend.state.job_runs
    runs._live = counted = Counted(runs._live)

    await fires(store, overlap)

    assert counted.looks == 0
    await store.close()


@pytest.mark.parametrize("overlap", GUARDED)
@pytest.mark.parametrize("waiting", ["asked for later", "gated for later"])
async def test_redis_asks_as_much_however_many_are_for_later(opened, redis, waiting, overlap):
    """Beside a run that overlaps, too."""
    fill, many = WAITING[waiting]
    asked = {}
    for size in (FEW, many):
        store = await opened(own_redis_url("later"))
        await fill(store, size)
        before = await _commands(redis)
        await fires(store, overlap)
        await store.enqueue([a_run("now")], now_ms=T0)
        firing = a_firing(await the_job(store), T0 + 1, overlap=overlap)
        [answer] = (await advance(store, now_ms=T0 + 1, firings=(firing,))).firings
        assert answer is (Answer.OVERLAPPED if overlap is Overlap.SKIP else Answer.WAITS)
        asked[size] = await _commands(redis) - before

    assert asked[many] <= asked[FEW] + 20, asked


async def _commands(redis) -> int:
    """How many commands the server has run, those of scripts among them."""
    return sum(each["calls"] for each in (await redis.info("commandstats")).values())
