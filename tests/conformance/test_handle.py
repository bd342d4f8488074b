"""The handle bounds and counts the calls of every store alike."""

import asyncio
import inspect

import pytest

from pollux.clock import FakeClock
from pollux.errors import StoreBusy, StoreError, StoreTimeout
from pollux.model import Back
from pollux.store.backend import READS, WRITES, Backend
from pollux.store.contract import Answer, Store
from pollux.store.handle import VERBS, StoreHandle
from pollux.store.memory import MemoryStore
from pollux.testing import FaultyStore
from pollux.testing.conformance.builders import a_run, answers, claim, given_jobs, ids, leased, settlement


@pytest.fixture
async def faulty():
    store = FaultyStore(MemoryStore())
    await store.open()
    yield store
    await store.close()


def test_the_handle_has_every_verb_of_the_contract():
    for name in VERBS:
        assert inspect.signature(getattr(StoreHandle, name)) == inspect.signature(getattr(Store, name))


def test_every_verb_reaches_the_backend_by_one_way():
    """By its name through `read` or `write`, or as a primitive of its own."""
    primitives = {name for name, method in vars(Backend).items() if inspect.iscoroutinefunction(method)}

    assert READS | WRITES | (primitives - {"read", "write"}) == set(VERBS)
    assert not READS & WRITES
    assert not (READS | WRITES) & primitives


async def test_calls_and_errors_are_counted_by_verb(faulty):
    faulty.fail("counts", StoreBusy("locked"))

    with pytest.raises(StoreBusy):
        await faulty.counts()
    await faulty.counts()
    await faulty.counts()

    assert (faulty.call_stats["counts"].calls, faulty.call_stats["counts"].errors) == (3, 1)
    assert faulty.call_stats["claim"].calls == 0


async def test_milliseconds_are_summed_and_the_longest_kept(faulty):
    clock = faulty.clock = FakeClock()
    for ms in (30, 70):
        gate = asyncio.Event()
        faulty.delay("counts", gate)
        call = asyncio.ensure_future(faulty.counts())
        await clock.advance(ms)
        gate.set()
        await call

    assert (faulty.call_stats["counts"].total_ms, faulty.call_stats["counts"].max_ms) == (100, 70)


async def test_a_call_without_an_answer_ends_at_its_deadline_and_says_so(faulty):
    faulty.deadline_ms = 50
    faulty.delay("settle", asyncio.Event())

    with pytest.raises(StoreTimeout, match=r"settle within 50 ms.*may have taken effect.*same ids"):
        await faulty.settle([])

    assert faulty.call_stats["settle"].errors == 1


async def test_a_wait_comes_on_top_of_the_deadline(faulty):
    faulty.deadline_ms = 1_500

    claimed, feed = await asyncio.gather(
        faulty.claim(node="n", token="t", limit=1, lease_ms=1_000, wait_ms=1_600), faulty.feed(limit=1, wait_ms=1_600)
    )

    assert (claimed.answer, claimed.runs, feed.items) == (Answer.OK, (), ())


async def test_a_timeout_of_the_store_itself_is_not_taken_for_ours(faulty):
    faulty.fail("counts", TimeoutError("a socket of the store"))

    with pytest.raises(TimeoutError, match="socket") as caught:
        await faulty.counts()

    assert not isinstance(caught.value, StoreError)


async def test_a_call_that_is_cancelled_stays_cancelled(faulty):
    faulty.delay("counts", asyncio.Event())
    call = asyncio.ensure_future(faulty.counts())
    await asyncio.sleep(0)

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert faulty.call_stats["counts"].errors == 0


async def test_after_a_lost_answer_the_same_call_again_settles_it(faulty):
    await given_jobs(faulty, "job")
    faulty.lose_answer("enqueue")

    with pytest.raises(StoreTimeout):
        await faulty.enqueue([a_run("a")])

    assert answers(await faulty.enqueue([a_run("a")])) == [Answer.ALREADY]


async def test_the_calls_of_a_twin_are_counted_with_the_others():
    store = MemoryStore()
    await store.open()
    twin = store.twin()
    await twin.open()

    run = await leased(store)
    await twin.settle([settlement(run, Back())])

    assert store.call_stats["settle"].calls == 1
    assert ids(await claim(twin)) == [run.id]
    await twin.close()
    await store.close()
