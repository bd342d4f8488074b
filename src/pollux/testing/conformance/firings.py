"""Firings: every due time is fired once, and only once; and the live runs that bar one."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from pollux.model import (
    BEHIND_MAX,
    Arrived,
    AuditLine,
    Cause,
    Done,
    JobUpdate,
    NotePut,
    Overlap,
    Plan,
    Release,
    Run,
    RunState,
)
from pollux.model.leader_notes import CAME_BACK_MS
from pollux.store.contract import BATCH_MAX, Answer, Audit, Pruning, RunAnswer, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    Contract,
    a_firing,
    a_job,
    a_memory,
    a_run,
    advance,
    answers,
    claim,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    last_ends,
    leading,
    leased,
    renewal,
    retried,
    settlement,
    the_job,
    the_run,
)

MINUTE = 60_000


class FiringContract(Contract):
    async def test_a_firing_makes_its_run_and_moves_the_job_on(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")

        advanced = await advance(store, now_ms=t0, firings=(a_firing(job, t0),))

        assert (advanced.answer, advanced.firings) == (Answer.OK, (Answer.OK,))
        assert await the_job(store) == replace(job, last_due_ms=t0, next_due_ms=t0 + MINUTE)
        assert ids(await claim(store, now_ms=t0)) == [f"job@{t0}"]

    async def test_the_same_due_fires_once(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0),))

        again = await advance(store, now_ms=t0, firings=(a_firing(job, t0, next_due_ms=t0 + 1),))

        assert again.firings == (Answer.ALREADY,)
        assert (await the_job(store)).next_due_ms == t0 + MINUTE
        assert (await store.counts()).ready == 1

    async def test_the_same_due_fires_once_even_after_its_run_was_pruned(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0),))
        [run] = await claim(store, now_ms=t0)
        await store.settle([settlement(run, Done())], now_ms=t0)
        await store.prune(Pruning(ids=(run.id,)))

        assert (await advance(store, now_ms=t0, firings=(a_firing(job, t0),))).firings == (Answer.ALREADY,)
        assert await claim(store, now_ms=t0) == ()

    async def test_an_earlier_due_does_not_fire_after_a_later_one(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0),))

        assert (await advance(store, now_ms=t0, firings=(a_firing(job, t0 - 1),))).firings == (Answer.ALREADY,)
        assert (await the_job(store)).last_due_ms == t0

    async def test_two_leaders_fire_a_due_once(self, store: Store, t0: int) -> None:
        """The key in the store prevents it, not the leadership."""
        [job] = await given_jobs(store, "job")
        one = await store.elect("one", ttl_ms=1_000, now_ms=t0)
        await store.advance(one.number, Plan(firings=(a_firing(job, t0),)), now_ms=t0)
        two = await store.elect("two", ttl_ms=1_000, now_ms=t0 + 2_000)

        advanced = await store.advance(two.number, Plan(firings=(a_firing(job, t0),)), now_ms=t0 + 2_000)

        assert advanced.firings == (Answer.ALREADY,)
        assert (await store.counts()).ready == 1

    async def test_a_firing_of_an_older_revision_is_stale(self, store: Store, t0: int) -> None:
        [old] = await given_jobs(store, "job")
        await given_jobs(store, a_job("job", priority=1))

        advanced = await advance(store, now_ms=t0, firings=(a_firing(old, t0),))

        assert advanced.firings == (Answer.STALE,)
        assert (await the_job(store)).last_due_ms is None
        assert (await store.counts()).ready == 0

    async def test_a_firing_of_a_deleted_job_is_stale(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await store.delete_jobs(["job"], now_ms=t0)

        assert (await advance(store, now_ms=t0, firings=(a_firing(job, t0),))).firings == (Answer.STALE,)
        assert await store.get_runs([f"job@{t0}"]) == [None]

    async def test_no_due_fires_twice_by_deleting_and_adding_its_job(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0),))
        await store.delete_jobs(["job"], now_ms=t0)
        [again] = await given_jobs(store, "job")

        advanced = await advance(store, now_ms=t0, firings=(a_firing(again, t0), a_firing(again, t0 + MINUTE)))

        assert advanced.firings == (Answer.ALREADY, Answer.OK)

    async def test_when_the_clock_came_back_a_due_may_fire_below_the_last(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        ahead = t0 + CAME_BACK_MS + 1
        await advance(store, now_ms=ahead, firings=(a_firing(job, ahead),))

        advanced = await advance(store, now_ms=t0, firings=(a_firing(job, t0),))

        assert advanced.firings == (Answer.OK,)
        assert (await the_job(store)).last_due_ms == t0

    async def test_when_the_clock_came_back_no_run_is_made_twice(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0),))
        ahead = t0 + 3_600_000
        await advance(store, now_ms=ahead, firings=(a_firing(job, ahead),))

        advanced = await advance(store, now_ms=t0, firings=(a_firing(job, t0), a_firing(job, t0 + MINUTE)))

        assert advanced.firings == (Answer.ALREADY, Answer.OK)

    async def test_a_last_due_a_little_ahead_is_not_a_clock_that_came_back(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0 + CAME_BACK_MS),))

        assert (await advance(store, now_ms=t0, firings=(a_firing(job, t0),))).firings == (Answer.ALREADY,)

    async def test_firings_answer_in_their_order(self, store: Store, t0: int) -> None:
        one, two = await given_jobs(store, "one", "two")
        await advance(store, now_ms=t0, firings=(a_firing(two, t0),))
        firings = (a_firing(replace(one, revision=9), t0), a_firing(two, t0), a_firing(one, t0))

        advanced = await advance(store, now_ms=t0, firings=firings)

        assert advanced.firings == (Answer.STALE, Answer.ALREADY, Answer.OK)

    async def test_several_dues_of_one_job_fire_in_one_plan(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        dues = [t0 - 2 * MINUTE, t0 - MINUTE, t0]

        advanced = await advance(store, now_ms=t0, firings=tuple(a_firing(job, due) for due in dues))

        assert advanced.firings == (Answer.OK,) * 3
        assert ids(await claim(store, now_ms=t0)) == [f"job@{due}" for due in dues]
        assert (await the_job(store)).last_due_ms == t0

    async def test_a_held_firing_waits_for_its_release(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, a_job("job", target="host"))
        firing = a_firing(job, t0, run={"gated": True})

        assert (await advance(store, now_ms=t0, firings=(firing,))).firings == (Answer.OK,)

        assert (await the_run(store, firing.run.id)).state is RunState.HELD
        assert await entries(store, Arrived) == [], "the leader knows what it made"
        await advance(store, now_ms=t0, releases=(Release(firing.run.id),))
        assert ids(await claim(store, now_ms=t0)) == [firing.run.id]

    async def test_a_firing_may_be_the_last_of_its_job(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")

        await advance(store, now_ms=t0, firings=(a_firing(job, t0, next_due_ms=None),))

        assert (await the_job(store)).next_due_ms is None
        assert await store.due(before_ms=t0 + 10 * MINUTE, limit=9) == []

    async def test_firings_survive_closing_and_opening(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0),))
        await store.close()
        await store.open()

        assert (await advance(store, now_ms=t0, firings=(a_firing(job, t0),))).firings == (Answer.ALREADY,)
        assert ids(await claim(store, now_ms=t0)) == [f"job@{t0}"]

    async def test_many_who_write_one_plan_at_once_fire_once(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        term = await leading(store)
        plan = Plan(firings=(a_firing(job, t0),))

        advanced = await asyncio.gather(*(store.advance(term, plan, now_ms=t0) for _ in range(10)))

        assert sorted(each.firings[0] for each in advanced) == sorted([Answer.ALREADY] * 9 + [Answer.OK])
        assert (await store.counts()).ready == 1


class OverlapContract(Contract):
    async def test_skip_makes_no_run_while_another_lives(self, store: Store, t0: int) -> None:
        run = await leased(store)
        job = await the_job(store)
        memory = a_memory(skips={"overlap": 1})
        firing = a_firing(job, t0, overlap=Overlap.SKIP, if_overlapped=memory)

        assert (await advance(store, now_ms=t0, firings=(firing,))).firings == (Answer.OVERLAPPED,)

        assert await store.get_runs([firing.run.id]) == [None]
        after = await the_job(store)
        assert (after.last_due_ms, after.next_due_ms, after.memory) == (t0, t0 + MINUTE, memory)
        assert await the_run(store, run.id) == run

    async def test_a_skipped_due_is_not_fired_later(self, store: Store, t0: int) -> None:
        run = await leased(store)
        job = await the_job(store)
        firing = a_firing(job, t0, overlap=Overlap.SKIP)
        await advance(store, now_ms=t0, firings=(firing,))
        await store.settle([settlement(run, Done())], now_ms=t0)

        assert (await advance(store, now_ms=t0, firings=(firing,))).firings == (Answer.ALREADY,)
        assert await store.get_runs([firing.run.id]) == [None]

    async def test_a_skip_without_a_memory_leaves_the_memory_alone(self, store: Store, t0: int) -> None:
        await leased(store)
        job = await the_job(store)
        await advance(store, now_ms=t0, updates=(JobUpdate("job", job.revision, None, a_memory(7)),))

        await advance(store, now_ms=t0, firings=(a_firing(job, t0, overlap=Overlap.SKIP),))

        assert (await the_job(store)).memory == a_memory(7)

    async def test_a_firing_that_made_its_run_does_not_take_the_memory_of_a_skip(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        firing = a_firing(job, t0, overlap=Overlap.SKIP, if_overlapped=a_memory(9))

        assert (await advance(store, now_ms=t0, firings=(firing,))).firings == (Answer.OK,)

        assert (await the_job(store)).memory == job.memory

    async def test_every_live_state_overlaps(self, store: Store, t0: int) -> None:
        held = a_run("held", "j1", gated=True)
        await leased(store, a_run("leased", "j3"))
        await given(store, held, a_run("ready", "j2"))
        jobs = [await the_job(store, job_id) for job_id in ("j1", "j2", "j3")]

        firings = tuple(a_firing(job, t0, overlap=Overlap.SKIP) for job in jobs)

        assert (await advance(store, now_ms=t0, firings=firings)).firings == (Answer.OVERLAPPED,) * 3

    async def test_a_finished_run_overlaps_with_nothing(self, store: Store, t0: int) -> None:
        await finished(store, a_run("a"))
        await forget_feed(store)
        job = await the_job(store)

        firing = a_firing(job, t0, overlap=Overlap.SKIP)

        assert (await advance(store, now_ms=t0, firings=(firing,))).firings == (Answer.OK,)

    async def test_allow_looks_at_nothing(self, store: Store, t0: int) -> None:
        await leased(store)
        job = await the_job(store)

        firing = a_firing(job, t0, overlap=Overlap.ALLOW)

        assert (await advance(store, now_ms=t0, firings=(firing,))).firings == (Answer.OK,)
        assert ids(await claim(store, now_ms=t0)) == [firing.run.id]

    async def test_queue_makes_it_held_behind_the_previous_run(self, store: Store, t0: int) -> None:
        await leased(store)
        job = await the_job(store)
        firing = a_firing(job, t0, overlap=Overlap.QUEUE)

        assert (await advance(store, now_ms=t0, firings=(firing,))).firings == (Answer.WAITS,)

        waiting = await the_run(store, firing.run.id)
        assert (waiting.state, waiting.held_reason) == (RunState.HELD, "waits for the previous run")
        assert (await the_job(store)).last_due_ms == t0

    async def test_queue_keeps_at_most_one_waiting(self, store: Store, t0: int) -> None:
        await leased(store)
        job = await the_job(store)
        await advance(store, now_ms=t0, firings=(a_firing(job, t0, overlap=Overlap.QUEUE),))
        second = a_firing(job, t0 + MINUTE, overlap=Overlap.QUEUE, if_overlapped=a_memory(3))

        assert (await advance(store, now_ms=t0 + MINUTE, firings=(second,))).firings == (Answer.OVERLAPPED,)

        assert await store.get_runs([second.run.id]) == [None]
        assert (await the_job(store)).memory == a_memory(3)

    async def test_queue_fires_at_once_when_nothing_lives(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")

        firing = a_firing(job, t0, overlap=Overlap.QUEUE)

        assert (await advance(store, now_ms=t0, firings=(firing,))).firings == (Answer.OK,)

    async def test_cancel_asks_the_running_one_to_stop_and_waits_behind_it(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run(cause=Cause.SCHEDULE))
        job = await the_job(store)
        firing = a_firing(job, t0, overlap=Overlap.CANCEL)

        assert (await advance(store, now_ms=t0, firings=(firing,))).firings == (Answer.WAITS,)

        [renewed] = await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=t0)
        assert (renewed.answer, bool(renewed.cancel)) == (Answer.OK, True)
        assert (await the_run(store, firing.run.id)).state is RunState.HELD

    async def test_cancel_ends_a_previous_run_that_only_waited_and_tells_the_leader(
        self, store: Store, t0: int
    ) -> None:
        """The leader learns of the end, or the new run would wait for ever."""
        await given(store, a_run("a", cause=Cause.SCHEDULE))
        job = await the_job(store)
        firing = a_firing(job, t0, overlap=Overlap.CANCEL)

        assert (await advance(store, now_ms=t0, firings=(firing,))).firings == (Answer.WAITS,)

        assert (await the_run(store, "a")).state is RunState.CANCELLED
        assert [(end.run_id, end.state) for end in await last_ends(store)] == [("a", RunState.CANCELLED)]


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
