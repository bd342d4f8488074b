"""`FaultyStore`: faults affect the calls that they were added for, and nothing else."""

import asyncio

import pytest

from pollux.errors import InvalidInput, StoreBusy, StoreTimeout
from pollux.model import Plan
from pollux.store.contract import Answer
from pollux.store.memory import MemoryStore
from pollux.testing import FaultyStore, HastyWaits, NoWaits
from pollux.testing.conformance.builders import a_run, answers, given_jobs, ids


@pytest.fixture
async def memory():
    store = MemoryStore()
    await store.open()
    await given_jobs(store, "job")
    yield store
    await store.close()


async def test_a_failed_call_does_nothing(memory):
    store = FaultyStore(memory)
    store.fail("enqueue", StoreBusy("locked"))

    with pytest.raises(StoreBusy):
        await store.enqueue([a_run("a")])

    assert await store.get_runs(["a"]) == [None]
    assert answers(await store.enqueue([a_run("a")])) == [Answer.OK]


async def test_a_lost_answer_is_a_call_that_took_effect(memory):
    store = FaultyStore(memory)
    store.lose_answer("enqueue")

    with pytest.raises(StoreTimeout, match="may have taken effect"):
        await store.enqueue([a_run("a")])

    assert answers(await store.enqueue([a_run("a")])) == [Answer.ALREADY]


async def test_a_delayed_call_begins_when_its_gate_opens(memory):
    store, gate = FaultyStore(memory), asyncio.Event()
    store.delay("enqueue", gate)
    call = asyncio.ensure_future(store.enqueue([a_run("a")]))
    await asyncio.sleep(0)
    assert await memory.get_runs(["a"]) == [None]

    gate.set()

    assert answers(await call) == [Answer.OK]


async def test_faults_strike_in_order_and_only_their_verb(memory):
    store = FaultyStore(memory)
    store.fail("counts", times=2)

    await store.list_jobs()
    for _ in range(2):
        with pytest.raises(Exception, match="counts does not work"):
            await store.counts()
    await store.counts()

    assert store.struck == ["counts", "counts"]
    assert store.calls == ["list_jobs", "counts", "counts", "counts"]


async def test_mending_forgets_what_has_not_struck(memory):
    store = FaultyStore(memory)
    store.fail("counts")

    store.mend()

    assert (await store.counts()).jobs == 1


async def test_a_fault_of_no_verb_is_refused(memory):
    with pytest.raises(InvalidInput, match="no verb 'cliam'"):
        FaultyStore(memory).fail("cliam")


async def test_a_store_that_cannot_wait_says_so_and_answers_at_once(memory):
    store = NoWaits(memory)
    await store.advance((await store.elect("n", ttl_ms=9_000)).number, plan_that_reads(await store.feed(limit=9)))

    async with asyncio.timeout(50):
        claimed = await store.claim(node="n", token="t", limit=1, lease_ms=1_000, wait_ms=60_000)
        feed = await store.feed(limit=1, wait_ms=60_000)

    assert (store.capabilities.waits, claimed.runs, feed.items) == (False, (), ())
    await store.enqueue([a_run("a", due_ms=0)])
    assert ids((await store.claim(node="n", token="u", limit=1, lease_ms=1_000)).runs) == ["a"]


async def test_a_hasty_store_says_that_it_waits_and_counts_who_believes_it(memory):
    store = HastyWaits(memory)

    async with asyncio.timeout(50):
        for n in range(3):
            await store.claim(node="n", token=f"t{n}", limit=1, lease_ms=1_000, wait_ms=60_000)

    assert (store.capabilities.waits, store.empty_claims) == (True, 3)


def plan_that_reads(feed):
    return Plan(consumed=tuple(item.id for item in feed.items))
