"""The verbs of the jobs: put, delete, get, list, due."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import Job, JobsDeleted, JobsMoved, JobsPut
from pollux.store.backend import Page
from pollux.store.contract import Answer, JobAnswer, JobFilter, JobPut
from pollux.store.postgres.rows import JOB_COLUMNS, columns, got, job_row, put
from pollux.store.postgres.runs import cancel_waiting
from pollux.store.postgres.sql import PostgresStatements
from pollux.store.postgres.transaction import JOBS_LOCK, PostgresTransaction, TransactionRetry
from pollux.store.relational.feed_entries import JOB_GONE, unlearnt_ends
from pollux.store.relational.jobs import TOMBS_MAX, Puts, StoredJobRow, each_once, moved_once
from pollux.store.relational.rows import HELD, LEASED, READY, Row, by_version
from pollux.store.relational.wakeup import RUNS

CHANGED_COLUMNS = 12

_put = PostgresStatements("put_jobs")
_delete = PostgresStatements("delete_jobs")
_jobs = PostgresStatements("jobs")
_move = PostgresStatements("move_jobs")
_versions = PostgresStatements("versions")


async def put_jobs(tx: PostgresTransaction, puts: Sequence[JobPut]) -> list[JobAnswer]:
    await tx.lock(JOBS_LOCK)
    ids = [each.job.id for each in puts]
    stored = {row[0]: StoredJobRow(row[1], row[2], got(row[3]), *row[4:]) for row in await tx.rows(_put.stored, ids)}
    missing = [job_id for job_id in ids if job_id not in stored]
    tombs = {row[0]: row for row in await tx.rows(_put.tombs, missing)} if missing else {}
    batch = Puts(stored, tombs, tx.version)
    answers = [batch.put(each) for each in puts]
    if batch.added:
        rows = [
            (*_row(*each), None, batch.last_due_ms(job_id), None, None, tx.version)
            for job_id, each in batch.added.items()
        ]
        if len(await tx.rows(_put.add, *columns(rows, JOB_COLUMNS))) < len(rows):
            raise TransactionRetry  # somebody else wrote one of them, without the lock
        tx.counters.jobs += len(batch.added)
        await tx.rows(_versions.use, tx.version)
        if tombs:
            await tx.rows(_put.forget_tombs, list(batch.added))
            await _take_runs(tx, [job_id for job_id in batch.added if job_id in tombs])
    if batch.changed:
        await tx.rows(_put.change, *columns([_row(*each) for each in batch.changed.values()], CHANGED_COLUMNS))
    written = dict.fromkeys(answer.id for answer in answers if answer.answer is Answer.OK)
    if written:
        tx.tell(tx.version, JobsPut(tuple(written), len(batch.added)))
    return answers


def _row(job: Job, stored: StoredJobRow) -> Row:
    return job_row(job, stored.revision, stored.definition)


async def delete_jobs(tx: PostgresTransaction, ids: Sequence[str], reason: str) -> list[Answer]:
    await tx.lock(JOBS_LOCK)
    now_ms = await tx.now()
    stored = {row[0]: row for row in await tx.rows(_delete.stored, ids)}
    deleted = [job_id for job_id in dict.fromkeys(ids) if job_id in stored]
    if deleted:
        place = {job_id: n for n, job_id in enumerate(deleted)}
        waiting = sorted(await tx.rows(_delete.waiting, deleted), key=lambda row: (place[row[3]], row[0]))
        tx.tell_ends(await cancel_waiting(tx, waiting, [reason or JOB_GONE] * len(waiting), now_ms))
        await bury(tx, [stored[job_id] for job_id in deleted])
        for version, some in by_version((stored[job_id][3], job_id) for job_id in deleted).items():
            tx.tell(version, JobsDeleted(tuple(some)))
    return each_once(ids, deleted)


async def bury(tx: PostgresTransaction, rows: Sequence[Row]) -> None:
    """Delete jobs, of which (id, revision, last_due_ms) stay; behind them stands their version."""
    if rows:
        await tx.rows(_delete.bury, *columns([row[:3] for row in rows], 3), TOMBS_MAX)
        for row in rows:
            tx.counters_of(row[3]).jobs -= 1


async def move_jobs(tx: PostgresTransaction, ids: Sequence[str], to: int) -> list[Answer]:
    await tx.lock(JOBS_LOCK)
    rows = {row[0]: (row[1], row[2]) for row in await tx.rows(_move.stored, ids)}
    stored: dict[str, int] = {job_id: row[0] for job_id, row in rows.items()}
    moved = [job_id for job_id in dict.fromkeys(ids) if stored.get(job_id, to) != to]
    if moved:
        await tx.rows(_move.jobs, moved, to)
        held = await _move_runs(tx, moved, to)
        await _tell_moved(tx, {job_id: rows[job_id] for job_id in moved}, held, to)
        await tx.rows(_versions.use, to)
    return moved_once(ids, stored, moved)


async def _take_runs(tx: PostgresTransaction, again: Sequence[str]) -> None:
    """What is still leased of deleted jobs comes along with those in their place, from whatever version."""
    versions = [row[0] for row in await tx.rows(_move.elsewhere, again, tx.version)]
    if versions:
        await _move_runs(tx, again, tx.version)
        tx.counters.clock_ms = max(tx.counters.clock_ms, (await tx.one(_move.clock, versions))[0])


async def _move_runs(tx: PostgresTransaction, moved: Sequence[str], to: int) -> list[str]:
    """The live runs go along; answers those that are held."""
    place = {job_id: n for n, job_id in enumerate(moved)}
    runs = sorted(await tx.rows(_move.runs, moved, to), key=lambda row: (place[row[3]], row[0]))
    for _, state, _, _, was in runs:
        for counters, count in ((tx.counters_of(was), -1), (tx.counters_of(to), 1)):
            counters.held += count * (state == HELD)
            counters.ready += count * (state == READY)
            counters.leased += count * (state == LEASED)
    tx.rings |= RUNS
    return [row[2] for row in runs if row[1] == HELD]


async def _tell_moved(tx: PostgresTransaction, left: dict[str, Row], held: Sequence[str], to: int) -> None:
    """Both leaders; and to the new one what the jobs bring: held runs, and ends that they have not learnt yet.

    `left` are their versions and memories, as they were.
    """
    parts = by_version((version, job_id) for job_id, (version, _) in left.items())
    for version, some in parts.items():
        tx.counters_of(version).jobs -= len(some)
        tx.tell(version, JobsMoved(tuple(some)))
    tx.counters_of(to).jobs += len(left)
    versions = sorted(parts)
    tx.counters_of(to).clock_ms = (await tx.one(_move.clock, versions))[0]
    tx.tell(to, JobsMoved(tuple(left)))
    tx.tell_arrived([(to, run_id) for run_id in held])
    entries = [(row[0], row[1]) for row in await tx.rows(_move.unread, versions)]
    memories = {job_id: memory for job_id, (_, memory) in left.items()}
    tx.tell_ends([(to, end) for end in unlearnt_ends(entries, memories)])


async def get_jobs(tx: PostgresTransaction, ids: Sequence[str]) -> dict[str, Row]:
    return {row[0]: row for row in await tx.rows(_jobs.get, ids)}


async def list_jobs(tx: PostgresTransaction, where: JobFilter, after: str | None, limit: int) -> Page:
    tag = None if where.tag is None else f"\x1f{where.tag}\x1f"
    asked = (where.group, where.target, tag, where.source, where.handler, where.text, where.source_id)
    *texts, source_id = [None if text is None else put(text) for text in asked]
    more = (where.scheduler_version, where.priority, source_id, where.enabled)
    found = await tx.rows(_jobs.page, after or "", *texts, limit + 1, *more)
    return Page(found[:limit], found[limit - 1][0] if len(found) > limit else None)


async def due(tx: PostgresTransaction, after: tuple[int, str] | None, before_ms: int, limit: int) -> list[Row]:
    return await tx.rows(_jobs.due, *(after or (-(2**63), "")), before_ms, limit, tx.version)
