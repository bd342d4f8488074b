"""The base class of loops: it rests, wakes, stops, counts and catches; `turn` does nothing of that."""

import asyncio

import pytest

from pollux.clock import FakeClock
from pollux.events import Events, LoopFailed, LoopRecovered
from pollux.runtime.loop import Loop, Rest
from tests.runtime.fakes import Heard, settle_down


class Script(Loop):
    """Each turn does the next thing of the script: rest, raise, or call."""

    def __init__(self, *script, after=Rest.UNTIL_WOKEN, **options):
        self.heard_events = Events()
        self.heard = Heard(self.heard_events, LoopFailed, LoopRecovered)
        super().__init__("script", clock=FakeClock(), events=self.heard_events, **options)
        self.script, self.after = list(script), after
        self.turned_at = []

    async def turn(self):
        self.turned_at.append(self.clock.mono_ms())
        step = self.script.pop(0) if self.script else self.after
        if isinstance(step, Exception):
            raise step
        if callable(step):
            return await step(self)
        return step


async def started(loop):
    loop.start()
    await settle_down()
    return loop


async def test_a_loop_rests_as_long_as_its_turn_said():
    loop = await started(Script(Rest(100), Rest(250)))
    await loop.clock.advance(1_000)
    assert loop.turned_at == [0, 100, 350]
    await loop.stop()


async def test_a_nudge_ends_the_rest():
    loop = await started(Script())
    await loop.clock.advance(500)
    loop.nudge()
    await settle_down()
    assert loop.turned_at == [0, 500]
    await loop.stop()


async def test_a_rest_never_lasts_longer_than_its_safety_net():
    loop = await started(Script(Rest(10**9), rest_max_ms=30_000))
    await loop.clock.advance(70_000)
    assert loop.turned_at == [0, 30_000, 60_000]
    await loop.stop()


async def test_what_rings_during_a_turn_is_answered_by_the_next_one():
    async def rung_meanwhile(loop):
        loop.nudge()
        return Rest.UNTIL_WOKEN

    loop = await started(Script(rung_meanwhile))
    assert loop.turns == 2
    await loop.stop()


async def test_what_rings_as_soon_as_the_turn_is_over_costs_no_timer():
    """A turn that starts handlers often has nothing else to wait for: they are done before it would set a timer."""

    async def begins_what_is_over_at_once(loop):
        asyncio.get_running_loop().call_soon(loop.nudge)
        return Rest.UNTIL_WOKEN

    class Asked(FakeClock):
        waits = 0

        async def wait(self, event, timeout_ms):
            self.waits += not event.is_set()
            return await super().wait(event, timeout_ms)

    loop = Script(begins_what_is_over_at_once)
    loop.clock = clock = Asked()
    await started(loop)
    assert (loop.turns, clock.waits) == (2, 1)
    await loop.stop()


async def test_a_turn_that_raises_is_counted_said_once_and_tried_again_later_each_time():
    errors = [RuntimeError(str(n)) for n in range(8)]
    loop = await started(Script(*errors))
    await loop.clock.advance(30_000)

    gaps = [b - a for a, b in zip(loop.turned_at, loop.turned_at[1:], strict=False)]
    assert gaps[:7] == [100, 200, 400, 800, 1_600, 3_000, 3_000]
    assert loop.errors == 8
    assert loop.is_alive
    [said] = loop.heard.of(LoopFailed)
    assert (said.loop, said.error, said.count, said.rest_ms) == ("script", errors[0], 1, 100)
    [recovered] = loop.heard.of(LoopRecovered)
    assert recovered.count == 8
    assert loop.status().errors_in_a_row == 0
    await loop.stop()


async def test_a_turn_that_did_nothing_tells_nobody_that_it_works_again():
    """A leader that lost its term while the store was down has not planned again; the next turn that works says so."""
    loop = await started(Script(RuntimeError("down"), RuntimeError("down"), Rest.STANDBY, Rest.STANDBY, Rest(1_000)))
    await loop.clock.advance(1_000)
    assert (loop.heard.of(LoopRecovered), loop.status().errors_in_a_row) == ([], 0)
    for _ in range(2):
        loop.nudge()
        await settle_down()
    [recovered] = loop.heard.of(LoopRecovered)
    assert recovered.count == 2
    await loop.stop()


async def test_a_loop_that_keeps_failing_says_so_once_a_minute():
    loop = await started(Script(*(RuntimeError("again") for _ in range(60))))
    await loop.clock.advance(150_000)
    assert [said.count for said in loop.heard.of(LoopFailed)] == [1, 25, 45]
    await loop.stop()


async def test_a_loop_that_fails_every_other_time_does_not_say_so_every_other_time():
    loop = await started(Script(*[RuntimeError("flaps"), Rest(1_000)] * 20))
    await loop.clock.advance(21_000)
    assert loop.errors > 10
    assert len(loop.heard.of(LoopFailed)) == len(loop.heard.of(LoopRecovered)) == 1
    await loop.stop()


async def test_the_rest_after_an_error_is_deaf_to_nudges_but_not_to_wake():
    loop = await started(Script(RuntimeError("down"), RuntimeError("down"), RuntimeError("down")))
    for _ in range(10):
        loop.nudge()
        await settle_down()
    assert loop.turns == 1
    loop.wake()
    await settle_down()
    assert loop.turns == 2
    await loop.stop()


async def test_wake_ends_a_wait_inside_the_turn_and_nudge_does_not():
    async def wait_for_ever(loop):
        answer = await loop.interruptible(asyncio.Event().wait())
        return Rest.UNTIL_WOKEN if answer is None else Rest.NONE

    loop = await started(Script(wait_for_ever, wait_for_ever))
    loop.nudge()
    await settle_down()
    assert loop.turns == 0
    loop.wake()
    await settle_down()
    assert loop.turns == 1
    assert len(loop.turned_at) == 2
    await loop.stop()
    assert not loop.is_alive


async def test_a_wake_during_a_turn_is_known_to_it_before_it_waits():
    async def woken_first(loop):
        before = loop.is_woken
        loop.wake()
        seen.append((before, loop.is_woken))
        return Rest.UNTIL_WOKEN

    seen = []
    loop = await started(Script(woken_first))
    assert seen == [(False, True)]
    assert loop.turns == 2
    await loop.stop()


async def test_cancellation_is_not_an_error():
    async def wait_for_ever(loop):
        await loop.interruptible(asyncio.Event().wait())
        return Rest.NONE

    loop = await started(Script(wait_for_ever))
    going = loop._running
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert loop.errors == 0


async def test_a_turn_that_hangs_is_cut_off_when_the_patience_is_over():
    ended = []

    async def hang(loop):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    loop = await started(Script(hang))
    await loop.stop(timeout_ms=10)
    assert ended == [True]


async def test_stopping_lets_the_turn_under_way_end():
    may_end, ended = asyncio.Event(), []

    async def work(loop):
        await may_end.wait()
        ended.append(True)
        return Rest.NONE

    loop = await started(Script(work, after=Rest.NONE))
    stopping = asyncio.ensure_future(loop.stop())
    await settle_down()
    may_end.set()
    await stopping
    assert ended == [True]
    assert loop.turns == 1


async def test_a_loop_that_never_rests_starves_nobody():
    loop = await started(Script(after=Rest.NONE))
    before = loop.turns
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < loop.turns - before <= 3
    await loop.stop()
