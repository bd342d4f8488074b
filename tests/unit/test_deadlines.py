"""Deadlines and cut-offs: the task's cancellation count is restored, and other cancellations pass through."""

import asyncio
import time

import pytest

from pollux.clock import LATE_S, CutOff, Deadlines, SystemClock
from pollux.errors import StoreError, StoreTimeout
from pollux.store.memory import MemoryStore
from pollux.testing.faults import FaultyStore


async def bounded(deadlines, call, seconds=0.01):
    cut_off = deadlines.enter(seconds)
    try:
        return await call
    except asyncio.CancelledError:
        if not cut_off.is_over():
            raise
        raise StoreTimeout("too late") from None
    finally:
        deadlines.leave(cut_off)


async def for_ever():
    await asyncio.Event().wait()


async def stubborn(answer):
    """Ends when it is cancelled, but in its own way."""
    try:
        await for_ever()
    except asyncio.CancelledError:
        if isinstance(answer, Exception):
            raise answer from None
        return answer


def cancelling():
    return asyncio.current_task().cancelling()


async def test_a_wait_that_is_cut_off_leaves_no_cancelling_behind():
    with pytest.raises(StoreTimeout):
        await bounded(Deadlines(), for_ever())
    assert cancelling() == 0


async def test_nor_does_one_whose_call_ended_otherwise_when_it_was_cut_off():
    """Else a wait around it would take its own end for a cancelling by somebody else, and a loop would end by it."""
    deadlines = Deadlines()
    assert await bounded(deadlines, stubborn("answer")) == "answer"
    assert cancelling() == 0
    with pytest.raises(StoreError):
        await bounded(deadlines, stubborn(StoreError("gone")))
    assert cancelling() == 0


async def test_a_wait_around_calls_that_ended_otherwise_still_knows_its_own_end():
    outer, deadlines = CutOff(), Deadlines()
    try:
        await bounded(deadlines, stubborn("answer"))
        asyncio.get_running_loop().call_soon(outer.end)
        await for_ever()
    except asyncio.CancelledError:
        assert outer.is_over()
    finally:
        outer.leave()
    assert cancelling() == 0


async def test_a_waiter_that_is_cancelled_at_the_same_moment_stays_cancelled():
    async def wait():
        await bounded(Deadlines(), for_ever(), 60)

    async def wait_within():
        outer = CutOff()
        asyncio.get_running_loop().call_later(0.01, lambda: (waiter.cancel(), outer.end()))
        try:
            await wait()
        except asyncio.CancelledError:
            assert not outer.is_over()
            raise
        finally:
            outer.leave()

    waiter = asyncio.ensure_future(wait_within())
    await asyncio.wait({waiter})
    assert waiter.cancelled()


async def test_of_two_waits_that_end_at_once_the_outer_one_is_over():
    deadlines, outer = Deadlines(), CutOff()
    asyncio.get_running_loop().call_later(0.01, lambda: (outer.end(), deadlines._end_overdue()))
    try:
        await bounded(deadlines, for_ever(), 0.005)
    except (asyncio.CancelledError, StoreTimeout):
        outer.is_over()
    finally:
        outer.leave()
    assert cancelling() == 0


def test_a_deadline_holds_in_the_next_loop_too():
    """A handle that is closed in one loop and opened in another: the timer of the first loop never rings again."""
    deadlines = Deadlines()

    async def answered():
        await bounded(deadlines, asyncio.sleep(0), 0.05)

    async def unanswered():
        async with asyncio.timeout(60):
            with pytest.raises(StoreTimeout):
                await bounded(deadlines, for_ever(), 0.1)

    asyncio.run(answered())
    asyncio.run(unanswered())


# a loop that is held


def hold_the_loop():
    time.sleep(2 * LATE_S)


async def test_an_answer_that_came_while_the_loop_was_held_is_heard():
    """The deadline rings first when the loop is free, and the answer waits behind it."""
    loop, answer = asyncio.get_running_loop(), asyncio.Event()
    deadlines = Deadlines()

    async def asked():
        loop.call_soon(hold_the_loop)
        loop.call_later(0.02, loop.call_soon, loop.call_soon, answer.set)
        await answer.wait()
        return "answer"

    assert await bounded(deadlines, asked()) == "answer"
    assert cancelling() == 0


async def test_one_that_never_comes_is_given_up_a_moment_later_and_the_loop_is_known_to_have_been_held(monkeypatch):
    monkeypatch.setattr("pollux.clock.GRACE_S", 0.01)
    deadlines, cut_off = Deadlines(), None
    with pytest.raises(asyncio.CancelledError):  # noqa: PT012  the wait itself is what is looked at
        cut_off = deadlines.enter(0.01)
        hold_the_loop()
        await for_ever()
    assert cut_off.is_over()
    assert cut_off.late_s > LATE_S / 2
    assert cancelling() == 0


async def test_a_store_that_is_not_to_blame_is_not_blamed(monkeypatch):
    monkeypatch.setattr("pollux.clock.GRACE_S", 0.01)
    store = FaultyStore(MemoryStore(SystemClock()))
    store.delay("counts", asyncio.Event(), times=2)
    store.deadline_ms = 50
    asyncio.get_running_loop().call_soon(hold_the_loop)
    with pytest.raises(
        StoreTimeout, match=r"no answer to counts was heard in time: the event loop was blocked, \d+ ms"
    ):
        await store.counts()
    with pytest.raises(StoreTimeout, match="the store did not answer counts within 50 ms"):
        await store.counts()
