"""The memory store keeps the contract, on a clock that stands still, with several threads, and with many records."""

import asyncio
import sys
import threading

import pytest

from pollux.clock import FakeClock
from pollux.model import Done, Interval, Job, JobUpdate, Memory, Plan
from pollux.store.contract import Answer, JobPut, Pruning, RunFilter
from pollux.store.memory import MemoryStore
from pollux.testing.conformance import StoreContract
from pollux.testing.conformance.builders import T0, a_job, a_run, claim, finished, given, given_jobs, ids, settlement
from pollux.testing.conformance.waits import LONG_MS


class TestMemoryStore(StoreContract):
    @pytest.fixture
    async def store(self, monkeypatch):
        monkeypatch.setattr("pollux.store.memory.store.LOOK_AGAIN_MS", LONG_MS)  # who is not rung waits it out
        store = MemoryStore()
        await store.open()
        yield store
        await store.close()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
async def store(clock):
    store = MemoryStore(clock)
    await store.open()
    yield store
    await store.close()


def waiting(store, **fields):
    return asyncio.ensure_future(store.claim(node="n", token="t", limit=9, lease_ms=30_000, wait_ms=60_000, **fields))


async def test_a_fake_clock_drives_the_waits(store, clock):
    await given(store, a_run("a", due_ms=clock.now_ms() + 40_000))
    call = waiting(store)

    await clock.advance(39_999)
    assert not call.done()
    await clock.advance(1)

    assert ids((await call).runs) == ["a"]


async def test_a_wait_on_a_fake_clock_ends_with_its_time(store, clock):
    call = waiting(store)

    await clock.advance(59_999)
    assert not call.done()
    await clock.advance(1)

    assert (await call).runs == ()


async def test_a_wait_with_a_given_time_counts_on_from_it(store, clock):
    await given(store, a_run("a", due_ms=5_000))
    call = waiting(store, now_ms=0)

    await clock.advance(4_999)
    assert not call.done()
    await clock.advance(1)

    assert (await call).now_ms == 5_000


async def test_a_run_that_comes_between_the_look_and_the_sleep_is_not_overslept(store, monkeypatch):
    """Another thread enqueues just after the waiting claim looked and before it sleeps: the worst moment there is."""
    await given_jobs(store, "job")
    look = store.backend.claim
    looks = []

    async def look_and_then(*args, **options):
        seen = await look(*args, **options)
        looks.append(seen)
        if len(looks) == 1:
            thread = threading.Thread(target=asyncio.run, args=(enqueue_from_elsewhere(store),))
            thread.start()
            thread.join()
        return seen

    monkeypatch.setattr(store.backend, "claim", look_and_then)

    async with asyncio.timeout(60):  # the clock stands still: only the bell can end the wait
        claimed = await waiting(store)

    assert ids(claimed.runs) == ["a"]


async def enqueue_from_elsewhere(store):
    twin = store.twin()
    await twin.open()
    await twin.enqueue([a_run("a", due_ms=0)])
    await twin.close()


async def test_threads_that_switch_at_every_step_tear_nothing(store):
    """Six threads claim and settle; the interpreter switches between them as often as it can."""
    runs = [a_run(f"r{n}", priority=n % 3 + 1) for n in range(3_000)]
    for start in range(0, 3_000, 1_000):
        await given(store, *runs[start : start + 1_000])

    async def worker(name):
        twin = store.twin()
        await twin.open()
        done, turn = [], 0
        while taken := await claim(twin, 7, token=f"{name}-{turn}"):
            turn += 1
            answers = await twin.settle([settlement(run, Done()) for run in taken], now_ms=T0)
            assert set(answers) == {Answer.OK}
            done += ids(taken)
        return done

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        parts = await asyncio.gather(*(asyncio.to_thread(asyncio.run, worker(name)) for name in range(6)))
    finally:
        sys.setswitchinterval(before)

    assert sorted(run_id for part in parts for run_id in part) == sorted(ids(runs))
    counts = await store.counts()
    assert (counts.ready, counts.leased, counts.ends) == (0, 0, 3_000)


async def test_a_hundred_thousand_jobs_are_read_by_due_time_in_pages(store):
    total, page = 100_000, 1_000
    for start in range(0, total, page):
        jobs = [Job(id=f"j{n:06}", handler="h", schedule=Interval(60_000)) for n in range(start, start + page)]
        await store.put_jobs([JobPut(job) for job in jobs])
    term = (await store.elect("n", ttl_ms=60_000)).number
    for start in range(0, total, 100):
        updates = tuple(JobUpdate(f"j{n:06}", 1, T0 + n * 7_919 % 60_000, Memory()) for n in range(start, start + 100))
        await store.advance(term, Plan(updates=updates))

    seen, after = [], None
    while rows := await store.due(after=after, before_ms=T0 + 60_000, limit=5_000):
        seen += [(job.next_due_ms, job.id) for job in rows]
        after = seen[-1]

    assert len(seen) == total
    assert seen == sorted(seen)
    assert (await store.counts()).jobs == total


async def test_history_stays_right_while_rows_come_and_go(store):
    """Rows that left are swept out now and then; chains and pages must not notice."""
    for n in range(3_000):
        await finished(store, a_run(f"r{n}", f"j{n % 7}"), now_ms=T0 + n, changed=bool(n % 3))
        if n % 500 == 499:
            await store.prune(Pruning(unchanged_before_ms=T0 + n - 100))
            await store.prune(Pruning(keep_per_job=150))

    rows, after = [], None
    while True:
        page = await store.list_runs(after=after, limit=97)
        rows += page.runs
        after = page.next
        if after is None:
            break
    assert [run.finished_ms for run in rows] == sorted((run.finished_ms for run in rows), reverse=True)
    for job in range(7):
        mine = [run.id for run in rows if run.job_id == f"j{job}"]
        assert len(mine) <= 150
        assert ids((await store.list_runs(where_job(f"j{job}"), limit=1_000)).runs) == mine
        newest = max(n for n in range(3_000) if n % 7 == job)
        assert mine[0] == f"r{newest}"


async def test_a_job_that_left_and_came_back_has_its_history_again(store):
    await finished(store, a_run("first"))
    await store.delete_jobs(["job"])
    assert ids((await store.list_runs(where_job("job"))).runs) == ["first"]

    await given_jobs(store, a_job("job"))
    await finished(store, a_run("second"), now_ms=T0 + 1)

    assert ids((await store.list_runs(where_job("job"))).runs) == ["second", "first"]


def where_job(job_id):
    return RunFilter(job_id=job_id)
