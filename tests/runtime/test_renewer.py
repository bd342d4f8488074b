"""Leases live as long as their runs, also when everything else in the process stalls."""

import asyncio
import threading
from random import Random

import pytest

from pollux.clock import SystemClock
from pollux.errors import StoreError, StoreTimeout
from pollux.events import Events, LeaseWasLost, LoopFailed, LoopRecovered
from pollux.model import Cause, Job, RunState, run_of
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.runtime.renewer import Renewer, margin_ms
from pollux.store.contract import JobPut
from pollux.store.memory import MemoryStore
from tests.runtime.fakes import LOST, Heard, Shop, Spy, settle_down


async def running(shop, *ids):
    async def wait(ctx):
        await asyncio.Event().wait()

    job = await shop.job("job", wait)
    await shop.enqueue(job, *ids)
    await shop.dispatcher.turn()
    await settle_down()
    return a_renewer(shop)


def a_renewer(shop):
    return Renewer(
        shop.store,
        shop.worker.leases,
        lease_ms=30_000,
        on_main=lambda call, *args: call(*args),
        clock=shop.clock,
        events=shop.events,
    )


async def end(shop):
    for attempt in tuple(shop.worker.running):
        attempt.lose("the test is over")
    await settle_down()


async def test_all_leases_are_renewed_in_one_batch_at_a_third_of_their_length():
    shop = await Shop().open()
    renewer = await running(shop, "r1", "r2")
    renewer.start()
    await shop.clock.advance(29_000)
    assert 2 <= shop.store.count("renew") <= 3
    assert {renewal.run_id for renewal in shop.store.sent("renew")[0][0][0]} == {"r1", "r2"}
    run = await shop.run("r1")
    assert run.lease_until_ms > shop.clock.now_ms() + 15_000
    await renewer.stop()
    await end(shop)


async def test_a_run_is_renewed_until_its_settle_is_answered():
    shop = await Shop().open()

    async def work(ctx):
        return None

    job = await shop.job("quick", work)
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    await settle_down()
    renewer = a_renewer(shop)
    await shop.clock.advance(10_000)
    await renewer.turn()
    assert shop.store.count("renew") == 1
    await shop.settler.turn()
    await shop.clock.advance(10_000)
    await renewer.turn()
    assert shop.store.count("renew") == 1, "nothing is held any more"


async def test_a_lease_that_the_store_gave_away_stops_its_handler():
    shop = await Shop().open()
    heard = Heard(shop.events, LeaseWasLost)
    renewer = await running(shop, "r1")
    await shop.clock.advance(30_001)
    await shop.store.claim(node="other", token="t", limit=1, lease_ms=30_000)
    await renewer.turn()
    await settle_down()
    assert shop.pool.busy == 0
    assert shop.settler.backlog == 0
    assert [lost.run_id for lost in heard.all] == ["r1"]


async def test_a_renewal_that_is_refused_while_the_settle_is_under_way_is_left_to_the_settle():
    """The run is no longer leased because it is settled: that is no loss."""
    shop = await Shop().open()
    heard = Heard(shop.events, LeaseWasLost)
    renewer = await running(shop, "r1")
    shop.worker.leases["r1"].cancel("enough")
    await settle_down()
    shop.store.faults["settle"] = [LOST]
    with pytest.raises(StoreTimeout):
        await shop.settler.turn()
    await shop.clock.advance(10_000)
    await renewer.turn()
    await shop.settler.turn()
    assert heard.all == []
    assert shop.settler.settled == 1
    assert shop.settler.discarded == 0


async def test_a_cancel_request_is_read_with_the_renewal():
    shop = await Shop().open()
    renewer = await running(shop, "r1")
    await shop.store.cancel(run_ids=["r1"], reason="ann said so")
    await shop.clock.advance(10_000)
    await renewer.turn()
    await settle_down()
    await shop.settler.turn()
    run = await shop.run("r1")
    assert run.state is RunState.CANCELLED


async def test_a_look_reads_cancel_requests_at_once_but_not_more_than_once_a_second():
    shop = await Shop().open()
    renewer = await running(shop, "r1")
    for _ in range(5):
        renewer.renew_now()
        await renewer.turn()
    assert shop.store.count("renew") == 1
    await shop.clock.advance(1_000)
    await renewer.turn()
    assert shop.store.count("renew") == 2
    await end(shop)


async def test_trust_is_measured_from_before_the_request():
    shop = await Shop().open()
    renewer = await running(shop, "r1")
    await shop.clock.advance(10_000)
    answers = asyncio.Event()
    shop.store.faults["renew"] = [answers]
    turn = asyncio.ensure_future(renewer.turn())
    await shop.clock.advance(4_000)
    answers.set()
    await turn
    assert shop.worker.leases["r1"].trust_until == 10_000 + 30_000 - margin_ms(30_000)
    await end(shop)


async def test_a_failing_store_is_asked_again_soon_and_the_lease_survives():
    shop = await Shop().open()
    renewer = await running(shop, "r1")
    shop.timeouts.start()
    shop.store.faults["renew"] = [StoreError("down")] * 5
    renewer.start()
    await shop.clock.advance(60_000)
    assert shop.pool.busy == 1
    await renewer.stop()
    await shop.timeouts.stop()
    await end(shop)


async def test_who_has_nothing_left_to_renew_does_not_know_whether_it_works_again():
    """The store is down until the lease is given up on: that nobody is left to be renewed mends nothing."""
    shop = await Shop().open()
    renewer, heard = await running(shop, "r1"), Heard(shop.events, LoopRecovered)
    shop.store.faults["renew"] = [StoreError("away")] * 2
    next(iter(shop.worker.leases.values())).renew_at = 0
    for _ in range(2):
        await renewer.guarded_turn()
    await end(shop)
    assert not shop.worker.leases
    await renewer.guarded_turn()
    assert (heard.all, renewer.status().errors) == ([], 2)


async def test_after_a_long_wait_a_lease_is_made_sure_of_within_a_second_or_two():
    """A claim that waited does not know when its lease began."""
    shop = await Shop().open()
    started = asyncio.Event()

    async def wait(ctx):
        started.set()
        await asyncio.Event().wait()

    job = await shop.job("job", wait)
    turn = asyncio.ensure_future(shop.dispatcher.turn())
    await shop.clock.advance(20_000)
    await shop.enqueue(job, "r1")
    await turn
    renewer = a_renewer(shop)
    renewer.start()
    await shop.clock.advance(2_000)
    assert shop.store.count("renew") == 1
    await renewer.stop()
    await end(shop)


@pytest.mark.parametrize(("lease_ms", "margin"), [(30_000, 3_000), (15_000, 2_000), (100_000, 10_000), (900, 300)])
def test_the_margin_is_two_seconds_or_a_tenth_and_of_short_leases_a_third(lease_ms, margin):
    assert margin_ms(lease_ms) == margin


# in its own thread


class Ringing(Spy):
    """Rings a bell that any thread hears once its twins have renewed so often."""

    def __init__(self, inner, *, after, shared=None):
        super().__init__(inner, shared=shared)
        self.after, self.bell = after, threading.Event()

    def twin(self):
        twin = super().twin()
        renew = twin.inner.renew

        async def counted(*args, **options):
            answer = await renew(*args, **options)
            self.after -= 1
            if self.after <= 0:
                self.bell.set()
            return answer

        twin.inner.renew = counted
        return twin


async def a_threaded_crew(store, registry, events=None):
    options = RuntimeOptions(lease_ms=1_500, plans=False, seats=2)
    runtime = NodeRuntime(
        store,
        registry,
        options=options,
        clock=SystemClock(),
        events=events or Events(),
        dice=Random(1),
        node_id="node-1",
    )
    await runtime.start()
    return runtime


async def enqueued(store, registry, call, id="r1"):
    registry.add("work", call)
    job = Job(id="work", handler="work")
    await store.put_jobs([JobPut(job)])
    await store.enqueue([run_of(job, SystemClock().now_ms(), Cause.ENQUEUED, id=id)])


async def until(store, id, state):
    """The run, once it has come to that state; a generous deadline ends a wait in vain."""
    async with asyncio.timeout(60):
        while True:
            [run] = await store.get_runs([id])
            if run is not None and run.state is state:
                return run
            await asyncio.sleep(0.005)


async def test_leases_are_renewed_while_the_main_loop_is_blocked():
    """Nothing else runs on the loop for several leases; the renewals arrive from the other thread all the same."""
    store, registry, heard = Ringing(MemoryStore(), after=6), Registry(), []
    await store.open()

    async def block(ctx):
        heard.append(store.bell.wait(20))

    await enqueued(store, registry, block)
    runtime = await a_threaded_crew(store, registry)
    run = await until(store, "r1", RunState.DONE)
    assert heard == [True]
    assert (run.fence, run.lease_losses) == (1, 0)
    assert runtime.status().leases_lost == 0
    await runtime.stop()
    await store.close()


async def test_a_cancel_request_reaches_a_handler_through_the_thread():
    store, registry, started = Spy(MemoryStore()), Registry(), asyncio.Event()
    await store.open()

    async def wait(ctx):
        started.set()
        await asyncio.Event().wait()

    await enqueued(store, registry, wait)
    runtime = await a_threaded_crew(store, registry)
    async with asyncio.timeout(60):
        await started.wait()
    await store.cancel(run_ids=["r1"], reason="ann said so")
    await until(store, "r1", RunState.CANCELLED)
    await runtime.stop()
    await store.close()


async def test_the_threads_troubles_are_told_on_the_main_loop():
    store, registry, events = Spy(MemoryStore()), Registry(), Events()
    await store.open()
    told = asyncio.Event()
    where = []

    def hear(event):
        where.append((event.loop, threading.current_thread() is threading.main_thread()))
        told.set()

    events.listen(LoopFailed, hear)

    async def wait(ctx):
        await asyncio.Event().wait()

    await enqueued(store, registry, wait)
    store.faults["renew"] = [StoreError("down")]
    runtime = await a_threaded_crew(store, registry, events)
    async with asyncio.timeout(60):
        await told.wait()
    assert where[0] == ("renewer", True)
    assert "renewer" in {loop.name for loop in runtime.status().loops}
    await runtime.stop()
    await store.close()


async def test_a_twin_that_cannot_be_opened_is_told_to_whoever_starts():
    class NoTwin(Spy):
        def twin(self):
            raise StoreError("one handle is all you get")

    store = NoTwin(MemoryStore())
    await store.open()
    with pytest.raises(StoreError, match="one handle"):
        await a_threaded_crew(store, Registry())
