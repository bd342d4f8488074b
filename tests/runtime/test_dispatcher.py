"""The dispatcher keeps the pool filled, without calling the store too often."""

import asyncio
from collections import Counter

import pytest

from pollux.errors import StoreError, StoreTimeout
from pollux.events import ClaimsRefused, LoopRecovered
from pollux.model import DRAIN, Cause, Node, NotePut, RunState
from pollux.runtime import RuntimeOptions
from pollux.runtime.loop import Rest
from pollux.testing.faults import HastyWaits, NoWaits
from tests.runtime.fakes import LOST, Heard, Shop, settle_down

MINUTE = 60_000


async def a_shop(**options):
    return await Shop(**options).open()


def waits_for_ever(started=None):
    async def wait(ctx):
        if started is not None:
            started.append(ctx.run.id)
        await asyncio.Event().wait()

    return wait


async def end(shop):
    for attempt in tuple(shop.worker.running):
        if attempt.work is not None:
            attempt.work.cancel()
    await settle_down()


async def test_it_claims_no_more_than_there_are_free_seats():
    shop = await a_shop(seats=2)
    started = []
    job = await shop.job("long", waits_for_ever(started))
    await shop.enqueue(job, "r1", "r2", "r3")

    rest = await shop.dispatcher.turn()
    await settle_down()
    assert rest == Rest.UNTIL_WOKEN
    assert started == ["r1", "r2"]
    assert (await shop.run("r3")).state is RunState.READY
    [(_, sent)] = shop.store.sent("claim")
    assert sent["limit"] == 2

    assert await shop.dispatcher.turn() == Rest.UNTIL_WOKEN
    assert shop.store.count("claim") == 1, "a full pool asks for nothing"
    await end(shop)


async def test_a_freed_seat_wakes_it():
    shop = await a_shop(seats=1)
    may_end = asyncio.Event()

    async def work(ctx):
        await may_end.wait()

    job = await shop.job("work", work)
    await shop.enqueue(job, "r1", "r2")
    shop.dispatcher.start()
    await settle_down()
    assert shop.dispatcher.claimed == 1
    may_end.set()
    await settle_down()
    assert shop.dispatcher.claimed == 2
    await shop.dispatcher.stop()


async def test_an_empty_long_poll_costs_two_claims_a_minute():
    shop = await a_shop()
    shop.dispatcher.start()
    await shop.clock.advance(MINUTE)
    assert 2 <= shop.store.count("claim") <= 4
    await shop.dispatcher.stop()


async def test_a_store_that_returns_too_early_is_asked_ten_times_a_second_at_most():
    shop = await a_shop(wrap=HastyWaits)
    shop.dispatcher.start()
    await shop.clock.advance(MINUTE)
    assert 500 <= shop.store.count("claim") <= 601
    await shop.dispatcher.stop()


async def test_a_store_that_cannot_wait_is_asked_once_a_second():
    shop = await a_shop(wrap=NoWaits)
    shop.dispatcher.start()
    await shop.clock.advance(MINUTE)
    assert 50 <= shop.store.count("claim") <= 61
    await shop.dispatcher.stop()


async def test_an_idle_node_knows_at_once_that_the_store_is_back():
    """Its first claim after an error does not wait for work; the next one does, as ever."""
    shop = await a_shop()
    heard = Heard(shop.events, LoopRecovered)
    shop.store.faults["claim"] = [StoreError("down")] * 3
    shop.dispatcher.start()
    await shop.clock.advance(2_000)

    assert [said.count for said in heard.of(LoopRecovered)] == [3]
    waits = [sent["wait_ms"] for _, sent in shop.store.sent("claim")]
    assert waits[1:4] == [0, 0, 0]
    assert waits[4] > 0
    await shop.clock.advance(MINUTE)
    assert shop.store.count("claim") <= 9
    await shop.dispatcher.stop()


@pytest.mark.parametrize(("stood_still_ms", "starts"), [(25_000, True), (40_000, False)])
async def test_what_a_worker_slept_over_is_not_started(monkeypatch, stood_still_ms, starts):
    """It stands still after the store has leased and before it hears of it: a lease that is over is nobody's."""
    shop = await a_shop()
    started = []
    job = await shop.job("long", waits_for_ever(started))
    await shop.store.claim(node="node-1", token="t", limit=1, lease_ms=1)
    shop.worker.time.learn(shop.clock.now_ms())
    await shop.enqueue(job, "r1")
    claim = shop.store.claim

    async def stands_still(**given):
        claimed = await claim(**given)
        await shop.clock.advance(stood_still_ms)
        return claimed

    monkeypatch.setattr(shop.store, "claim", stands_still)
    await shop.dispatcher.turn()
    await settle_down()
    assert started == (["r1"] if starts else [])
    assert shop.dispatcher.handed_back == (not starts)
    await end(shop)


async def test_a_bell_is_answered_at_once():
    shop = await a_shop()
    started = []
    job = await shop.job("long", waits_for_ever(started))
    shop.dispatcher.start()
    await shop.clock.advance(5_300)
    await shop.enqueue(job, "r1")
    await settle_down()
    assert started == ["r1"]
    await shop.dispatcher.stop()
    await end(shop)


async def test_an_unanswered_claim_is_repeated_with_the_same_token_and_gives_the_same_run():
    shop = await a_shop(seats=2)
    started = []
    job = await shop.job("long", waits_for_ever(started))
    await shop.enqueue(job, "r1")
    shop.store.faults["claim"] = [LOST]
    shop.dispatcher.start()
    await settle_down()
    assert (await shop.run("r1")).state is RunState.LEASED
    assert started == []
    await shop.clock.advance(100)
    assert started == ["r1"]
    first, second, *later = [sent["token"] for _, sent in shop.store.sent("claim")]
    assert first == second
    assert second not in later
    assert (await shop.run("r1")).fence == 1
    await shop.dispatcher.stop()
    await end(shop)


async def test_a_store_that_fails_is_asked_less_and_less():
    shop = await a_shop()
    shop.store.faults["claim"] = [StoreError("down")] * 1_000
    shop.dispatcher.start()
    await shop.clock.advance(MINUTE)
    assert 20 <= shop.store.count("claim") <= 26
    await shop.dispatcher.stop()


async def test_low_priorities_are_asked_for_first_now_and_then():
    """That is the ageing: every 8th claim begins at normal, every 16th at low."""
    shop = await a_shop(wrap=HastyWaits)
    for _ in range(32):
        await shop.dispatcher.turn()
    firsts = [sent["first"] for _, sent in shop.store.sent("claim")]
    assert Counter(firsts) == {1: 28, 2: 2, 3: 2}
    assert firsts[7] == 2
    assert firsts[15] == 3


async def test_every_claim_has_its_own_token():
    shop = await a_shop(wrap=HastyWaits)
    for _ in range(5):
        await shop.dispatcher.turn()
    assert len({sent["token"] for _, sent in shop.store.sent("claim")}) == 5


async def test_a_stopped_run_goes_back_to_the_gate_before_any_handler_code():
    shop = await a_shop()
    started = []
    job = await shop.job("quiet", waits_for_ever(started))
    await shop.enqueue(job, "r1")
    await shop.store.put_notes([NotePut("stop:job:quiet", {"reason": "night", "by": "ann"})])

    await shop.dispatcher.turn()
    await shop.settler.turn()
    run = await shop.run("r1")
    assert started == []
    assert run.state is RunState.HELD
    assert "night" in run.held_reason
    assert (run.attempt, run.lease_losses) == (0, 0)


async def test_a_forced_run_passes_a_stop():
    shop = await a_shop()
    started = []
    job = await shop.job("quiet", waits_for_ever(started))
    await shop.store.put_notes([NotePut("stop:all", {"reason": "night"})])
    await shop.enqueue(job, "r1", cause=Cause.FORCED)
    await shop.dispatcher.turn()
    await settle_down()
    assert started == ["r1"]
    await end(shop)


async def test_stops_are_read_when_they_change_and_only_then():
    shop = await a_shop(seats=9)
    job = await shop.job("long", waits_for_ever())
    for n in range(3):
        await shop.enqueue(job, f"r{n}")
        await shop.dispatcher.turn()
    assert shop.store.count("notes") == 2, "before the first claim, and with it"
    await shop.store.put_notes([NotePut("stop:job:other", {"reason": "x"})])
    await shop.enqueue(job, "r8")
    await shop.dispatcher.turn()
    assert shop.store.count("notes") == 3
    await settle_down()
    await end(shop)


async def test_a_stop_that_has_expired_stops_nobody():
    shop = await a_shop()
    started = []
    job = await shop.job("quiet", waits_for_ever(started))
    now_ms = shop.clock.now_ms()
    await shop.store.put_notes([NotePut("stop:job:quiet", {"reason": "night"}, expires_ms=now_ms + 1_000)])
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    assert shop.dispatcher.handed_back == 1
    await shop.clock.advance(2_000)
    await shop.enqueue(job, "r2")
    await shop.dispatcher.turn()
    await settle_down()
    assert started == ["r2"]
    await end(shop)


async def test_when_the_stops_cannot_be_read_no_handler_starts_and_no_run_is_lost():
    shop = await a_shop()
    started = []
    job = await shop.job("quiet", waits_for_ever(started))
    await shop.enqueue(job, "r1")
    shop.store.faults["notes"] = [StoreTimeout("no answer")]
    shop.dispatcher.start()
    await settle_down()
    assert started == []
    await shop.clock.advance(100)
    assert started == ["r1"]
    assert (await shop.run("r1")).fence == 1
    await shop.dispatcher.stop()
    await end(shop)


async def test_a_run_of_an_unknown_handler_goes_to_the_gate_and_the_store_is_not_asked_again_at_once():
    shop = await a_shop()
    job = await shop.job("stranger")
    await shop.enqueue(job, "r1")
    rest = await shop.dispatcher.turn()
    await shop.settler.turn()
    run = await shop.run("r1")
    assert run.state is RunState.HELD
    assert run.held_reason == "handler stranger is not known here"
    assert rest.ms == 100


async def test_who_else_knows_a_handler_is_asked_anew_but_not_for_every_run():
    shop = await a_shop()
    job = await shop.job("stranger")
    polite = []
    for n in range(4):
        await shop.enqueue(job, f"r{n}")
        await shop.dispatcher.turn()
        await shop.settler.turn()
        polite.append(shop.dispatcher.backoff.is_polling)
        await shop.store.beat(Node("other", handlers=("stranger",)), ttl_ms=45_000)
        await shop.clock.advance(700)
    assert polite == [False, False, False, True]
    assert shop.store.count("nodes") == 2


async def test_a_node_of_another_version_that_knows_the_handler_is_not_let_go_first():
    """It is given no run of ours: to step back for it would only make our own runs late."""
    shop = await a_shop()
    job = await shop.job("stranger")
    await shop.store.beat(Node("far", handlers=("stranger",), scheduler_version=3), ttl_ms=45_000)
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    assert not shop.dispatcher.backoff.is_polling

    await shop.clock.advance(5_000)
    await shop.store.beat(Node("near", handlers=("stranger",)), ttl_ms=45_000)
    await shop.enqueue(job, "r2")
    await shop.dispatcher.turn()
    assert shop.dispatcher.backoff.is_polling


async def test_a_full_feed_makes_it_rest_a_second_and_say_so_once_a_minute():
    shop = await a_shop(options=RuntimeOptions(feed_max=1))
    heard = Heard(shop.events, ClaimsRefused)
    job = await shop.job("job")
    await shop.enqueue(job, "r1", "r2", "r3")
    for run in ("r1", "r2"):
        await shop.store.cancel(run_ids=[run])
    shop.dispatcher.start()
    await shop.clock.advance(10_000)
    assert 8 <= shop.store.count("claim") <= 12
    assert len(heard.all) == 1
    await shop.dispatcher.stop()


async def test_it_claims_nothing_while_too_many_ends_are_not_recorded():
    shop = await a_shop(seats=2)

    async def quick(ctx):
        return None

    job = await shop.job("quick", quick)
    await shop.enqueue(job, *(f"r{n}" for n in range(20)))
    for _ in range(20):
        await shop.dispatcher.turn()
        await settle_down()
    assert shop.settler.backlog == 8
    assert shop.dispatcher.claimed == 8
    shop.dispatcher.start()
    await settle_down()
    assert shop.dispatcher.claimed == 8
    await shop.settler.turn()  # rings: there is room again
    await settle_down()
    assert shop.dispatcher.claimed > 8
    await shop.dispatcher.stop()


async def test_a_drained_dispatcher_claims_nothing_and_goes_on_at_once():
    shop = await a_shop()
    started = []
    job = await shop.job("long", waits_for_ever(started))
    shop.dispatcher.start()
    await settle_down()
    await shop.store.put_notes([NotePut(DRAIN, {})])
    shop.dispatcher.reread_stops()
    await settle_down()
    await shop.enqueue(job, "r1")
    await shop.clock.advance(MINUTE)
    assert started == []
    await shop.store.put_notes([NotePut(DRAIN)])
    shop.dispatcher.reread_stops()
    await settle_down()
    assert started == ["r1"]
    await shop.dispatcher.stop()
    await end(shop)


async def test_what_a_claim_brings_that_a_drain_interrupted_goes_back_and_does_not_start():
    shop, started = await a_shop(seats=2), []
    job = await shop.job("job", waits_for_ever(started))
    shop.dispatcher.start()
    await settle_down()  # it waits for runs

    await shop.store.put_notes([NotePut(DRAIN, {})])
    shop.dispatcher.reread_stops()
    await shop.enqueue(job, "r1")
    await settle_down()
    while shop.settler.backlog:
        await shop.settler.turn()
    run = await shop.run("r1")
    assert (started, run.state, run.attempt) == ([], RunState.READY, 0)

    await shop.dispatcher.stop()


async def test_stopping_ends_the_wait_and_hands_back_what_an_unanswered_claim_left():
    shop = await a_shop()
    job = await shop.job("long", waits_for_ever())
    await shop.enqueue(job, "r1")
    shop.store.faults["claim"] = [LOST]
    shop.dispatcher.start()
    await settle_down()
    await shop.dispatcher.stop()
    assert (await shop.run("r1")).state is RunState.LEASED
    await shop.dispatcher.hand_back_unanswered()
    await shop.settler.turn()
    run = await shop.run("r1")
    assert run.state is RunState.READY
    assert (run.attempt, run.lease_losses) == (0, 0)


async def test_a_run_whose_job_is_gone_is_cancelled():
    shop = await a_shop()
    job = await shop.job("job", waits_for_ever())
    await shop.enqueue(job, "r1")
    claim = shop.store.inner.claim

    async def claim_then_forget(**options):
        claimed = await claim(**options)
        claimed.jobs.clear()
        return claimed

    shop.store.inner.claim = claim_then_forget
    await shop.dispatcher.turn()
    await shop.settler.turn()
    assert (await shop.run("r1")).state is RunState.CANCELLED


@pytest.mark.parametrize("min_poll_ms", [0, 500])
async def test_the_shortest_cycle_is_an_option(min_poll_ms):
    shop = await a_shop(options=RuntimeOptions(min_poll_ms=min_poll_ms), wrap=HastyWaits)
    assert (await shop.dispatcher.turn()).ms == min_poll_ms
