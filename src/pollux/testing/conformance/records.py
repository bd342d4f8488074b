"""Feed, log and dumps, and the refusal of changes to a store that was moved away."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from pollux.errors import InvalidInput, StoreMoved
from pollux.model import (
    Arrived,
    AuditLine,
    Done,
    Ended,
    JobsPut,
    JobUpdate,
    Node,
    NodeSeen,
    NotePut,
    NotesChanged,
    Once,
    RetryAt,
    RunState,
    chained,
)
from pollux.store.contract import Answer, JobPut, Pruning, Store
from pollux.store.move_marks import SEAL
from pollux.testing.conformance.builders import (
    LEASE_MS,
    T0,
    Contract,
    a_failure,
    a_firing,
    a_job,
    a_memory,
    a_run,
    advance,
    claim,
    dead_letter,
    finished,
    given,
    given_jobs,
    ids,
    leading,
    leased,
    settlement,
    the_job,
    the_run,
)


class FeedContract(Contract):
    async def test_entries_come_in_order_of_their_ids(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True))
        await store.put_notes([NotePut("n", 1)], now_ms=t0)
        await store.beat(Node("n1"), ttl_ms=9, now_ms=t0)

        items = (await store.feed(limit=99)).items

        assert [type(item.entry) for item in items] == [JobsPut, Arrived, NotesChanged, NodeSeen]
        assert [item.id for item in items] == sorted({item.id for item in items})

    async def test_entries_stay_until_they_are_consumed(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        assert (await store.feed(limit=9)).items == (await store.feed(limit=9)).items != ()

    async def test_a_feed_gives_the_oldest_first_up_to_its_limit(self, store: Store, t0: int) -> None:
        for n in range(5):
            await given_jobs(store, f"job{n}")
        whole = (await store.feed(limit=99)).items

        assert (await store.feed(limit=2)).items == whole[:2]
        await advance(store, now_ms=t0, consumed=(whole[0].id, whole[1].id))
        assert (await store.feed(limit=2)).items == whole[2:4]

    async def test_ids_are_never_used_again(self, store: Store, t0: int) -> None:
        seen: list[int] = []
        for n in range(3):
            await given_jobs(store, f"job{n}")
            items = (await store.feed(limit=9)).items
            seen += [item.id for item in items]
            await advance(store, now_ms=t0, consumed=tuple(item.id for item in items))
            await store.close()
            await store.open()

        assert len(set(seen)) == len(seen) == 3

    async def test_a_feed_tells_the_time_of_the_store(self, store: Store, t0: int) -> None:
        assert (await store.feed(limit=1, now_ms=t0 + 5)).now_ms == t0 + 5

    async def test_counts_tell_the_unread_entries_and_ends(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"))
        runs = await claim(store, now_ms=t0)

        await store.settle([settlement(run, Done()) for run in runs], now_ms=t0)
        counts = await store.counts()
        assert (counts.feed, counts.ends) == (2, 2)

        ended = [item for item in (await store.feed(limit=9)).items if isinstance(item.entry, Ended)]
        await advance(store, now_ms=t0, consumed=(ended[0].id,))

        counts = await store.counts()
        assert (counts.feed, counts.ends) == (1, 0)

    async def test_the_feed_survives_closing_and_opening(self, store: Store, t0: int) -> None:
        await finished(store)
        before = (await store.feed(limit=99, now_ms=t0)).items
        await store.close()
        await store.open()

        assert (await store.feed(limit=99, now_ms=t0)).items == before


class AuditContract(Contract):
    async def test_lines_are_numbered_and_chained(self, store: Store, t0: int) -> None:
        lines = [AuditLine(t0 + n, "anna", "pause", f"job{n}", "why", seq=77, chain="forged") for n in range(3)]
        await store.log(lines[:2])
        await store.log(lines[2:])

        page = await store.read_log()

        assert [(line.seq, line.subject, line.actor, line.detail) for line in page.lines] == [
            (n + 1, f"job{n}", "anna", "why") for n in range(3)
        ]
        before = ""
        for line in page.lines:
            assert line.chain == chained(line, before=before)
            before = line.chain

    async def test_the_log_is_read_a_page_at_a_time(self, store: Store, t0: int) -> None:
        await store.log([AuditLine(t0, "a", "do", str(n)) for n in range(5)])

        first = await store.read_log(limit=2)
        second = await store.read_log(after=first.next or 0, limit=2)
        third = await store.read_log(after=second.next or 0, limit=2)

        assert [line.subject for page in (first, second, third) for line in page.lines] == ["0", "1", "2", "3", "4"]
        assert third.next is None

    async def test_the_log_can_be_read_from_its_end(self, store: Store, t0: int) -> None:
        await store.log([AuditLine(t0, "a", "do", str(n)) for n in range(5)])

        last = await store.read_log(limit=2, newest=True)
        before = await store.read_log(after=last.next or 0, limit=2, newest=True)
        first = await store.read_log(after=before.next or 0, limit=2, newest=True)

        assert [[line.subject for line in page.lines] for page in (last, before, first)] == [
            ["3", "4"],
            ["1", "2"],
            ["0"],
        ]
        assert (first.next, (await store.read_log(limit=5, newest=True)).next) == (None, None)

    async def test_an_empty_log_is_an_empty_page(self, store: Store, t0: int) -> None:
        for newest in (False, True):
            page = await store.read_log(newest=newest)

            assert (page.lines, page.next) == ((), None)

    async def test_the_log_survives_closing_and_opening(self, store: Store, t0: int) -> None:
        await store.log([AuditLine(t0, "a", "do", "x")])
        await store.close()
        await store.open()
        await store.log([AuditLine(t0, "a", "do", "y")])

        lines = (await store.read_log()).lines
        assert [line.seq for line in lines] == [1, 2]
        assert lines[1].chain == chained(lines[1], before=lines[0].chain)


async def whole_dump(store: Store, *, limit: int = 1_000) -> list[tuple[str, Any]]:
    records: list[tuple[str, Any]] = []
    after = None
    for _ in range(1_000):
        page = await store.dump(after=after, limit=limit)
        records += page.records
        after = page.next
        if after is None:
            return records
    raise AssertionError("the dump never ends")


async def emptied(store: Store) -> None:
    """Delete all that the test made, so that the dump is restored into an empty store."""
    for page in [await store.list_jobs(limit=1_000)]:
        await store.delete_jobs(ids(page.jobs))
    await store.prune(Pruning(finished_before_ms=10**15))
    runs = (await store.list_runs(limit=1_000)).runs
    await store.prune(Pruning(ids=tuple(ids(runs))))
    await store.put_notes([NotePut(note.key, None) for note in await store.notes()])


class MoveContract(Contract):
    async def populated(self, store: Store, t0: int) -> None:
        await given_jobs(store, a_job("job", params={"x": [1]}), a_job("other", schedule=Once(t0)), a_job("gone"))
        await store.delete_jobs(["gone"], now_ms=t0)
        await finished(store, a_run("done"), result={"r": 1}, now_ms=t0)
        await dead_letter(store, a_run("dead", payload={"p": 1}), now_ms=t0 + 1)
        await given(store, a_run("ready", key="k", due_ms=t0 + 60_000), a_run("held", gated=True))
        await store.put_notes([NotePut("n", {"v": 1}), NotePut("e", 1, expires_ms=t0 + 10**10)], now_ms=t0)
        await store.log([AuditLine(t0, "a", "do", "x")])
        job = await the_job(store)
        await advance(store, now_ms=t0, updates=(JobUpdate("job", job.revision, t0 + 5, a_memory(3), t0),))

    async def test_a_dump_holds_every_kind_of_record(self, store: Store, t0: int) -> None:
        await self.populated(store, t0)

        kinds = [kind for kind, _ in await whole_dump(store)]

        counts = {kind: kinds.count(kind) for kind in kinds}
        assert counts == {"job": 2, "run": 4, "note": 2, "log": 1, "term": 1, "tomb": 1}
        assert max(n for n, kind in enumerate(kinds) if kind == "job") < kinds.index("run")

    async def test_a_dump_is_plain_json(self, store: Store, t0: int) -> None:
        await self.populated(store, t0)

        records = await whole_dump(store)

        assert json.loads(json.dumps(records)) == [list(record) for record in records]

    async def test_a_dump_by_pages_is_the_whole_dump(self, store: Store, t0: int) -> None:
        await self.populated(store, t0)
        whole = await whole_dump(store)

        for limit in (1, 3, len(whole)):
            assert await whole_dump(store, limit=limit) == whole

    @pytest.mark.parametrize("cursor", ["x", "job", "run", "run x", "log -1", "term ", "jobs a", " "])
    async def test_a_place_that_no_page_answered_is_refused(self, store: Store, t0: int, cursor: str) -> None:
        await self.populated(store, t0)

        with pytest.raises(InvalidInput, match="no place in a dump"):
            await store.dump(after=cursor)

    async def test_a_failed_firing_and_a_dump_carry_the_traceback(self, store: Store, t0: int) -> None:
        run = await leased(store)
        failure = a_failure(t0, "ValueError: 1\nor 2", traceback="File a\nFile b")
        await store.settle([settlement(run, Done(failed=True), outcome=failure)], now_ms=t0)
        before = await the_run(store, run.id)
        assert (before.error, before.traceback) == ("ValueError: 1\nor 2", "File a\nFile b")
        records = json.loads(json.dumps(await whole_dump(store)))
        await emptied(store)

        await store.load([tuple(record) for record in records])

        after = await the_run(store, run.id)
        assert (after.error, after.traceback) == (before.error, before.traceback)

    async def test_a_dump_carries_what_was_tried_and_said(self, store: Store, t0: int) -> None:
        run = await leased(store)
        failure = a_failure(t0, "ValueError: 1")
        await store.settle([settlement(run, RetryAt(t0 + 5), outcome=failure, progress="page 3")], now_ms=t0)
        before = await the_run(store, run.id)
        assert (before.progress, len(before.tried)) == ("page 3", 1)
        records = json.loads(json.dumps(await whole_dump(store)))
        await store.cancel(run_ids=[run.id], now_ms=t0)
        await emptied(store)

        await store.load([tuple(record) for record in records])

        assert (await the_run(store, run.id)).tried == before.tried
        assert (await the_run(store, run.id)).progress == "page 3"

    async def test_what_was_dumped_can_be_loaded_into_an_empty_store(self, store: Store, t0: int) -> None:
        await self.populated(store, t0)
        before = (await store.get_jobs(["job", "other"]), await store.get_runs(["done", "dead", "ready", "held"]))
        notes = {note.key: (note.value, note.expires_ms) for note in await store.notes(now_ms=t0)}
        records = json.loads(json.dumps(await whole_dump(store)))
        await emptied(store)
        assert (await store.list_runs()).runs == ()

        loaded = await store.load([tuple(record) for record in records])

        assert loaded == 2 + 4 + 2
        after = (await store.get_jobs(["job", "other"]), await store.get_runs(["done", "dead", "ready", "held"]))
        assert after == before
        assert {note.key: (note.value, note.expires_ms) for note in await store.notes(now_ms=t0)} == notes
        assert ids(await store.due(before_ms=t0 + 6, limit=9)) == ["job"]
        assert [answer.detail for answer in await store.enqueue([a_run("b", key="k")])] == ["ready"]
        assert ids(await claim(store, now_ms=t0 + 60_000)) == ["ready"]

    async def test_the_leader_is_told_what_was_loaded(self, store: Store, t0: int) -> None:
        await self.populated(store, t0)
        records = await whole_dump(store)
        await emptied(store)
        seen = {item.id for item in (await store.feed(limit=99)).items}

        await store.load(records)

        entries = [item.entry for item in (await store.feed(limit=99)).items if item.id not in seen]
        assert [type(entry) for entry in entries] == [JobsPut, Arrived, NotesChanged]
        put, arrived, changed = entries
        assert (sorted(put.ids), put.added) == (["job", "other"], 2)  # type: ignore[union-attr]
        assert (arrived.run_ids, sorted(changed.keys)) == (("held",), ["e", "n"])  # type: ignore[union-attr]

    async def test_loading_twice_changes_nothing(self, store: Store, t0: int) -> None:
        await self.populated(store, t0)
        records = await whole_dump(store)
        before = await store.counts()

        assert await store.load(records) == 0

        assert await whole_dump(store) == records
        assert await store.counts() == before

    async def test_a_loaded_lease_is_void_and_not_charged(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a"))
        records = await whole_dump(store)

        await store.settle([settlement(run, Done())], now_ms=t0)
        await emptied(store)

        await store.load(records)

        ready = await the_run(store, "a")
        assert (ready.state, ready.lease_losses, ready.attempt, ready.owner) == (RunState.READY, 0, 0, "")
        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.LOST]
        [again] = await claim(store, now_ms=t0)
        assert (again.fence, again.lease_until_ms) == (2, t0 + LEASE_MS)

    async def test_a_loaded_term_only_rises(self, store: Store, t0: int) -> None:
        number = await leading(store)
        [term] = [record for record in await whole_dump(store) if record[0] == "term"]
        ahead = msgspec.to_builtins(term[1]) | {"number": number + 10}

        assert await store.load([("term", ahead)]) == 1
        assert await store.load([term]) == 0

        assert (await store.elect("two", ttl_ms=1, now_ms=t0 + 10**9)).number > number + 10

    async def test_a_record_that_cannot_be_read_loads_nothing(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        good = [record for record in await whole_dump(store) if record[0] == "job"]
        await store.delete_jobs(["job"], now_ms=t0)

        for bad in [("nonsense", {}), ("job", {"id": 7}), ("run", "x")]:
            with pytest.raises(InvalidInput):
                await store.load([*good, bad])
        assert await store.get_jobs(["job"]) == [None]

    async def test_a_dump_tells_of_jobs_that_went(self, store: Store, t0: int) -> None:
        """By revision and last due; one that was added again has those itself."""
        jobs = await given_jobs(store, "a", "b", "c")
        await advance(store, now_ms=t0, firings=tuple(a_firing(job, t0 + n) for n, job in enumerate(jobs[:2])))
        await store.delete_jobs(["b", "c", "a"], now_ms=t0)
        await given_jobs(store, "a")
        await given_jobs(store, a_job("a", name="new"))

        found = [data for kind, data in await whole_dump(store, limit=1) if kind == "tomb"]

        assert found == [{"id": "b", "revision": 1, "last_due_ms": t0 + 1}, {"id": "c", "revision": 1}]

    async def test_a_dump_passes_over_no_job_that_went_when_one_before_it_is_added_again(
        self, store: Store, t0: int
    ) -> None:
        await given_jobs(store, "a", "b", "c")
        await store.delete_jobs(["a", "b", "c"], now_ms=t0)
        found: list[str] = []
        after = None
        for _ in range(100):
            page = await store.dump(after=after, limit=1)
            found += [data["id"] for kind, data in page.records if kind == "tomb"]
            if found == ["a"]:
                await given_jobs(store, "a")
            after = page.next
            if after is None:
                break

        assert found == ["a", "b", "c"]

    async def test_a_dump_tells_of_once_jobs_that_were_pruned(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, a_job("once", schedule=Once(t0)))
        firing = a_firing(job, t0, next_due_ms=None)
        await advance(store, now_ms=t0, firings=(firing,))
        [run] = await claim(store, now_ms=t0)
        await store.settle([settlement(run, Done())], now_ms=t0)
        await store.prune(Pruning(ids=(run.id,), once_before_ms=t0 + 1))
        assert await store.get_jobs(["once"]) == [None]

        found = [data for kind, data in await whole_dump(store) if kind == "tomb"]

        assert found == [{"id": "once", "revision": 1, "last_due_ms": t0}]

    async def test_in_the_place_of_a_job_that_went_elsewhere_no_due_fires_again(self, store: Store, t0: int) -> None:
        tomb = ("tomb", {"id": "job", "revision": 7, "last_due_ms": t0})

        assert await store.load([tomb]) == 1

        assert [record for record in await whole_dump(store) if record[0] == "tomb"] == [tomb]
        [answer] = await store.put_jobs([JobPut(a_job("job"))], now_ms=t0)
        assert (answer.answer, answer.revision) == (Answer.OK, 8)
        job = await the_job(store)
        assert job.last_due_ms == t0
        firings = (a_firing(job, t0), a_firing(job, t0 + 60_000))
        assert (await advance(store, now_ms=t0, firings=firings)).firings == (Answer.ALREADY, Answer.OK)

    async def test_what_is_remembered_of_a_job_is_loaded_once_and_never_over_the_job_itself(
        self, store: Store, t0: int
    ) -> None:
        [before] = await given_jobs(store, "job")
        await given_jobs(store, "gone")
        await store.delete_jobs(["gone"], now_ms=t0)
        tombs = [("tomb", {"id": job_id, "revision": 7, "last_due_ms": t0}) for job_id in ("job", "gone", "new", "new")]

        assert await store.load(tombs) == 1

        assert await the_job(store) == before
        found = {data["id"]: data["revision"] for kind, data in await whole_dump(store) if kind == "tomb"}
        assert found == {"gone": 1, "new": 7}


CHANGES: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "put_jobs": lambda s: s.put_jobs([JobPut(a_job("new"))], now_ms=T0),
    "delete_jobs": lambda s: s.delete_jobs(["job"], now_ms=T0),
    "move_jobs": lambda s: s.move_jobs(["job"], 7, now_ms=T0),
    "enqueue": lambda s: s.enqueue([a_run("new")], now_ms=T0),
    "enqueue of two kinds": lambda s: s.enqueue([a_run("new"), a_run("held", gated=True)], now_ms=T0),
    "cancel": lambda s: s.cancel(run_ids=["a"], now_ms=T0),
    "cancel of a job": lambda s: s.cancel(job_id="job", now_ms=T0),
    "revive": lambda s: s.revive(["dead"], now_ms=T0),
    "prune of runs": lambda s: s.prune(Pruning(ids=("done",))),
    "put_notes": lambda s: s.put_notes([NotePut("n", 1)], now_ms=T0),
    "log": lambda s: s.log([AuditLine(T0, "anna", "say", "it")]),
    "load": lambda s: s.load([("note", {"key": "n", "value": 1, "revision": 1})]),
}


async def everything(store: Store) -> list[tuple[str, Any]]:
    return list((await store.dump(limit=1_000)).records)


class MovedStoreContract(Contract):
    @pytest.mark.parametrize("change", list(CHANGES))
    async def test_a_sealed_store_is_not_changed(self, store: Store, change: str) -> None:
        await self.filled(store)
        store.refuse_if_moved("memory://")
        await store.of_version(store.scheduler_version).put_notes([NotePut("before", 1)], now_ms=T0)
        await self.seal(store)
        before = await everything(store)

        for handle in (store, store.of_version(store.scheduler_version)):
            with pytest.raises(StoreMoved):
                await CHANGES[change](handle)

        assert await everything(store) == before

    @pytest.mark.parametrize("change", list(CHANGES))
    async def test_a_seal_that_is_taken_away_refuses_nothing(self, store: Store, change: str) -> None:
        await self.filled(store)
        store.refuse_if_moved("memory://")
        await self.seal(store)
        await self.seal(store, value=None)

        await CHANGES[change](store)

    @pytest.mark.parametrize("change", list(CHANGES))
    async def test_a_handle_that_moves_a_store_changes_it(self, store: Store, change: str) -> None:
        await self.filled(store)
        await self.seal(store)
        before = await everything(store)

        await CHANGES[change](store)

        assert await everything(store) != before

    async def test_what_runs_on_a_sealed_store_ends(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a"))
        store.refuse_if_moved("memory://")
        await self.seal(store)

        await store.beat(Node("n1"), ttl_ms=1_000, now_ms=t0)
        settled = await store.settle([settlement(run, Done())], now_ms=t0)

        assert settled == [Answer.OK]

    async def filled(self, store: Store) -> None:
        await given_jobs(store, "job")
        await dead_letter(store, a_run("dead"))
        await finished(store, a_run("done"))
        await given(store, a_run("a"), a_run("b"))

    async def seal(self, store: Store, value: object = True) -> None:
        """As the mover does it, on a handle of its own."""
        mover = store.twin()
        mover.refuse_if_moved(None)
        await mover.open()
        try:
            await mover.put_notes([NotePut(SEAL, value)], now_ms=T0)
        finally:
            await mover.close()
