"""Waits on SQLite: woken by what concerns them alone, at nearly no cost while nothing happens."""

import asyncio
import ctypes

import pytest
from msgspec.structs import replace

from pollux.clock import FakeClock
from pollux.model import Done, NotePut, Plan
from pollux.store.contract import JobPut, Settlement
from pollux.store.sqlite import SqliteStore, wakeup
from tests.store.children import JOB, sleeps, some_runs, until


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    yield store
    await store.close()


def a_claim(store, *, wait_ms: int, token: str = "t"):
    return asyncio.ensure_future(store.claim(node="n", token=token, limit=1, lease_ms=60_000, wait_ms=wait_ms))


async def test_an_entry_wakes_who_waits_for_the_feed_and_nobody_else(store):
    (entry,) = (await store.feed(limit=9)).items
    term = await store.elect("n", ttl_ms=60_000)
    await store.advance(term.number, Plan(consumed=(entry.id,)))
    looks, reads = store.stats.ops + 1, store.stats.reads + 1
    claim, feed = a_claim(store, wait_ms=50_000), asyncio.ensure_future(store.feed(limit=9, wait_ms=50_000))
    await until(lambda: (store.stats.ops, store.stats.reads) == (looks, reads) and sleeps(store))

    await store.put_notes([NotePut("a", 1)])
    assert (await asyncio.wait_for(feed, 30)).items
    assert not claim.done()
    assert store.stats.ops - looks == 1, "the claim looked again for an entry of the feed"

    await store.wake()
    assert (await asyncio.wait_for(claim, 30)).runs == ()


async def test_a_ready_run_wakes_a_claim_in_another_loop(store):
    """Twins live in other threads; the bell goes over to their loops."""
    twin = store.twin()
    waits = asyncio.Event()
    loop = asyncio.get_running_loop()

    def elsewhere() -> list[str]:
        async def wait() -> list[str]:
            await twin.open()
            claim = a_claim(twin, wait_ms=50_000)
            await until(lambda: sleeps(twin))
            loop.call_soon_threadsafe(waits.set)
            claimed = await claim
            await twin.close()
            return [run.id for run in claimed.runs]

        return asyncio.run(wait())

    thread = asyncio.ensure_future(asyncio.to_thread(elsewhere))
    await asyncio.wait_for(waits.wait(), 30)
    await store.enqueue(some_runs(1, 1))
    assert await asyncio.wait_for(thread, 30) == ["run-0000001"]


async def test_a_request_to_stop_brings_a_waiting_claimer_back(store):
    await store.enqueue(some_runs(1, 1))
    (run,) = (await a_claim(store, wait_ms=0, token="first")).runs
    waiting = a_claim(store, wait_ms=50_000)
    await until(lambda: sleeps(store))

    await store.cancel(run_ids=[run.id])
    assert (await asyncio.wait_for(waiting, 30)).runs == ()


async def test_closing_ends_the_waits(tmp_path):
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    waits = [a_claim(store, wait_ms=50_000), asyncio.ensure_future(store.feed(limit=1, wait_ms=50_000))]
    await until(lambda: len(store.backend.opened.listener._waiters) == 2 and sleeps(store))
    await store.close()

    claimed, feed = await asyncio.wait_for(asyncio.gather(*waits), 30)
    assert (claimed.runs, feed.items) == ((), ())


async def test_without_inotify_a_waiter_still_hears_its_own_process_and_sees_the_commits_of_others(store, monkeypatch):
    class NoInotify:
        def inotify_init1(self, _flags: int) -> int:
            ctypes.set_errno(24)
            return -1

    monkeypatch.setattr(wakeup.ctypes, "CDLL", lambda *_args, **_kwargs: NoInotify())
    other = SqliteStore(store.backend.database.path)  # as good as another process: its own writer, its own bell
    await other.open()
    for ringer in (store, other):
        waiting = a_claim(store, wait_ms=50_000, token=f"t{id(ringer)}")
        await until(lambda: store.backend.opened.listener._watch._is_broken)
        await ringer.enqueue(some_runs(1 if ringer is store else 2, 1))
        assert len((await asyncio.wait_for(waiting, 30)).runs) == 1
    await other.close()


async def test_a_minute_of_waiting_costs_less_than_a_statement_a_second(tmp_path):
    """A leader that waits for the feed and a dispatcher that waits for runs, over a minute of a clock of ours."""
    clock = FakeClock()
    store = SqliteStore(tmp_path / "pollux.db", clock=clock)
    await store.open()
    waits = [a_claim(store, wait_ms=600_000), asyncio.ensure_future(store.feed(limit=1, wait_ms=600_000))]
    await until(lambda: len(store.backend.opened.listener._waiters) == 2 and sleeps(store))
    statements, versions, commits = store.stats.statements, store.stats.versions, store.stats.commits

    for _ in range(60):
        await clock.advance(1_000)
        await until(lambda: len(clock._sleepers) >= 2 and not any(alarm.done() for _, _, alarm in clock._sleepers))
    assert store.stats.statements - statements <= 60
    assert store.stats.versions - versions <= 120
    assert store.stats.commits == commits
    assert not any(wait.done() for wait in waits)
    await store.close()
    await asyncio.gather(*waits)


async def test_a_wait_ends_when_the_next_run_becomes_visible(store):
    run = some_runs(1, 1)[0]
    await store.enqueue([replace(run, visible_ms=run.visible_ms + 300)])
    claimed = await asyncio.wait_for(a_claim(store, wait_ms=50_000), 30)

    assert [run.id for run in claimed.runs] == ["run-0000001"]
    assert claimed.now_ms >= run.visible_ms + 300
    assert await store.settle([Settlement(claimed.runs[0].id, claimed.runs[0].token, Done())]) == ["ok"]
