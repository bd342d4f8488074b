"""Leases, terms and beats after a jump of the clock."""

import asyncio

from pollux.clock import FakeClock
from pollux.store.clock_jumps import JumpGuard
from pollux.store.contract import Answer
from pollux.store.memory import MemoryStore
from pollux.testing.conformance.builders import a_run, given, ids, renewal

HOUR = 3_600_000


async def test_time_that_passes_is_no_leap():
    clock = FakeClock()
    guard = JumpGuard(clock)

    await clock.advance(HOUR)

    assert (guard.hold_ms(), guard.leaps) == (0, 0)


async def test_a_leap_forwards_holds_for_a_third_of_the_lease_and_two_seconds():
    clock = FakeClock()
    guard = JumpGuard(clock)
    clock.jump(HOUR)

    assert 11_900 <= guard.hold_ms(30_000) <= 12_001
    await clock.advance(11_000)
    assert 0 < guard.hold_ms(30_000) <= 1_001
    await clock.advance(1_001)
    assert (guard.hold_ms(30_000), guard.leaps) == (0, 1)


async def test_a_small_correction_and_a_leap_backwards_hold_nothing():
    clock = FakeClock()
    guard = JumpGuard(clock)

    clock.jump(900)
    assert guard.hold_ms() == 0
    clock.jump(-HOUR)
    assert guard.hold_ms() == 0


async def claim(store, token, **fields):
    return await store.claim(node="n", token=token, limit=9, lease_ms=30_000, **fields)


async def opened(clock):
    store = MemoryStore(clock)
    await store.open()
    await given(store, a_run("a", due_ms=0))
    return store


async def test_after_a_leap_the_owner_can_renew_before_anybody_takes_its_lease():
    clock = FakeClock()
    store = await opened(clock)
    [run] = (await claim(store, "first")).runs

    clock.jump(HOUR)
    empty = await claim(store, "thief")
    [renewed] = await store.renew([renewal(run)], lease_ms=30_000)

    assert (empty.runs, renewed.answer) == ((), Answer.OK)
    assert empty.look_again_ms is not None
    assert empty.look_again_ms > empty.now_ms
    await clock.advance(20_000)
    assert (await claim(store, "later")).runs == ()


async def test_after_the_grace_the_dead_lose_their_leases():
    clock = FakeClock()
    store = await opened(clock)
    await claim(store, "first")
    clock.jump(HOUR)
    await claim(store, "second")

    await clock.advance(12_001)

    assert ids((await claim(store, "third")).runs) == ["a"]


async def test_a_claim_that_waits_through_the_grace_gets_the_run_at_its_end():
    clock = FakeClock()
    store = await opened(clock)
    await claim(store, "first")
    clock.jump(HOUR)
    waiting = asyncio.ensure_future(claim(store, "second", wait_ms=60_000))
    await clock.advance(11_000)
    assert not waiting.done()
    await clock.advance(2_000)

    assert ids((await waiting).runs) == ["a"]
