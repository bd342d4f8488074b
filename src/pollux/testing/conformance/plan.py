"""Plans: written as a whole, and nothing else."""

from __future__ import annotations

from msgspec.structs import replace

from pollux.model import (
    Cancelled,
    CancelOrder,
    Done,
    Earlier,
    Ended,
    Holding,
    JobUpdate,
    Node,
    NotePut,
    NotesChanged,
    Plan,
    Release,
    RetryAt,
    RunState,
)
from pollux.store.contract import Answer, JobPut, Store
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
    leading,
    leased,
    renewal,
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.contract import Contract

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
