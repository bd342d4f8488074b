"""Waits: how long a call waits, and what ends it.  By the store's own clock; limits are generous."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from pollux.errors import StoreError
from pollux.model import Back, Earlier, Ended, Plan, Release
from pollux.store.contract import Answer, Claimed, Pruning, Store
from pollux.testing.conformance.builders import LEASE_MS, a_run, entries, given, given_jobs, ids, settlement
from pollux.testing.conformance.contract import Contract

T = TypeVar("T")
OTHER = 3
LONG_MS = 60_000
SOON_S = 20.0  # far below LONG_MS: a wait that runs to its end is detected
PAUSES_S = (0.1, 1.0, 5.0)  # for started calls to begin waiting; a busy machine has a few tries, each with more time


async def soon(call: Awaitable[T]) -> T:
    async with asyncio.timeout(SOON_S):
        return await call


async def one_of_them(does: Callable[[float], Awaitable[bool]]) -> bool:
    """Whether one try succeeds; each gives started calls more time to begin waiting."""
    for pause_s in PAUSES_S:
        if await does(pause_s):
            return True
    return False


async def end_soon(*waits: asyncio.Future[Any]) -> bool:
    """Whether all end; those that do not are cancelled."""
    _, late = await asyncio.wait(waits, timeout=SOON_S)
    for each in late:
        each.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return not late


def waiting(store: Store, wait_ms: int = LONG_MS, token: str = "t", node: str = "n") -> asyncio.Future[Claimed]:
    return asyncio.ensure_future(store.claim(node=node, token=token, limit=9, lease_ms=LEASE_MS, wait_ms=wait_ms))


async def dropped(store: Store) -> Store:
    """Return a handle of a version that was dropped."""
    there = store.of_version(OTHER)
    await given_jobs(there, "old")
    await store.delete_jobs(["old"])
    assert await store.prune(Pruning(version=OTHER)) == 1
    return there


class WaitContract(Contract):
    @pytest.fixture(autouse=True)
    def _can_wait(self, store: Store) -> None:
        if not store.capabilities.waits:
            pytest.skip("this store declares that it cannot wait")

    async def test_a_claim_waits_its_time_out_when_nothing_comes(self, store: Store) -> None:
        began = time.monotonic()

        claimed = await soon(waiting(store, wait_ms=200))

        assert claimed.runs == ()
        assert time.monotonic() - began >= 0.19

    async def test_a_claim_does_not_wait_when_something_is_there(self, store: Store) -> None:
        await given(store, a_run("a", due_ms=0))

        assert ids((await soon(waiting(store))).runs) == ["a"]

    async def test_a_claim_that_waits_gets_what_is_enqueued(self, store: Store) -> None:
        await given_jobs(store, "job")
        claim = waiting(store)
        await asyncio.sleep(0.05)

        await store.enqueue([a_run("a", due_ms=0)])

        assert ids((await soon(claim)).runs) == ["a"]

    async def test_a_claim_that_waits_gets_what_becomes_visible(self, store: Store) -> None:
        now = int(time.time() * 1_000)
        await given(store, a_run("a", due_ms=now + 300))

        claimed = await soon(waiting(store))

        assert ids(claimed.runs) == ["a"]
        assert claimed.now_ms >= now + 300

    async def test_a_claim_that_waits_gets_a_lease_that_ends(self, store: Store) -> None:
        await given(store, a_run("a", due_ms=0))
        await store.claim(node="dead", token="d", limit=1, lease_ms=300)

        [run] = (await soon(waiting(store))).runs

        assert (run.id, run.lease_losses) == ("a", 1)

    async def test_a_claim_that_waits_gets_what_becomes_visible_earlier(self, store: Store) -> None:
        await given(store, a_run("a", due_ms=int(time.time() * 1_000) + 3_600_000))
        term = await store.elect("leader", ttl_ms=LONG_MS)
        claim = waiting(store)
        await asyncio.sleep(0.05)

        await store.advance(term.number, Plan(earlier=(Earlier("a", 0),)))

        assert ids((await soon(claim)).runs) == ["a"]

    async def test_a_claim_that_waits_gets_what_is_handed_back(self, store: Store) -> None:
        await given(store, a_run("a", due_ms=0))
        [run] = (await store.claim(node="n", token="x", limit=1, lease_ms=60_000)).runs
        claim = waiting(store)
        await asyncio.sleep(0.05)

        await store.settle([settlement(run, Back())])

        assert ids((await soon(claim)).runs) == ["a"]

    async def test_a_claim_that_waits_gets_what_is_released(self, store: Store) -> None:
        await given(store, a_run("a", due_ms=0, gated=True))
        term = await store.elect("leader", ttl_ms=60_000)
        claim = waiting(store)
        await asyncio.sleep(0.05)

        await store.advance(term.number, Plan(releases=(Release("a"),)))

        assert ids((await soon(claim)).runs) == ["a"]

    async def test_a_feed_waits_for_an_entry(self, store: Store) -> None:
        feed = asyncio.ensure_future(store.feed(limit=9, wait_ms=LONG_MS))
        await asyncio.sleep(0.05)

        await given_jobs(store, "job")

        assert len((await soon(feed)).items) == 1

    async def test_a_feed_waits_its_time_out_when_nothing_comes(self, store: Store) -> None:
        began = time.monotonic()

        feed = await soon(store.feed(limit=9, wait_ms=200))

        assert feed.items == ()
        assert time.monotonic() - began >= 0.19

    async def test_waking_ends_every_wait(self, store: Store) -> None:
        async def wakes_all(pause_s: float) -> bool:
            feed = asyncio.ensure_future(store.feed(limit=9, wait_ms=LONG_MS))
            waits = feed, waiting(store, token=f"t{pause_s}"), waiting(store, token=f"u{pause_s}")
            await asyncio.sleep(pause_s)
            await store.wake()
            return await end_soon(*waits)

        assert await one_of_them(wakes_all)

    async def test_waking_reaches_a_twin_in_another_thread(self, store: Store) -> None:
        """Woken again and again: a signal may be lost, but not for ever."""
        twin = store.twin()

        async def wait_there() -> Claimed:
            await twin.open()
            try:
                return await twin.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS, wait_ms=LONG_MS)
            finally:
                await twin.close()

        there = asyncio.ensure_future(asyncio.to_thread(asyncio.run, wait_there()))
        async with asyncio.timeout(SOON_S):
            while not there.done():
                await store.wake()
                await asyncio.sleep(0.02)

        assert (await there).runs == ()

    async def test_a_request_to_stop_rings_the_owner(self, store: Store) -> None:
        await given_jobs(store, "job")

        async def rings(pause_s: float) -> bool:
            run_id = f"a{pause_s}"
            await store.enqueue([a_run(run_id, due_ms=0)])
            await store.claim(node="owner", token=run_id, limit=1, lease_ms=60_000)
            claim = waiting(store, node="owner", token=f"t{pause_s}")
            await asyncio.sleep(pause_s)
            await store.cancel(run_ids=[run_id])
            return await end_soon(claim) and (await claim).runs == ()

        assert await one_of_them(rings)

    async def test_waking_ends_every_wait_in_a_version_that_was_dropped(self, store: Store) -> None:
        """Its workers wait on until they are told to stop, or its jobs come again."""
        there = await dropped(store)

        async def wakes_all(pause_s: float) -> bool:
            feed = asyncio.ensure_future(there.feed(limit=9, wait_ms=LONG_MS))
            claim = waiting(there, token=f"t{pause_s}")
            await asyncio.sleep(pause_s)
            await store.wake()
            return await end_soon(feed, claim)

        assert await one_of_them(wakes_all)

    async def test_a_request_to_stop_rings_an_owner_whose_version_was_dropped(self, store: Store) -> None:
        """Its jobs were moved with their leased runs; the owner still waits in the dropped version."""
        there = store.of_version(OTHER)
        await given_jobs(there, "job")
        await there.enqueue([a_run(f"a{n}", due_ms=0) for n in range(len(PAUSES_S))])
        held = await there.claim(node="owner", token="held", limit=len(PAUSES_S), lease_ms=600_000)
        asked = iter(held.runs)
        assert await store.move_jobs(["job"], store.scheduler_version) == [Answer.OK]
        assert await store.prune(Pruning(version=OTHER)) == 1

        async def rings(pause_s: float) -> bool:
            claim = waiting(there, node="owner", token=f"t{pause_s}")
            await asyncio.sleep(pause_s)
            await store.cancel(run_ids=[next(asked).id])
            return await end_soon(claim) and (await claim).runs == ()

        assert await one_of_them(rings)

    async def test_closing_ends_the_waits(self, store: Store) -> None:
        claim, feed = waiting(store), asyncio.ensure_future(store.feed(limit=9, wait_ms=LONG_MS))
        await asyncio.sleep(0.1)

        await soon(store.close())

        ends = await soon(asyncio.gather(claim, feed, return_exceptions=True))
        assert all(not isinstance(end, BaseException) or isinstance(end, StoreError) for end in ends), ends
        await store.open()

    async def test_a_wait_that_is_cancelled_takes_nothing_along(self, store: Store) -> None:
        """A run that comes after the caller stopped waiting must not be leased to it."""
        await given_jobs(store, "job")
        claim = waiting(store)
        await asyncio.sleep(0.05)
        claim.cancel()
        await asyncio.gather(claim, return_exceptions=True)

        await store.enqueue([a_run("a", due_ms=0)])
        await asyncio.sleep(0.05)

        assert ids((await soon(waiting(store, token="other"))).runs) == ["a"]

    async def test_no_wake_up_is_lost_in_many_races(self, store: Store) -> None:
        """The run comes just as the claim begins to wait: two hundred times, and never is it missed."""
        await given_jobs(store, "job")
        for n in range(200):
            claim = waiting(store, token=f"t{n}")
            for _ in range(n % 7):
                await asyncio.sleep(0)
            await store.enqueue([a_run(f"r{n}", due_ms=0)])
            assert ids((await soon(claim)).runs) == [f"r{n}"]

    async def test_one_run_ends_the_wait_of_one_claimer_with_it(self, store: Store) -> None:
        await given_jobs(store, "job")
        calls = [waiting(store, token=f"t{n}") for n in range(5)]
        await asyncio.sleep(0.05)

        await store.enqueue([a_run("a", due_ms=0)])

        await asyncio.wait(calls, timeout=SOON_S, return_when=asyncio.FIRST_COMPLETED)
        async with asyncio.timeout(SOON_S):
            while not all(call.done() for call in calls):
                await store.wake()
                await asyncio.wait(calls, timeout=0.05)
        claimed = [await call for call in calls]
        assert sorted(ids(run for each in claimed for run in each.runs)) == ["a"]
        assert await entries(store, Ended) == []
