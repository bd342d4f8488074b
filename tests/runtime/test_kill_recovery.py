"""Time until the harmless runs are done after workers were killed, in virtual time, with real children."""

import asyncio
from collections import Counter
from random import Random

import pytest

from pollux.events import Events
from pollux.model import Cause, Job, Retry, RunState, run_of
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.simulate import VirtualClock, VirtualTime
from pollux.store.contract import JobPut, RunFilter
from pollux.store.memory import MemoryStore
from tests.runtime import innocent_work

START_MS = 1_800_000_000_000
LEASE_S, MORE_S = 30.0, 5.0
INNOCENTS, SEATS, WORKERS = 1_000, 100, 11
SOON = Retry(attempts_max=4, base_ms=20, factor=1.0, max_ms=20)
CALLS = {"innocent": innocent_work.innocent, "poison": innocent_work.poison}


class Worker:
    """A node that only runs; whoever kills it starts another in its place, as a supervisor does."""

    def __init__(self, ward, number):
        self.ward = ward
        registry = Registry()
        for name, call in CALLS.items():
            registry.add(name, call)
        options = RuntimeOptions(plans=False, renews_apart=False, seats=SEATS, lease_ms=int(LEASE_S * 1000))
        self.runtime = NodeRuntime(
            ward.store,
            registry,
            options=options,
            clock=ward.clock,
            events=Events(),
            dice=Random(number),
            node_id=f"n{number}",
        )

    def has_suspects(self):
        return any(attempt.is_isolated for attempt in self.runtime.worker.running)

    def die(self):
        """It settles nothing and hands nothing back; its leases run out by themselves."""
        self.ward.living.remove(self)
        self.ward.deaths.append(self.ward.time.time())
        self.runtime.vanish()
        self.ward.start()


class Ward:
    def __init__(self):
        self.time = VirtualTime(asyncio.get_running_loop())
        self.time.is_busy_elsewhere = self._has_suspects
        self.clock = VirtualClock(self.time, START_MS)
        self.store = MemoryStore(self.clock)
        self.workers, self.living, self.deaths, self.starting = [], [], [], []

    def start(self):
        worker = Worker(self, len(self.workers) + 1)
        self.workers.append(worker)
        self.living.append(worker)
        innocent_work.workers[worker.runtime.node_id] = worker
        self.starting.append(asyncio.ensure_future(worker.runtime.start()))

    def _has_suspects(self):
        """Children work and end in real time: virtual time waits for them."""
        return any(worker.runtime.worker.idle_children._ends or worker.has_suspects() for worker in self.workers)

    async def __aenter__(self):
        self.time.install()
        await self.store.open()
        jobs = [Job(id=name, handler=name, retry=SOON) for name in CALLS]
        await self.store.put_jobs([JobPut(job) for job in jobs])
        for _ in range(WORKERS):
            self.start()
        await asyncio.gather(*self.starting)
        now_ms = self.clock.now_ms()
        await self.store.enqueue([run_of(jobs[1], now_ms, Cause.ENQUEUED, id="p")])
        for start in range(0, INNOCENTS, 100):
            ids = [f"i{number}" for number in range(start, start + 100)]
            await self.store.enqueue([run_of(jobs[0], now_ms, Cause.ENQUEUED, id=id) for id in ids])
        return self

    async def __aexit__(self, *_):
        await asyncio.gather(*self.starting)
        await asyncio.gather(*(worker.runtime.stop() for worker in self.living))
        innocent_work.workers.clear()
        self.time.restore()

    async def runs(self, *states):
        found, after = [], None
        while True:
            page = await self.store.list_runs(RunFilter(states=states), after=after, limit=1_000)
            found, after = [*found, *page.runs], page.next
            if after is None:
                return found

    async def ended(self):
        """Wait until nothing is live; answers how long after the last death that was."""
        while await self.runs(RunState.HELD, RunState.READY, RunState.LEASED):
            await asyncio.sleep(0.5)
            if self.time.time() - self.deaths[-1] > LEASE_S + MORE_S:
                break
        return self.time.time() - self.deaths[-1]


@pytest.mark.parametrize("killed", [0, WORKERS - 1])
async def test_a_thousand_innocents_and_one_poison_are_done_within_the_lease_and_five_seconds(killed):
    """Counted from the last death, with as many workers killed besides those that the poison takes with it."""
    async with Ward() as ward:
        while not ward.deaths:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.01)
        for worker in ward.living[:killed]:
            worker.die()
        took_s = await ward.ended()
        runs = {run.id: run for run in await ward.runs()}
        poison = runs.pop("p")
        states = Counter(run.state for run in runs.values())
        assert states == {RunState.DONE: INNOCENTS}, f"{took_s:.1f} s after the last death"
        assert (poison.state, poison.crashes) == (RunState.DEAD, 3)
        assert len(ward.deaths) - killed <= 2, "the poison takes two workers with it at most"
        assert max(run.lease_losses for run in runs.values()) >= 1, "no innocent sat beside it: the test does not bite"
        assert took_s <= LEASE_S + MORE_S
