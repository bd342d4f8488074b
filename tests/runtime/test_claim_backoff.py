"""Nodes with different code on one store: runs reach nodes with their handler, and no node spins or starves."""

import asyncio
from random import Random

import pytest

from pollux.clock import FakeClock
from pollux.events import Events
from pollux.model import Cause, Job, RunState, run_of
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.runtime.dispatcher import ClaimBackoff
from pollux.simulate import VirtualClock, VirtualTime
from pollux.store.contract import JobPut, RunFilter
from pollux.store.memory import MemoryStore
from pollux.testing.faults import FaultyStore


def a_manner():
    clock = FakeClock()
    return clock, ClaimBackoff(clock=clock, dice=Random(1))


async def test_who_sees_no_runs_of_strangers_claims_as_ever():
    _, backoff = a_manner()
    backoff.record(seated=3, limit=3, claimed=3, others_can=False)
    assert not backoff.is_polling
    assert backoff.limit(4) == 4
    assert backoff.rest_ms(100) == 100


async def test_who_sees_one_looks_now_and_then_for_half_a_minute():
    clock, backoff = a_manner()
    backoff.record(seated=0, limit=3, claimed=1, others_can=True)
    assert backoff.is_polling
    assert backoff.limit(4) == 100
    assert 375 <= backoff.rest_ms(100) <= 625
    await clock.advance(30_000)
    assert not backoff.is_polling


async def test_looks_that_find_nothing_else_come_less_often_but_at_least_every_two_seconds_or_so():
    _, backoff = a_manner()
    for _ in range(10):
        backoff.record(seated=0, limit=100, claimed=1, others_can=True)
    assert 1_500 <= backoff.rest_ms(100) <= 2_500
    backoff.record(seated=1, limit=100, claimed=2, others_can=True)
    assert backoff.rest_ms(100) <= 625


async def test_a_look_that_was_full_is_followed_by_the_next_soon():
    _, backoff = a_manner()
    backoff.record(seated=0, limit=100, claimed=100, others_can=True)
    assert backoff.rest_ms(100) == 100


# in virtual time


class World:
    """Nodes with different handlers on one memory store; whoever is started first is rung first."""

    def __init__(self):
        self.time = VirtualTime(asyncio.get_running_loop())
        self.clock = VirtualClock(self.time, 1_000_000)
        self.store = MemoryStore(self.clock)
        self.crews = []
        self.ran = []

    async def __aenter__(self):
        self.time.install()
        await self.store.open()
        return self

    async def __aexit__(self, *_):
        for runtime in self.crews:
            await runtime.stop()
        self.time.restore()

    async def node(self, *handlers, seats=2, work_s=0.0):
        registry, number = Registry(), len(self.crews)

        async def work(ctx):
            self.ran.append((number, ctx.run.id))
            await asyncio.sleep(work_s)

        for handler in handlers:
            registry.add(handler, work)
        runtime = NodeRuntime(
            FaultyStore(self.store),
            registry,
            options=RuntimeOptions(seats=seats, renews_apart=False),
            clock=self.clock,
            events=Events(),
            dice=Random(number),
            node_id=f"node-{number}",
        )
        await runtime.start()
        self.crews.append(runtime)
        return runtime

    async def enqueue(self, handler, *ids):
        job = Job(id=handler, handler=handler)
        await self.store.put_jobs([JobPut(job)])
        await self.store.enqueue([run_of(job, self.clock.now_ms(), Cause.ENQUEUED, id=id) for id in ids])

    async def until_done(self, job_id, count=1):
        """The seconds until so many runs of the job have ended."""
        begun = self.time.time()
        async with asyncio.timeout(600):
            while await self._done(job_id) < count:  # noqa: ASYNC110  virtual time
                await asyncio.sleep(0.05)
        return self.time.time() - begun

    async def _done(self, job_id):
        page = await self.store.list_runs(RunFilter((RunState.DONE,), job_id=job_id), limit=1_000)
        return len(page.runs)


@pytest.mark.parametrize("strangers", [1, 2, 5])
async def test_a_run_comes_to_the_one_node_that_knows_its_handler(strangers):
    """Those that do not know it are first at every bell, until they stop waiting there."""
    async with World() as world:
        for _ in range(strangers):
            await world.node("other")
        await world.node("ours")
        await asyncio.sleep(1)
        await world.enqueue("ours", "r1")
        took = await world.until_done("ours")
        assert took <= 1 + strangers
        assert world.ran == [(strangers, "r1")]
        await world.enqueue("ours", "r2")
        assert await world.until_done("ours", 2) <= 1.5, "they have learnt to let it go first"


async def test_a_node_that_comes_later_with_the_handler_gets_what_was_held_for_it():
    async with World() as world:
        for _ in range(5):
            await world.node("other")
        await world.enqueue("ours", *(f"r{n}" for n in range(10)))
        await asyncio.sleep(10)
        await world.node("ours", seats=5)
        assert await world.until_done("ours", 10) <= 10
        assert {number for number, _ in world.ran} == {5}


async def test_our_own_run_is_found_behind_hundreds_of_others_that_nobody_can_run_just_now():
    async with World() as world:
        await world.node("busy", seats=1, work_s=3_600)
        await asyncio.sleep(1)
        await world.enqueue("busy", *(f"b{n}" for n in range(500)))
        await asyncio.sleep(5)
        await world.node("ours", seats=2)
        await world.enqueue("ours", "r1")
        assert await world.until_done("ours") <= 10


async def test_a_node_that_cannot_run_what_is_there_asks_seldom():
    """The node that could is busy for an hour: nobody may make a storm of it."""
    async with World() as world:
        await world.node("busy", seats=1, work_s=3_600)
        idle = await world.node("other")
        await asyncio.sleep(1)
        await world.enqueue("busy", "b1", "b2")
        await asyncio.sleep(30)
        idle.store.calls.clear()
        await asyncio.sleep(60)
        calls = len(idle.store.calls)
        assert calls <= 60 * 2.5, f"{calls} calls a minute"
        await world.enqueue("other", "r1")
        assert await world.until_done("other") <= 3, "and its own runs wait for it no longer than that"


async def test_a_run_that_nobody_can_run_is_nobodys_hurry():
    """A single node with one bad job still takes its other runs at the bell."""
    async with World() as world:
        node = await world.node("ours")
        await asyncio.sleep(1)
        for n in range(3):
            await world.enqueue("nobody", f"n{n}")
            await asyncio.sleep(1)
            assert not node.dispatcher.backoff.is_polling
            await world.enqueue("ours", f"r{n}")
            assert await world.until_done("ours", n + 1) <= 0.2


async def test_when_the_strangers_are_gone_it_waits_at_the_bell_again():
    async with World() as world:
        node = await world.node("other")
        await world.node("ours")
        await asyncio.sleep(1)
        await world.enqueue("ours", "r1")
        await world.until_done("ours")
        await asyncio.sleep(40)
        node.store.calls.clear()
        await asyncio.sleep(60)
        assert node.store.calls.count("claim") <= 15, "it rests in the store"
