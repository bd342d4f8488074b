"""Unread ends: a firing waits until the leader has read how the run before it ended."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pollux.model import (
    UNREAD_MAX,
    Advanced,
    Cancelled,
    Cause,
    Dead,
    Done,
    Firing,
    Job,
    Overlap,
    Plan,
    RetryAt,
    RunState,
    Verdict,
)
from pollux.store.contract import Answer, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_failure,
    a_firing,
    a_job,
    a_memory,
    a_run,
    advance,
    an_outcome,
    claim,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    ids_of,
    leading,
    leased,
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.contract import Contract
from pollux.testing.conformance.versions import another, moved

MINUTE = 60_000
GUARDED = [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL]


async def unread_ids(store: Store) -> tuple[int, ...]:
    return tuple(ids_of((await store.feed(limit=10_000)).items))


async def fire(store: Store, *firings: Firing, **parts: tuple[int, ...]) -> Advanced:
    return await advance(store, now_ms=firings[0].run.due_ms, firings=firings, **parts)


def next_of(job: Job, t0: int, **fields: object) -> Firing:
    fields.setdefault("overlap", Overlap.SKIP)
    return a_firing(job, t0 + MINUTE, **fields)


class UnreadContract(Contract):
    @pytest.mark.parametrize("overlap", GUARDED)
    async def test_a_firing_waits_for_an_end_that_the_plan_has_not_read(
        self, store: Store, t0: int, overlap: Overlap
    ) -> None:
        await given_jobs(store, "job")
        await fire(store, a_firing(await the_job(store), t0))
        [run] = await claim(store, now_ms=t0)
        await forget_feed(store)
        await store.settle([settlement(run, Done(), outcome=an_outcome(t0))], now_ms=t0)
        before = await the_job(store)
        firing = next_of(before, t0, overlap=overlap, if_overlapped=a_memory(9))

        advanced = await fire(store, firing)

        assert (advanced.answer, advanced.firings) == (Answer.OK, (Answer.UNREAD,))
        assert await store.get_runs([firing.run.id]) == [None]
        assert await the_job(store) == replace(before, next_due_ms=t0 + MINUTE), "it is due, and has fired no later"

    @pytest.mark.parametrize("overlap", GUARDED)
    async def test_a_firing_is_made_once_by_the_plan_that_consumes_the_end(
        self, store: Store, t0: int, overlap: Overlap
    ) -> None:
        await finished(store)
        firing = next_of(await the_job(store), t0, overlap=overlap)
        assert (await fire(store, firing)).firings == (Answer.UNREAD,)

        assert (await fire(store, firing, consumed=await unread_ids(store))).firings == (Answer.OK,)

        assert (await fire(store, firing)).firings == (Answer.ALREADY,)
        assert ids(await claim(store, now_ms=t0 + MINUTE)) == [firing.run.id]
        job = await the_job(store)
        assert (job.last_due_ms, job.next_due_ms) == (t0 + MINUTE, t0 + 2 * MINUTE)

    async def test_a_firing_is_made_by_a_plan_that_has_read_the_end_and_leaves_it(self, store: Store, t0: int) -> None:
        """The entry stays because of other jobs."""
        await finished(store)
        known = await unread_ids(store)
        firing = next_of(await the_job(store), t0)

        assert (await fire(store, firing, read=known)).firings == (Answer.OK,)

        assert await unread_ids(store) == known

    @pytest.mark.parametrize("known", ["consumed", "read"])
    async def test_of_two_ends_the_one_that_was_read_does_not_hide_the_other(
        self, store: Store, t0: int, known: str
    ) -> None:
        await finished(store, a_run("first"))
        early = await unread_ids(store)
        await finished(store, a_run("second"))

        assert (await fire(store, next_of(await the_job(store), t0), **{known: early})).firings == (Answer.UNREAD,)

    async def test_an_older_end_that_was_not_read_counts_beside_a_newer_one_that_was(
        self, store: Store, t0: int
    ) -> None:
        await finished(store, a_run("older"))
        older = await unread_ids(store)
        await finished(store, a_run("newer", "other"))
        newer = tuple(set(await unread_ids(store)) - set(older))

        assert (await fire(store, next_of(await the_job(store), t0), read=newer)).firings == (Answer.UNREAD,)

    async def test_allow_waits_for_no_end(self, store: Store, t0: int) -> None:
        await finished(store)

        firing = next_of(await the_job(store), t0, overlap=Overlap.ALLOW)

        assert (await fire(store, firing)).firings == (Answer.OK,)

    async def test_an_unread_end_of_another_job_changes_nothing(self, store: Store, t0: int) -> None:
        await finished(store, a_run("a", "other"))
        [job] = await given_jobs(store, "job")

        assert (await fire(store, next_of(job, t0))).firings == (Answer.OK,)

    async def test_an_unread_entry_that_is_no_end_changes_nothing(self, store: Store, t0: int) -> None:
        """As that of the job itself: it was put a moment ago."""
        [job] = await given_jobs(store, a_job("job", target="host"))
        await given(store, a_run("at the gate", "other", gated=True))

        assert (await fire(store, next_of(job, t0))).firings == (Answer.OK,)

    @pytest.mark.parametrize("verdict", [Done(), Dead("no"), Cancelled("no")])
    async def test_every_kind_of_end_is_waited_for(self, store: Store, t0: int, verdict: Verdict) -> None:
        run = await leased(store)
        await store.settle([settlement(run, verdict, outcome=an_outcome(t0))], now_ms=t0)

        assert (await fire(store, next_of(await the_job(store), t0))).firings == (Answer.UNREAD,)

    async def test_a_run_that_was_cancelled_while_it_waited_is_waited_for(self, store: Store, t0: int) -> None:
        await given(store, a_run())
        await store.cancel(run_ids=["a"], now_ms=t0)

        assert (await fire(store, next_of(await the_job(store), t0))).firings == (Answer.UNREAD,)

    async def test_a_firing_that_is_tried_again_is_live_and_overlaps(self, store: Store, t0: int) -> None:
        """What its attempt taught is not read either, but this due time does not need it."""
        run = await leased(store, a_run(cause=Cause.SCHEDULE))
        await store.settle([settlement(run, RetryAt(t0 + 9 * MINUTE), outcome=a_failure(t0))], now_ms=t0)
        job = await the_job(store)

        assert (await fire(store, next_of(job, t0))).firings == (Answer.OVERLAPPED,)
        waiting = a_firing(job, t0 + 2 * MINUTE, overlap=Overlap.QUEUE)
        assert (await fire(store, waiting)).firings == (Answer.WAITS,)

    async def test_a_key_that_is_taken_overlaps_before_any_end_is_waited_for(self, store: Store, t0: int) -> None:
        await finished(store)
        await given(store, a_run("b", "other", key="k"))

        firing = next_of(await the_job(store), t0, run={"key": "k"})

        assert (await fire(store, firing)).firings == (Answer.OVERLAPPED,)

    async def test_later_dues_of_a_job_that_waits_for_its_end_wait_behind_the_first(
        self, store: Store, t0: int
    ) -> None:
        await finished(store)
        job = await the_job(store)
        firings = (next_of(job, t0), *(a_firing(job, t0 + n * MINUTE, overlap=Overlap.SKIP) for n in (2, 3)))

        assert (await fire(store, *firings)).firings == (Answer.UNREAD,) * 3

        after = await the_job(store)
        assert (after.last_due_ms, after.next_due_ms) == (None, t0 + MINUTE), "the first of them is due"
        assert (await store.counts()).ready == 0

    async def test_the_other_firings_of_the_plan_are_made(self, store: Store, t0: int) -> None:
        await finished(store)
        [other] = await given_jobs(store, "other")
        firings = (next_of(await the_job(store), t0), next_of(other, t0))

        assert (await fire(store, *firings)).firings == (Answer.UNREAD, Answer.OK)

        assert ids(await claim(store, now_ms=t0 + MINUTE)) == [firings[1].run.id]

    async def test_an_unread_firing_of_an_older_revision_is_stale(self, store: Store, t0: int) -> None:
        await finished(store)
        old = await the_job(store)
        await given_jobs(store, a_job("job", priority=1))

        assert (await fire(store, next_of(old, t0))).firings == (Answer.STALE,)
        assert (await the_job(store)).next_due_ms is None

    async def test_an_end_goes_unread_into_another_version_with_its_job(self, store: Store, t0: int) -> None:
        await finished(store)
        await moved(store, "job")
        there = another(store)
        firing = next_of(await the_job(store), t0)

        assert (await fire(store, firing)).firings == (Answer.STALE,), "it is not here any more"
        assert (await fire(there, firing)).firings == (Answer.UNREAD,)
        assert (await fire(there, firing, consumed=await unread_ids(there))).firings == (Answer.OK,)

    async def test_what_is_unread_in_another_version_is_waited_for_there_alone(self, store: Store, t0: int) -> None:
        """Its leader may be far behind; the job has moved, with what had not been read."""
        await finished(store)
        await moved(store, "job")
        there = another(store)
        await forget_feed(there)

        assert await unread_ids(store) != ()
        assert (await fire(there, next_of(await the_job(store), t0))).firings == (Answer.OK,)

    async def test_a_plan_with_an_unread_firing_sent_twice_changes_nothing_more(self, store: Store, t0: int) -> None:
        await finished(store)
        term = await leading(store)
        plan = Plan(firings=(next_of(await the_job(store), t0),))
        first = await store.advance(term, plan, now_ms=t0)
        before = (await the_job(store), await store.list_runs(), await store.counts())

        again = await store.advance(term, plan, now_ms=t0)

        assert (first.firings, again.firings) == ((Answer.UNREAD,), (Answer.UNREAD,))
        assert (await the_job(store), await store.list_runs(), await store.counts()) == before

    async def test_a_job_that_never_had_a_due_gets_it_by_an_unread_firing(self, store: Store, t0: int) -> None:
        """The plan that fires a new job may consume the entry of its put: the due must not be lost with it."""
        await finished(store)
        assert (await the_job(store)).next_due_ms is None

        assert (await fire(store, next_of(await the_job(store), t0))).firings == (Answer.UNREAD,)

        assert ids(await store.due(before_ms=t0 + 2 * MINUTE, limit=9)) == ["job"]

    async def test_of_a_long_feed_the_latest_ends_are_looked_at(self, store: Store, t0: int) -> None:
        """A leader that is far behind fires late rather than not at all, and no plan reads a feed without end."""
        await finished(store, a_run("a", "early"))
        for n in range(0, UNREAD_MAX, 500):
            await given(store, *(a_run(f"m{n + k}", "many") for k in range(500)))
            many = await claim(store, 500, now_ms=t0, lease_ms=LEASE_MS)
            await store.settle([settlement(run, Done(), outcome=an_outcome(t0)) for run in many], now_ms=t0)
        jobs = [await the_job(store, job_id) for job_id in ("early", "many")]

        assert (await fire(store, *(next_of(job, t0) for job in jobs))).firings == (Answer.OK, Answer.UNREAD)
        assert (await the_run(store, f"early@{t0 + MINUTE}")).state is RunState.READY
