"""Time until every loop works again after a fault has ended, proved in virtual time, where seconds are exact.

Real processes hold the same bounds within ten seconds more: see the other files of this folder.
"""

import asyncio
from random import Random

import pytest

from pollux.errors import StoreError
from pollux.events import Events
from pollux.model import Interval, Job, RunState
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.simulate import VirtualClock, VirtualTime
from pollux.store.contract import JobPut, RunFilter
from pollux.store.handle import DEADLINE_MS
from pollux.store.memory import MemoryStore
from pollux.testing import FaultyStore

START_MS = 1_800_000_000_000
BACKOFF_S = 3.0
DEADLINE_S = DEADLINE_MS / 1000
LONG_POLL_S = 30.0
TTL_S, RENEW_S, MARGIN_S, LEASE_S = 15.0, 5.0, 1.0, 30.0
FAULT_S = 61.0  # longer than every rest, so that every loop has met it, and is at its longest rest
MANY = 100_000

# Which loop cannot work without which verb.
NEEDS = {
    "elect": "leader",
    "feed": "timekeeper",
    "advance": "timekeeper",
    "claim": "dispatcher",
    "settle": "settler",
    "renew": "renewer",
    "beat": "heartbeat",
    "prune": "pruner",
}
# How long a call may hang before it is given up: the deadline of the store, or less where somebody waits for it.
HANGS_S = dict.fromkeys(NEEDS, DEADLINE_S) | {
    "elect": RENEW_S,
    "renew": LEASE_S / 3,
    "feed": DEADLINE_S + LONG_POLL_S,
    "claim": DEADLINE_S + LONG_POLL_S,
}
RESTS_S = dict.fromkeys(NEEDS.values(), LONG_POLL_S) | {"pruner": 60.0, "timeouts": 60.0}


class World:
    """A node that fires and runs a job every second, on a store whose verbs fail and hang on order."""

    def __init__(self):
        self.time = VirtualTime(asyncio.get_running_loop())
        self.clock = VirtualClock(self.time, START_MS)
        self.memory = MemoryStore(self.clock)
        self.line = FaultyStore(self.memory)
        self.never = asyncio.Event()
        self.done = []  # when handlers ended, in seconds
        self.runtime = self.a_crew("n1", self.line)

    def a_crew(self, node_id, line):
        registry = Registry()
        registry.add("tick", self._tick)
        registry.add("slow", self._slow)
        options = RuntimeOptions(renews_apart=False, isolates=False, seats=8, lease_ms=int(LEASE_S * 1000))
        dice = Random(7)
        return NodeRuntime(
            line, registry, options=options, clock=self.clock, events=Events(), dice=dice, node_id=node_id
        )

    async def _tick(self, ctx):
        self.done.append(self.time.time())

    async def _slow(self, ctx):
        await asyncio.sleep(25)  # so that there always is a lease to renew

    def loops(self, runtime=None):
        return {status.name: status for status in (runtime or self.runtime).status().loops}

    def ends_after(self, at):
        return [ended for ended in self.done if ended > at]

    async def __aenter__(self):
        self.time.install()
        await self.memory.open()
        jobs = [Job(id="tick", handler="tick", schedule=Interval(1_000))]
        jobs.append(Job(id="slow", handler="slow", schedule=Interval(30_000)))
        await self.memory.put_jobs([JobPut(job) for job in jobs])
        await self.runtime.start()
        await asyncio.sleep(70)
        assert len(self.done) >= 60
        return self

    async def __aexit__(self, *_):
        self.line.mend()
        self.never.set()
        await self.runtime.stop()
        self.time.restore()


@pytest.mark.parametrize("verb", NEEDS)
async def test_after_a_verb_has_failed_for_a_minute_its_loop_works_again_within_three_seconds(verb):
    async with World() as world:
        errors = world.loops()[NEEDS[verb]].errors
        world.line.fail(verb, StoreError("down"), times=MANY)
        await asyncio.sleep(FAULT_S)
        assert world.loops()[NEEDS[verb]].errors >= errors + 5, "it never met the fault: the test does not bite"

        world.line.mend()
        mended = world.time.time()
        await asyncio.sleep(BACKOFF_S + 0.001)

        assert {name: loop.errors_in_a_row for name, loop in world.loops().items() if loop.errors_in_a_row} == {}
        await asyncio.sleep(1.0)
        assert world.ends_after(mended), "nothing ran"


async def test_after_the_store_was_down_for_a_minute_everything_works_within_three_seconds():
    async with World() as world:
        for verb in NEEDS:
            world.line.fail(verb, StoreError("down"), times=MANY)
        await asyncio.sleep(FAULT_S)
        assert world.runtime.status().term is None

        world.line.mend()
        mended = world.time.time()
        await asyncio.sleep(BACKOFF_S + 0.001)

        assert {name: loop.errors_in_a_row for name, loop in world.loops().items() if loop.errors_in_a_row} == {}
        assert world.runtime.status().term is not None
        await asyncio.sleep(1.0)
        assert world.ends_after(mended)


@pytest.mark.parametrize("verb", NEEDS)
async def test_a_call_that_hangs_for_ever_holds_its_loop_up_for_its_deadline_and_no_longer(verb):
    """One answer never comes; the next call of that verb is answered.  No other loop stands still meanwhile."""
    async with World() as world:
        world.line.struck.clear()
        world.line.delay(verb, world.never)
        while not world.line.struck:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.01)
        struck, name = world.time.time(), NEEDS[verb]
        turns = world.loops()[name].turns
        while world.loops()[name].turns == turns:
            await asyncio.sleep(0.01)
            assert world.time.time() - struck <= HANGS_S[verb] + 0.1, f"{name} is wedged"
        over = world.time.time()
        await asyncio.sleep(BACKOFF_S)
        assert world.loops()[name].errors_in_a_row == 0
        assert world.ends_after(over), "nothing ran"
        still = {n: loop.turned_ms for n, loop in world.loops().items() if loop.turned_ms > 1_000 * RESTS_S[n] + 100}
        assert still == {}, "a loop stands still"


async def test_a_leader_whose_calls_all_hang_stops_trusting_before_another_may_lead():
    """Counted from before its last question that was answered; the other one plans within the ttl and three seconds."""
    async with World() as world:
        other_line = FaultyStore(world.memory)
        other = world.a_crew("n2", other_line)
        await other.start()
        await asyncio.sleep(20)
        assert (world.runtime.status().term, other.status().term) == (1, None)

        for verb in NEEDS:
            world.line.delay(verb, world.never, times=MANY)
        cut = world.time.time()
        while other.status().term is None:
            await asyncio.sleep(0.01)
            assert world.time.time() - cut <= TTL_S + BACKOFF_S
            assert not (world.runtime.status().term and other.status().term), "two of them believe that they lead"
        assert world.runtime.status().term is None
        took_over = world.time.time()
        await asyncio.sleep(LEASE_S + BACKOFF_S)
        assert world.ends_after(took_over)

        world.line.mend()
        await asyncio.sleep(HANGS_S["claim"] + BACKOFF_S)
        assert {name: loop.errors_in_a_row for name, loop in world.loops().items() if loop.errors_in_a_row} == {}
        assert world.runtime.status().term is None
        await other.stop()


async def test_what_a_dead_worker_held_is_run_by_another_within_its_lease_and_two_seconds():
    """Nothing that it asks is answered any more, from the moment of its last renewal on at the latest."""
    async with World() as world:
        other = world.a_crew("n2", FaultyStore(world.memory))
        held = None
        while held is None:
            await asyncio.sleep(0.1)
            found = (await world.memory.list_runs(RunFilter(job_id="slow", states=(RunState.LEASED,)))).runs
            held = found[0] if found else None
        await other.start()
        for verb in NEEDS:
            world.line.delay(verb, world.never, times=MANY)
        cut = world.time.time()
        while True:
            [run] = await world.memory.get_runs([held.id])
            if run.owner != held.owner and run.state is RunState.LEASED:
                break
            await asyncio.sleep(0.01)
            assert world.time.time() - cut <= LEASE_S + 2, "nobody took it up"
        assert (run.fence, run.lease_losses) == (held.fence + 1, 1)
        await other.stop()
