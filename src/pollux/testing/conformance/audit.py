"""Audit log: every change has its line, written with the change, and nothing else has one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pollux.errors import InvalidInput
from pollux.model import AuditLine, Ended, NotePut, chained
from pollux.store.contract import Answer, Audit, JobPut, Pruning, Store
from pollux.testing.conformance.builders import (
    T0,
    Contract,
    a_job,
    a_run,
    answers,
    claim,
    dead_letter,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    the_job,
)

MANY = 600  # runs of one job, more than a store may change at once


def told(action: str) -> Audit:
    """One line for a whole call."""
    return Audit((AuditLine(T0, "anna", action, "this", "and that"),))


async def _runs(store: Store) -> None:
    await dead_letter(store, a_run("dead"))
    await finished(store, a_run("done"))
    await given(store, a_run("a"), a_run("b"))


async def _version(store: Store) -> None:
    await given_jobs(store, "job")
    await store.move_jobs(["job"], 7, now_ms=T0)
    await store.move_jobs(["job"], store.scheduler_version, now_ms=T0)


async def _jobs(store: Store) -> None:
    await given_jobs(store, "job")


Change = Callable[[Store, Any], Awaitable[Any]]
# Set-up, and the change.
CHANGES: dict[str, tuple[Callable[[Store], Awaitable[None]], Change]] = {
    "put_jobs": (_jobs, lambda s, audit: s.put_jobs([JobPut(a_job("new"))], audit=audit, now_ms=T0)),
    "delete_jobs": (_jobs, lambda s, audit: s.delete_jobs(["job"], audit=audit, now_ms=T0)),
    "move_jobs": (_jobs, lambda s, audit: s.move_jobs(["job"], 7, audit=audit, now_ms=T0)),
    "enqueue": (_jobs, lambda s, audit: s.enqueue([a_run("new")], audit=audit, now_ms=T0)),
    "cancel": (_runs, lambda s, audit: s.cancel(run_ids=["b"], audit=audit, now_ms=T0)),
    "cancel of a job": (_runs, lambda s, audit: s.cancel(job_id="job", audit=audit, now_ms=T0)),
    "revive": (_runs, lambda s, audit: s.revive(["dead"], audit=audit, now_ms=T0)),
    "prune": (_runs, lambda s, audit: s.prune(Pruning(ids=("done",)), audit=audit)),
    "put_notes": (_jobs, lambda s, audit: s.put_notes([NotePut("n", {"by": "anna"})], audit=audit, now_ms=T0)),
    "prune of a version": (_version, lambda s, audit: s.prune(Pruning(version=7), audit=audit, now_ms=T0)),
}


def count_of(answer: Any) -> int:
    """How many items of a call were done."""
    if isinstance(answer, int):
        return answer
    return [getattr(each, "answer", each) for each in answer].count(Answer.OK)


async def assert_whole(store: Store) -> tuple[AuditLine, ...]:
    lines, before = (await store.read_log(limit=1_000)).lines, ""
    for number, line in enumerate(lines, start=1):
        assert (line.seq, line.chain) == (number, chained(line, before=before))
        before = line.chain
    return lines


class OnRecordContract(Contract):
    @pytest.mark.parametrize("change", list(CHANGES))
    async def test_what_is_done_is_on_record_with_it(self, store: Store, t0: int, change: str) -> None:
        prepare, do = CHANGES[change]
        await prepare(store)
        await store.log([AuditLine(t0, "anna", "before", "it")])

        answer = await do(store, told(change))

        before, line = await assert_whole(store)
        assert (before.action, before.count) == ("before", 0)
        assert replace(line, seq=0, chain="") == replace(told(change).lines[0], count=count_of(answer))

    @pytest.mark.parametrize("change", list(CHANGES))
    async def test_the_same_again_adds_no_line(self, store: Store, t0: int, change: str) -> None:
        prepare, do = CHANGES[change]
        await prepare(store)
        await do(store, told(change))

        again = await do(store, told(change))

        assert count_of(again) == 0
        assert [line.action for line in await assert_whole(store)] == [change]

    async def test_each_item_of_a_batch_has_its_own_line(self, store: Store, t0: int) -> None:
        """Only those that were done; items behind the last line have none."""
        await given_jobs(store, "there", "same")
        puts = [JobPut(a_job("there", priority=1), revision=0), JobPut(a_job("same")), JobPut(a_job("new"))]
        audit = Audit(tuple(AuditLine(t0, "anna", "put", put.job.id) for put in puts), each=True)

        given_answers = await store.put_jobs([*puts, JobPut(a_job("more"))], audit=audit, now_ms=t0)

        assert answers(given_answers) == [Answer.CONFLICT, Answer.ALREADY, Answer.OK, Answer.OK]
        assert [(line.subject, line.count) for line in await assert_whole(store)] == [("new", 0)]

    async def test_a_line_of_a_batch_tells_how_many_were_done(self, store: Store, t0: int) -> None:
        await given_jobs(store, "a")

        await store.put_jobs([JobPut(a_job(name)) for name in "abc"], audit=told("put"), now_ms=t0)

        assert [line.count for line in await assert_whole(store)] == [2]

    async def test_a_change_without_lines_is_done_all_the_same(self, store: Store, t0: int) -> None:
        await store.put_jobs([JobPut(a_job("a"))], audit=Audit(()), now_ms=t0)

        assert (await the_job(store, "a")).revision == 1
        assert await assert_whole(store) == ()

    async def test_a_line_of_any_characters_keeps_its_hash(self, store: Store, t0: int) -> None:
        """Where the hash is made in the server it is that of the same bytes, of any length."""
        texts = ["", "ä€𐍈", '"\\\n\t/', "\x01\x1e", *("x" * length for length in (55, 56, 63, 64, 119, 120, 1_000))]
        lines = tuple(AuditLine(t0 + n, "anna", "put", text, text) for n, text in enumerate(texts))

        await store.put_jobs([JobPut(a_job("a"))], audit=Audit(lines), now_ms=t0)

        assert [line.detail for line in await assert_whole(store)] == texts

    async def test_changes_at_once_leave_a_whole_chain(self, store: Store, t0: int) -> None:
        await _runs(store)
        others = {"delete_jobs", "move_jobs", "prune of a version"}
        changes = [do for name, (_, do) in CHANGES.items() if name not in others]

        await asyncio.gather(
            *(do(store, told("do")) for do in changes),
            *(store.put_jobs([JobPut(a_job(f"job{n}"))], audit=told("put"), now_ms=t0) for n in range(8)),
            store.log([AuditLine(t0, "b", "x", "y")]),
        )

        lines = [line.action for line in await assert_whole(store)]
        assert (lines.count("put"), lines.count("x")) == (8, 1)
        assert lines.count("do") in {len(changes) - 1, len(changes)}  # the run may be cancelled by its id or its job

    async def test_a_run_that_is_named_twice_ends_once(self, store: Store, t0: int) -> None:
        """By its id, and as one of its job."""
        await given(store, a_run("a"), a_run("b"), a_run("c"))
        await forget_feed(store)

        given_answers = await store.cancel(run_ids=["b"], job_id="job", audit=told("cancel"), now_ms=t0)

        assert [(each.id, each.answer) for each in given_answers] == [(name, Answer.OK) for name in "bac"]
        assert [line.count for line in await assert_whole(store)] == [3]
        [entry] = await entries(store, Ended)
        assert sorted(end.run_id for end in entry.ends) == ["a", "b", "c"]

    async def test_a_job_of_many_runs_is_cancelled_in_one_line(self, store: Store, t0: int) -> None:
        names = await self.crowd(store)

        given_answers = await store.cancel(job_id="job", audit=told("cancel"), now_ms=t0)

        assert [(each.id, each.answer) for each in given_answers] == [(name, Answer.OK) for name in names]
        assert [line.count for line in await assert_whole(store)] == [MANY]
        assert await self.left(store) == 0

    async def test_runs_with_a_cancel_request_are_not_counted_again(self, store: Store, t0: int) -> None:
        """Wherever they are among the runs of the job, and whether or not they are named."""
        half = MANY // 2
        await given(store, *(a_run(f"l{n:03}", due_ms=t0 + n % 2, visible_ms=t0) for n in range(half)))
        assert len(await claim(store, half, now_ms=t0)) == half
        await store.cancel(run_ids=[f"l{n:03}" for n in range(half - 2)], now_ms=t0)
        await given(
            store, *(a_run(f"r{n:03}", due_ms=t0, visible_ms=t0) for n in range(half)), a_run("z", due_ms=t0 + 9)
        )
        named = ["z", "l001", f"l{half - 1:03}", "nobody"]

        given_answers = await store.cancel(run_ids=named, job_id="job", audit=told("cancel"), now_ms=t0)

        assert count_of(given_answers) == half + 3
        assert [line.count for line in await assert_whole(store)] == [half + 3]

    async def test_a_job_of_many_runs_is_deleted_in_one_line(self, store: Store, t0: int) -> None:
        await self.crowd(store)
        await given_jobs(store, "small")

        given_answers = await store.delete_jobs(["job", "small", "nobody"], audit=told("delete"), now_ms=t0)

        assert given_answers == [Answer.OK, Answer.OK, Answer.LOST]
        assert [line.count for line in await assert_whole(store)] == [2]
        assert await self.left(store) == 0
        assert await store.get_jobs(["job", "small"]) == [None, None]

    async def test_a_job_of_many_runs_is_moved_in_one_line(self, store: Store, t0: int) -> None:
        names = await self.crowd(store)
        await given(store, a_run("other", "small"))

        given_answers = await store.move_jobs(["job", "small"], 7, audit=told("move"), now_ms=t0)

        assert given_answers == [Answer.OK, Answer.OK]
        assert len(await assert_whole(store)) == 1
        runs = [*await store.get_runs(names), *await store.get_runs(["other"])]
        assert {run.scheduler_version for run in runs if run is not None} == {7}

    async def test_what_only_got_old_goes_without_a_line(self, store: Store, t0: int) -> None:
        """It names no runs, so it has no audit line: a request for one is refused, and everything stays."""
        await finished(store, a_run("done"))
        old = {"finished_before_ms": t0 + 60_000, "dead_max": 0, "keep_per_job": 0, "log_max": 1}

        for name, value in old.items():
            with pytest.raises(InvalidInput, match="ids"):
                await store.prune(Pruning(ids=("done",), **{name: value}), audit=told("prune"))

        assert await store.get_runs(["done"]) != [None]
        assert await assert_whole(store) == ()

    async def crowd(self, store: Store) -> list[str]:
        """Enqueue many runs of one job; return their ids in order of arrival."""
        runs = [a_run(f"r{n:03}") for n in range(MANY)]
        await given(store, *runs)
        return ids(runs)

    async def left(self, store: Store) -> int:
        counts = await store.counts()
        return counts.ready + counts.held + counts.leased
