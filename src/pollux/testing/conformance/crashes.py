"""Crashes of child processes: their count on the run, and the delay of suspects."""

from __future__ import annotations

import pytest

from pollux.model import Back, Cancelled, Dead, Done, Hold, Isolate, RetryAt, RunState, Verdict
from pollux.store.contract import Answer, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_failure,
    a_job,
    a_run,
    an_outcome,
    claim,
    given_jobs,
    ids,
    leased,
    release,
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.contract import Contract


class CrashContract(Contract):
    async def test_a_crash_is_counted_beside_the_failure(self, store: Store, t0: int) -> None:
        run = await leased(store)
        for crashes in (1, 2):
            outcome = an_outcome(t0, fault="transient", error="Crashed: SIGSEGV", crashed=True)
            await store.settle([settlement(run, RetryAt(t0), outcome=outcome)], now_ms=t0)
            [run] = await claim(store, now_ms=t0)

            assert (run.crashes, run.attempt, run.lease_losses) == (crashes, crashes, 0)

    async def test_a_crash_of_a_gated_run_is_counted(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a", gated=True, state=RunState.HELD))

        await store.settle([settlement(run, RetryAt(t0), outcome=an_outcome(t0, crashed=True))], now_ms=t0)
        await release(store, run.id)

        assert (await the_run(store, run.id)).crashes == 1

    @pytest.mark.parametrize(
        "verdict", [Dead("it crashed"), Done(failed=True), Done(clears=True), Cancelled("enough")], ids=str
    )
    async def test_the_crash_that_ends_a_run_is_counted(self, store: Store, t0: int, verdict: Verdict) -> None:
        run = await leased(store)

        await store.settle([settlement(run, verdict, outcome=an_outcome(t0, crashed=True))], now_ms=t0)

        past = await the_run(store, run.id)
        assert past.is_finished
        assert past.crashes == 1

    async def test_a_plain_failure_counts_no_crash(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.settle([settlement(run, RetryAt(t0), outcome=a_failure(t0))], now_ms=t0)

        assert (await the_run(store, run.id)).crashes == 0

    async def test_a_crash_told_twice_is_counted_once(self, store: Store, t0: int) -> None:
        run = await leased(store)
        ends = settlement(run, RetryAt(t0), outcome=an_outcome(t0, crashed=True))

        assert await store.settle([ends, ends], now_ms=t0) == [Answer.OK, Answer.ALREADY]
        assert await store.settle([ends], now_ms=t0) == [Answer.ALREADY]

        assert (await the_run(store, run.id)).crashes == 1

    @pytest.mark.parametrize("verdict", [Back(), Hold("stopped")], ids=str)
    async def test_a_run_that_is_handed_back_has_not_crashed(self, store: Store, t0: int, verdict: Verdict) -> None:
        run = await leased(store)

        await store.settle([settlement(run, verdict, outcome=an_outcome(t0, crashed=True))], now_ms=t0)

        assert (await the_run(store, run.id)).crashes == 0

    async def test_a_lost_lease_keeps_the_crashes(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, RetryAt(t0), outcome=an_outcome(t0, crashed=True))], now_ms=t0)
        await claim(store, now_ms=t0)

        [again] = await claim(store, now_ms=t0 + LEASE_MS)

        assert (again.crashes, again.lease_losses) == (1, 1)

    async def test_a_run_may_be_handed_back_until_a_time(self, store: Store, t0: int) -> None:
        """Uncharged, and not claimable before."""
        run = await leased(store)

        await store.settle([settlement(run, Back(t0 + 500))], now_ms=t0)

        waiting = await the_run(store, run.id)
        assert (waiting.state, waiting.visible_ms, waiting.attempt) == (RunState.READY, t0 + 500, 0)
        early = await store.claim(node="n", token="early", limit=9, lease_ms=LEASE_MS, now_ms=t0 + 499)
        assert (early.runs, early.look_again_ms) == ((), t0 + 500)
        assert ids(await claim(store, now_ms=t0 + 500)) == [run.id]

    async def test_a_run_handed_back_until_a_time_gone_by_is_ready_now(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.settle([settlement(run, Back(t0 - 500))], now_ms=t0)

        assert (await the_run(store, run.id)).visible_ms == t0

    @pytest.mark.parametrize("isolate", list(Isolate))
    async def test_a_job_keeps_where_it_runs(self, store: Store, isolate: Isolate) -> None:
        await given_jobs(store, a_job("job", isolate=isolate))

        assert (await the_job(store)).isolate is isolate
