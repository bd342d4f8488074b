"""The handle on a PostgreSQL store: it checks what comes in, sends each verb to the server, and waits.

Time is the server's: a verb that needs it asks for it inside its own statements, so that all machines go by one clock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
from msgspec.structs import replace

from pollux.errors import InvalidInput
from pollux.model import (
    SCHEDULER_VERSION,
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
from pollux.store.postgres import claim as lease_verbs
from pollux.store.postgres import jobs as job_verbs
from pollux.store.postgres import listing as listing_verbs
from pollux.store.postgres import nodes as node_verbs
from pollux.store.postgres import notes as note_verbs
from pollux.store.postgres import plan as plan_verbs
from pollux.store.postgres import prune as prune_verbs
from pollux.store.postgres import records as record_verbs
from pollux.store.postgres import rows
from pollux.store.postgres import runs as run_verbs
from pollux.store.postgres import versions as version_verbs
from pollux.store.postgres.database import PostgresDatabase
from pollux.store.postgres.handle import PostgresHandle
from pollux.store.postgres.settle import settle, settle_plainly
from pollux.store.postgres.transaction import PostgresTransaction
from pollux.store.postgres.wakeup import Looked, PostgresListener
from pollux.store.relational.rows import Row, entry
from pollux.store.relational.settle import prepare
from pollux.store.relational.wakeup import ASKED, FEED, RUNS
from pollux.store.server_clock import ServerClock
from pollux.store.values import ClaimRequest

TWIN_POOL = 2


class PostgresStore(PostgresHandle):
    _server_clock: ServerClock | None = None

    @property
    def scheduler_version(self) -> int:
        return self._version

    @property
    def statements(self) -> int:
        """How many this handle has sent so far."""
        return self._door.database.space.statements

    async def open(self) -> None:
        if self._door.loop is not None:
            return
        sender = uuid4().hex
        database = PostgresDatabase(self._address, self._deadline_ms, sender, self._pool)
        try:
            await database.open()
        except BaseException:
            await database.close()
            raise
        door = self._door
        door.database, door.counted = database, {SCHEDULER_VERSION}
        door.ear = PostgresListener(sender, self._clock)
        if self._address.listen:
            door.ear.hear_by(database.connect, database.space.channel)
        else:
            door.ear.feel_by(partial(database.read, version_verbs.pulse, SCHEDULER_VERSION))
        door.loop, door.pid = asyncio.get_running_loop(), os.getpid()

    async def close(self) -> None:
        if self._door.loop is None:
            return
        self._door.loop = None
        if os.getpid() == self._door.pid:
            await self._door.ear.close()
            await self._door.database.close()

    def twin(self) -> PostgresStore:
        options: Any = {"clock": self._clock, "deadline_ms": self._deadline_ms, "pool": TWIN_POOL}
        return PostgresStore(self._address, **options, scheduler_version=self._version)

    def of_version(self, number: int) -> PostgresStore:
        other = PostgresStore(self._address, clock=self._clock, scheduler_version=number)
        other._door, other._jobs = self._door, self._jobs
        return other

    # jobs

    async def put_jobs(
        self, puts: Sequence[JobPut], *, audit: Audit[list[JobAnswer]] | None = None, now_ms: int | None = None
    ) -> list[JobAnswer]:
        check_batch(puts, "jobs")
        checked = [replace(put, job=checked_job(put.job)) for put in puts]
        return await self._write(now_ms, job_verbs.put_jobs, checked, audit=audit)

    async def delete_jobs(
        self,
        ids: Sequence[str],
        *,
        reason: str = "",
        audit: Audit[list[Answer]] | None = None,
        now_ms: int | None = None,
    ) -> list[Answer]:
        check_batch(ids, "jobs")
        return await self._write(now_ms, job_verbs.delete_jobs, list(ids), reason, audit=audit)

    async def get_jobs(self, ids: Sequence[str]) -> list[Job | None]:
        check_batch(ids, "jobs")
        found, reading = await self._read(None, job_verbs.get_jobs, list(ids)), JobReading(self._jobs)
        return reading.answer([reading.job(tuple(found[job_id])) if job_id in found else None for job_id in ids])

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        limit = check_page(limit)
        found = await self._read(None, job_verbs.list_jobs, where or JobFilter(), after, limit + 1)
        reading, following = JobReading(self._jobs), found[limit - 1][0] if len(found) > limit else None
        return reading.answer(JobPage(tuple(reading.jobs(map(tuple, found[:limit]))), following))

    async def move_jobs(
        self, ids: Sequence[str], to: int, *, audit: Audit[list[Answer]] | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        check_batch(ids, "jobs")
        await self._count_in(check_version(to))
        return await self._write(now_ms, job_verbs.move_jobs, list(ids), to, audit=audit)

    async def due(self, *, after: tuple[int, str] | None = None, before_ms: int, limit: int) -> list[Job]:
        found, reading = await self._read(None, job_verbs.due, after, before_ms, limit), JobReading(self._jobs)
        return reading.answer(reading.jobs(map(tuple, found)))

    # plan

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:

        async def look(waited_ms: float) -> Looked[Feed]:
            known = self._entries
            found = await self._read(_later(now_ms, waited_ms), plan_verbs.feed, limit, list(known))
            entries = [row for row in found if row[1] is not None]
            items = tuple([known[row[1]] if row[2] is None else FeedItem(row[1], entry(row[2])) for row in entries])
            self._entries = {item.id: item for item in items}
            return Feed(items, found[0][0]), bool(items), None

        return await self._wait(FEED, look, wait_ms)

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None = None) -> Advanced:
        check_plan(plan)
        if plan_verbs.only_learns(plan):
            await self._count_in(self._version)
            if (learnt := await self._read(now_ms, plan_verbs.learn, term, plan)) is not None:
                return learnt
        firings = [rows.made_row(firing.run) for firing in plan.firings]
        if plan.notes:
            plan = replace(plan, notes=tuple(checked_notes(plan.notes)))
        return await self._write(now_ms, plan_verbs.advance, term, plan, firings)

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
        alike = rows.alike(runs) if runs and not (notes or unless_live) and audit is None else None
        if alike is not None and await self._enqueue(alike, ready_max, now_ms):
            return [RunAnswer(Answer.OK, run_id) for run_id in alike.ids]
        made = [rows.made_row(run) for run in runs]
        asked = (made, checked_notes(notes), ready_max, unless_live)
        return await self._write(now_ms, run_verbs.enqueue, *asked, audit=audit)

    async def enqueue_in(
        self, connection: Any, runs: Sequence[Run], *, ready_max: int = READY_MAX, now_ms: int | None = None
    ) -> list[RunAnswer]:
        """As `enqueue`, inside the transaction of an asyncpg connection: there when it commits, and only then."""
        check_batch(runs, "runs")
        _check_transaction(connection, "enqueue")
        made = [rows.made_row(run) for run in runs]
        return await self._opened().join(
            connection, lambda tx: run_verbs.enqueue(tx, made, (), ready_max), self._version, now_ms
        )

    async def get_runs_in(self, connection: Any, ids: Sequence[str]) -> list[Run | None]:
        check_batch(ids, "runs")
        _check_transaction(connection, "get_runs")
        return _runs_of(
            ids,
            await self._opened().join(connection, partial(listing_verbs.get_runs, ids=list(ids)), self._version, None),
        )

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
        self._opened()

        async def look(waited_ms: float) -> Looked[Claimed]:
            claimed = await self._claim(asking, _later(now_ms, waited_ms))
            left_ms = None if claimed.look_again_ms is None else claimed.look_again_ms - claimed.now_ms
            return claimed, bool(claimed.runs) or claimed.answer is not Answer.OK, left_ms

        return await self._wait(RUNS | ASKED, look, wait_ms)

    async def renew(self, renewals: Sequence[Renewal], *, lease_ms: int, now_ms: int | None = None) -> list[Renewed]:
        check_batch(renewals, "renewals")
        return await self._read(now_ms, lease_verbs.renew, renewals, lease_ms) if renewals else []

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        check_settlements(settlements)
        items = [prepare(settlement, rows.made_row) for settlement in settlements]
        if plain := self._door.grants.take(items):
            verb = partial(settle_plainly, items=items, rows=plain)
            if await self._opened().read(verb, self._version, now_ms, self._door.ear.ring):
                return [Answer.OK] * len(items)
        return await self._write(now_ms, settle, items)

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
        return await self._write(now_ms, run_verbs.cancel, list(run_ids), job_id, reason, audit=audit)

    async def revive(
        self, run_ids: Sequence[str], *, audit: Audit[list[RunAnswer]] | None = None, now_ms: int | None = None
    ) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        return await self._write(now_ms, run_verbs.revive, list(run_ids), audit=audit)

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        listed = await self._read(None, listing_verbs.list_runs, where or RunFilter(), after, check_page(limit))
        reading = BatchDecoder("run", rows.run)
        runs = [run for row in listed.rows if (run := reading(row, row[0])) is not None]
        return reading.answer(RunPage(tuple(runs), listed.next))

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        check_batch(ids, "runs")
        return _runs_of(ids, await self._read(None, listing_verbs.get_runs, list(ids)))

    async def now(self) -> int:
        if self._server_clock is None:
            self._server_clock = ServerClock(self._clock, self._server_now)
        return await self._server_clock.now_ms()

    async def _server_now(self) -> int:
        return await self._read(None, PostgresTransaction.now)

    async def counts(self, *, all_versions: bool = False) -> Counts:
        return await self._read(None, listing_verbs.counts, all_versions)

    async def lines(self, *, before: str | None = None, now_ms: int | None = None) -> tuple[QueueDepth, ...]:
        return await self._read(now_ms, listing_verbs.lines, before)

    async def problems(self) -> tuple[str, ...]:
        return ()  # one that has no room or only reads says so itself, in the answer to each write

    async def prune(self, what: Pruning, *, audit: Audit[int] | None = None) -> int:
        check_pruning(what, is_told=audit is not None)
        has_any, writers = await self._read(None, prune_verbs.look, what)
        gone = await self._write(None, prune_verbs.prune, what, audit=audit) if has_any else 0
        keep = what.keep_per_job
        if keep is not None and gone < what.limit and (keep, writers) != self._door.kept:
            jobs = await self._read(None, prune_verbs.beyond, keep, what.limit - gone)
            if jobs:
                gone += await self._write(None, prune_verbs.drop_excess, jobs, keep, what.limit - gone)
            else:
                self._door.kept = keep, writers  # nothing can be beyond before anybody writes
        return gone

    # notes

    async def put_notes(
        self, puts: Sequence[NotePut], *, audit: Audit[list[Answer]] | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        return await self._write(now_ms, note_verbs.put_notes, checked_notes(puts), audit=audit)

    async def notes(self, prefix: str = "", *, now_ms: int | None = None) -> list[Note]:
        found, reading = await self._read(now_ms, note_verbs.notes, prefix), BatchDecoder("note", rows.note)
        return reading.answer([note for row in found if (note := reading(row, rows.got(row[0]))) is not None])

    # nodes and terms

    async def beat(self, node: Node, *, ttl_ms: int, now_ms: int | None = None) -> None:
        await self._count_in(check_version(node.scheduler_version))
        known = self._door.beats.get(node.id)
        if (
            known is None
            or not known.does_as(node)
            or not await self._read(now_ms, node_verbs.beat_again, node, ttl_ms)
        ):
            await self._write(now_ms, node_verbs.beat, node, ttl_ms)
        self._door.beats = {node.id: node}

    async def nodes(self, *, now_ms: int | None = None) -> list[Node]:
        return await self._read(now_ms, node_verbs.nodes)

    async def leave(self, node_id: str) -> None:
        await self._write(None, node_verbs.leave, node_id)

    async def elect(self, node_id: str, *, ttl_ms: int, now_ms: int | None = None) -> Term:
        if (standing := await self._read(now_ms, node_verbs.go_on, node_id, ttl_ms)) is not None:
            term, pulse = standing
            self._door.ear.feel(pulse)
            return term
        return await self._write(now_ms, node_verbs.elect, node_id, ttl_ms)

    async def resign(self, node_id: str, *, term: int, now_ms: int | None = None) -> None:
        await self._write(now_ms, node_verbs.resign, node_id, term)

    # versions

    async def versions(self, *, now_ms: int | None = None) -> list[Version]:
        return await self._read(now_ms, version_verbs.versions)

    async def drop_version(
        self, number: int, *, audit: Audit[Answer] | None = None, now_ms: int | None = None
    ) -> Answer:
        await self._count_in(check_version(number))
        return await self._write(now_ms, version_verbs.drop_version, number, audit=audit)

    # wake-ups

    async def wake(self) -> None:
        await self._write(None, version_verbs.wake)

    # records

    async def log(self, lines: Sequence[AuditLine]) -> None:
        check_batch(lines, "lines")
        await self._write(None, record_verbs.log, lines)

    async def read_log(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        limit = check_page(limit)
        verb = record_verbs.newest_log if newest else record_verbs.read_log
        lines = [record_verbs.line_of(row) for row in await self._read(None, verb, after, limit + 1)]
        further = lines[limit - 1].seq if len(lines) > limit else None
        page = lines[:limit]
        return LogPage(tuple(reversed(page)) if newest else tuple(page), further)

    async def dump(self, *, after: str | None = None, limit: int = PAGE_MAX) -> DumpPage:
        dumped = await self._read(None, record_verbs.dump, after, check_page(limit))
        return DumpPage(tuple([(kind, self._record(kind, row)) for kind, row in dumped.rows]), dumped.next)

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        check_batch(records, "records")
        values = [read_record(kind, data) for kind, data in records]
        for version in {getattr(value, "scheduler_version", SCHEDULER_VERSION) for value in values}:
            await self._count_in(check_version(version))
        return await self._write(None, record_verbs.load, values)

    def _record(self, kind: str, row: Row) -> Any:
        match kind:
            case "term":
                return msgspec.to_builtins(TermRecord(*row))
            case "tomb":
                return msgspec.to_builtins(Tombstone(*row))
            case "job":
                return msgspec.to_builtins(self._job(row))
            case "run":
                return msgspec.to_builtins(rows.run(row))
            case "note":
                return msgspec.to_builtins(rows.note(row))
            case _:
                return msgspec.to_builtins(record_verbs.line_of(row))


def _runs_of(ids: Sequence[str], found: dict[str, Row]) -> list[Run | None]:
    reading = BatchDecoder("run", rows.run)
    return reading.answer([reading(found[run_id], run_id) if run_id in found else None for run_id in ids])


def _check_transaction(connection: Any, verb: str) -> None:
    if not isinstance(connection, asyncpg.Connection) or not connection.is_in_transaction():
        raise InvalidInput(
            f"{verb} needs an asyncpg connection that is inside a transaction",
            where="connection",
            cure="call it inside `async with connection.transaction():`",
        )


def _later(now_ms: int | None, waited_ms: float) -> int | None:
    return None if now_ms is None else now_ms + int(waited_ms)
