"""Firings: every due time is fired once, and only once."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from pollux.model import Arrived, Cause, Done, JobUpdate, Overlap, Plan, Release, RunState
from pollux.model.leader_notes import CAME_BACK_MS
from pollux.store.contract import Answer, Pruning, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_firing,
    a_job,
    a_memory,
    a_run,
    advance,
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
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.contract import Contract

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
