"""Moves of jobs between versions, which lose and double nothing, and the end of a version."""

from __future__ import annotations

import asyncio

import pytest

from pollux.errors import InvalidInput
from pollux.model import (
    SCHEDULER_VERSION,
    VERSION_MAX,
    Arrived,
    Done,
    Ended,
    Hold,
    Interval,
    JobsMoved,
    JobsPut,
    JobUpdate,
    Node,
    NotePut,
    Overlap,
    Plan,
    Release,
    RunState,
)
from pollux.store.contract import Answer, Pruning, RunFilter, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    T0,
    Contract,
    a_firing,
    a_job,
    a_memory,
    a_run,
    advance,
    an_outcome,
    answers,
    claim,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    last_ends,
    leased,
    renewal,
    retried,
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.versions import OTHER, another, due_ids, fired, moved
from pollux.testing.conformance.waits import soon


async def pruned(store: Store, now_ms: int) -> int:
    """Prune the other version; return how many went."""
    return await store.prune(Pruning(version=OTHER), now_ms=now_ms)


class MoveJobsContract(Contract):
    """A job moves to another version, with everything."""

    async def test_a_moved_job_keeps_its_due_times_and_its_memory(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, a_job(params={"x": [1]}, schedule=Interval(7_000)))
        assert await fired(store, next_due_ms=t0 + 7_000) is Answer.OK
        update = JobUpdate("job", job.revision, t0 + 7_000, a_memory(3, failures=2))
        assert (await advance(store, updates=(update,))).updates == (Answer.OK,)
        before = await the_job(store)

        assert await store.move_jobs(["job"], OTHER, now_ms=t0) == [Answer.OK]

        after = await the_job(store)
        assert (after.scheduler_version, after.revision) == (OTHER, before.revision + 1)
        assert (after.next_due_ms, after.last_due_ms) == (t0 + 7_000, t0)
        assert (after.memory, after.params, after.schedule) == (before.memory, before.params, before.schedule)

    async def test_a_moved_job_is_due_in_its_new_version_alone(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, updates=(JobUpdate("job", job.revision, t0, a_memory()),))

        await moved(store, "job")

        assert await due_ids(store) == []
        assert await due_ids(another(store)) == ["job"]

    async def test_a_job_that_was_just_looked_at_is_due_in_its_new_version_alone(self, store: Store, t0: int) -> None:
        """With another one that is due at the same moment, and stays."""
        for job in await given_jobs(store, "goes", "stays"):
            await advance(store, updates=(JobUpdate(job.id, job.revision, t0, a_memory()),))
        assert await due_ids(store) == ["goes", "stays"]

        await moved(store, "goes")

        assert await due_ids(store) == ["stays"]
        assert await due_ids(another(store)) == ["goes"]

    async def test_a_move_answers_for_each_job(self, store: Store, t0: int) -> None:
        await given_jobs(store, "a", "b")
        await given_jobs(another(store), "c")

        told = await store.move_jobs(["a", "none", "c", "a"], OTHER, now_ms=t0)

        assert told == [Answer.OK, Answer.LOST, Answer.ALREADY, Answer.ALREADY]
        assert [job.scheduler_version for job in (await store.list_jobs()).jobs] == [OTHER, SCHEDULER_VERSION, OTHER]

    async def test_a_move_sent_twice_moves_once(self, store: Store, t0: int) -> None:
        await given(store, a_run("g", gated=True))
        await moved(store, "job")
        before = await the_job(store), await another(store).counts()

        assert await store.move_jobs(["job"], OTHER, now_ms=t0) == [Answer.ALREADY]

        assert (await the_job(store), await another(store).counts()) == before

    async def test_both_leaders_are_told_of_a_move(self, store: Store) -> None:
        await given_jobs(store, "a", "b")
        await forget_feed(store)

        await moved(store, "a", "b")

        assert [item.entry for item in (await store.feed(limit=9)).items] == [JobsMoved(("a", "b"))]
        assert [item.entry for item in (await another(store).feed(limit=9)).items] == [JobsMoved(("a", "b"))]

    async def test_jobs_of_several_versions_are_moved_in_one_call(self, store: Store) -> None:
        await given_jobs(store, "a")
        await given_jobs(another(store), "b")

        await moved(store, "a", "b", to=OTHER + 1)

        assert await entries(store, JobsMoved) == [JobsMoved(("a",))]
        assert await entries(another(store), JobsMoved) == [JobsMoved(("b",))]
        assert await entries(store.of_version(OTHER + 1), JobsMoved) == [JobsMoved(("a", "b"))]

    async def test_what_the_old_leader_planned_of_a_moved_job_is_stale(self, store: Store, t0: int) -> None:
        """Nothing fires twice: neither the old plan nor, in the new version, the due that had fired before."""
        [job] = await given_jobs(store, "job")
        assert await fired(store) is Answer.OK
        planned = a_firing(await the_job(store), t0 + 60_000)
        await moved(store, "job")

        told = await advance(store, firings=(planned,), updates=(JobUpdate("job", job.revision, t0, a_memory(9)),))

        assert (told.firings, told.updates) == ((Answer.STALE,), (Answer.STALE,))
        assert await fired(another(store), due_ms=t0) is Answer.ALREADY
        assert await fired(another(store), due_ms=t0 + 60_000) is Answer.OK

    async def test_a_job_that_was_moved_there_and_back_is_stale_for_the_plan_before(
        self, store: Store, t0: int
    ) -> None:
        [job] = await given_jobs(store, "job")
        await moved(store, "job")
        await moved(store, "job", to=SCHEDULER_VERSION)

        assert (await advance(store, firings=(a_firing(job, t0),))).firings == (Answer.STALE,)
        assert (await the_job(store)).revision == job.revision + 2

    async def test_waiting_runs_go_along_in_their_order(self, store: Store, t0: int) -> None:
        await given(store, a_run("low", priority=3), a_run("late", due_ms=t0 + 500), a_run("b"), a_run("c"))
        await given(store, a_run("high", priority=1), a_run("stays", "other"))

        await moved(store, "job")

        assert ids(await claim(store, now_ms=t0 + 1_000)) == ["stays"]
        assert ids(await claim(another(store))) == ["high", "b", "c", "low"]
        assert ids(await claim(another(store), now_ms=t0 + 500)) == ["late"]

    async def test_a_retry_goes_along_with_all_it_remembers(self, store: Store, t0: int) -> None:
        before = await retried(store, await leased(store), t0 + 9_000)

        await moved(store, "job")

        [run] = await claim(another(store), now_ms=t0 + 9_000)
        assert (run.attempt, run.tried, run.fence) == (1, before.tried, 2)
        assert (run.scheduler_version, run.visible_ms) == (OTHER, t0 + 9_000)

    async def test_held_runs_come_to_the_new_gate(self, store: Store, t0: int) -> None:
        await given(store, a_run("g", gated=True))

        await moved(store, "job")

        assert await entries(another(store), Arrived) == [Arrived(("g",))]
        run = await the_run(store, "g")
        assert (run.state, run.held_reason, run.scheduler_version) == (RunState.HELD, "at the gate", OTHER)
        assert (await advance(store, releases=(Release("g"),))).answer is Answer.OK
        assert await claim(another(store)) == ()
        await advance(another(store), releases=(Release("g"),))
        assert ids(await claim(another(store))) == ["g"]

    async def test_the_lease_of_a_moved_run_stands(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await moved(store, "job")

        assert await claim(another(store)) == ()
        assert answers(await store.renew([renewal(run)], lease_ms=2 * LEASE_MS, now_ms=t0)) == [Answer.OK]
        assert await claim(another(store), now_ms=t0 + LEASE_MS) == ()
        assert await store.settle([settlement(run, Done(), outcome=an_outcome())], now_ms=t0) == [Answer.OK]
        assert [end.run_id for end in await last_ends(another(store))] == [run.id]
        assert await entries(store, Ended) == []

    async def test_a_moved_run_is_given_again_to_the_claim_that_had_it(self, store: Store, t0: int) -> None:
        await given(store, a_run())
        [run] = await claim(store, token="t")
        await moved(store, "job")

        [again] = await claim(store, token="t")

        assert (again.id, again.token, again.scheduler_version) == (run.id, run.token, OTHER)

    async def test_a_lease_lost_after_a_move_is_taken_back_in_the_new_version(self, store: Store, t0: int) -> None:
        await leased(store)
        await moved(store, "job")

        assert await claim(store, now_ms=t0 + LEASE_MS) == ()
        [run] = await claim(another(store), now_ms=t0 + LEASE_MS)
        assert (run.lease_losses, run.fence) == (1, 2)

    async def test_a_moved_run_that_is_handed_back_waits_in_the_new_version(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await moved(store, "job")

        assert await store.settle([settlement(run, Hold("not here"))], now_ms=t0) == [Answer.OK]

        assert await entries(another(store), Arrived) == [Arrived((run.id,))]
        assert await entries(store, Arrived) == []
        assert (await another(store).counts()).held == 1

    async def test_ends_that_nobody_read_go_along(self, store: Store, t0: int) -> None:
        """What the job learns from its last runs is not lost between two leaders."""
        await finished(store, a_run("a"))
        await finished(store, a_run("b", "other"))
        await finished(store, a_run("c"))

        await moved(store, "job")

        [told] = await entries(another(store), Ended)
        assert [end.run_id for end in told.ends] == ["a", "c"]
        assert (await another(store).counts()).ends == 2

    async def test_ends_that_were_read_do_not_go_along(self, store: Store, t0: int) -> None:
        await finished(store, a_run("a"))
        await forget_feed(store)

        await moved(store, "job")

        assert await entries(another(store), Ended) == []

    async def test_counts_follow_a_move(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b", due_ms=t0 + 9), a_run("g", gated=True))
        await leased(store, a_run("l", priority=1), limit=1)

        await moved(store, "job")

        here, there = await store.counts(), await another(store).counts()
        assert (here.held, here.ready, here.leased, here.jobs) == (0, 0, 0, 0)
        assert (there.held, there.ready, there.leased, there.jobs) == (1, 2, 1, 1)

    async def test_finished_runs_stay_in_the_version_where_they_ended(self, store: Store) -> None:
        await finished(store, a_run("a"))
        await moved(store, "job")
        await finished(another(store), a_run("b"))

        assert ids((await store.list_runs(RunFilter(scheduler_version=SCHEDULER_VERSION))).runs) == ["a"]
        assert ids((await store.list_runs(RunFilter(job_id="job"))).runs) == ["b", "a"]

    async def test_overlap_is_guarded_over_a_move(self, store: Store, t0: int) -> None:
        """A run that began in the old version is still the previous one in the new."""
        await given_jobs(store, "job")
        assert await fired(store) is Answer.OK
        [run] = await claim(store)
        await moved(store, "job")

        assert await fired(another(store), due_ms=t0 + 60_000, overlap=Overlap.QUEUE) is Answer.WAITS
        assert await store.settle([settlement(run, Done(), outcome=an_outcome())], now_ms=t0) == [Answer.OK]
        assert [end.run_id for end in await last_ends(another(store))] == [run.id]

    @pytest.mark.parametrize("to", [SCHEDULER_VERSION, OTHER + 1])
    async def test_a_run_that_outlived_a_deleted_job_goes_along_with_the_one_in_its_place(
        self, store: Store, t0: int, to: int
    ) -> None:
        """The job was deleted, and added again in another version, while the run was under way."""
        run = await leased(store)
        await store.delete_jobs(["job"], now_ms=t0)
        await given_jobs(another(store), "job")

        await moved(store, "job", to=to)

        assert (await the_run(store, run.id)).scheduler_version == to
        assert (await store.of_version(to).counts()).leased == 1
        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.OK]
        assert [end.run_id for end in await last_ends(store.of_version(to))] == [run.id]

    async def test_what_is_leased_of_a_deleted_job_comes_along_with_the_one_in_its_place(
        self, store: Store, t0: int
    ) -> None:
        """Or the leader there, whose firing waits for it, would not learn of its end."""
        run, there = await leased(store), another(store)
        await store.delete_jobs(["job"], now_ms=t0)
        await given_jobs(there, "job")

        assert await fired(there, due_ms=t0 + 1, overlap=Overlap.QUEUE) is Answer.WAITS
        assert ((await store.counts()).leased, (await there.counts()).leased) == (0, 1)
        assert [each.answer for each in await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=t0)] == [Answer.OK]
        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.OK]
        assert [end.run_id for end in await last_ends(there)] == [run.id]
        assert (await there.counts()).leased == 0

    async def test_a_lease_that_came_along_with_a_job_is_lost_in_its_version(self, store: Store, t0: int) -> None:
        run, there = await leased(store), another(store)
        await store.delete_jobs(["job"], now_ms=t0)
        await given_jobs(there, "job")

        assert not await claim(store, now_ms=t0 + LEASE_MS)
        [again] = await claim(there, now_ms=t0 + LEASE_MS)

        assert (again.id, again.lease_losses, again.scheduler_version) == (run.id, 1, OTHER)

    async def test_a_key_stays_taken_over_a_move(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", key="k"))
        await moved(store, "job")

        [answer] = await store.enqueue([a_run("b", key="k")], now_ms=t0)
        assert (answer.answer, answer.detail) == (Answer.CONFLICT, "a")
        [run] = await claim(another(store))
        await store.settle([settlement(run, Done())], now_ms=t0)
        assert answers(await store.enqueue([a_run("c", key="k")], now_ms=t0)) == [Answer.OK]

    async def test_a_move_rings_who_waits_in_the_new_version(self, store: Store) -> None:
        await given(store, a_run("a", due_ms=0), now_ms=0)
        await given_jobs(another(store), "other")
        waiting = asyncio.ensure_future(
            another(store).claim(node="n", token="t", limit=1, lease_ms=LEASE_MS, wait_ms=60_000)
        )
        await asyncio.sleep(0)

        await moved(store, "job")

        assert ids((await soon(waiting)).runs) == ["a"]

    @pytest.mark.parametrize("number", [0, VERSION_MAX + 1])
    async def test_a_move_to_no_version_is_refused(self, store: Store, number: int) -> None:
        await given_jobs(store, "job")

        with pytest.raises(InvalidInput):
            await store.move_jobs(["job"], number)

    async def test_a_disabled_job_is_moved_as_it_is(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, updates=(JobUpdate("job", job.revision, t0, a_memory()),))
        await given_jobs(store, a_job(enabled=False))

        await moved(store, "job")

        assert (await the_job(store)).next_due_ms == t0
        assert await due_ids(another(store)) == []
        await given_jobs(another(store), a_job(enabled=True))
        assert await due_ids(another(store)) == ["job"]

    async def test_moves_back_and_forth_while_others_claim_double_and_lose_nothing(self, store: Store) -> None:
        """Two workers drain both versions while the jobs move back and forth."""
        job_ids = [f"j{n}" for n in range(4)]
        runs = [a_run(f"r{n}", job_ids[n % 4]) for n in range(60)]
        await given(store, *runs)
        done: list[tuple[int, str]] = []
        both_began = asyncio.Event()

        async def work(handle: Store) -> None:
            rounds = len(runs)  # after the last move; a third would do
            while rounds:
                rounds -= moving.done()
                for run in await claim(handle, 3):
                    assert await handle.settle([settlement(run, Done())], now_ms=T0) == [Answer.OK]
                    done.append((handle.scheduler_version, run.id))
                if len({version for version, _ in done}) == 2:
                    both_began.set()
                await asyncio.sleep(0)

        async def move() -> None:
            await both_began.wait()
            for turn in range(12):
                await store.move_jobs(job_ids[turn % 2 :: 2], OTHER if turn % 3 else SCHEDULER_VERSION, now_ms=T0)
                await asyncio.sleep(0)

        await store.move_jobs(job_ids[1::2], OTHER, now_ms=T0)
        moving = asyncio.ensure_future(move())
        await soon(asyncio.gather(work(store), work(another(store)), moving))

        assert sorted(run_id for _, run_id in done) == sorted(run.id for run in runs)
        assert {version for version, _ in done} == {SCHEDULER_VERSION, OTHER}


class PruneVersionContract(Contract):
    """The list of versions, and the end of one."""

    async def test_a_version_is_there_once_it_has_a_job_a_node_or_a_leader(self, store: Store, t0: int) -> None:
        assert [version.number for version in await store.versions(now_ms=t0)] == []

        await given_jobs(store.of_version(11), "job")
        await store.beat(Node("n", scheduler_version=12), ttl_ms=9, now_ms=t0)
        await store.of_version(13).elect("n", ttl_ms=9, now_ms=t0)
        await store.move_jobs(["job"], 14, now_ms=t0)

        assert [version.number for version in await store.versions(now_ms=t0)] == [11, 12, 13, 14]

    async def test_versions_tell_their_figures_and_who_leads(self, store: Store, t0: int) -> None:
        await given(another(store), a_run("a", "other"), a_run("g", "other", gated=True))
        await another(store).elect("one", ttl_ms=10, now_ms=t0)
        await another(store).elect("two", ttl_ms=10, now_ms=t0 + 20)
        await given_jobs(store, "job")

        here, there = await store.versions(now_ms=t0 + 25)

        assert (here.number, here.counts.jobs, here.term, here.leader) == (SCHEDULER_VERSION, 1, 0, "")
        assert (there.number, there.term, there.leader) == (OTHER, 2, "two")
        assert (there.counts.jobs, there.counts.ready, there.counts.held) == (1, 1, 1)
        [_, there] = await store.versions(now_ms=t0 + 30)
        assert (there.term, there.leader) == (2, "")

    async def test_a_version_with_a_job_is_not_pruned(self, store: Store, t0: int) -> None:
        await given_jobs(another(store), "job")

        assert await pruned(store, t0) == 0
        await moved(store, "job", to=SCHEDULER_VERSION)
        assert await pruned(store, t0) == 1

    @pytest.mark.parametrize("state", ["leased", "cancelled"])
    async def test_a_version_with_a_live_run_is_not_pruned(self, store: Store, t0: int, state: str) -> None:
        """Its job was deleted, the run is still leased."""
        run = await leased(another(store), a_run("a", "other"))
        await store.delete_jobs(["other"], now_ms=t0)

        assert await pruned(store, t0) == 0
        if state == "cancelled":
            await store.cancel(run_ids=["a"], now_ms=t0)
            assert await pruned(store, t0) == 0
        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.OK]
        assert await pruned(store, t0) == 1

    async def test_a_version_that_is_led_is_not_pruned(self, store: Store, t0: int) -> None:
        await another(store).elect("n", ttl_ms=1_000, now_ms=t0)

        assert await pruned(store, t0 + 999) == 0
        assert await pruned(store, t0 + 1_000) == 1

    async def test_a_pruned_version_goes_with_its_unread_feed(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        await finished(another(store), a_run("a", "other"))
        await store.delete_jobs(["other"], now_ms=t0)

        assert await pruned(store, t0) == 1

        assert [version.number for version in await store.versions(now_ms=t0)] == [SCHEDULER_VERSION]
        counts = await another(store).counts()
        assert (counts.feed, counts.ends, counts.jobs) == (0, 0, 0)
        assert await entries(store, JobsPut) == [JobsPut(("job",), 1)]
        assert (await the_run(store, "a")).scheduler_version == OTHER

    async def test_a_pruned_version_gets_no_feed_entries(self, store: Store, t0: int) -> None:
        await given_jobs(another(store), "job")
        await moved(store, "job", to=SCHEDULER_VERSION)
        await pruned(store, t0)

        await store.put_notes([NotePut("x", 1)], now_ms=t0)

        assert (await another(store).counts()).feed == 0

    async def test_a_version_is_pruned_once(self, store: Store, t0: int) -> None:
        assert await pruned(store, t0) == 0
        await given_jobs(another(store), "job")
        await moved(store, "job", to=SCHEDULER_VERSION)
        assert await pruned(store, t0) == 1
        assert await pruned(store, t0) == 0

    async def test_terms_rise_over_a_pruned_version(self, store: Store, t0: int) -> None:
        """An earlier leader is still fenced if the version is created again."""
        first = await another(store).elect("old", ttl_ms=10, now_ms=t0)
        assert await pruned(store, t0 + 10) == 1

        again = await another(store).elect("new", ttl_ms=10, now_ms=t0 + 20)

        assert again.number == first.number + 1
        assert (await another(store).advance(first.number, Plan(), now_ms=t0 + 21)).answer is Answer.FENCED
        assert [version.number for version in await store.versions(now_ms=t0)] == [OTHER]
