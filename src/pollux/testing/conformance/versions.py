"""Versions on one store: what is separate, and what is shared."""

from __future__ import annotations

import asyncio

import pytest

from pollux.errors import InvalidInput
from pollux.model import (
    SCHEDULER_VERSION,
    VERSION_MAX,
    Arrived,
    CancelOrder,
    Done,
    Ended,
    Holding,
    JobsDeleted,
    JobsPut,
    JobUpdate,
    Node,
    NodeSeen,
    NotePut,
    NotesChanged,
    Plan,
    Release,
    RunState,
    stop_key,
)
from pollux.store.contract import Answer, JobFilter, JobPut, RunFilter, Store
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
    dead_letter,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    last_ends,
    leading,
    leased,
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.waits import soon

OTHER = SCHEDULER_VERSION + 1


def another(store: Store) -> Store:
    """Return a handle of the next version."""
    return store.of_version(OTHER)


async def due_ids(store: Store, before_ms: int = T0 + 3_600_000) -> list[str]:
    return ids(await store.due(before_ms=before_ms, limit=100))


async def moved(store: Store, *job_ids: str, to: int = OTHER, now_ms: int = T0) -> None:
    assert set(await store.move_jobs(job_ids, to, now_ms=now_ms)) == {Answer.OK}


async def fired(store: Store, job_id: str = "job", due_ms: int = T0, **fields: object) -> Answer:
    """Fire a due time as the leader of this handle's version."""
    firing = a_firing(await the_job(store, job_id), due_ms, **fields)
    return (await advance(store, firings=(firing,))).firings[0]


class PartitionContract(Contract):
    """Two versions on one store: what belongs to which."""

    async def test_a_handle_serves_the_usual_version_unless_told_otherwise(self, store: Store) -> None:
        assert store.scheduler_version == SCHEDULER_VERSION
        assert another(store).scheduler_version == OTHER
        assert another(store).of_version(SCHEDULER_VERSION).scheduler_version == SCHEDULER_VERSION

    async def test_a_twin_serves_the_same_version(self, store: Store) -> None:
        twin = another(store).twin()
        await twin.open()
        try:
            await given_jobs(twin, "job")
            assert twin.scheduler_version == OTHER
            assert (await the_job(store)).scheduler_version == OTHER
        finally:
            await twin.close()

    @pytest.mark.parametrize("number", [-1, VERSION_MAX + 1])
    async def test_a_handle_of_no_version_is_refused(self, store: Store, number: int) -> None:
        with pytest.raises(InvalidInput):
            store.of_version(number)

    async def test_a_job_is_in_the_version_of_the_handle_that_put_it(self, store: Store) -> None:
        [here] = await given_jobs(store, a_job("here", scheduler_version=OTHER))
        [there] = await given_jobs(another(store), "there")

        assert (here.scheduler_version, there.scheduler_version) == (SCHEDULER_VERSION, OTHER)
        assert [job.revision for job in (here, there)] == [1, 1]

    async def test_a_put_takes_no_job_from_another_version(self, store: Store) -> None:
        """Neither with a changed definition nor with the same; the error names the job's version and how to move it."""
        await given_jobs(another(store), "job")

        for job in (a_job(), a_job(priority=1)):
            [answer] = await store.put_jobs([JobPut(job)])
            assert (answer.answer, answer.revision) == (Answer.CONFLICT, 1)
            assert f"version {OTHER}" in answer.detail
            assert f"--to-version {SCHEDULER_VERSION}" in answer.detail
        job = await the_job(store)
        assert (job.scheduler_version, job.priority, job.revision) == (OTHER, 2, 1)
        assert await entries(store, JobsPut) == []

    async def test_a_job_deleted_in_one_version_may_begin_again_in_another(self, store: Store, t0: int) -> None:
        """At a higher revision, and with its last due: nothing fires twice by delete and add."""
        await given_jobs(store, "job")
        assert await fired(store) is Answer.OK
        await store.delete_jobs(["job"], now_ms=t0)

        [again] = await given_jobs(another(store), "job")

        assert (again.scheduler_version, again.revision, again.last_due_ms) == (OTHER, 2, t0)
        assert await fired(another(store)) is Answer.ALREADY

    async def test_jobs_are_got_and_listed_over_all_versions(self, store: Store) -> None:
        await given_jobs(store, "a", "c")
        await given_jobs(another(store), "b")

        for handle in (store, another(store)):
            assert ids((await handle.list_jobs()).jobs) == ["a", "b", "c"]
            found = await handle.get_jobs(["b", "a"])
            assert [job.scheduler_version for job in found if job] == [OTHER, SCHEDULER_VERSION]

    async def test_jobs_are_listed_by_version(self, store: Store) -> None:
        await given_jobs(store, "a", "c")
        await given_jobs(another(store), "b", "d")

        pages = [
            await store.list_jobs(JobFilter(scheduler_version=number), limit=1, after=after)
            for number, after in ((SCHEDULER_VERSION, None), (SCHEDULER_VERSION, "a"), (OTHER, None), (OTHER, "b"))
        ]

        assert [ids(page.jobs) for page in pages] == [["a"], ["c"], ["b"], ["d"]]
        assert [page.next for page in pages] == ["a", None, "b", None]

    async def test_due_times_are_of_one_version(self, store: Store, t0: int) -> None:
        for handle, job_id in ((store, "here"), (another(store), "there")):
            [job] = await given_jobs(handle, job_id)
            updates = (JobUpdate(job_id, job.revision, t0, a_memory()),)
            assert (await advance(handle, updates=updates)).updates == (Answer.OK,)

        assert await due_ids(store) == ["here"]
        assert await due_ids(another(store)) == ["there"]

    async def test_a_claim_takes_only_from_its_own_version(self, store: Store, t0: int) -> None:
        await given(store, a_run("here"))
        await given(another(store), a_run("there", "other"))

        assert ids(await claim(another(store))) == ["there"]
        assert ids(await claim(another(store))) == []
        assert ids(await claim(store)) == ["here"]

    async def test_a_run_goes_to_the_version_of_its_job_whoever_enqueues_it(self, store: Store, t0: int) -> None:
        await given_jobs(another(store), "job")

        assert answers(await store.enqueue([a_run("a"), a_run("g", gated=True)], now_ms=t0)) == [Answer.OK, Answer.OK]

        assert {run.scheduler_version for run in (await store.list_runs()).runs} == {OTHER}
        assert ids(await claim(store)) == []
        assert ids(await claim(another(store))) == ["a"]
        assert await entries(store, Arrived) == []
        assert await entries(another(store), Arrived) == [Arrived(("g",))]

    async def test_a_follow_up_goes_to_the_version_of_its_own_job(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await given_jobs(another(store), "other")
        follow_up = a_run("next", "other", gated=True)

        assert await store.settle([settlement(run, Done(), follow_ups=(follow_up,))], now_ms=t0) == [Answer.OK]

        assert (await the_run(store, "next")).scheduler_version == OTHER
        assert await entries(another(store), Arrived) == [Arrived(("next",))]
        assert await entries(store, Arrived) == []

    async def test_runs_are_listed_by_version_live_and_finished(self, store: Store) -> None:
        await finished(store, a_run("old"))
        await given(store, a_run("new"))
        await finished(another(store), a_run("old-there", "other"))
        await given(another(store), a_run("new-there", "other"))

        assert ids((await store.list_runs(RunFilter(scheduler_version=OTHER))).runs) == ["new-there", "old-there"]
        assert ids((await store.list_runs(RunFilter(scheduler_version=SCHEDULER_VERSION))).runs) == ["new", "old"]

    async def test_counts_are_of_one_version(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"), a_run("c", gated=True))
        await given(another(store), a_run("d", "other"))
        await leased(another(store), a_run("e", "other", priority=1), limit=1)

        here, there = await store.counts(), await another(store).counts()

        assert (here.held, here.ready, here.leased, here.jobs) == (1, 2, 0, 1)
        assert (there.held, there.ready, there.leased, there.jobs) == (0, 1, 1, 1)

    async def test_counts_can_be_over_all_versions(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))
        await given(another(store), a_run("b", "other"), a_run("g", "other", gated=True))

        counts = await another(store).counts(all_versions=True)

        assert (counts.jobs, counts.ready, counts.held) == (2, 2, 1)

    async def test_a_line_is_full_in_one_version_and_not_in_the_other(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"))
        await given_jobs(another(store), "other")

        runs = [a_run("c"), a_run("d", "other"), a_run("e", "other"), a_run("f", "other")]
        assert answers(await store.enqueue(runs, ready_max=2, now_ms=t0)) == [
            Answer.FULL,
            Answer.OK,
            Answer.OK,
            Answer.FULL,
        ]

    async def test_an_end_is_told_to_the_leader_of_its_version_whoever_settles(self, store: Store, t0: int) -> None:
        run = await leased(another(store), a_run("there", "other"))
        await forget_feed(another(store))

        assert await store.settle([settlement(run, Done(), outcome=an_outcome())], now_ms=t0) == [Answer.OK]

        assert [end.run_id for end in await last_ends(another(store))] == ["there"]
        assert await entries(store, Ended) == []
        assert (await another(store).counts()).ends == 1

    async def test_one_settle_tells_each_leader_its_own_ends(self, store: Store, t0: int) -> None:
        here, there = await leased(store), await leased(another(store), a_run("there", "other"))

        ends = [settlement(run, Done(), outcome=an_outcome()) for run in (here, there)]
        assert await store.settle(ends, now_ms=t0) == [Answer.OK, Answer.OK]

        assert [end.run_id for end in await last_ends(store)] == [here.id]
        assert [end.run_id for end in await last_ends(another(store))] == ["there"]

    async def test_cancelling_and_deleting_are_told_where_the_job_is(self, store: Store, t0: int) -> None:
        await given(another(store), a_run("a", "other"), a_run("b", "other"))

        assert answers(await store.cancel(run_ids=["a"], now_ms=t0)) == [Answer.OK]
        assert [end.run_id for end in await last_ends(another(store))] == ["a"]
        assert await store.delete_jobs(["other"], now_ms=t0) == [Answer.OK]

        assert [end.run_id for end in await last_ends(another(store))] == ["b"]
        assert await entries(another(store), JobsDeleted) == [JobsDeleted(("other",))]
        assert await entries(store, JobsDeleted) == []
        assert (await another(store).counts()).jobs == 0

    async def test_a_lost_lease_is_found_by_a_claim_of_its_own_version(self, store: Store, t0: int) -> None:
        await leased(another(store), a_run("there", "other"))
        later_ms = t0 + LEASE_MS

        assert await claim(store, now_ms=later_ms) == ()
        assert (await the_run(store, "there")).state is RunState.LEASED
        assert ids(await claim(another(store), now_ms=later_ms)) == ["there"]

    async def test_what_is_lost_in_one_version_is_no_reason_to_look_in_another(self, store: Store, t0: int) -> None:
        """The time of the next check is that of the version's own runs and leases."""
        await leased(another(store), a_run("there", "other"))
        await given(another(store), a_run("later", "other", due_ms=t0 + 5))

        asked = await store.claim(node="n", token="t", limit=1, lease_ms=LEASE_MS, now_ms=t0)

        assert asked.look_again_ms is None

    async def test_a_claim_is_refused_while_its_own_leader_is_behind(self, store: Store, t0: int) -> None:
        for n in range(3):
            await finished(another(store), a_run(f"r{n}", "other"))
        await given(store, a_run("here"))
        await given(another(store), a_run("there", "other"))
        options = {"node": "n", "limit": 9, "lease_ms": LEASE_MS, "feed_max": 2, "now_ms": t0}

        assert (await another(store).claim(token="x", **options)).answer is Answer.FULL  # type: ignore[arg-type]
        assert ids((await store.claim(token="y", **options)).runs) == ["here"]  # type: ignore[arg-type]

    async def test_each_version_has_a_leader_of_its_own(self, store: Store, t0: int) -> None:
        one = await store.elect("one", ttl_ms=15_000, now_ms=t0)
        other = await another(store).elect("other", ttl_ms=15_000, now_ms=t0)

        assert (one.holder, other.holder) == ("one", "other")
        await store.resign("one", term=one.number, now_ms=t0)
        assert (await store.elect("two", ttl_ms=15_000, now_ms=t0)).holder == "two"
        assert (await another(store).elect("two", ttl_ms=15_000, now_ms=t0)).holder == "other"

    async def test_a_plan_is_fenced_by_the_term_of_its_own_version(self, store: Store, t0: int) -> None:
        for node in ("a", "b", "c"):
            term = await store.elect(node, ttl_ms=1, now_ms=t0)
            t0 += 10
        await leading(another(store), now_ms=t0)

        assert (await another(store).advance(term.number, Plan(), now_ms=t0)).answer is Answer.FENCED
        assert (await store.advance(term.number, Plan(), now_ms=t0)).answer is Answer.OK

    async def test_a_plan_fires_and_moves_no_job_of_another_version(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(another(store), "job")

        told = await advance(
            store, firings=(a_firing(job, t0),), updates=(JobUpdate("job", job.revision, t0, a_memory()),)
        )

        assert (told.firings, told.updates) == ((Answer.STALE,), (Answer.STALE,))
        assert (await the_job(store)).next_due_ms is None
        assert await claim(another(store)) == ()

    async def test_a_plan_leaves_runs_of_another_version_alone(self, store: Store, t0: int) -> None:
        await given(another(store), *(a_run(run_id, "other", gated=True) for run_id in "abc"))

        told = await advance(
            store, releases=(Release("a"),), holds=(Holding("b", "because"),), cancels=(CancelOrder("c", "enough"),)
        )

        assert told.answer is Answer.OK
        for run_id in "abc":
            run = await the_run(store, run_id)
            assert (run.state, run.held_reason) == (RunState.HELD, "at the gate")

    async def test_a_plan_consumes_the_feed_of_its_own_version(self, store: Store, t0: int) -> None:
        for handle in (store, another(store)):
            await given_jobs(handle, f"job-{handle.scheduler_version}")
        items = [item.id for item in (await another(store).feed(limit=9)).items]

        await advance(store, consumed=tuple({*items, *range(items[0], items[0] + 3)}))

        assert await entries(another(store), JobsPut) == [JobsPut((f"job-{OTHER}",), 1)]

    async def test_the_seats_told_to_a_leader_are_those_that_serve_it(self, store: Store, t0: int) -> None:
        for name, seats, version in (("a", 1, SCHEDULER_VERSION), ("b", 10, OTHER)):
            await store.beat(Node(name, seats=seats, scheduler_version=version), ttl_ms=45_000, now_ms=t0)

        assert (await advance(store)).seats == 1
        assert (await advance(another(store))).seats == 10

    async def test_a_node_is_told_to_the_leader_it_serves(self, store: Store, t0: int) -> None:
        await leading(store)
        await leading(another(store))

        await store.beat(Node("here"), ttl_ms=45_000, now_ms=t0)
        await store.beat(Node("there", scheduler_version=OTHER), ttl_ms=45_000, now_ms=t0)

        assert await entries(store, NodeSeen) == [NodeSeen("here")]
        assert await entries(another(store), NodeSeen) == [NodeSeen("there")]
        assert [node.scheduler_version for node in await store.nodes(now_ms=t0)] == [SCHEDULER_VERSION, OTHER]

    async def test_no_handle_and_no_node_is_of_a_version_below_one(self, store: Store, t0: int) -> None:
        with pytest.raises(InvalidInput):
            store.of_version(0)
        with pytest.raises(InvalidInput):
            await store.beat(Node("n", scheduler_version=0), ttl_ms=9, now_ms=t0)

    async def test_notes_are_for_all_versions_and_every_leader_is_told(self, store: Store, t0: int) -> None:
        await leading(another(store))
        before = (await store.claim(node="n", token="t", limit=1, lease_ms=9, now_ms=t0)).stops_revision

        key = stop_key("all")
        assert await another(store).put_notes([NotePut(key, {"by": "me"})], now_ms=t0) == [Answer.OK]
        assert await store.put_notes([NotePut("own", 1)], now_ms=t0) == [Answer.OK]

        assert [note.key for note in await store.notes(now_ms=t0)] == ["own", key]
        assert (await store.claim(node="n", token="u", limit=1, lease_ms=9, now_ms=t0)).stops_revision != before
        assert await entries(another(store), NotesChanged) == [NotesChanged((key,)), NotesChanged(("own",))]
        assert NotesChanged(("own",)) in await entries(store, NotesChanged)

    async def test_a_key_is_held_over_all_versions(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", key="k"))
        await given_jobs(another(store), "other")

        [answer] = await another(store).enqueue([a_run("b", "other", key="k")], now_ms=t0)

        assert (answer.answer, answer.detail) == (Answer.CONFLICT, "a")

    async def test_a_run_id_is_taken_over_all_versions(self, store: Store, t0: int) -> None:
        await finished(store, a_run("a"))
        await given_jobs(another(store), "other")

        assert answers(await another(store).enqueue([a_run("a", "other")], now_ms=t0)) == [Answer.ALREADY]

    async def test_a_dead_letter_is_revived_where_its_job_is(self, store: Store, t0: int) -> None:
        await dead_letter(store)
        await moved(store, "job")
        assert (await the_run(store, "a")).scheduler_version == SCHEDULER_VERSION

        assert answers(await store.revive(["a"], now_ms=t0)) == [Answer.OK]

        assert ids(await claim(store)) == []
        [run] = await claim(another(store))
        assert (run.id, run.scheduler_version) == ("a", OTHER)

    async def test_who_waits_in_one_version_hears_what_comes_there(self, store: Store) -> None:
        await given_jobs(another(store), "other")
        waiting = asyncio.ensure_future(
            another(store).claim(node="n", token="t", limit=1, lease_ms=LEASE_MS, wait_ms=60_000)
        )
        await asyncio.sleep(0)
        await store.enqueue([a_run("there", "other", due_ms=0)])

        assert ids((await soon(waiting)).runs) == ["there"]

    async def test_a_dump_holds_every_version_and_its_term(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))
        await given(another(store), a_run("b", "other"), a_run("g", "other", gated=True))
        for node in ("x", "y"):
            term = await another(store).elect(node, ttl_ms=1, now_ms=t0 + ord(node) * 10)
        records = (await store.dump()).records

        assert ("term", {"number": term.number, "scheduler_version": OTHER}) in records
        kinds = {data["id"]: data.get("scheduler_version", SCHEDULER_VERSION) for kind, data in records if "id" in data}
        assert kinds == {"job": SCHEDULER_VERSION, "a": SCHEDULER_VERSION, "other": OTHER, "b": OTHER, "g": OTHER}

    async def test_what_is_loaded_stands_in_its_version(self, store: Store, t0: int) -> None:
        records = [
            ("job", {"id": "job", "handler": "h", "revision": 3, "scheduler_version": OTHER, "next_due_ms": t0}),
            ("run", {"id": "r", "job_id": "job", "due_ms": t0, "state": "ready", "visible_ms": t0}),
            ("run", {"id": "g", "job_id": "job", "due_ms": t0, "state": "held", "held_reason": "x", "gated": True}),
            ("term", {"number": 7, "scheduler_version": OTHER}),
        ]

        assert await store.load(records) == 4
        assert await store.load(records) == 0

        assert (await the_job(store)).scheduler_version == OTHER
        assert await due_ids(another(store)) == ["job"]
        assert await entries(another(store), JobsPut) == [JobsPut(("job",), 1)]
        assert await entries(another(store), Arrived) == [Arrived(("g",))]
        assert ids(await claim(another(store))) == ["r"]
        assert (await another(store).elect("n", ttl_ms=9, now_ms=t0)).number == 8
        assert (await store.elect("n", ttl_ms=9, now_ms=t0)).number == 1
