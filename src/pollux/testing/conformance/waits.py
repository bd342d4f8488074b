"""Store handles, waits by the store's own clock, and concurrent calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from pollux.errors import StoreError
from pollux.model import Back, Done, Earlier, Ended, Plan, Release, RunState
from pollux.store.contract import Answer, Claimed, JobPut, Pruning, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    Contract,
    a_firing,
    a_job,
    a_run,
    claim,
    entries,
    given,
    given_jobs,
    ids,
    leading,
    leased,
    renewal,
    settlement,
    the_job,
    the_run,
)

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


class HandleContract(Contract):
    async def test_a_store_says_what_it_can_do(self, store: Store) -> None:
        assert store.capabilities.name
        for answer in (store.capabilities.waits, store.capabilities.durable, store.capabilities.shared):
            assert isinstance(answer, bool)

    async def test_a_store_in_a_sound_place_has_no_problems(self, store: Store) -> None:
        assert await store.problems() == ()

    async def test_a_run_that_is_due_by_the_stores_clock_can_be_claimed_at_once(self, store: Store) -> None:
        await given_jobs(store, "job")
        now_ms = await store.now()
        await store.enqueue([a_run("a", due_ms=now_ms), a_run("later", due_ms=now_ms + 3_600_000)])

        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS)

        assert ids(claimed.runs) == ["a"]
        assert now_ms <= claimed.now_ms < now_ms + 3_600_000

    async def test_closing_twice_is_harmless(self, store: Store) -> None:
        await store.close()
        await store.close()
        await store.open()

        assert (await store.counts()).jobs == 0

    async def test_a_closed_handle_refuses_in_words(self, store: Store, t0: int) -> None:
        await store.close()

        with pytest.raises(StoreError, match="open"):
            await store.enqueue([a_run()], now_ms=t0)
        await store.open()

    async def test_a_twin_sees_what_the_other_wrote(self, store: Store, t0: int) -> None:
        twin = store.twin()
        await twin.open()

        await given(store, a_run("a"))
        assert ids(await claim(twin, now_ms=t0)) == ["a"]
        await given_jobs(twin, "second")
        assert (await store.counts()).jobs == 2

        await twin.close()

    async def test_closing_a_twin_leaves_the_other_open(self, store: Store, t0: int) -> None:
        twin = store.twin()
        await twin.open()
        await twin.close()

        await given(store, a_run("a"))

        assert ids(await claim(store, now_ms=t0)) == ["a"]

    async def test_a_twin_renews_from_another_thread(self, store: Store, t0: int) -> None:
        """As the Renewer does, while the first loop is busy with something else."""
        run = await leased(store)

        async def renew() -> str:
            twin = store.twin()
            await twin.open()
            [renewed] = await twin.renew([renewal(run)], lease_ms=2 * LEASE_MS, now_ms=t0)
            await twin.close()
            return renewed.answer

        assert await asyncio.to_thread(asyncio.run, renew()) == "ok"
        assert await claim(store, now_ms=t0 + LEASE_MS) == ()
        assert ids(await claim(store, now_ms=t0 + 2 * LEASE_MS)) == [run.id]

    async def test_without_a_given_time_the_stores_own_clock_counts(self, store: Store) -> None:
        now_ms = (await store.feed(limit=1)).now_ms
        await given(store, a_run("past", due_ms=now_ms - 60_000), a_run("future", due_ms=now_ms + 3_600_000))

        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS)

        assert ids(claimed.runs) == ["past"]
        assert now_ms <= claimed.now_ms < now_ms + 3_600_000


class ConcurrencyContract(Contract):
    async def test_eight_claimers_share_a_thousand_runs_without_a_double(self, store: Store, t0: int) -> None:
        await given(store, *(a_run(f"r{n}", priority=n % 3 + 1) for n in range(1_000)))
        taken: Counter[str] = Counter()

        async def worker(name: int) -> None:
            turn = 0
            while runs := await claim(store, 17, node=f"n{name}", token=f"w{name}-{turn}", now_ms=t0):
                taken.update(run.id for run in runs)
                turn += 1

        await asyncio.gather(*(worker(name) for name in range(8)))

        assert len(taken) == 1_000
        assert set(taken.values()) == {1}

    async def test_claimers_in_threads_share_without_a_double(self, store: Store, t0: int) -> None:
        await given(store, *(a_run(f"r{n}") for n in range(300)))

        async def worker(name: int) -> list[str]:
            twin = store.twin()
            await twin.open()
            taken: list[str] = []
            turn = 0
            while runs := await claim(twin, 7, token=f"w{name}-{turn}", now_ms=t0):
                taken += [run.id for run in runs]
                turn += 1
            await twin.close()
            return taken

        parts = await asyncio.gather(*(asyncio.to_thread(asyncio.run, worker(name)) for name in range(4)))

        taken = [run_id for part in parts for run_id in part]
        assert sorted(taken) == sorted(f"r{n}" for n in range(300))

    async def test_claims_and_settlements_at_once_lose_nothing(self, store: Store, t0: int) -> None:
        await given(store, *(a_run(f"r{n}") for n in range(200)))

        async def worker(name: int) -> int:
            count = turn = 0
            while runs := await claim(store, 5, token=f"w{name}-{turn}", now_ms=t0):
                given_answers = await store.settle([settlement(run, Done()) for run in runs], now_ms=t0)
                count += given_answers.count(Answer.OK)
                turn += 1
            return count

        assert sum(await asyncio.gather(*(worker(name) for name in range(6)))) == 200
        counts = await store.counts()
        assert (counts.ready, counts.leased, counts.ends) == (0, 0, 200)

    async def test_a_settlement_and_a_claim_at_the_end_of_a_lease_never_both_win(self, store: Store, t0: int) -> None:
        for n in range(30):
            run = await leased(store, a_run(f"r{n}"), now_ms=t0)
            late = t0 + LEASE_MS
            settled, taken = await asyncio.gather(
                store.settle([settlement(run, Done())], now_ms=late), claim(store, now_ms=late)
            )
            assert (settled == [Answer.OK]) != bool(taken), "exactly one of them wins"
            if taken:
                await store.settle([settlement(taken[0], Done())], now_ms=late)

    async def test_puts_of_one_job_at_once_count_every_change(self, store: Store, t0: int) -> None:
        puts = [store.put_jobs([JobPut(a_job("job", name=f"n{n}"))], now_ms=t0) for n in range(20)]

        given_answers = [answer for [answer] in await asyncio.gather(*puts)]

        assert sorted(answer.revision for answer in given_answers) == list(range(1, 21))
        assert (await the_job(store)).revision == 20

    async def test_only_one_put_over_a_revision_wins(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        puts = [store.put_jobs([JobPut(a_job("job", name=f"n{n}"), revision=1)], now_ms=t0) for n in range(10)]

        given_answers = [answer.answer for [answer] in await asyncio.gather(*puts)]

        assert sorted(given_answers) == sorted([Answer.OK] + [Answer.CONFLICT] * 9)

    async def test_a_firing_and_a_deletion_at_once_leave_no_orphan(self, store: Store, t0: int) -> None:
        term = await leading(store)
        for n in range(20):
            [job] = await given_jobs(store, f"job{n}")
            firing = a_firing(job, t0)
            await asyncio.gather(
                store.advance(term, Plan(firings=(firing,)), now_ms=t0), store.delete_jobs([job.id], now_ms=t0)
            )
            [run] = await store.get_runs([firing.run.id])
            assert run is None or run.state is RunState.CANCELLED

    async def test_a_caller_that_gives_up_leaves_the_store_whole(self, store: Store, t0: int) -> None:
        """A cancelled call either took effect or did not; the same call again leads to one result."""
        await given_jobs(store, "job")
        for n in range(20):
            call = asyncio.ensure_future(store.enqueue([a_run(f"r{n}", gated=True)], now_ms=t0))
            for _ in range(n % 3):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            [answer] = await store.enqueue([a_run(f"r{n}", gated=True)], now_ms=t0)
            assert answer.answer in {Answer.OK, Answer.ALREADY}
        assert (await store.counts()).held == 20

    async def test_one_lease_two_workers_one_end(self, store: Store, t0: int) -> None:
        """The stalled worker and the one that has the run now both settle; one end is recorded."""
        old = await leased(store)
        [new] = await claim(store, now_ms=t0 + LEASE_MS)

        late, right = await asyncio.gather(
            store.settle([settlement(old, Done(failed=True))], now_ms=t0 + LEASE_MS),
            store.settle([settlement(new, Done())], now_ms=t0 + LEASE_MS),
        )

        assert (late, right) == ([Answer.LOST], [Answer.OK])
        assert (await the_run(store, old.id)).failed is False
        ends = [end for entry in await entries(store, Ended) for end in entry.ends if end.ran or end.state == "done"]
        assert len(ends) == 1
