"""Lost leases: runs whose worker died."""

from __future__ import annotations

from pollux.model import Dead, Done, Ended, RetryAt, RunState
from pollux.store.contract import Answer, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_run,
    claim,
    entries,
    forget_feed,
    given,
    ids,
    last_ends,
    leased,
    release,
    renewal,
    settlement,
    the_run,
)
from pollux.testing.conformance.contract import Contract


class LostLeaseContract(Contract):
    async def test_a_lost_lease_is_counted_and_is_no_failure(self, store: Store, t0: int) -> None:
        await leased(store)

        [again] = await claim(store, now_ms=t0 + LEASE_MS)

        assert (again.lease_losses, again.attempt, again.fence, again.failed) == (1, 0, 2, False)

    async def test_the_leader_is_told_of_a_lost_lease(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await forget_feed(store)

        await claim(store, now_ms=t0 + LEASE_MS)

        [end] = await last_ends(store)
        assert (end.run_id, end.ran, end.failed) == (run.id, False, False)
        assert end.state in {RunState.READY, RunState.LEASED}

    async def test_leases_lost_in_one_claim_make_one_entry(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"), a_run("c"))
        await claim(store, now_ms=t0)
        await forget_feed(store)

        await claim(store, now_ms=t0 + LEASE_MS)

        [entry] = await entries(store, Ended)
        assert sorted(end.run_id for end in entry.ends) == ["a", "b", "c"]

    async def test_a_lease_that_still_runs_is_left_alone(self, store: Store, t0: int) -> None:
        await leased(store, a_run("short"), lease_ms=5_000)
        await leased(store, a_run("long"), lease_ms=50_000)

        assert ids(await claim(store, now_ms=t0 + 10_000)) == ["short"]
        assert (await the_run(store, "long")).lease_losses == 0

    async def test_of_two_leases_only_the_one_that_ended_is_taken_back(self, store: Store, t0: int) -> None:
        await leased(store, a_run("first"), lease_ms=10_000)
        await leased(store, a_run("second"), lease_ms=10_001)

        assert ids(await claim(store, now_ms=t0 + 10_000)) == ["first"]
        assert (await the_run(store, "second")).state is RunState.LEASED
        assert ids(await claim(store, now_ms=t0 + 10_001)) == ["second"]

    async def test_too_many_lost_leases_make_a_dead_letter(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))
        for n in range(3):
            assert ids(await claim(store, losses_max=3, now_ms=t0 + n * LEASE_MS)) == ["a"]

        assert await claim(store, losses_max=3, now_ms=t0 + 3 * LEASE_MS) == ()

        letter = await the_run(store, "a")
        assert (letter.state, letter.lease_losses, letter.failed) == (RunState.DEAD, 3, True)
        assert letter.error
        [end] = await last_ends(store)
        assert (end.state, end.ran, end.failed) == (RunState.DEAD, False, True)

    async def test_a_settlement_after_the_lease_was_taken_back_is_lost(self, store: Store, t0: int) -> None:
        """Taken back and not yet delivered again: the token is invalid all the same."""
        run = await leased(store, a_run("a", priority=3))
        await given(store, a_run("b", priority=1, due_ms=t0))
        assert ids(await claim(store, 1, now_ms=t0 + LEASE_MS)) == ["b"]

        assert await store.settle([settlement(run, Done())], now_ms=t0 + LEASE_MS) == [Answer.LOST]
        assert (await the_run(store, "a")).state is RunState.READY
        assert (await store.renew([renewal(run)], lease_ms=9, now_ms=t0 + LEASE_MS))[0].answer is Answer.LOST

    async def test_a_settlement_of_a_run_that_died_of_lost_leases_is_lost(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await claim(store, losses_max=1, now_ms=t0 + LEASE_MS)

        assert await store.settle([settlement(run, Done())], now_ms=t0 + LEASE_MS) == [Answer.LOST]
        assert (await the_run(store, run.id)).state is RunState.DEAD

    async def test_a_lost_run_that_was_asked_to_stop_is_cancelled(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.cancel(run_ids=[run.id], reason="enough", now_ms=t0)

        assert await claim(store, losses_max=1, now_ms=t0 + LEASE_MS) == ()

        past = await the_run(store, run.id)
        assert (past.state, past.cancel) == (RunState.CANCELLED, "enough")
        assert [(end.state, end.ran) for end in await last_ends(store)] == [(RunState.CANCELLED, False)]

    async def test_a_lost_run_of_a_deleted_job_is_cancelled(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.delete_jobs(["job"], now_ms=t0)

        assert await claim(store, now_ms=t0 + LEASE_MS) == ()

        past = await the_run(store, run.id)
        assert (past.state, past.cancel) == (RunState.CANCELLED, "its job was deleted")

    async def test_a_lost_gated_run_is_ready_and_needs_no_new_release(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True))
        await release(store, "a")
        await claim(store, now_ms=t0)

        assert ids(await claim(store, now_ms=t0 + LEASE_MS)) == ["a"]

    async def test_a_lost_run_stands_behind_what_waited_longer(self, store: Store, t0: int) -> None:
        """It is ordered by the end of its lease: a run that kills workers must not always be first."""
        await leased(store, a_run("a", due_ms=t0))
        await given(store, a_run("b", due_ms=t0 + 1_000))

        assert ids(await claim(store, now_ms=t0 + LEASE_MS)) == ["b", "a"]

    async def test_a_lease_is_cut_to_its_length_when_the_clock_came_back(self, store: Store, t0: int) -> None:
        """Leased for 30 s while the clock was an hour ahead: it ends 30 s after the correction, not in an hour."""
        ahead = t0 + 3_600_000
        run = await leased(store, a_run("a"), now_ms=ahead)

        assert await claim(store, now_ms=t0) == ()

        assert (await the_run(store, run.id)).lease_until_ms == t0 + LEASE_MS
        assert await claim(store, now_ms=t0 + LEASE_MS - 1) == ()
        assert ids(await claim(store, now_ms=t0 + LEASE_MS)) == ["a"]

    async def test_a_cut_lease_is_still_its_owners(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a"), now_ms=t0 + 3_600_000)
        await claim(store, now_ms=t0)

        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.OK]

    async def test_losses_and_attempts_are_counted_apart(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, RetryAt(t0))], now_ms=t0)
        await claim(store, now_ms=t0)
        [run] = await claim(store, now_ms=t0 + LEASE_MS)

        assert (run.attempt, run.lease_losses) == (1, 1)
        await store.settle([settlement(run, Dead("x"))], now_ms=t0 + LEASE_MS)
        letter = await the_run(store, run.id)
        assert (letter.attempt, letter.lease_losses) == (1, 1)

    async def test_leases_stand_over_closing_and_opening(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.close()
        await store.open()

        assert await claim(store, now_ms=t0 + LEASE_MS - 1) == ()
        assert (await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=t0))[0].answer is Answer.OK
