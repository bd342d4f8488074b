"""A node that was asked to claim nothing claims nothing, and goes on when that is over."""

from random import Random

import pytest

from pollux.clock import FakeClock
from pollux.errors import StoreTimeout
from pollux.events import Events
from pollux.model import DRAIN, Cause, Interval, Job, NotePut, Overlap, RunState
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.runtime.dispatcher import DRAINED_REST_MS
from pollux.store.contract import JobPut, RunFilter
from pollux.store.memory import MemoryStore
from tests.runtime.fakes import LOST, Shop, settle_down


async def test_a_claim_that_had_begun_is_handed_back_uncharged():
    shop = await Shop(seats=2).open()
    ran = []

    async def work(ctx):
        ran.append(ctx.run.id)

    job = await shop.job("work", work)
    await shop.enqueue(job, "r1", "r2", cause=Cause.FORCED)
    await shop.store.put_notes([NotePut(DRAIN, {"reason": "it is moved"})])

    shop.dispatcher._must_read_stops = False  # it looked a moment before
    await shop.dispatcher.turn()
    assert shop.store.count("claim") == 1
    await shop.settler.turn()
    await settle_down()

    assert ran == [], "also what somebody forces waits"
    run = await shop.run("r1")
    assert (run.state, run.attempt, run.lease_losses) == (RunState.READY, 0, 0)


async def test_one_drain_that_becomes_another_is_told_although_nothing_is_claimed():
    shop, told = await Shop(seats=2).open(), []
    shop.dispatcher.on_settings_changed = lambda: told.append(shop.dispatcher.is_drained)

    async def hears(reason, **options):
        await shop.store.put_notes([NotePut(DRAIN, reason, **options)])
        shop.dispatcher.reread_stops()
        await shop.dispatcher.turn()
        return len(told)

    assert await hears({"reason": "it is about to be moved"}, expires_ms=10**14) == 1
    assert await hears({"reason": "it is about to be moved"}, expires_ms=10**14 + 1) == 1, "it only goes on"
    assert await hears({"reason": "it is moved"}) == 2
    await shop.store.put_notes([NotePut(DRAIN)])
    await shop.dispatcher.turn()
    assert told[:3] == [True, True, False]


async def test_what_a_claim_took_whose_answer_never_came_goes_back_too():
    """Else it would be leased to a node that never runs it, for as long as the drain lasts."""
    shop = await Shop(seats=2).open()
    ran = []

    async def work(ctx):
        ran.append(ctx.run.id)

    job = await shop.job("work", work)
    await shop.enqueue(job, "r1", "r2")
    shop.store.faults["claim"] = [LOST]
    with pytest.raises(StoreTimeout):
        await shop.dispatcher.turn()
    assert (await shop.run("r1")).state is RunState.LEASED
    await shop.store.put_notes([NotePut(DRAIN, {})])

    shop.dispatcher.reread_stops()
    rest = await shop.dispatcher.turn()
    await shop.settler.turn()
    await settle_down()

    assert (rest.ms, ran) == (DRAINED_REST_MS, [])
    for name in ("r1", "r2"):
        run = await shop.run(name)
        assert (run.state, run.attempt, run.lease_losses) == (RunState.READY, 0, 0)
    claims = shop.store.count("claim")
    await shop.dispatcher.turn()
    assert shop.store.count("claim") == claims, "once"


async def test_until_it_is_over_nothing_is_claimed_and_then_all_goes_on():
    shop = await Shop(seats=2).open()
    ran = []

    async def work(ctx):
        ran.append(ctx.run.id)

    job = await shop.job("work", work)
    await shop.store.put_notes([NotePut(DRAIN, {})])
    shop.dispatcher.start()
    shop.settler.start()
    await settle_down()
    await shop.store.wake()
    await settle_down()
    claims = shop.store.count("claim")
    await shop.enqueue(job, "r1")
    await shop.clock.advance(10 * DRAINED_REST_MS)
    assert (ran, shop.store.count("claim")) == ([], claims)

    await shop.store.put_notes([NotePut(DRAIN)])
    await shop.clock.advance(DRAINED_REST_MS)
    await settle_down()
    assert ran == ["r1"]
    await shop.dispatcher.stop()
    await shop.settler.stop()


async def test_what_is_due_meanwhile_is_planned_and_not_skipped():
    """Unlike a pause of everything: the runs wait, for whoever claims again."""
    clock, events = FakeClock(), Events()
    store, registry, ran = MemoryStore(clock), Registry(), []

    async def work(ctx):
        ran.append(ctx.run.due_ms)

    registry.add("work", work)
    await store.open()
    await store.put_jobs([JobPut(Job(id="tick", handler="work", schedule=Interval(1_000), overlap=Overlap.ALLOW))])
    options = RuntimeOptions(renews_apart=False)
    runtime = NodeRuntime(store, registry, options=options, clock=clock, events=events, dice=Random(1), node_id="n")
    await runtime.start()
    await clock.advance(3_500)
    before = len(ran)
    assert before
    await store.put_notes([NotePut(DRAIN, {})])
    await store.wake()
    await settle_down()
    await clock.advance(5_000)
    waiting = (await store.list_runs(RunFilter(states=(RunState.READY,)))).runs
    assert (len(ran), runtime.timekeeper.skipped) == (before, 0)
    assert len(waiting) == 5

    await store.put_notes([NotePut(DRAIN)])
    await clock.advance(2 * DRAINED_REST_MS)
    assert len(ran) >= before + 5
    assert len(set(ran)) == len(ran)
    await runtime.stop()
