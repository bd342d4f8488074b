"""Firings that begin alone: what they wait for, and what they may not change, with requested runs of the same job."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pollux.model import BEHIND_MAX, PREVIOUS_RUN, Cause, Done, Firing, Job, Overlap, Release, Run, RunState
from pollux.store.contract import BATCH_MAX, Advanced, Answer, Store
from pollux.testing.conformance.builders import (
    a_firing,
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
    leased,
    renewal,
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.contract import Contract
from pollux.testing.conformance.versions import another, moved

MINUTE = 60_000
LEASE_MS = 30_000
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
