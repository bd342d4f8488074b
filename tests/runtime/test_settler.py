"""Every end is recorded, once, in as few writes as the store's speed allows."""

import asyncio

import pytest
from msgspec.structs import replace

from pollux.errors import InvalidInput, Permanent, StoreBusy, StoreTimeout
from pollux.events import LeaseWasLost, RunFailed
from pollux.model import RunState
from tests.runtime.fakes import LOST, Heard, Shop, settle_down


async def ended(shop, *ids):
    """Runs whose handlers have ended and whose ends wait to be recorded."""

    async def work(ctx):
        return ctx.run.id

    job = await shop.job("job", work)
    await shop.enqueue(job, *ids)
    await shop.dispatcher.turn()
    await settle_down()
    assert shop.settler.backlog == len(ids)


async def test_an_unanswered_settle_is_sent_again_as_it_was():
    shop = await Shop().open()
    await ended(shop, "r1", "r2")
    shop.store.faults["settle"] = [LOST]
    shop.settler.start()
    await settle_down()
    assert shop.settler.backlog == 2
    assert set(shop.worker.leases) == {"r1", "r2"}, "a lease is renewed until its settle is answered"
    await shop.clock.advance(50)
    (first,), (second,) = [args for args, _ in shop.store.sent("settle")]
    assert first == second
    assert {settlement.token for settlement in first} == {(await shop.run("r1")).token}
    assert shop.settler.settled == 2
    assert shop.settler.discarded == 0
    assert shop.worker.leases == {}
    await shop.settler.stop()


async def test_a_store_that_is_down_is_asked_again_from_50_ms_to_2_s_for_as_long_as_it_takes():
    shop = await Shop().open()
    await ended(shop, "r1")
    shop.store.faults["settle"] = [StoreTimeout("down"), StoreBusy("locked")] * 20
    shop.settler.start()
    await shop.clock.advance(60_000)
    assert 30 <= shop.store.count("settle") <= 36
    shop.store.faults["settle"].clear()
    await shop.clock.advance(2_000)
    assert (await shop.run("r1")).state is RunState.DONE
    await shop.settler.stop()


async def test_while_one_settle_is_under_way_the_next_batch_collects():
    shop = await Shop(seats=200).open()
    answers = asyncio.Event()
    shop.store.faults["settle"] = [answers]
    shop.settler.start()
    await ended(shop, "r0")
    job = (await shop.store.get_jobs(["job"]))[0]
    await shop.enqueue(job, *(f"r{n}" for n in range(1, 151)))
    await shop.dispatcher.turn()
    await settle_down()
    assert shop.store.count("settle") == 1
    answers.set()
    await settle_down()
    assert [len(args[0]) for args, _ in shop.store.sent("settle")] == [1, 100, 50]
    assert shop.settler.backlog == 0
    await shop.settler.stop()


async def test_an_outcome_that_comes_after_its_lease_is_dropped_and_counted():
    shop = await Shop().open()
    heard = Heard(shop.events, LeaseWasLost)
    await ended(shop, "r1")
    await shop.clock.advance(31_000)
    await shop.store.claim(node="other", token="t", limit=1, lease_ms=30_000)
    await shop.settler.turn()
    assert shop.settler.discarded == 1
    assert shop.settler.settled == 0
    [lost] = heard.all
    assert lost.run_id == "r1"
    assert (await shop.run("r1")).owner == "other"
    assert shop.worker.leases == {}


async def test_one_settlement_that_the_store_cannot_take_does_not_stop_the_others():
    shop = await Shop(seats=5).open()
    await ended(shop, "r1", "r2", "r3", "r4")
    settle = shop.store.inner.settle

    async def choosy(settlements, **options):
        if any(settlement.run_id == "r2" and settlement.outcome is not None for settlement in settlements):
            raise InvalidInput("indigestible")
        return await settle(settlements, **options)

    shop.store.inner.settle = choosy
    shop.settler.start()
    await shop.clock.advance(10_000)
    assert shop.settler.backlog == 0
    assert shop.settler.refused == 1
    assert [(await shop.run(f"r{n}")).state for n in (1, 3, 4)] == [RunState.DONE] * 3
    buried = await shop.run("r2")
    assert buried.state is RunState.DEAD, "its handler has run: it must not run again at every lease end"
    assert "its outcome cannot be recorded: InvalidInput: indigestible" in buried.error
    assert shop.worker.leases == {}
    await shop.settler.stop()


async def test_an_outcome_of_another_kind_is_its_own_runs_end_and_nobody_elses():
    """Handlers' words are looked at before; whatever comes by another way is stopped at the store's door."""
    shop = await Shop(seats=3).open()
    await ended(shop, "r1", "r2", "r3")
    waiting = shop.settler._waiting
    attempt, settlement = waiting[1]
    waiting[1] = attempt, replace(settlement, outcome=replace(settlement.outcome, changed="yes"))
    shop.settler.start()
    await shop.clock.advance(10_000)
    assert (shop.settler.backlog, shop.settler.refused, shop.worker.leases) == (0, 1, {})
    runs = [await shop.run(f"r{n}") for n in (1, 2, 3)]
    assert [run.state for run in runs] == [RunState.DONE, RunState.DEAD, RunState.DONE]
    assert "the outcome of run 'r2' cannot be recorded: Expected `bool | null`, got `str`" in runs[1].error
    await shop.settler.stop()


async def test_a_run_that_cannot_even_be_buried_is_left_to_its_lease():
    shop = await Shop().open()
    await ended(shop, "r1")

    async def never(settlements, **options):
        raise InvalidInput("indigestible")

    shop.store.inner.settle = never
    shop.settler.start()
    await shop.clock.advance(10_000)
    assert (shop.settler.backlog, shop.worker.leases) == (0, {})
    assert (await shop.run("r1")).state is RunState.LEASED
    await shop.settler.stop()


async def test_only_failures_are_told_as_failures():
    shop = await Shop().open()
    heard = Heard(shop.events, RunFailed)

    async def work(ctx):
        if ctx.run.id == "r2":
            raise Permanent("no")

    await shop.enqueue(await shop.job("job", work), "r1", "r2")
    await shop.dispatcher.turn()
    await settle_down()
    await shop.settler.turn()
    [told] = heard.all
    assert (told.run_id, told.verdict) == ("r2", "dead")
    assert "no" in told.error


@pytest.mark.parametrize("answers", [True, False])
async def test_flushing_waits_for_the_answers_but_not_for_ever(answers):
    shop = await Shop().open()
    await ended(shop, "r1")
    if not answers:
        shop.store.faults["settle"] = [StoreTimeout("down")] * 100
    shop.settler.start()
    flush = asyncio.ensure_future(shop.settler.flush(5_000))
    await shop.clock.advance(5_000)
    assert await flush is answers
    await shop.settler.stop()
