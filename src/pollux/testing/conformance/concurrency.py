"""Concurrent calls."""

from __future__ import annotations

import asyncio
from collections import Counter

from pollux.model import Done, Ended, Plan, RunState
from pollux.store.contract import Answer, JobPut, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_firing,
    a_job,
    a_run,
    claim,
    entries,
    given,
    given_jobs,
    leading,
    leased,
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.contract import Contract


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
