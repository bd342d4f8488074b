"""Overlap: live runs of a job that bar a new one: its firings, and requested runs once they could start."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from pollux.model import BEHIND_MAX, AuditLine, Cause, NotePut, Overlap, Release, Run, RunState
from pollux.store.contract import BATCH_MAX, Answer, Audit, RunAnswer, Store
from pollux.testing.conformance.builders import (
    a_firing,
    a_run,
    advance,
    answers,
    claim,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    leased,
    retried,
    the_job,
    the_run,
)
from pollux.testing.conformance.contract import Contract

MINUTE = 60_000
HOUR = 60 * MINUTE
GUARDED = [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL]
MET = {Overlap.SKIP: Answer.OVERLAPPED, Overlap.QUEUE: Answer.WAITS, Overlap.CANCEL: Answer.WAITS}
MANY = 150


async def fire(store: Store, now_ms: int, overlap: Overlap) -> Answer:
    firing = a_firing(await the_job(store), now_ms, overlap=overlap)
    [answer] = (await advance(store, now_ms=now_ms, firings=(firing,))).firings
    return answer


async def retrying(store: Store, cause: Cause, t0: int) -> Run:
    """Return a failed run that is to be retried in a minute; its end is consumed."""
    held = await leased(store, replace(a_run("tried"), cause=cause))
    run = await retried(store, held, t0 + MINUTE, now_ms=t0)
    await forget_feed(store)
    return run


class OverlappingContract(Contract):
    @pytest.mark.parametrize("overlap", GUARDED)
    @pytest.mark.parametrize("is_gated", [False, True], ids=["ready", "held"])
    async def test_a_run_for_later_does_not_stop_the_schedule(
        self, store: Store, t0: int, overlap: Overlap, is_gated: bool
    ) -> None:
        await given(store, a_run("later", due_ms=t0 + MINUTE, gated=is_gated))

        assert await fire(store, t0, overlap) is Answer.OK

    @pytest.mark.parametrize("overlap", GUARDED)
    async def test_a_run_for_later_overlaps_from_its_time_on(self, store: Store, t0: int, overlap: Overlap) -> None:
        await given(store, a_run("later", due_ms=t0 + MINUTE))

        assert await fire(store, t0 + MINUTE, overlap) is MET[overlap]

    @pytest.mark.parametrize("overlap", GUARDED)
    async def test_a_firing_that_is_to_be_tried_again_overlaps(self, store: Store, t0: int, overlap: Overlap) -> None:
        await retrying(store, Cause.SCHEDULE, t0)

        assert await fire(store, t0 + 1, overlap) is MET[overlap]

    @pytest.mark.parametrize("cause", [Cause.ENQUEUED, Cause.FORCED])
    async def test_what_somebody_asked_for_overlaps_again_when_it_is_tried_again(
        self, store: Store, t0: int, cause: Cause
    ) -> None:
        await retrying(store, cause, t0)

        assert await fire(store, t0 + 1, Overlap.QUEUE) is Answer.OK
        await store.cancel(run_ids=[f"job@{t0 + 1}"], now_ms=t0 + 1)
        await forget_feed(store)

        assert await fire(store, t0 + MINUTE, Overlap.QUEUE) is Answer.WAITS

    @pytest.mark.parametrize("cause", [Cause.ENQUEUED, Cause.SCHEDULE])
    async def test_a_leased_run_overlaps_also_after_the_clock_came_back(
        self, store: Store, t0: int, cause: Cause
    ) -> None:
        await leased(store, replace(a_run("ahead", due_ms=t0 + HOUR), cause=cause), now_ms=t0 + HOUR)

        assert await fire(store, t0, Overlap.SKIP) is Answer.OVERLAPPED
        await claim(store, now_ms=t0 + 1)  # the store sees the new time
        assert await fire(store, t0 + MINUTE, Overlap.SKIP) is Answer.OVERLAPPED

    async def test_a_firing_of_before_the_clock_came_back_overlaps(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        assert await fire(store, t0 + HOUR, Overlap.SKIP) is Answer.OK

        assert await fire(store, t0, Overlap.SKIP) is Answer.OVERLAPPED

    @pytest.mark.parametrize("overlap", GUARDED)
    async def test_one_among_many_for_later_is_found(self, store: Store, t0: int, overlap: Overlap) -> None:
        await given(store, *[a_run(f"r{n:03}", due_ms=t0 + HOUR + n) for n in range(MANY)])
        assert await fire(store, t0, overlap) is Answer.OK

        assert await fire(store, t0 + MINUTE, overlap) is MET[overlap], "the firing before is live"

    @pytest.mark.parametrize("overlap", [Overlap.QUEUE, Overlap.CANCEL])
    async def test_those_for_later_do_not_fill_the_line_before_a_firing(
        self, store: Store, t0: int, overlap: Overlap
    ) -> None:
        runs = [a_run(f"r{n:04}", due_ms=t0 + HOUR) for n in range(BEHIND_MAX + 1)]
        await given(store, *runs[:BATCH_MAX])
        await given(store, *runs[BATCH_MAX:])
        await leased(store, a_run("now"))

        assert await fire(store, t0, overlap) is Answer.WAITS

    async def test_a_firing_begins_beside_a_run_for_later(self, store: Store, t0: int) -> None:
        """It waited for another one, which has ended."""
        await finished(store, a_run("first"))
        await given(store, replace(a_run("second", state=RunState.HELD), cause=Cause.SCHEDULE))
        await given(store, a_run("later", due_ms=t0 + HOUR))
        await forget_feed(store)

        begun = await advance(store, now_ms=t0, releases=(Release("second", alone=True),))

        assert begun.waiting == ()
        assert ids(await claim(store, now_ms=t0)) == ["second"]


class UnlessLiveContract(Contract):
    """Runs that are accepted only where no other of their job overlaps."""

    async def test_a_run_is_accepted_where_none_is_live(self, store: Store, t0: int) -> None:
        await finished(store, a_run("past"))
        await given(store, a_run("other", "other-job"))

        assert await store.enqueue([a_run("a")], unless_live=True, now_ms=t0) == [RunAnswer(Answer.OK, "a")]

    @pytest.mark.parametrize("state", ["held", "ready", "leased", "to be tried again"])
    async def test_a_live_run_keeps_it_out_and_is_named(self, store: Store, t0: int, state: str) -> None:
        match state:
            case "held":
                await given(store, a_run("live", gated=True))
            case "ready":
                await given(store, a_run("live"))
            case "leased":
                await leased(store, a_run("live"))
            case _:
                held = await leased(store, replace(a_run("live"), cause=Cause.SCHEDULE))
                await retried(store, held, t0 + MINUTE, now_ms=t0)

        refused = await store.enqueue([a_run("a")], unless_live=True, now_ms=t0)

        assert refused == [RunAnswer(Answer.OVERLAPPED, "a", "live")]
        assert await store.get_runs(["a"]) == [None]
        assert answers(await store.enqueue([a_run("a")], now_ms=t0)) == [Answer.OK], "asked without the condition"

    async def test_a_run_for_later_keeps_nothing_out(self, store: Store, t0: int) -> None:
        await given(store, a_run("later", due_ms=t0 + MINUTE))

        assert answers(await store.enqueue([a_run("a")], unless_live=True, now_ms=t0)) == [Answer.OK]

    async def test_the_same_id_again_is_the_same_run(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        given_answers = [await store.enqueue([a_run("a")], unless_live=True, now_ms=t0) for _ in range(2)]

        assert [answers(each) for each in given_answers] == [[Answer.OK], [Answer.ALREADY]]

    async def test_of_a_batch_each_is_asked_about_by_itself(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job", "other-job")
        runs = [a_run("a"), a_run("b"), a_run("c", "other-job"), a_run("d", "no-such-job")]

        assert await store.enqueue(runs, unless_live=True, now_ms=t0) == [
            RunAnswer(Answer.OK, "a"),
            RunAnswer(Answer.OVERLAPPED, "b", "a"),
            RunAnswer(Answer.OK, "c"),
            RunAnswer(Answer.STALE, "d"),
        ]

    @pytest.mark.parametrize("is_gated", [False, True], ids=["ready", "held"])
    async def test_of_twenty_at_once_over_two_handles_one_is_accepted(
        self, store: Store, t0: int, is_gated: bool
    ) -> None:
        await given_jobs(store, "job")
        twin = store.twin()
        await twin.open()
        try:
            calls = [
                (twin if n % 2 else store).enqueue([a_run(f"r{n}", gated=is_gated)], unless_live=True, now_ms=t0)
                for n in range(20)
            ]
            told = [answer for [answer] in await asyncio.gather(*calls)]
        finally:
            await twin.close()

        [accepted] = [answer.id for answer in told if answer.answer is Answer.OK]
        assert {(each.answer, each.detail) for each in told if each.id != accepted} == {(Answer.OVERLAPPED, accepted)}

    async def test_of_a_firing_and_a_run_at_once_one_is_made(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        forced = store.enqueue([a_run("a", cause=Cause.FORCED)], unless_live=True, now_ms=t0)

        [asked], fired = await asyncio.gather(forced, fire(store, t0, Overlap.SKIP))

        assert {asked.answer, fired} == {Answer.OK, Answer.OVERLAPPED}

    async def test_nothing_goes_with_a_run_that_is_kept_out(self, store: Store, t0: int) -> None:
        await given(store, a_run("live"))
        audit = Audit((AuditLine(t0, "anna", "enqueue", "a"),))

        asked = await store.enqueue([a_run("a")], notes=[NotePut("n", 1)], unless_live=True, audit=audit, now_ms=t0)

        assert asked == [RunAnswer(Answer.OVERLAPPED, "a", "live")]
        assert await store.notes("n") == []
        assert (await store.read_log()).lines == ()
        assert (await the_run(store, "live")).state is RunState.READY
