"""Audit log: every change has its line, written with the change, and nothing else has one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from pollux.errors import InvalidInput
from pollux.model import AuditLine, Ended, NotePut, chained
from pollux.store.contract import Answer, JobPut, Pruning, Store
from pollux.testing.conformance.builders import (
    T0,
    a_job,
    a_run,
    answers,
    dead_letter,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    the_job,
)
from pollux.testing.conformance.contract import Contract

MANY = 600  # runs of one job, more than a store may change at once


class AuditCapture:
    """Makes audit lines, and records what it was last called with."""

    def __init__(self, action: str) -> None:
        self.line = AuditLine(T0, "anna", action, "this", "and that")
        self.told: Any = None

    def __call__(self, told: Any) -> Sequence[AuditLine]:
        self.told = told
        items = told if isinstance(told, list) else [told]
        done = [item for item in items if item in (Answer.OK, True) or getattr(item, "answer", None) is Answer.OK]
        return [self.line] if done else []


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
    "drop_version": (_version, lambda s, audit: s.drop_version(7, audit=audit, now_ms=T0)),
}


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
        scribe = AuditCapture(change)

        answer = await do(store, scribe)

        assert scribe.told == answer
        assert [line.action for line in await assert_whole(store)] == ["before", change]

    @pytest.mark.parametrize("change", list(CHANGES))
    async def test_the_same_again_adds_no_line(self, store: Store, t0: int, change: str) -> None:
        prepare, do = CHANGES[change]
        await prepare(store)
        await do(store, AuditCapture(change))

        again = await do(store, AuditCapture(change))

        assert Answer.OK not in (again if isinstance(again, list) else [again])
        assert [line.action for line in await assert_whole(store)] == [change]

    async def test_each_of_a_batch_is_told_of_as_it_was_answered(self, store: Store, t0: int) -> None:
        await given_jobs(store, "there", "same")
        puts = [JobPut(a_job("there", priority=1), revision=0), JobPut(a_job("same")), JobPut(a_job("new"))]
        given_answers = await store.put_jobs(
            puts, audit=lambda said: [AuditLine(t0, "anna", str(each.answer), each.id) for each in said], now_ms=t0
        )

        assert answers(given_answers) == [Answer.CONFLICT, Answer.ALREADY, Answer.OK]
        assert [(line.action, line.subject) for line in await assert_whole(store)] == [
            ("conflict", "there"),
            ("already", "same"),
            ("ok", "new"),
        ]

    async def test_what_nobody_tells_of_is_done_all_the_same(self, store: Store, t0: int) -> None:
        await store.put_jobs([JobPut(a_job("a"))], audit=lambda _: [], now_ms=t0)

        assert (await the_job(store, "a")).revision == 1
        assert await assert_whole(store) == ()

    async def test_changes_at_once_leave_a_whole_chain(self, store: Store, t0: int) -> None:
        await _runs(store)
        changes = [do for name, (_, do) in CHANGES.items() if name not in {"delete_jobs", "move_jobs", "drop_version"}]

        await asyncio.gather(
            *(do(store, AuditCapture("do")) for do in changes),
            *(store.put_jobs([JobPut(a_job(f"job{n}"))], audit=AuditCapture("put"), now_ms=t0) for n in range(8)),
            store.log([AuditLine(t0, "b", "x", "y")]),
        )

        lines = [line.action for line in await assert_whole(store)]
        assert (lines.count("put"), lines.count("x")) == (8, 1)
        assert lines.count("do") in {len(changes) - 1, len(changes)}  # the run may be cancelled by its id or its job

    async def test_a_run_that_is_named_twice_ends_once(self, store: Store, t0: int) -> None:
        """By its id, and as one of its job."""
        await given(store, a_run("a"), a_run("b"), a_run("c"))
        await forget_feed(store)
        scribe = AuditCapture("cancel")

        given_answers = await store.cancel(run_ids=["b"], job_id="job", audit=scribe, now_ms=t0)

        assert [(each.id, each.answer) for each in given_answers] == [(name, Answer.OK) for name in "bac"]
        assert scribe.told == given_answers
        [entry] = await entries(store, Ended)
        assert sorted(end.run_id for end in entry.ends) == ["a", "b", "c"]

    async def test_a_job_of_many_runs_is_cancelled_in_one_line(self, store: Store, t0: int) -> None:
        names = await self.crowd(store)
        scribe = AuditCapture("cancel")

        given_answers = await store.cancel(job_id="job", audit=scribe, now_ms=t0)

        assert [(each.id, each.answer) for each in given_answers] == [(name, Answer.OK) for name in names]
        assert answers(scribe.told) == answers(given_answers)
        assert {each.id for each in scribe.told} <= {*names, ""}, "of some in their number alone"
        assert len(await assert_whole(store)) == 1
        assert await self.left(store) == 0

    async def test_a_job_of_many_runs_is_deleted_in_one_line(self, store: Store, t0: int) -> None:
        await self.crowd(store)
        await given_jobs(store, "small")

        given_answers = await store.delete_jobs(["job", "small", "nobody"], audit=AuditCapture("delete"), now_ms=t0)

        assert given_answers == [Answer.OK, Answer.OK, Answer.LOST]
        assert len(await assert_whole(store)) == 1
        assert await self.left(store) == 0
        assert await store.get_jobs(["job", "small"]) == [None, None]

    async def test_a_job_of_many_runs_is_moved_in_one_line(self, store: Store, t0: int) -> None:
        names = await self.crowd(store)
        await given(store, a_run("other", "small"))

        given_answers = await store.move_jobs(["job", "small"], 7, audit=AuditCapture("move"), now_ms=t0)

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
                await store.prune(Pruning(ids=("done",), **{name: value}), audit=AuditCapture("prune"))

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
