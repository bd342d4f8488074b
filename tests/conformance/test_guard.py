"""The guard of a store bounds and counts calls, and changes nothing else."""

import asyncio
import inspect

import pytest

from pollux.clock import FakeClock, SystemClock
from pollux.errors import StoreBusy, StoreError, StoreTimeout
from pollux.model import Back
from pollux.store.contract import Answer, Store
from pollux.store.guard import VERBS, Guarded
from pollux.store.memory import MemoryStore
from pollux.testing import FaultyStore
from pollux.testing.conformance import StoreContract
from pollux.testing.conformance.builders import a_run, answers, claim, given_jobs, ids, leased, settlement


class TestGuardedStore(StoreContract):
    """Behind the wrapper the contract holds, word for word."""

    @pytest.fixture
    async def store(self):
        store = Guarded(MemoryStore(), clock=SystemClock())
        await store.open()
        yield store
        await store.close()


@pytest.fixture
async def faulty():
    store = FaultyStore(MemoryStore())
    await store.open()
    yield store
    await store.close()


def test_every_verb_of_the_contract_is_wrapped():
    verbs = {name for name, verb in vars(Store).items() if inspect.iscoroutinefunction(verb)}

    assert verbs == set(VERBS)
    for name in verbs | {"twin"}:
        assert inspect.signature(getattr(Guarded, name)) == inspect.signature(getattr(Store, name)) or name == "twin"


async def test_calls_and_errors_are_counted_by_verb(faulty):
    store = Guarded(faulty, clock=SystemClock())
    faulty.fail("counts", StoreBusy("locked"))

    with pytest.raises(StoreBusy):
        await store.counts()
    await store.counts()
    await store.counts()

    assert (store.calls["counts"].calls, store.calls["counts"].errors) == (3, 1)
    assert store.calls["claim"].calls == 0


async def test_milliseconds_are_summed_and_the_longest_kept(faulty):
    clock = FakeClock()
    store = Guarded(faulty, clock=clock)
    for ms in (30, 70):
        gate = asyncio.Event()
        faulty.delay("counts", gate)
        call = asyncio.ensure_future(store.counts())
        await clock.advance(ms)
        gate.set()
        await call

    assert (store.calls["counts"].total_ms, store.calls["counts"].max_ms) == (100, 70)


async def test_a_call_without_an_answer_ends_at_its_deadline_and_says_so(faulty):
    store = Guarded(faulty, clock=SystemClock(), deadline_ms=50)
    faulty.delay("settle", asyncio.Event())

    with pytest.raises(StoreTimeout, match=r"settle within 50 ms.*may have taken effect.*same ids"):
        await store.settle([])

    assert store.calls["settle"].errors == 1


async def test_a_wait_comes_on_top_of_the_deadline(faulty):
    store = Guarded(faulty, clock=SystemClock(), deadline_ms=1_500)

    claimed, feed = await asyncio.gather(
        store.claim(node="n", token="t", limit=1, lease_ms=1_000, wait_ms=1_600), store.feed(limit=1, wait_ms=1_600)
    )

    assert (claimed.answer, claimed.runs, feed.items) == (Answer.OK, (), ())


async def test_a_timeout_of_the_store_itself_is_not_taken_for_ours(faulty):
    store = Guarded(faulty, clock=SystemClock())
    faulty.fail("counts", TimeoutError("a socket of the store"))

    with pytest.raises(TimeoutError, match="socket") as caught:
        await store.counts()

    assert not isinstance(caught.value, StoreError)


async def test_a_call_that_is_cancelled_stays_cancelled(faulty):
    store = Guarded(faulty, clock=SystemClock())
    faulty.delay("counts", asyncio.Event())
    call = asyncio.ensure_future(store.counts())
    await asyncio.sleep(0)

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert store.calls["counts"].errors == 0


async def test_after_a_lost_answer_the_same_call_again_settles_it(faulty):
    store = Guarded(faulty, clock=SystemClock())
    await given_jobs(store, "job")
    faulty.lose_answer("enqueue")

    with pytest.raises(StoreTimeout):
        await store.enqueue([a_run("a")])

    assert answers(await store.enqueue([a_run("a")])) == [Answer.ALREADY]


async def test_the_calls_of_a_twin_are_counted_with_the_others():
    store = Guarded(MemoryStore(), clock=SystemClock())
    await store.open()
    twin = store.twin()
    await twin.open()

    run = await leased(store)
    await twin.settle([settlement(run, Back())])

    assert store.calls["settle"].calls == 1
    assert ids(await claim(twin)) == [run.id]
    await twin.close()
    await store.close()
