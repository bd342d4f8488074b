"""Does the whole node keep its promises?  All loops together, on a memory store, in virtual time."""

import asyncio
from random import Random

import pytest

from pollux.clock import FakeClock, SystemClock
from pollux.errors import InvalidInput
from pollux.events import Events, TermWon
from pollux.model import Cause, Interval, Job, RunState, run_of
from pollux.registry import Registry
from pollux.runtime import Crew, CrewOptions
from pollux.store.contract import JobPut, RunFilter
from pollux.store.memory import MemoryStore
from tests.runtime.fakes import Heard, Spy, a_crew, settle_down

MINUTE = 60_000


@pytest.fixture
async def store():
    clock = FakeClock()
    store = Spy(MemoryStore(clock))
    store.clock = clock
    await store.open()
    yield store
    await store.close()


async def test_an_interval_job_of_ten_minutes_fires_six_times_in_an_hour(store):
    clock, ran = store.clock, []
    registry = Registry()

    async def check(ctx):
        ran.append(ctx.run.due_ms)

    registry.add("check", check)
    start = clock.now_ms() // MINUTE * MINUTE
    job = Job(id="check", handler="check", schedule=Interval(10 * MINUTE, start_ms=start + MINUTE))
    await store.put_jobs([JobPut(job)])
    crew = a_crew(store, registry, clock)
    await crew.start()

    for _ in range(60):
        await clock.advance(MINUTE)

    assert ran == [start + MINUTE + n * 10 * MINUTE for n in range(6)]
    done = await store.list_runs(RunFilter(job_id="check", states=(RunState.DONE,)))
    assert [run.due_ms for run in done.runs] == ran[::-1]
    assert crew.status().fired == 6
    assert crew.status().start_late.max_ms < 50
    await crew.stop()
