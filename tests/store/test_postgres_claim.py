"""Claims on PostgreSQL: one that finds work is one statement, and takes nothing where another rule comes first."""

import asyncio
from contextlib import asynccontextmanager

import asyncpg
import pytest

from pollux.model import Done
from pollux.store.contract import Answer
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_job, a_run, given_jobs, ids, settlement
from tests.servers.postgres import emptied, has_rung, own_url, shared_url

NOW = 1_800_000_000_000
LEASE = 60_000


@pytest.fixture(scope="module")
def url():
    return own_url("claimed")


@pytest.fixture
def clean(url):
    return emptied(url)


@pytest.fixture
async def store(clean):
    opened = PostgresStore(clean)
    await opened.open()
    await given_jobs(opened, a_job("job"))
    yield opened
    await opened.close()


@pytest.fixture
async def given(url, store):
    """By another handle, whose bells do not count."""
    opened = PostgresStore(url)
    await opened.open()
    yield opened
    await opened.close()


async def claim(store, token="t", *, limit=10, now_ms=NOW, **options):
    """What is claimed, and by how many statements."""
    await has_rung(store)
    before = store.statements
    claimed = await store.claim(node="n", token=token, limit=limit, lease_ms=LEASE, now_ms=now_ms, **options)
    return claimed, store.statements - before


async def put(store, *names, priority=2):
    told = await store.enqueue([a_run(name, due_ms=NOW, priority=priority) for name in names], now_ms=NOW)
    assert [each.answer for each in told] == [Answer.OK] * len(names)


async def test_a_claim_that_fills_its_seats_is_one_statement(store, given):
    await put(given, "a", "b", "c")
    claimed, sent = await claim(store, limit=2)
    assert (ids(claimed.runs), sent) == (["a", "b"], 1)
    assert [run.lease_until_ms for run in claimed.runs] == [NOW + LEASE] * 2
    claimed, sent = await claim(store, "u")
    assert (ids(claimed.runs), sent) == (["c"], 1)


async def test_a_claim_that_finds_nothing_is_one_statement(store):
    claimed, sent = await claim(store)
    assert (claimed.runs, claimed.look_again_ms, sent) == ((), None, 1)


async def test_each_further_priority_is_one_statement_more(store, given):
    await put(given, "low", priority=3)
    await put(given, "high", priority=1)
    await put(given, "normal", priority=2)
    claimed, sent = await claim(store)
    assert (ids(claimed.runs), sent) == (["high", "normal", "low"], 3)
    again, _ = await claim(store)
    assert ids(again.runs) == ["high", "normal", "low"], "all parts are remembered under the token"


async def test_the_order_that_is_asked_decides_which_one_comes_with_the_look(store, given):
    await put(given, "low", priority=3)
    await put(given, "high", priority=1)
    claimed, sent = await claim(store, limit=1, first=2)
    assert (ids(claimed.runs), sent) == (["low"], 1)


async def test_no_seats_take_nothing(store, given):
    await put(given, "a")
    assert (await claim(store, limit=0))[0].runs == ()
    assert (await claim(store, limit=-1))[0].runs == ()
    assert (await store.counts()).ready == 1


async def test_while_the_leader_is_behind_nothing_is_taken_along(store, given):
    await put(given, "a", "b")
    first, _ = await claim(store, limit=1)
    await given.settle([settlement(first.runs[0], Done())], now_ms=NOW)
    refused, sent = await claim(store, "u", feed_max=0)
    assert (refused.answer, refused.runs, sent) == (Answer.FULL, (), 1)
    assert (await store.counts()).ready == 1


async def test_a_lease_that_ended_is_taken_back_before_anything_is_taken(store, given):
    """It comes first, for it has waited longer than what became visible meanwhile."""
    await put(given, "a")
    await claim(store)
    later = NOW + LEASE
    await store.enqueue([a_run("b", due_ms=later)], now_ms=later)
    claimed, _ = await claim(store, "u", limit=1, now_ms=later + 1)
    assert ids(claimed.runs) == ["a"]
    assert (claimed.runs[0].fence, claimed.runs[0].lease_losses) == (2, 1)


@asynccontextmanager
async def another():
    connection = await asyncpg.connect(shared_url())
    try:
        yield connection
    finally:
        await connection.close()


async def test_the_same_claim_from_two_sides_at_once_is_one_claim(url, store, given):
    """The first one is not committed when the second begins: that one waits for it, and then has what it has."""
    await put(given, "a", "b")
    schema = url.rpartition("=")[2]
    async with another() as other, another() as watching:
        begun = other.transaction()
        await begun.start()
        [seq] = [
            row[0]
            for row in await other.fetch(
                f"UPDATE {schema}.queue SET state = 2, fence = 1, token = 't:1', owner = 'n', lease_until_ms = $1 "
                f"WHERE seq = (SELECT min(seq) FROM {schema}.queue) RETURNING seq",
                NOW + LEASE,
            )
        ]
        await other.execute(f"INSERT INTO {schema}.claims (token, part, seqs) VALUES ('t', 1, $1)", [seq])
        claiming = asyncio.ensure_future(claim(store))
        async with asyncio.timeout(60):
            while not await watching.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pollux' AND wait_event_type = 'Lock'"
            ):
                assert not claiming.done(), "it did not wait"
                await asyncio.sleep(0.005)
        await begun.commit()
        claimed, _ = await asyncio.wait_for(claiming, 60)
    assert ids(claimed.runs) == ["a"]
    assert ids((await claim(store, "u"))[0].runs) == ["b"]
