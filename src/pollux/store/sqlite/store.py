"""The handle on a SQLite store: it checks what comes in, sends each verb to its thread, and waits.

Writing verbs go to the writer, reading ones to a reader; what comes back are rows, and they become values here, in the
caller's loop, so that the writer is free for the next commit.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from pollux.model import (
    AuditLine,
    FeedItem,
    Job,
    Node,
    Note,
    NotePut,
    Plan,
    QueueDepth,
    Run,
    Term,
    Version,
    check_version,
)
from pollux.store.contract import (
    BATCH_MAX,
    FEED_MAX,
    LOSSES_MAX,
    PAGE_MAX,
    READY_MAX,
    Advanced,
    Answer,
    Audit,
    Capabilities,
    Claimed,
    Counts,
    DumpPage,
    Feed,
    JobAnswer,
    JobFilter,
    JobPage,
    JobPut,
    LogPage,
    Pruning,
    Renewal,
    Renewed,
    RunAnswer,
    RunFilter,
    RunPage,
    Settlement,
)
from pollux.store.decoding import BatchDecoder
from pollux.store.dump_format import TermRecord, Tombstone, read_record
from pollux.store.job_cache import JobReading
from pollux.store.limits import (
    check_batch,
    check_first,
    check_page,
    check_plan,
    check_pruning,
    check_settlements,
    checked_job,
    checked_notes,
)
from pollux.store.relational import rows
from pollux.store.relational.settle import prepare
from pollux.store.relational.wakeup import ASKED, FEED, RUNS, WAKE
from pollux.store.sqlite import jobs as job_verbs
from pollux.store.sqlite import leases as lease_verbs
from pollux.store.sqlite import listing as listing_verbs
from pollux.store.sqlite import nodes as node_verbs
from pollux.store.sqlite import notes as note_verbs
from pollux.store.sqlite import plan as plan_verbs
from pollux.store.sqlite import prune as prune_verbs
from pollux.store.sqlite import records as record_verbs
from pollux.store.sqlite import runs as run_verbs
from pollux.store.sqlite import versions as version_verbs
from pollux.store.sqlite.handle import Looked, SqliteHandle, is_enough
from pollux.store.sqlite.settle import settle
from pollux.store.sqlite.transaction import SqliteTransaction
from pollux.store.sqlite.wakeup import SqliteListener
from pollux.store.values import ClaimRequest


class SqliteStore(SqliteHandle):
    capabilities = Capabilities(name="sqlite")

    @property
    def scheduler_version(self) -> int:
        return self._version

    async def open(self) -> None:
        if self._door.loop is not None:
            return
        loop = asyncio.get_running_loop()
        ready = self._database.join()
        try:
            await asyncio.wrap_future(ready)
        except BaseException:
            self._database.leave()
            raise
        self._door.ear = SqliteListener(self._database.bell, loop)
        self._door.loop, self._door.pid = loop, os.getpid()

    async def close(self) -> None:
        if self._door.loop is None:
            return
        self._door.loop = None
        if os.getpid() == self._door.pid:
            self._door.ear.close()
            for ended in self._database.leave():
                await asyncio.wrap_future(ended)

    def twin(self) -> SqliteStore:
        options: Any = {"clock": self._clock, "deadline_ms": self._deadline_ms, "database": self._database}
        return SqliteStore(self._database.path, **options, scheduler_version=self._version)

    def of_version(self, number: int) -> SqliteStore:
        options: Any = {"clock": self._clock, "deadline_ms": self._deadline_ms, "database": self._database}
        other = SqliteStore(self._database.path, **options, scheduler_version=number)
        other._door, other._jobs, other._deadlines = self._door, self._jobs, self._deadlines
        return other

    # jobs

    async def put_jobs(
        self,
        puts: Sequence[JobPut],
        *,
        audit: Audit[list[JobAnswer]] | None = None,
        now_ms: int | None = None,  # noqa: ARG002  the contract's
    ) -> list[JobAnswer]:
        check_batch(puts, "jobs")
        checked = [replace(put, job=checked_job(put.job)) for put in puts]
        return await self._write(job_verbs.put_jobs, checked, audit=audit)

    async def delete_jobs(
        self,
        ids: Sequence[str],
        *,
        reason: str = "",
        audit: Audit[list[Answer]] | None = None,
        now_ms: int | None = None,
    ) -> list[Answer]:
        check_batch(ids, "jobs")
        return await self._write_at(now_ms, job_verbs.delete_jobs, ids, reason, audit=audit)

    async def get_jobs(self, ids: Sequence[str]) -> list[Job | None]:
        check_batch(ids, "jobs")
        found, reading = await self._read(job_verbs.get_jobs, ids), JobReading(self._jobs)
        return reading.answer([reading.job(found[job_id]) if job_id in found else None for job_id in ids])

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        limit = check_page(limit)
        found = await self._list(job_verbs.list_jobs, where or JobFilter(), after, limit + 1)
        reading, following = JobReading(self._jobs), found[limit - 1][0] if len(found) > limit else None
        return reading.answer(JobPage(tuple(reading.jobs(found[:limit])), following))

    async def move_jobs(
        self,
        ids: Sequence[str],
        to: int,
        *,
        audit: Audit[list[Answer]] | None = None,
        now_ms: int | None = None,  # noqa: ARG002  the contract's
    ) -> list[Answer]:
        check_batch(ids, "jobs")
        return await self._write(job_verbs.move_jobs, ids, check_version(to), audit=audit)

    async def due(self, *, after: tuple[int, str] | None = None, before_ms: int, limit: int) -> list[Job]:
        found, reading = await self._read(job_verbs.due, after, before_ms, limit), JobReading(self._jobs)
        return reading.answer(reading.jobs(found))

    # plan

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:

        async def look(waited_ms: float) -> Looked[Feed]:
            known = self._entries
            found = await self._read(plan_verbs.feed, limit, list(known))
            items = tuple([known[row[0]] if row[1] is None else _feed_item(row) for row in found])
            self._entries = {item.id: item for item in items}
            return Feed(items, self._now(now_ms, waited_ms)), bool(items), None

        return await self._wait(FEED, look, wait_ms)

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None = None) -> Advanced:
        check_plan(plan)
        firings = [rows.checked_made_row(firing.run) for firing in plan.firings]
        if plan.notes:
            plan = replace(plan, notes=tuple(checked_notes(plan.notes)))
        advanced = await self._write_at(now_ms, plan_verbs.advance, term, plan, firings)
        for number in plan.consumed:  # who inserts by hand may get a number that was there before
            self._entries.pop(number, None)
        return advanced

    # runs

    async def enqueue(
        self,
        runs: Sequence[Run],
        *,
        notes: Sequence[NotePut] = (),
        ready_max: int = READY_MAX,
        unless_live: bool = False,
        audit: Audit[list[RunAnswer]] | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        check_batch(runs, "runs")
        made = rows.checked_made_rows(runs)
        asked = (made, checked_notes(notes), ready_max, unless_live)
        return await self._write_at(now_ms, run_verbs.enqueue, *asked, audit=audit)

    async def claim(
        self,
        *,
        node: str,
        token: str,
        limit: int,
        lease_ms: int,
        first: int = 1,
        losses_max: int = LOSSES_MAX,
        feed_max: int = FEED_MAX,
        wait_ms: int = 0,
        now_ms: int | None = None,
    ) -> Claimed:
        check_first(first)
        asking = ClaimRequest(node, token, min(limit, BATCH_MAX), lease_ms, first, losses_max, feed_max)

        async def look(waited_ms: float) -> Looked[Claimed]:
            claimed = await self._take(asking, now_ms, waited_ms)
            left_ms = None if claimed.look_again_ms is None else claimed.look_again_ms - claimed.now_ms
            return claimed, is_enough(claimed), left_ms

        rest = partial(self._stand_by, asking) if now_ms is None else self._rest
        return await self._wait(RUNS | ASKED, look, wait_ms, rest)

    async def renew(self, renewals: Sequence[Renewal], *, lease_ms: int, now_ms: int | None = None) -> list[Renewed]:
        check_batch(renewals, "renewals")
        return await self._write_at(now_ms, lease_verbs.renew, renewals, lease_ms)

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        check_settlements(settlements)
        return await self._write_at(now_ms, settle, [prepare(settlement) for settlement in settlements])

    async def cancel(
        self,
        *,
        run_ids: Sequence[str] = (),
        job_id: str | None = None,
        reason: str = "",
        audit: Audit[list[RunAnswer]] | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        return await self._write_at(now_ms, run_verbs.cancel, run_ids, job_id, reason, audit=audit)

    async def revive(
        self, run_ids: Sequence[str], *, audit: Audit[list[RunAnswer]] | None = None, now_ms: int | None = None
    ) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        return await self._write_at(now_ms, run_verbs.revive, run_ids, audit=audit)

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        listed = await self._list(listing_verbs.list_runs, where or RunFilter(), after, check_page(limit))
        reading = BatchDecoder("run", rows.run)
        runs = [run for row in listed.rows if (run := reading(row, row[0])) is not None]
        return reading.answer(RunPage(tuple(runs), listed.next))

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        check_batch(ids, "runs")
        found, reading = await self._read(listing_verbs.get_runs, ids), BatchDecoder("run", rows.run)
        return reading.answer([reading(found[run_id], run_id) if run_id in found else None for run_id in ids])

    async def now(self) -> int:
        return self._clock.now_ms()

    async def counts(self, *, all_versions: bool = False) -> Counts:
        return await self._read(listing_verbs.counts, all_versions)

    async def lines(self, *, before: str | None = None, now_ms: int | None = None) -> tuple[QueueDepth, ...]:
        return await self._read(listing_verbs.lines, before, self._now(now_ms))

    async def problems(self) -> tuple[str, ...]:
        return self._lanes().writer.room.problems()

    async def prune(self, what: Pruning, *, audit: Audit[int] | None = None) -> int:
        check_pruning(what, is_told=audit is not None)
        gone = await self._write(prune_verbs.prune, what, audit=audit)
        if what.keep_per_job is not None and gone < what.limit:
            excess = await self._list(prune_verbs.beyond, what.keep_per_job, what.limit - gone)
            gone += await self._write(prune_verbs.drop, excess) if excess else 0
        return gone

    # notes

    async def put_notes(
        self, puts: Sequence[NotePut], *, audit: Audit[list[Answer]] | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        return await self._write_at(now_ms, note_verbs.put_notes, checked_notes(puts), audit=audit)

    async def notes(self, prefix: str = "", *, now_ms: int | None = None) -> list[Note]:
        found = await self._read(note_verbs.notes, prefix, self._now(now_ms))
        reading = BatchDecoder("note", rows.note)
        return reading.answer([note for row in found if (note := reading(row, row[0])) is not None])

    # nodes and terms

    async def beat(self, node: Node, *, ttl_ms: int, now_ms: int | None = None) -> None:
        check_version(node.scheduler_version)
        await self._write_at(now_ms, node_verbs.beat, node, ttl_ms)

    async def nodes(self, *, now_ms: int | None = None) -> list[Node]:
        return rows.living(await self._read(node_verbs.nodes, self._now(now_ms)))

    async def leave(self, node_id: str) -> None:
        await self._write(node_verbs.leave, node_id)

    async def elect(self, node_id: str, *, ttl_ms: int, now_ms: int | None = None) -> Term:
        return await self._write_at(now_ms, node_verbs.elect, node_id, ttl_ms)

    async def resign(self, node_id: str, *, term: int, now_ms: int | None = None) -> None:  # noqa: ARG002  the contract's
        await self._write(node_verbs.resign, node_id, term)

    # versions

    async def versions(self, *, now_ms: int | None = None) -> list[Version]:
        return await self._read(version_verbs.versions, self._now(now_ms))

    async def drop_version(
        self, number: int, *, audit: Audit[Answer] | None = None, now_ms: int | None = None
    ) -> Answer:
        return await self._write_at(now_ms, version_verbs.drop_version, check_version(number), audit=audit)

    # wake-ups

    async def wake(self) -> None:
        await self._write(_wake)

    # records

    async def log(self, lines: Sequence[AuditLine]) -> None:
        check_batch(lines, "lines")
        await self._write(record_verbs.log, lines)

    async def read_log(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        limit = check_page(limit)
        if newest:
            back = [AuditLine(*row) for row in await self._list(record_verbs.newest_log, after, limit + 1)]
            return LogPage(tuple(reversed(back[:limit])), back[limit - 1].seq if len(back) > limit else None)
        lines = [AuditLine(*row) for row in await self._list(record_verbs.read_log, after, limit + 1)]
        return LogPage(tuple(lines[:limit]), lines[limit - 1].seq if len(lines) > limit else None)

    async def dump(self, *, after: str | None = None, limit: int = PAGE_MAX) -> DumpPage:
        dumped = await self._list(record_verbs.dump, after, check_page(limit))
        return DumpPage(tuple([(kind, self._record(kind, row)) for kind, row in dumped.rows]), dumped.next)

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        check_batch(records, "records")
        return await self._write(record_verbs.load, [read_record(kind, data) for kind, data in records])

    def _record(self, kind: str, row: rows.Row) -> Any:
        match kind:
            case "term":
                return msgspec.to_builtins(TermRecord(*row))
            case "tomb":
                return msgspec.to_builtins(Tombstone(*row))
            case "job":
                return msgspec.to_builtins(self._jobs.job(row))
            case "run":
                return msgspec.to_builtins(rows.run(row))
            case "note":
                return msgspec.to_builtins(rows.note(row))
            case _:
                return msgspec.to_builtins(AuditLine(*row))


def _feed_item(row: rows.Row) -> FeedItem:
    return FeedItem(row[0], rows.entry(row[1]))


def _wake(tx: SqliteTransaction) -> None:
    tx.rings |= WAKE
