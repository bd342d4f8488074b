"""Firings that begin alone, beside requested runs of the same job and after ends that the leader has not read."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pollux.model import (
    BEHIND_MAX,
    PREVIOUS_RUN,
    UNREAD_MAX,
    Cancelled,
    Cause,
    Dead,
    Done,
    Firing,
    Job,
    Overlap,
    Plan,
    Release,
    RetryAt,
    Run,
    RunState,
    Verdict,
)
from pollux.store.contract import BATCH_MAX, Advanced, Answer, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    Contract,
    a_failure,
    a_firing,
    a_job,
    a_memory,
    a_run,
    advance,
    an_outcome,
    answers,
    claim,
    dead_letter,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    ids_of,
    last_ends,
    leading,
    leased,
    renewal,
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.versions import another, moved

MINUTE = 60_000
WAITING = [Overlap.QUEUE, Overlap.CANCEL]
ASKED_FOR = [Cause.ENQUEUED, Cause.FORCED]


def scheduled(id: str = "first", **fields: object) -> Run:
    """Return a run of the job's own schedule."""
    return replace(a_run(id), cause=Cause.SCHEDULE, **fields)


def held_firing(id: str, reason: str = "paused") -> Run:
    return scheduled(id, gated=True, state=RunState.HELD, held_reason=reason)


async def fire(store: Store, t0: int, overlap: Overlap, **fields: object) -> tuple[Firing, Answer]:
    firing = a_firing(await the_job(store), t0, overlap=overlap, **fields)
    [answer] = (await advance(store, now_ms=t0, firings=(firing,))).firings
    return firing, answer


async def waiting(store: Store, t0: int, overlap: Overlap = Overlap.QUEUE) -> str:
    """Fire a run that waits for what is live."""
    firing, answer = await fire(store, t0, overlap)
    assert answer is Answer.WAITS
    return firing.run.id


async def begin(store: Store, t0: int, *run_ids: str, **parts: tuple[int, ...]) -> Advanced:
    """Release the runs that are alone."""
    return await advance(store, now_ms=t0, releases=tuple(Release(run_id, alone=True) for run_id in run_ids), **parts)


async def done(store: Store, run: Run, t0: int) -> None:
    assert await store.settle([settlement(run, Done(), outcome=an_outcome(t0))], now_ms=t0) == [Answer.OK]


async def is_asked_to_stop(store: Store, run: Run, t0: int) -> bool:
    [renewed] = await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=t0)
    assert renewed.answer is Answer.OK
    return bool(renewed.cancel)


async def states(store: Store, *run_ids: str) -> list[tuple[RunState, str]]:
    return [(run.state, run.held_reason) for run in [await the_run(store, run_id) for run_id in run_ids]]


BEHIND = (RunState.HELD, PREVIOUS_RUN)


class EnqueuedRunsContract(Contract):
    """Firings of a job that also has requested runs."""

    @pytest.mark.parametrize("overlap", WAITING)
    async def test_a_firing_waits_behind_several_live_runs_as_behind_one(
        self, store: Store, t0: int, overlap: Overlap
    ) -> None:
        await leased(store, a_run("a"))
        await leased(store, a_run("b"))

        firing, answer = await fire(store, t0, overlap)

        assert answer is Answer.WAITS
        assert await states(store, firing.run.id) == [BEHIND]

    @pytest.mark.parametrize("overlap", WAITING)
    async def test_one_firing_waits_however_many_runs_are_asked_for(
        self, store: Store, t0: int, overlap: Overlap
    ) -> None:
        await leased(store, a_run("a"))
        first = await waiting(store, t0, overlap)
        await leased(store, a_run("b"))

        second, answer = await fire(store, t0 + MINUTE, overlap, if_overlapped=a_memory(3))

        assert answer is Answer.OVERLAPPED
        assert await store.get_runs([second.run.id]) == [None]
        assert (await the_job(store)).memory == a_memory(3)
        assert await states(store, first) == [BEHIND]

    @pytest.mark.parametrize("overlap", WAITING)
    async def test_behind_more_than_a_firing_looks_at_none_is_made(
        self, store: Store, t0: int, overlap: Overlap
    ) -> None:
        runs = [a_run(f"r{n:04}") for n in range(BEHIND_MAX + 1)]
        await given(store, *runs[:BATCH_MAX])
        assert (await fire(store, t0, overlap))[1] is Answer.WAITS
        await store.cancel(run_ids=[f"job@{t0}"], now_ms=t0)
        await given(store, *runs[BATCH_MAX:])

        assert (await fire(store, t0 + MINUTE, overlap))[1] is Answer.OVERLAPPED

    @pytest.mark.parametrize("cause", ASKED_FOR)
    async def test_cancel_waits_for_a_running_one_that_somebody_asked_for(
        self, store: Store, t0: int, cause: Cause
    ) -> None:
        run = await leased(store, a_run("asked", cause=cause))

        firing, answer = await fire(store, t0, Overlap.CANCEL)

        assert answer is Answer.WAITS
        assert not await is_asked_to_stop(store, run, t0)
        assert await states(store, firing.run.id) == [BEHIND]

    @pytest.mark.parametrize("cause", ASKED_FOR)
    async def test_cancel_leaves_a_waiting_run_that_somebody_asked_for(
        self, store: Store, t0: int, cause: Cause
    ) -> None:
        await given(store, a_run("asked", cause=cause))

        firing, answer = await fire(store, t0, Overlap.CANCEL)

        assert answer is Answer.WAITS
        assert await states(store, "asked", firing.run.id) == [(RunState.READY, ""), BEHIND]

    async def test_cancel_finds_the_runs_of_the_schedule_among_those_that_were_asked_for(
        self, store: Store, t0: int
    ) -> None:
        running = await leased(store, scheduled("running"))
        asked = await leased(store, a_run("asked"))
        await given(store, scheduled("waiting"), a_run("asked too"))
        await forget_feed(store)

        firing, answer = await fire(store, t0, Overlap.CANCEL)

        assert answer is Answer.WAITS
        assert await is_asked_to_stop(store, running, t0)
        assert not await is_asked_to_stop(store, asked, t0)
        assert (await the_run(store, "waiting")).state is RunState.CANCELLED
        assert await states(store, "asked too", firing.run.id) == [(RunState.READY, ""), BEHIND]
        assert [end.run_id for end in await last_ends(store)] == ["waiting"]

    async def test_cancel_asks_to_stop_also_where_one_waits_already_and_replaces_nothing(
        self, store: Store, t0: int
    ) -> None:
        await leased(store, a_run("asked"))
        first = await waiting(store, t0, Overlap.CANCEL)
        await given(store, scheduled("revived"))
        running = await leased(store, scheduled("running", priority=1), limit=1)

        _, answer = await fire(store, t0 + MINUTE, Overlap.CANCEL)

        assert answer is Answer.OVERLAPPED
        assert await is_asked_to_stop(store, running, t0)
        assert await states(store, first, "revived") == [BEHIND, (RunState.READY, "")]


class AloneContract(Contract):
    """A release that is to begin alone."""

    async def test_a_run_begins_alone_where_no_other_is_live(self, store: Store, t0: int) -> None:
        first = await leased(store, scheduled())
        second = await waiting(store, t0)
        await done(store, first, t0)
        await forget_feed(store)

        assert (await begin(store, t0, second)).waiting == ()

        assert ids(await claim(store, now_ms=t0)) == [second]

    async def test_the_end_of_a_run_that_somebody_asked_for_lets_nobody_begin_beside_the_first(
        self, store: Store, t0: int
    ) -> None:
        first = await leased(store, scheduled())
        second = await waiting(store, t0)
        await finished(store, a_run("asked"))
        await forget_feed(store)

        assert (await begin(store, t0, second)).waiting == (second,)
        assert await states(store, second) == [BEHIND]

        await done(store, first, t0)
        await forget_feed(store)
        assert (await begin(store, t0, second)).waiting == ()
        assert await states(store, second) == [(RunState.READY, "")]

    @pytest.mark.parametrize("state", ["held", "ready", "leased"])
    async def test_every_live_state_of_another_run_is_waited_for(self, store: Store, t0: int, state: str) -> None:
        first = await leased(store, scheduled())
        second = await waiting(store, t0)
        await done(store, first, t0)
        match state:
            case "held":
                await given(store, a_run("other", gated=True))
            case "ready":
                await given(store, a_run("other"))
            case _:
                await leased(store, a_run("other"))
        await forget_feed(store)

        assert (await begin(store, t0, second)).waiting == (second,)
        assert second not in ids(await claim(store, now_ms=t0))

    async def test_a_run_that_was_held_for_another_reason_says_what_it_waits_for_now(
        self, store: Store, t0: int
    ) -> None:
        await leased(store, a_run("asked"))
        await given(store, held_firing("firing"))

        assert (await begin(store, t0, "firing")).waiting == ("firing",)

        assert await states(store, "firing") == [BEHIND]

    async def test_runs_of_other_jobs_are_none_of_its_business(self, store: Store, t0: int) -> None:
        await leased(store, a_run("other", "another job"))
        await given(store, held_firing("firing"))

        assert (await begin(store, t0, "firing")).waiting == ()

    async def test_of_two_that_wait_one_begins(self, store: Store, t0: int) -> None:
        await given(store, held_firing("a", PREVIOUS_RUN), held_firing("b", PREVIOUS_RUN))

        assert (await begin(store, t0, "a", "b")).waiting == ("b",)

        assert await states(store, "a", "b") == [(RunState.READY, ""), BEHIND]

    async def test_one_that_waits_does_not_bar_one_that_is_held_for_another_reason(self, store: Store, t0: int) -> None:
        """Or both would wait for each other, for ever."""
        await given(store, held_firing("a"), held_firing("b", PREVIOUS_RUN))

        assert (await begin(store, t0, "b")).waiting == ("b",)
        assert (await begin(store, t0, "a")).waiting == ()

        assert await states(store, "a", "b") == [(RunState.READY, ""), BEHIND]

    @pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
    @pytest.mark.parametrize("reasons", [("paused", "paused"), ("paused", PREVIOUS_RUN)])
    async def test_of_those_that_are_asked_about_together_the_first_begins(
        self, store: Store, t0: int, reasons: tuple[str, str], order: tuple[str, str]
    ) -> None:
        """Whatever each was held for."""
        await given(store, *[held_firing(name, reason) for name, reason in zip("ab", reasons, strict=True)])
        first, second = order

        assert (await begin(store, t0, first, second)).waiting == (second,)

        assert await states(store, first, second) == [(RunState.READY, ""), BEHIND]

    @pytest.mark.parametrize("overlap", WAITING)
    @pytest.mark.parametrize("is_over", [True, False])
    async def test_one_that_waits_may_be_asked_about_in_the_plan_that_meets_it(
        self, store: Store, t0: int, overlap: Overlap, is_over: bool
    ) -> None:
        """The due time is skipped because of it; and if nothing else is live it begins, in the same write."""
        run = await leased(store, a_run("a"))
        first = await waiting(store, t0, overlap)
        if is_over:
            await done(store, run, t0)
            await forget_feed(store)
        firing = a_firing(await the_job(store), t0 + MINUTE, overlap=overlap)

        asked = (Release(first, alone=True),)
        advanced = await advance(store, now_ms=t0 + MINUTE, firings=(firing,), releases=asked)

        assert advanced.firings == (Answer.OVERLAPPED,)
        assert advanced.waiting == (() if is_over else (first,))
        assert await states(store, first) == [(RunState.READY, "") if is_over else BEHIND]

    async def test_a_plain_release_looks_at_nothing_and_comes_first(self, store: Store, t0: int) -> None:
        await given(store, held_firing("a", PREVIOUS_RUN), held_firing("b", PREVIOUS_RUN))
        releases = (Release("a", alone=True), Release("b"))

        assert (await advance(store, now_ms=t0, releases=releases)).waiting == ("a",)

        assert await states(store, "a", "b") == [BEHIND, (RunState.READY, "")]

    async def test_a_run_that_is_not_held_is_left_as_it_is(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await given(store, a_run("ready"))

        assert (await begin(store, t0, run.id, "ready", "nobody")).waiting == ()

        assert await the_run(store, run.id) == run
        assert await states(store, "ready") == [(RunState.READY, "")]

    async def test_a_run_waits_for_an_end_that_the_plan_has_not_read(self, store: Store, t0: int) -> None:
        """What the run before it taught is not written yet, and a claim of this one returns that with it."""
        first = await leased(store, scheduled())
        second = await waiting(store, t0)
        await forget_feed(store)
        await done(store, first, t0)

        assert (await begin(store, t0, second)).waiting == (second,)
        assert await states(store, second) == [BEHIND]

        known = tuple(ids_of((await store.feed(limit=100)).items))
        assert (await begin(store, t0, second, read=known)).waiting == ()

    async def test_a_run_begins_by_the_plan_that_consumes_the_end_before_it(self, store: Store, t0: int) -> None:
        first = await leased(store, scheduled())
        second = await waiting(store, t0)
        await done(store, first, t0)
        known = tuple(ids_of((await store.feed(limit=100)).items))

        assert (await begin(store, t0, second, consumed=known)).waiting == ()

    async def test_a_run_that_began_begins_once(self, store: Store, t0: int) -> None:
        first = await leased(store, scheduled())
        second = await waiting(store, t0)
        await done(store, first, t0)
        await forget_feed(store)
        await begin(store, t0, second)
        [run] = await claim(store, now_ms=t0)

        assert (await begin(store, t0, second)).waiting == ()
        assert await the_run(store, second) == run

    async def test_a_run_that_was_moved_begins_by_the_plan_of_its_new_version(self, store: Store, t0: int) -> None:
        first = await leased(store, scheduled())
        second = await waiting(store, t0)
        await done(store, first, t0)
        await moved(store, "job")
        there = another(store)

        assert (await begin(store, t0, second)).waiting == ()
        assert await states(store, second) == [BEHIND]
        known = tuple(ids_of((await there.feed(limit=100)).items))
        assert (await begin(there, t0, second, consumed=known)).waiting == ()
        assert await states(store, second) == [(RunState.READY, "")]

    async def test_a_run_that_waits_is_cancelled_with_its_job(self, store: Store, t0: int) -> None:
        first = await leased(store, scheduled())
        second = await waiting(store, t0)

        assert await store.delete_jobs(["job"], now_ms=t0) == [Answer.OK]

        assert (await the_run(store, second)).state is RunState.CANCELLED
        await given_jobs(store, Job(id="job", handler="poll"))
        again, answer = await fire(store, t0 + MINUTE, Overlap.QUEUE)
        assert answer is Answer.WAITS, "what ran under the deleted job is not over"
        await done(store, first, t0 + MINUTE)
        await forget_feed(store)
        assert (await begin(store, t0 + MINUTE, again.run.id)).waiting == ()

    async def test_a_dead_letter_that_is_revived_waits_for_nobody_and_is_waited_for(
        self, store: Store, t0: int
    ) -> None:
        """It was requested, as any requested run."""
        await dead_letter(store, scheduled())
        await forget_feed(store)
        second, answer = await fire(store, t0, Overlap.QUEUE)
        assert answer is Answer.OK
        [running] = await claim(store, now_ms=t0)

        assert answers(await store.revive(["first"], now_ms=t0)) == [Answer.OK]

        assert await states(store, "first") == [(RunState.READY, "")]
        third = await waiting(store, t0 + MINUTE)
        await done(store, running, t0 + MINUTE)
        await forget_feed(store)
        assert (await begin(store, t0 + MINUTE, third)).waiting == (third,)
        assert (await the_run(store, second.run.id)).state is RunState.DONE


GUARDED = [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL]


async def unread_ids(store: Store) -> tuple[int, ...]:
    return tuple(ids_of((await store.feed(limit=10_000)).items))


async def write_firings(store: Store, *firings: Firing, **parts: tuple[int, ...]) -> Advanced:
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
        await write_firings(store, a_firing(await the_job(store), t0))
        [run] = await claim(store, now_ms=t0)
        await forget_feed(store)
        await store.settle([settlement(run, Done(), outcome=an_outcome(t0))], now_ms=t0)
        before = await the_job(store)
        firing = next_of(before, t0, overlap=overlap, if_overlapped=a_memory(9))

        advanced = await write_firings(store, firing)

        assert (advanced.answer, advanced.firings) == (Answer.OK, (Answer.UNREAD,))
        assert await store.get_runs([firing.run.id]) == [None]
        assert await the_job(store) == replace(before, next_due_ms=t0 + MINUTE), "it is due, and has fired no later"

    @pytest.mark.parametrize("overlap", GUARDED)
    async def test_a_firing_is_made_once_by_the_plan_that_consumes_the_end(
        self, store: Store, t0: int, overlap: Overlap
    ) -> None:
        await finished(store)
        firing = next_of(await the_job(store), t0, overlap=overlap)
        assert (await write_firings(store, firing)).firings == (Answer.UNREAD,)

        assert (await write_firings(store, firing, consumed=await unread_ids(store))).firings == (Answer.OK,)

        assert (await write_firings(store, firing)).firings == (Answer.ALREADY,)
        assert ids(await claim(store, now_ms=t0 + MINUTE)) == [firing.run.id]
        job = await the_job(store)
        assert (job.last_due_ms, job.next_due_ms) == (t0 + MINUTE, t0 + 2 * MINUTE)

    async def test_a_firing_is_made_by_a_plan_that_has_read_the_end_and_leaves_it(self, store: Store, t0: int) -> None:
        """The entry stays because of other jobs."""
        await finished(store)
        known = await unread_ids(store)
        firing = next_of(await the_job(store), t0)

        assert (await write_firings(store, firing, read=known)).firings == (Answer.OK,)

        assert await unread_ids(store) == known

    @pytest.mark.parametrize("known", ["consumed", "read"])
    async def test_of_two_ends_the_one_that_was_read_does_not_hide_the_other(
        self, store: Store, t0: int, known: str
    ) -> None:
        await finished(store, a_run("first"))
        early = await unread_ids(store)
        await finished(store, a_run("second"))

        assert (await write_firings(store, next_of(await the_job(store), t0), **{known: early})).firings == (
            Answer.UNREAD,
        )

    async def test_an_older_end_that_was_not_read_counts_beside_a_newer_one_that_was(
        self, store: Store, t0: int
    ) -> None:
        await finished(store, a_run("older"))
        older = await unread_ids(store)
        await finished(store, a_run("newer", "other"))
        newer = tuple(set(await unread_ids(store)) - set(older))

        assert (await write_firings(store, next_of(await the_job(store), t0), read=newer)).firings == (Answer.UNREAD,)

    async def test_allow_waits_for_no_end(self, store: Store, t0: int) -> None:
        await finished(store)

        firing = next_of(await the_job(store), t0, overlap=Overlap.ALLOW)

        assert (await write_firings(store, firing)).firings == (Answer.OK,)

    async def test_an_unread_end_of_another_job_changes_nothing(self, store: Store, t0: int) -> None:
        await finished(store, a_run("a", "other"))
        [job] = await given_jobs(store, "job")

        assert (await write_firings(store, next_of(job, t0))).firings == (Answer.OK,)

    async def test_an_unread_entry_that_is_no_end_changes_nothing(self, store: Store, t0: int) -> None:
        """As that of the job itself: it was put a moment ago."""
        [job] = await given_jobs(store, a_job("job", target="host"))
        await given(store, a_run("at the gate", "other", gated=True))

        assert (await write_firings(store, next_of(job, t0))).firings == (Answer.OK,)

    @pytest.mark.parametrize("verdict", [Done(), Dead("no"), Cancelled("no")])
    async def test_every_kind_of_end_is_waited_for(self, store: Store, t0: int, verdict: Verdict) -> None:
        run = await leased(store)
        await store.settle([settlement(run, verdict, outcome=an_outcome(t0))], now_ms=t0)

        assert (await write_firings(store, next_of(await the_job(store), t0))).firings == (Answer.UNREAD,)

    async def test_a_run_that_was_cancelled_while_it_waited_is_waited_for(self, store: Store, t0: int) -> None:
        await given(store, a_run())
        await store.cancel(run_ids=["a"], now_ms=t0)

        assert (await write_firings(store, next_of(await the_job(store), t0))).firings == (Answer.UNREAD,)

    async def test_a_firing_that_is_tried_again_is_live_and_overlaps(self, store: Store, t0: int) -> None:
        """What its attempt taught is not read either, but this due time does not need it."""
        run = await leased(store, a_run(cause=Cause.SCHEDULE))
        await store.settle([settlement(run, RetryAt(t0 + 9 * MINUTE), outcome=a_failure(t0))], now_ms=t0)
        job = await the_job(store)

        assert (await write_firings(store, next_of(job, t0))).firings == (Answer.OVERLAPPED,)
        waiting = a_firing(job, t0 + 2 * MINUTE, overlap=Overlap.QUEUE)
        assert (await write_firings(store, waiting)).firings == (Answer.WAITS,)

    async def test_a_key_that_is_taken_overlaps_before_any_end_is_waited_for(self, store: Store, t0: int) -> None:
        await finished(store)
        await given(store, a_run("b", "other", key="k"))

        firing = next_of(await the_job(store), t0, run={"key": "k"})

        assert (await write_firings(store, firing)).firings == (Answer.OVERLAPPED,)

    async def test_later_dues_of_a_job_that_waits_for_its_end_wait_behind_the_first(
        self, store: Store, t0: int
    ) -> None:
        await finished(store)
        job = await the_job(store)
        firings = (next_of(job, t0), *(a_firing(job, t0 + n * MINUTE, overlap=Overlap.SKIP) for n in (2, 3)))

        assert (await write_firings(store, *firings)).firings == (Answer.UNREAD,) * 3

        after = await the_job(store)
        assert (after.last_due_ms, after.next_due_ms) == (None, t0 + MINUTE), "the first of them is due"
        assert (await store.counts()).ready == 0

    async def test_the_other_firings_of_the_plan_are_made(self, store: Store, t0: int) -> None:
        await finished(store)
        [other] = await given_jobs(store, "other")
        firings = (next_of(await the_job(store), t0), next_of(other, t0))

        assert (await write_firings(store, *firings)).firings == (Answer.UNREAD, Answer.OK)

        assert ids(await claim(store, now_ms=t0 + MINUTE)) == [firings[1].run.id]

    async def test_an_unread_firing_of_an_older_revision_is_stale(self, store: Store, t0: int) -> None:
        await finished(store)
        old = await the_job(store)
        await given_jobs(store, a_job("job", priority=1))

        assert (await write_firings(store, next_of(old, t0))).firings == (Answer.STALE,)
        assert (await the_job(store)).next_due_ms is None

    async def test_an_end_goes_unread_into_another_version_with_its_job(self, store: Store, t0: int) -> None:
        await finished(store)
        await moved(store, "job")
        there = another(store)
        firing = next_of(await the_job(store), t0)

        assert (await write_firings(store, firing)).firings == (Answer.STALE,), "it is not here any more"
        assert (await write_firings(there, firing)).firings == (Answer.UNREAD,)
        assert (await write_firings(there, firing, consumed=await unread_ids(there))).firings == (Answer.OK,)

    async def test_what_is_unread_in_another_version_is_waited_for_there_alone(self, store: Store, t0: int) -> None:
        """Its leader may be far behind; the job has moved, with what had not been read."""
        await finished(store)
        await moved(store, "job")
        there = another(store)
        await forget_feed(there)

        assert await unread_ids(store) != ()
        assert (await write_firings(there, next_of(await the_job(store), t0))).firings == (Answer.OK,)

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

        assert (await write_firings(store, next_of(await the_job(store), t0))).firings == (Answer.UNREAD,)

        assert ids(await store.due(before_ms=t0 + 2 * MINUTE, limit=9)) == ["job"]

    async def test_of_a_long_feed_the_latest_ends_are_looked_at(self, store: Store, t0: int) -> None:
        """A leader that is far behind fires late rather than not at all, and no plan reads a feed without end."""
        await finished(store, a_run("a", "early"))
        for n in range(0, UNREAD_MAX, 500):
            await given(store, *(a_run(f"m{n + k}", "many") for k in range(500)))
            many = await claim(store, 500, now_ms=t0, lease_ms=LEASE_MS)
            await store.settle([settlement(run, Done(), outcome=an_outcome(t0)) for run in many], now_ms=t0)
        jobs = [await the_job(store, job_id) for job_id in ("early", "many")]

        assert (await write_firings(store, *(next_of(job, t0) for job in jobs))).firings == (Answer.OK, Answer.UNREAD)
        assert (await the_run(store, f"early@{t0 + MINUTE}")).state is RunState.READY
