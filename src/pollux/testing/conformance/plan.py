"""Plans: each is written as a whole, and no end leaves the feed before its job has learnt it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from pollux.model import (
    Cancelled,
    CancelOrder,
    Done,
    Earlier,
    Ended,
    FeedItem,
    Firing,
    Holding,
    JobUpdate,
    Node,
    NotePut,
    NotesChanged,
    Overlap,
    Plan,
    Release,
    RetryAt,
    RunState,
)
from pollux.store.contract import Answer, JobPut, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    Contract,
    a_firing,
    a_job,
    a_memory,
    a_run,
    advance,
    an_outcome,
    claim,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    leading,
    leased,
    renewal,
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.versions import another, moved

MINUTE = 60_000
DAY = 1_440 * MINUTE


class PlanContract(Contract):
    async def test_consumed_entries_vanish_and_the_others_stay(self, store: Store, t0: int) -> None:
        for run_id in ("a", "b", "c"):
            await finished(store, a_run(run_id))
        items = (await store.feed(limit=99)).items
        ends = [item for item in items if isinstance(item.entry, Ended)]

        await advance(store, now_ms=t0, consumed=(ends[1].id,))

        left = (await store.feed(limit=99)).items
        assert left == tuple(item for item in items if item.id != ends[1].id)

    async def test_unknown_entries_are_ignored(self, store: Store, t0: int) -> None:
        await finished(store)
        before = (await store.feed(limit=99)).items

        assert (await advance(store, now_ms=t0, consumed=(999_999, 0, -1))).answer is Answer.OK
        assert (await store.feed(limit=99)).items == before

    async def test_a_released_run_is_visible_now_at_the_earliest(self, store: Store, t0: int) -> None:
        await given(store, a_run("past", gated=True), a_run("later", gated=True, due_ms=t0 + 9_000))

        await advance(store, now_ms=t0 + 1_000, releases=(Release("past"), Release("later")))

        assert [(await the_run(store, run_id)).visible_ms for run_id in ("past", "later")] == [t0 + 1_000, t0 + 9_000]
        assert ids(await claim(store, now_ms=t0 + 1_000)) == ["past"]
        assert ids(await claim(store, now_ms=t0 + 9_000)) == ["later"]

    async def test_only_a_held_run_is_released(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("leased"))
        await finished(store, a_run("done"))
        await given(store, a_run("later", due_ms=t0 + MINUTE))
        before = await store.get_runs(["leased", "done", "later"])

        orders = tuple(Release(run_id) for run_id in ("leased", "done", "later", "nobody"))
        assert (await advance(store, now_ms=t0, releases=orders)).answer is Answer.OK

        assert await store.get_runs(["leased", "done", "later"]) == before
        assert await the_run(store, "leased") == run

    async def test_releasing_twice_is_harmless(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True))
        for _ in range(2):
            await advance(store, now_ms=t0, releases=(Release("a"),))

        assert ids(await claim(store, now_ms=t0)) == ["a"]
        assert await claim(store, now_ms=t0) == ()

    async def test_a_waiting_run_becomes_visible_earlier(self, store: Store, t0: int) -> None:
        """Held or ready: it waits for the new time, keeps its order and everything else, and is claimed then."""
        await given(store, a_run("ready", due_ms=t0 + DAY), a_run("held", gated=True, due_ms=t0 + DAY))
        before = [await the_run(store, run_id) for run_id in ("ready", "held")]
        sooner = (Earlier("ready", t0 + 1_000), Earlier("held", t0 + 2_000))
        for _ in range(2):
            assert (await advance(store, now_ms=t0, earlier=sooner)).answer is Answer.OK

        assert await the_run(store, "ready") == replace(before[0], visible_ms=t0 + 1_000)
        assert await the_run(store, "held") == replace(before[1], visible_ms=t0 + 2_000)
        assert await claim(store, now_ms=t0 + 999) == ()
        assert ids(await claim(store, now_ms=t0 + 1_000)) == ["ready"]
        await advance(store, now_ms=t0 + 1_500, releases=(Release("held"),))
        assert await claim(store, now_ms=t0 + 1_999) == ()
        assert ids(await claim(store, now_ms=t0 + 2_000)) == ["held"]

    async def test_a_retry_becomes_visible_earlier(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, RetryAt(t0 + DAY))], now_ms=t0)
        waiting = await the_run(store, run.id)

        await advance(store, now_ms=t0, earlier=(Earlier(run.id, t0 - 5),))

        assert await the_run(store, run.id) == replace(waiting, visible_ms=t0 - 5)
        [again] = await claim(store, now_ms=t0)
        assert (again.id, again.attempt, again.tried) == (run.id, 1, waiting.tried)
        await store.settle([settlement(again, Done())], now_ms=t0)
        assert await claim(store, now_ms=t0 + DAY) == ()

    async def test_no_run_becomes_visible_later_and_only_one_that_waits_earlier(self, store: Store, t0: int) -> None:
        await leased(store, a_run("leased", due_ms=t0))
        await finished(store, a_run("done", due_ms=t0))
        await given(store, a_run("soon", due_ms=t0 + MINUTE))
        names = ["leased", "done", "soon"]
        before = await store.get_runs(names)

        orders = (Earlier("leased", 0), Earlier("done", 0), Earlier("soon", t0 + DAY), Earlier("nobody", 0))
        assert (await advance(store, now_ms=t0, earlier=orders)).answer is Answer.OK

        assert await store.get_runs(names) == before

    async def test_a_holding_writes_the_reason_of_a_held_run(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True), a_run("b"))

        await advance(store, now_ms=t0, holds=(Holding("a", "host is full"), Holding("b", "x"), Holding("no", "x")))

        assert (await the_run(store, "a")).held_reason == "host is full"
        assert (await the_run(store, "b")).held_reason == ""

    async def test_a_cancel_order_ends_a_waiting_run_silently(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True), a_run("b"))
        await forget_feed(store)

        await advance(store, now_ms=t0, cancels=(CancelOrder("a", "enough"), CancelOrder("b", "enough")))

        assert [(await the_run(store, run_id)).state for run_id in ("a", "b")] == [RunState.CANCELLED] * 2
        assert (await store.feed(limit=9)).items == ()

    async def test_a_plan_cancels_the_run_that_it_fires(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        firing = a_firing(job, t0)

        advanced = await advance(store, now_ms=t0, firings=(firing,), cancels=(CancelOrder(firing.run.id, "enough"),))

        assert (advanced.answer, advanced.firings) == (Answer.OK, (Answer.OK,))
        assert (await the_run(store, firing.run.id)).state is RunState.CANCELLED
        assert (await store.counts()).ready == 0

    async def test_a_cancel_order_asks_a_leased_run_to_stop(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await advance(store, now_ms=t0, cancels=(CancelOrder(run.id, "enough"), CancelOrder("nobody", "x")))

        [renewed] = await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=t0)
        assert renewed.cancel == "enough"
        assert await store.settle([settlement(run, Cancelled("enough"))], now_ms=t0) == [Answer.OK]

    async def test_an_update_writes_the_leaders_columns(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        update = JobUpdate("job", job.revision, t0 + 500, a_memory(4, last_error="x"), last_due_ms=t0 - 5)

        assert (await advance(store, now_ms=t0, updates=(update,))).updates == (Answer.OK,)

        expected = replace(job, next_due_ms=t0 + 500, last_due_ms=t0 - 5, memory=a_memory(4, last_error="x"))
        assert await the_job(store) == expected

    async def test_an_update_of_an_older_revision_is_stale(self, store: Store, t0: int) -> None:
        [old] = await given_jobs(store, "job")
        await given_jobs(store, a_job("job", priority=1))
        updates = (JobUpdate("job", old.revision, t0, a_memory(9)), JobUpdate("nobody", 1, t0, a_memory(9)))

        assert (await advance(store, now_ms=t0, updates=updates)).updates == (Answer.STALE, Answer.STALE)

        after = await the_job(store)
        assert (after.next_due_ms, after.memory) == (None, old.memory)

    async def test_the_last_due_of_an_update_never_goes_back(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0),))

        await advance(store, now_ms=t0, updates=(JobUpdate("job", 1, None, a_memory(), last_due_ms=t0 - MINUTE),))
        assert (await the_job(store)).last_due_ms == t0
        await advance(store, now_ms=t0, updates=(JobUpdate("job", 1, None, a_memory()),))
        assert (await the_job(store)).last_due_ms == t0

    async def test_notes_of_a_plan_are_written_without_an_entry(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("old", 1)], now_ms=t0)
        await forget_feed(store)

        notes = (NotePut("new", 2), NotePut("old", 2, revision=999))
        assert (await advance(store, now_ms=t0, notes=notes)).answer is Answer.OK

        assert {note.key: note.value for note in await store.notes(now_ms=t0)} == {"new": 2, "old": 1}
        assert await entries(store, NotesChanged) == []

    async def test_a_plan_sent_twice_changes_nothing_more(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True), a_run("b", gated=True))
        job = await the_job(store)
        feed = await store.feed(limit=99)
        plan = Plan(
            consumed=tuple(item.id for item in feed.items),
            firings=(a_firing(job, t0),),
            releases=(Release("a"),),
            holds=(Holding("b", "full"),),
            updates=(JobUpdate("job", job.revision, t0 + 5, a_memory(2), last_due_ms=t0),),
        )
        term = await leading(store)
        await store.advance(term, plan, now_ms=t0)
        before = (await store.counts(), await store.list_runs(), await the_job(store))

        again = await store.advance(term, plan, now_ms=t0)

        assert (again.answer, again.firings, again.updates) == (Answer.OK, (Answer.ALREADY,), (Answer.OK,))
        assert (await store.counts(), await store.list_runs(), await the_job(store)) == before

    async def test_a_plan_answers_the_ready_runs_and_the_seats_of_the_living(self, store: Store, t0: int) -> None:
        await store.beat(Node("n1", seats=10), ttl_ms=45_000, now_ms=t0)
        await store.beat(Node("n2", seats=4), ttl_ms=45_000, now_ms=t0)
        await store.beat(Node("gone", seats=99), ttl_ms=1, now_ms=t0)
        await given(store, a_run("a"), a_run("later", due_ms=t0 + MINUTE), a_run("held", gated=True))

        advanced = await advance(store, now_ms=t0 + 5, releases=(Release("held"),))

        assert (advanced.ready, advanced.seats, advanced.now_ms) == (3, 14, t0 + 5)

    async def test_an_empty_plan_proves_the_term(self, store: Store, t0: int) -> None:
        term = await leading(store)

        advanced = await store.advance(term, Plan(), now_ms=t0)

        assert (advanced.answer, advanced.now_ms) == (Answer.OK, t0)

    async def test_a_job_put_again_keeps_what_the_leader_knows(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0),))
        await advance(store, now_ms=t0, updates=(JobUpdate("job", 1, t0 + 7, a_memory(5)),))

        await store.put_jobs([JobPut(a_job("job", name="other"))], now_ms=t0)

        after = await the_job(store)
        assert (after.revision, after.next_due_ms, after.last_due_ms, after.memory) == (2, t0 + 7, t0, a_memory(5))


async def ended_together(store: Store, *job_ids: str, now_ms: int) -> FeedItem:
    """End one run of each job, all in one entry, which alone is in the feed."""
    await given(store, *[a_run(f"run-{job_id}", job_id) for job_id in job_ids])
    runs = await claim(store, limit=len(job_ids), now_ms=now_ms)
    await forget_feed(store)
    outcome = an_outcome(now_ms)
    assert set(await store.settle([settlement(run, Done(), outcome=outcome) for run in runs], now_ms=now_ms)) == {
        Answer.OK
    }
    [item] = (await store.feed(limit=9)).items
    return item


def mark(item: FeedItem) -> tuple[int, int]:
    assert isinstance(item.entry, Ended)
    return item.entry.mark(item.id)


async def learnt(store: Store, job_id: str, *items: FeedItem, **fields: int) -> JobUpdate:
    """Return the write of a leader that has just read the job, and these entries."""
    job = await the_job(store, job_id)
    memory = a_memory(job.memory.ended + len(items), learnt=tuple(map(mark, items)))
    return JobUpdate(job_id, fields.pop("revision", job.revision), job.next_due_ms, memory)


async def left(store: Store, kind: type = Ended) -> list[int]:
    return [item.id for item in (await store.feed(limit=1_000)).items if isinstance(item.entry, kind)]


class LearntContract(Contract):
    async def test_a_job_remembers_the_entries_that_it_has_learnt_from(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        memory = a_memory(learnt=((7, t0), (1 << 52, t0 + 1)))

        await advance(store, now_ms=t0, updates=(JobUpdate("job", job.revision, None, memory),))

        assert (await the_job(store)).memory == memory

    @pytest.mark.parametrize("beside", ["alone", "a note", "a firing"])
    async def test_an_entry_stays_as_long_as_a_job_that_was_to_learn_from_it_is_stale(
        self, store: Store, t0: int, beside: str
    ) -> None:
        """Or its end would be lost with a leader that dies before the next plan."""
        await given_jobs(store, "fires")
        item = await ended_together(store, "a", "b", now_ms=t0)
        updates = (await learnt(store, "a", item), await learnt(store, "b", item))
        await given_jobs(store, a_job("b", priority=1))
        firings = (a_firing(await the_job(store, "fires"), t0),) if beside == "a firing" else ()
        notes = (NotePut("note", 1),) if beside == "a note" else ()

        told = await advance(store, now_ms=t0, consumed=(item.id,), updates=updates, firings=firings, notes=notes)

        assert (told.answer, told.updates) == (Answer.OK, (Answer.OK, Answer.STALE))
        assert [(await the_job(store, job_id)).memory.ended for job_id in ("a", "b")] == [1, 0]
        assert await left(store) == [item.id]
        assert (await store.counts()).ends == 2
        assert await entries(store, Ended) == [item.entry]

        again = await learnt(store, "b", item)
        assert (await advance(store, now_ms=t0, consumed=(item.id,), updates=(again,))).updates == (Answer.OK,)
        assert await left(store) == []
        assert (await store.counts()).ends == 0

    @pytest.mark.parametrize("fate", ["deleted", "moved"])
    async def test_an_entry_stays_for_a_job_that_is_not_here_any_more(self, store: Store, t0: int, fate: str) -> None:
        """The leader reads what became of it, and consumes the entry then."""
        item = await ended_together(store, "a", "b", now_ms=t0)
        update = await learnt(store, "b", item)
        if fate == "deleted":
            await store.delete_jobs(["b"], now_ms=t0)
        else:
            await moved(store, "b")

        told = await advance(store, now_ms=t0, consumed=(item.id,), updates=(update,))

        assert told.updates == (Answer.STALE,)
        assert await left(store) == [item.id]

    async def test_an_entry_goes_though_a_job_is_stale_that_did_not_learn_from_it(self, store: Store, t0: int) -> None:
        item = await ended_together(store, "a", "b", now_ms=t0)
        update, stale = await learnt(store, "a", item), await learnt(store, "b", revision=99)

        told = await advance(store, now_ms=t0, consumed=(item.id,), updates=(update, stale))

        assert told.updates == (Answer.OK, Answer.STALE)
        assert await left(store) == []

    async def test_of_several_entries_only_those_of_stale_jobs_stay(self, store: Store, t0: int) -> None:
        items = await self._two_entries(store, t0)
        updates = (await learnt(store, "a", *items), await learnt(store, "b", items[1], revision=99))

        await advance(store, now_ms=t0, consumed=tuple(item.id for item in items), updates=updates)

        assert await left(store) == [items[1].id]
        assert (await store.counts()).ends == 2

    async def test_an_entry_that_is_not_consumed_stays_whatever_was_learnt_from_it(self, store: Store, t0: int) -> None:
        items = await self._two_entries(store, t0)

        await advance(store, now_ms=t0, consumed=(items[0].id,), updates=(await learnt(store, "a", *items),))

        assert await left(store) == [items[1].id]

    @pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL])
    async def test_a_firing_does_not_wait_for_an_entry_that_stays_because_another_job_is_stale(
        self, store: Store, t0: int, overlap: Overlap
    ) -> None:
        """The plan has read it: its own job has learnt all it had to."""
        item = await ended_together(store, "a", "b", now_ms=t0)
        stale = await learnt(store, "b", item, revision=99)

        fires: Firing = a_firing(await the_job(store, "a"), t0 + MINUTE, overlap=overlap)
        told = await advance(store, now_ms=t0 + MINUTE, consumed=(item.id,), updates=(stale,), firings=(fires,))

        assert (told.firings, told.updates) == ((Answer.OK,), (Answer.STALE,))
        assert await left(store) == [item.id]

    async def test_a_firing_that_begins_alone_does_not_wait_for_it_either(self, store: Store, t0: int) -> None:
        item = await ended_together(store, "a", "b", now_ms=t0)
        stale = await learnt(store, "b", item, revision=99)
        await given(store, a_run("held", "a", gated=True))

        told = await advance(
            store, now_ms=t0, consumed=(item.id,), updates=(stale,), releases=(Release("held", alone=True),)
        )

        assert told.waiting == ()
        assert (await the_run(store, "held")).held_reason == ""

    async def test_ends_that_a_job_has_learnt_do_not_go_along_with_it(self, store: Store, t0: int) -> None:
        """Their entry is still there for another job; in the new version they would be learnt again."""
        item = await ended_together(store, "job", "other", now_ms=t0)
        await advance(store, now_ms=t0, updates=(await learnt(store, "job", item),))

        await moved(store, "job")
        assert await entries(another(store), Ended) == []
        assert (await another(store).counts()).ends == 0

        await moved(store, "other")
        [told] = await entries(another(store), Ended)
        assert [end.run_id for end in told.ends] == ["run-other"]

    async def test_ends_in_an_entry_that_only_bears_the_number_of_a_learnt_one_go_along(
        self, store: Store, t0: int
    ) -> None:
        """Numbers begin again in another version, and where a store was restored."""
        item = await ended_together(store, "job", now_ms=t0)
        job = await the_job(store)
        elsewhere = a_memory(learnt=((item.id, t0 - MINUTE), (item.id + 1, t0)))
        await advance(store, now_ms=t0, updates=(JobUpdate("job", job.revision, None, elsewhere),))

        await moved(store, "job")

        [told] = await entries(another(store), Ended)
        assert [end.run_id for end in told.ends] == ["run-job"]

    async def _two_entries(self, store: Store, t0: int) -> Sequence[FeedItem]:
        """Of the same jobs: one end in the first, two in the second."""
        await given(store, a_run("first", "a"), a_run("second", "a"), a_run("third", "b"))
        runs = {run.id: run for run in await claim(store, now_ms=t0)}
        await forget_feed(store)
        for some in (["first"], ["second", "third"]):
            ends = [settlement(runs[run_id], Done(), outcome=an_outcome(t0)) for run_id in some]
            await store.settle(ends, now_ms=t0)
        return (await store.feed(limit=9)).items
