"""A call that hangs delays nothing but itself.  One verb of a node goes to a real server through a frozen proxy."""

import asyncio
import contextlib
import time
from random import Random

import pytest

from pollux.clock import SystemClock
from pollux.errors import StoreTimeout
from pollux.events import Events, TermLost
from pollux.model import Interval, Job
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.store.contract import JobPut
from pollux.store.handle import StoreHandle
from tests.chaos.yard import wait_until
from tests.faults.backends import by_way_of

DEADLINE_MS = 1_500
LONG_POLL_MS = 500  # who waits for a ring that cannot be heard looks for itself after that
TTL_MS, RENEW_MS, LEASE_MS = 3_000, 1_000, 60_000
HUNG = {"elect": "leader", "claim": "dispatcher", "settle": "settler", "feed": "timekeeper"}
BACKOFF_S, SLACK_S = 3.0, 10.0


class Fork:
    """A backend whose one verb goes another way."""

    def __init__(self, near, far, verb):
        self.near, self.far, self.verb = near.backend, far.backend, verb
        self.capabilities = near.capabilities

    def write(self, verb, *args, **options):
        return (self.far if verb == self.verb else self.near).write(verb, *args, **options)

    def __getattr__(self, name):
        return getattr(self.far if name == self.verb else self.near, name)


class Scene:
    """A node in this process, on a store of its own, that fires and runs a job five times a second."""

    def __init__(self, verb, near, far):
        self.verb, self.near, self.far = verb, near, far
        self.events, self.done, self.terms_lost = Events(), [], []
        self.events.listen(TermLost, self.terms_lost.append)
        registry = Registry()
        registry.add("tick", self._tick)
        options = RuntimeOptions(
            renews_apart=False,
            seats=4,
            lease_ms=LEASE_MS,
            leader_ttl_ms=TTL_MS,
            leader_renew_ms=RENEW_MS,
            long_poll_ms=LONG_POLL_MS,
        )
        store = StoreHandle(Fork(near, far, verb))
        clock, dice = SystemClock(), Random(5)
        self.runtime = NodeRuntime(
            store, registry, options=options, clock=clock, events=self.events, dice=dice, node_id=f"n-{verb}"
        )

    async def _tick(self, ctx):
        self.done.append(time.monotonic())

    async def open(self):
        await self.near.open()
        await wait_until(self._opened_far, "the way through the proxy")
        await self.near.put_jobs([JobPut(Job(id="tick", handler="tick", schedule=Interval(200)))])
        await self.runtime.start()

    async def _opened_far(self):
        """Its deadline is short, and a busy machine may need longer to open it."""
        try:
            await self.far.open()
        except StoreTimeout:
            return False
        return True

    async def close(self):
        await self.runtime.stop()
        await self.far.close()
        await self.near.close()

    @property
    def loop(self):
        return self.loop_named(HUNG[self.verb])

    def loop_named(self, name):
        return next(loop for loop in self.runtime.status().loops if loop.name == name)

    def runs_since(self, at):
        return sum(done > at for done in self.done)


@pytest.fixture
async def scenes(backend, url, proxy):
    """One for each verb; all their far ways lead through the same proxy."""
    scenes = []
    for verb in HUNG:
        own = backend.own_url("hung")
        far = by_way_of(own, proxy)
        scenes.append(Scene(verb, backend.make(own), backend.make(far, deadline_ms=DEADLINE_MS)))
    async with contextlib.AsyncExitStack() as opened:
        for scene in scenes:
            await scene.open()
            opened.push_async_callback(scene.close)
        yield scenes
        proxy.mend()


async def test_a_call_that_hangs_wedges_no_loop_and_all_goes_on_when_the_way_is_free(scenes, proxy):
    """Each loop gives its call up by its deadline and asks again; a leader that hears nothing stops trusting its term
    before its time is over; and when the way is free everything works again within the longest rest."""

    async def all_run():
        return all(scene.runs_since(0) >= 3 for scene in scenes)

    await wait_until(all_run, "the first runs")
    errors = {scene.verb: scene.loop.errors for scene in scenes}
    proxy.freeze()
    frozen = time.monotonic()
    believed = await _until_nobody_believes(scenes[0], frozen)

    async def all_gave_up():
        return all(scene.loop.errors >= errors[scene.verb] + 2 for scene in scenes)

    await wait_until(all_gave_up, "a second try of every loop", seconds=2 * DEADLINE_MS / 1000 + BACKOFF_S + SLACK_S)
    assert believed <= TTL_MS / 1000, "it believed in its term after the store may have given it away"
    assert scenes[0].terms_lost[0].why == "the store did not answer in time"
    for scene in scenes:
        others = [
            loop.name for loop in scene.runtime.status().loops if loop.errors_in_a_row and loop.name != HUNG[scene.verb]
        ]
        assert others == [], f"{scene.verb}: others fail, too"
        if scene.verb == "claim":
            assert scene.loop_named("timekeeper").turns > 5
    proxy.mend()
    mended = time.monotonic()

    async def all_work():
        return all(scene.loop.errors_in_a_row == 0 and scene.runs_since(mended) >= 3 for scene in scenes)

    await wait_until(all_work, "work of all loops", seconds=BACKOFF_S + SLACK_S)


async def _until_nobody_believes(scene, since):
    """How long its leader was seen to trust its term; its last question was sent before the way was frozen."""
    asked = believed = since
    while scene.runtime.status().term is not None:
        believed = asked  # the moment before the look: a machine that stands still in between proves nothing
        await asyncio.sleep(0.005)
        asked = time.monotonic()
        assert asked - since <= TTL_MS / 1000 + SLACK_S, "it believes for ever"
    return believed - since
