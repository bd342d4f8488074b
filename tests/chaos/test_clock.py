"""The wall clock is set, by an hour, in either direction, while everything runs.

Only wall time jumps; the monotonic clock goes on, as on a machine whose time server is wrong or was just corrected.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from pollux.clock import SystemClock
from pollux.errors import StoreTimeout
from pollux.events import LeaseWasLost, LoopFailed
from pollux.model import Cause, Job, RunState, run_of
from pollux.store.contract import PAGE_MAX, Answer, JobPut, Renewal
from pollux.store.urls import open_store
from tests.chaos.checker import Snapshot, judge
from tests.chaos.ledger import Ledger, read
from tests.chaos.node import INTERVALS, listen, make_app
from tests.chaos.yard import wait_until

HOUR_MS = 3_600_000
LEASE_MS = 2_000
TRIES = 3  # a machine that stands still for a lease loses it, and rightly so


class SetClock(SystemClock):
    """The machine's clock, with a wall that can be set."""

    shift_ms = 0

    def now_ms(self):
        return super().now_ms() + self.shift_ms


class World:
    """An app in this process, whose handlers keep a ledger, on a clock that can be set."""

    def __init__(self, store, folder):
        self.clock = SetClock()
        self.ledger = Ledger(folder / "ledger")
        self.app = make_app(store, self.ledger, clock=self.clock, lease=f"{LEASE_MS}ms", grace="2s")
        listen(self.app, self.ledger)
        self.failures, self.lost = [], []
        self.app.events.listen(LoopFailed, self.failures.append)
        self.app.events.listen(LeaseWasLost, self.lost.append)

    @property
    def stood_still(self):
        """A call was not answered in time, or a lease not renewed in time; nobody took it."""
        late = any(isinstance(failure.error, StoreTimeout) for failure in self.failures)
        return late or any("renewed in time" in event.why for event in self.lost)

    async def ask(self, job, run_id, **params):
        self.ledger.write("ask", run_id)
        await self.app.enqueue(job, params, id=run_id)
        self.ledger.write("enq", run_id, "ok")

    async def snapshot(self):
        runs, after = [], None
        while True:
            page = await self.app.operations.runs.list_runs(after=after, limit=PAGE_MAX)
            runs += page.runs
            after = page.next
            if after is None:
                return Snapshot(runs=tuple(runs), jobs=(await self.app.operations.jobs.list_jobs(limit=PAGE_MAX)).jobs)

    async def fires_on(self):
        """Every interval job ends two more firings."""

        def count(store):
            ended = [run for run in store.runs if run.cause is Cause.SCHEDULE and run.state is RunState.DONE]
            return {job_id: sum(run.job_id == job_id for run in ended) for job_id in INTERVALS}

        before = count(await self.snapshot())

        async def look():
            now = count(await self.snapshot())
            return all(now[job_id] >= before[job_id] + 2 for job_id in INTERVALS)

        await wait_until(look, "two more firings of every interval job")

    async def first_dues(self):
        """When each interval job fired first, before any jump."""
        firsts = {}
        for run in (await self.snapshot()).runs:
            if run.cause is Cause.SCHEDULE:
                firsts[run.job_id] = min(run.due_ms, firsts.get(run.job_id, run.due_ms))
        return firsts

    def told(self):
        return read(self.ledger.path)

    def broken(self, store, jumps, first_due):
        """What was broken.  Once the clock came back, dues of the hour that is lived twice are fired where they were
        only counted before: their count is judged only if the clock went ahead alone."""
        broken = judge(self.told(), store, first_due=first_due)
        return [each for each in broken if each.rule != "firings" or jumps == (+1,)]


@asynccontextmanager
async def a_world(kind, folder):
    folder.mkdir(exist_ok=True)
    world = World("memory://" if kind == "memory" else f"sqlite:///{folder / 'pollux.db'}", folder)
    async with world.app:
        yield world
    world.ledger.close()


@pytest.fixture(params=["memory", "sqlite"])
def kind(request):
    return request.param


@pytest.fixture
async def world(kind, tmp_path):
    async with a_world(kind, tmp_path) as world:
        yield world


@pytest.mark.parametrize("jumps", [(+1,), (-1,), (+1, -1), (-1, +1)], ids=["+1h", "-1h", "+1h-1h", "-1h+1h"])
async def test_a_jump_of_the_wall_clock_loses_nothing_doubles_nothing_and_steals_no_living_lease(kind, jumps, tmp_path):
    for number in range(TRIES):
        async with a_world(kind, tmp_path / str(number)) as world:
            first_due, store = await _lived_through(world, jumps, gate=tmp_path / f"gate{number}")
        if not world.stood_still:
            break

    broken = world.broken(store, jumps, first_due)
    assert broken == [], "\n".join(map(str, broken))
    for n in range(len(jumps)):
        [run] = [run for run in store.runs if run.id == f"long{n}"]
        assert (run.fence, run.lease_losses) == (1, 0), "a living lease was stolen"
    assert world.failures == []


async def _lived_through(world, jumps, gate):
    """The first dues, and what is there after the clock was set by so many hours, one after the other, under runs of
    all kinds."""
    await world.fires_on()
    first_due = await world.first_dues()
    for n, jump in enumerate(jumps):
        await world.ask("patient", f"long{n}", file=str(gate))
        await _running(world, f"long{n}")
        world.clock.shift_ms += jump * HOUR_MS
        await world.ask("parent", f"parent{n}", follow=1)
        await world.ask("flaky", f"flaky{n}")
        await _done(world, f"flaky{n}")  # a retry that waits while the clock comes back waits that much longer
        await asyncio.sleep(1.5 * LEASE_MS / 1_000)  # a lease, so that one that is not renewed has ended
    gate.touch()
    await _all_done(world)
    assert [loop.name for loop in world.app.runtime.status().loops if not loop.is_alive] == []
    await world.app.drain()
    return first_due, await world.snapshot()


@pytest.mark.parametrize("jumps", [(+1,), (+1, -1)], ids=["+1h", "+1h-1h"])
async def test_jobs_fire_on_after_a_jump_and_after_the_clock_was_set_right_again(world, jumps):
    """What the wrong hour left unfired is not lost to it: due times follow the clock back, and none fires twice."""
    await world.fires_on()
    first_due = await world.first_dues()
    for jump in jumps:
        world.clock.shift_ms += jump * HOUR_MS
        await world.fires_on()
    await world.app.drain()
    store = await world.snapshot()

    broken = world.broken(store, jumps, first_due)
    assert broken == [], "\n".join(map(str, broken))


class LeapingClock(SystemClock):
    """The wall leaps an hour ahead at one certain reading, wherever in a call that is."""

    readings_left: int | None = None

    def now_ms(self):
        if self.readings_left is None:
            return super().now_ms()
        self.readings_left -= 1
        return super().now_ms() + (HOUR_MS if self.readings_left < 0 else 0)


@pytest.mark.parametrize("readings", range(4))
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_leap_in_the_middle_of_a_claim_steals_no_lease(kind, readings, tmp_path):
    """The store reads its clock more than once in a claim; whichever reading is the first after the leap, the lease
    of a living worker stands."""
    clock = LeapingClock()
    store = open_store("memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'pollux.db'}", clock=clock)
    await store.open()
    job = Job(id="plain", handler="plain")
    await store.put_jobs([JobPut(job)])
    await store.enqueue([run_of(job, clock.now_ms(), Cause.ENQUEUED, id="a")])
    claimed = await store.claim(node="A", token="t1", limit=1, lease_ms=60_000)
    assert [run.id for run in claimed.runs] == ["a"]

    clock.readings_left = readings
    stolen = await store.claim(node="B", token="t2", limit=1, lease_ms=60_000)
    [renewed] = await store.renew([Renewal("a", claimed.runs[0].token)], lease_ms=60_000)
    await store.close()
    assert stolen.runs == ()
    assert renewed.answer is Answer.OK


async def _running(world, run_id):
    async def look():
        return run_id in {step.run_id for step in world.told().runs}

    await wait_until(look, f"the start of {run_id}")


async def _done(world, run_id):
    async def look():
        return any(run.id == run_id and run.state is RunState.DONE for run in (await world.snapshot()).runs)

    await wait_until(look, f"the end of {run_id}")


async def _all_done(world):
    async def look():
        live = [run for run in (await world.snapshot()).runs if run.state is not RunState.DONE]
        return all(run.job_id in INTERVALS for run in live)

    await wait_until(look, "the end of all runs")
