"""Plans that only read and remember, which go by one statement: fenced and kept like any other."""

import asyncio

import asyncpg
import pytest

from pollux.model import Done, JobUpdate, Memory, Outcome, Plan
from pollux.store.contract import Answer
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_job, a_run, given_jobs, settlement
from tests.servers.postgres import emptied, has_rung, own_url, shared_url

NOW = 1_800_000_000_000


@pytest.fixture(scope="module")
def url():
    return own_url("learnt")


@pytest.fixture
def clean(url):
    return emptied(url)


@pytest.fixture
async def store(clean):
    opened = PostgresStore(clean)
    await opened.open()
    await given_jobs(opened, a_job("a"), a_job("b"))
    await opened.enqueue([a_run("r", "a", due_ms=NOW)], now_ms=NOW)
    [run] = (await opened.claim(node="n", token="t", limit=1, lease_ms=60_000, now_ms=NOW)).runs
    await opened.settle([settlement(run, Done(), outcome=Outcome(NOW, NOW + 1))], now_ms=NOW)
    yield opened
    await opened.close()


def update(job_id, **fields):
    return JobUpdate(job_id, 1, memory=Memory(last_end_ms=NOW), next_due_ms=NOW + 5, **fields)


async def plan_of(store, *updates):
    read = (await store.feed(limit=100, now_ms=NOW)).items
    assert read
    return Plan(consumed=tuple(item.id for item in read), updates=updates)


async def test_it_is_one_statement_and_all_of_it_is_kept(store):
    term = await store.elect("n", ttl_ms=60_000, now_ms=NOW)
    plan = await plan_of(store, update("a"), JobUpdate("b", 7, memory=Memory(), next_due_ms=1), update("nobody"))
    await has_rung(store)
    before = store.statements
    advanced = await store.advance(term.number, plan, now_ms=NOW)
    assert store.statements == before + 1
    assert (advanced.answer, advanced.updates) == (Answer.OK, (Answer.OK, Answer.STALE, Answer.STALE))
    [a, b] = await store.get_jobs(["a", "b"])
    assert (a.next_due_ms, a.memory.last_end_ms, b.next_due_ms) == (NOW + 5, NOW, None)
    assert (await store.feed(limit=100, now_ms=NOW)).items == ()
    counts = await store.counts()
    assert (counts.feed, counts.ends) == (0, 0)


async def test_an_old_term_reads_nothing_away_and_remembers_nothing(store):
    old = await store.elect("n", ttl_ms=1_000, now_ms=NOW)
    await store.elect("m", ttl_ms=60_000, now_ms=NOW + 5_000)
    plan = await plan_of(store, update("a"))
    before = await store.counts()
    assert (await store.advance(old.number, plan, now_ms=NOW + 5_000)).answer is Answer.FENCED
    assert len((await store.feed(limit=100, now_ms=NOW)).items) == len(plan.consumed)
    [a] = await store.get_jobs(["a"])
    assert (a.next_due_ms, await store.counts()) == (None, before)


async def test_a_leader_who_is_replaced_while_it_writes_is_fenced(url, store):
    """The election is under way when the plan comes: it waits, and then it is another's term."""
    term = await store.elect("n", ttl_ms=60_000, now_ms=NOW)
    plan = await plan_of(store, update("a"))
    other = await asyncpg.connect(shared_url())
    try:
        async with other.transaction():
            await other.execute(f"UPDATE {url.rpartition('=')[2]}.term SET number = number + 1, holder = 'm'")
            writing = asyncio.ensure_future(store.advance(term.number, plan, now_ms=NOW))
            await asyncio.wait([writing], timeout=0.3)
            assert not writing.done()
        assert (await writing).answer is Answer.FENCED
    finally:
        await other.close()
    assert len((await store.feed(limit=100, now_ms=NOW)).items) == len(plan.consumed)


async def test_a_job_that_comes_twice_is_remembered_as_it_came_last(store):
    term = await store.elect("n", ttl_ms=60_000, now_ms=NOW)
    twice = (update("a", last_due_ms=NOW + 9), JobUpdate("a", 1, memory=Memory(), next_due_ms=NOW + 7))
    advanced = await store.advance(term.number, await plan_of(store, *twice), now_ms=NOW)
    assert advanced.updates == (Answer.OK, Answer.OK)
    [a] = await store.get_jobs(["a"])
    assert (a.next_due_ms, a.last_due_ms) == (NOW + 7, NOW + 9)
