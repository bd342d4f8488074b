"""Verbs of the jobs: put, delete, move, get, list, due."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import End, Job, JobsDeleted, JobsMoved, JobsPut
from pollux.store.backend import Page
from pollux.store.contract import Answer, JobAnswer, JobFilter, JobPut
from pollux.store.relational.feed_entries import JOB_GONE, unlearnt_ends
from pollux.store.relational.jobs import TOMBS_MAX, Puts, StoredJobRow, each_once, moved_once
from pollux.store.relational.rows import HELD, LEASED, READY, Row, by_version, job_row
from pollux.store.relational.wakeup import RUNS
from pollux.store.sqlite.runs import cancel_waiting
from pollux.store.sqlite.transaction import SqliteStatements, SqliteTransaction, feed_numbers, ids_json

_put = SqliteStatements("put_jobs")
_delete = SqliteStatements("delete_jobs")
_get = SqliteStatements("get_jobs")
_list = SqliteStatements("list_jobs")
_due = SqliteStatements("due")
_move = SqliteStatements("move_jobs")
_versions = SqliteStatements("versions")


def put_jobs(tx: SqliteTransaction, puts: Sequence[JobPut]) -> list[JobAnswer]:
    ids = [put.job.id for put in puts]
    stored = {row[0]: StoredJobRow(*row[1:]) for row in tx.rows(_put.stored, (ids_json(ids),))}
    missing = [job_id for job_id in ids if job_id not in stored]
    tombs = {row[0]: row for row in tx.rows(_put.tombs, (ids_json(missing),))} if missing else {}
    batch = Puts(stored, tombs, tx.version)
    answers = [batch.put(each) for each in puts]
    if tombs:
        tx.write_many(_put.forget_tomb, [(job_id,) for job_id in batch.added if job_id in tombs])
    if batch.added:
        rows = [(*_row(*each), batch.last_due_ms(job_id), tx.version) for job_id, each in batch.added.items()]
        tx.insert(_put.add, rows)
        tx.counters.jobs += len(rows)
        for job_id in tombs:
            if job_id in batch.added:
                _take_runs(tx, job_id, tx.version)
    if batch.changed:
        tx.write_many(_put.change, [_row(*each) for each in batch.changed.values()])
    if written := dict.fromkeys(answer.id for answer in answers if answer.answer is Answer.OK):
        tx.write(_versions.use, (tx.version,))
        tx.add_entry(tx.version, JobsPut(tuple(written), len(batch.added)))
    return answers


def _row(job: Job, stored: StoredJobRow) -> Row:
    return job_row(job, stored.revision, stored.definition)


def delete_jobs(tx: SqliteTransaction, ids: Sequence[str], reason: str, now_ms: int) -> list[Answer]:
    stored = {row[0]: row for row in tx.rows(_delete.stored, (ids_json(ids),))}
    deleted = [job_id for job_id in dict.fromkeys(ids) if job_id in stored]
    ends: list[tuple[int, End]] = []
    for job_id in deleted:
        waiting = sorted(tx.rows(_delete.waiting, (job_id,)))
        ends += cancel_waiting(tx, waiting, reason or JOB_GONE, now_ms)
    tx.add_ends(ends)
    if deleted:
        bury(tx, [stored[job_id] for job_id in deleted])
        for version, some in by_version((stored[job_id][3], job_id) for job_id in deleted).items():
            tx.add_entry(version, JobsDeleted(tuple(some)))
    return each_once(ids, deleted)


def move_jobs(tx: SqliteTransaction, ids: Sequence[str], to: int) -> list[Answer]:
    rows = {row[0]: row[1:] for row in tx.rows(_move.stored, (ids_json(ids),))}
    stored: dict[str, int] = {job_id: row[0] for job_id, row in rows.items()}
    moved = [job_id for job_id in dict.fromkeys(ids) if stored.get(job_id, to) != to]
    if moved:
        held = [run_id for job_id in moved for run_id in _move_one(tx, job_id, stored[job_id], to)]
        tx.wakeups |= RUNS
        tx.counters_of(to)  # and its term, which is there from now on
        tx.write(_versions.use, (to,))
        _add_moved(tx, {job_id: rows[job_id] for job_id in moved}, held, to)
    return moved_once(ids, stored, moved)


def _move_one(tx: SqliteTransaction, job_id: str, old: int, to: int) -> list[str]:
    """The job with its live runs; answers those that are held."""
    tx.write(_move.job, (to, job_id))
    before, after = tx.counters_of(old), tx.counters_of(to)
    before.jobs -= 1
    after.jobs += 1
    after.clock_ms = max(after.clock_ms, before.clock_ms)
    return _take_runs(tx, job_id, to)


def _take_runs(tx: SqliteTransaction, job_id: str, to: int) -> list[str]:
    """The live runs of a job, wherever they are; answers those that are held."""
    runs, after = sorted(tx.rows(_move.live, (job_id,))), tx.counters_of(to)
    if any(version != to for *_, version in runs):
        tx.write(_move.runs, (to, job_id))
        tx.wakeups |= RUNS
    for _, state, _, version in runs:
        before = tx.counters_of(version)
        after.clock_ms = max(after.clock_ms, before.clock_ms)
        for counters, count in ((before, -1), (after, 1)):
            counters.held += count * (state == HELD)
            counters.ready += count * (state == READY)
            counters.leased += count * (state == LEASED)
    return [row[2] for row in runs if row[1] == HELD]


def _add_moved(tx: SqliteTransaction, left: dict[str, Row], held: Sequence[str], to: int) -> None:
    """Feed entries for both leaders; the new one gets what the jobs bring: held runs, and ends not learnt yet.

    `left` are their versions and memories, as they were.
    """
    versions = by_version((version, job_id) for job_id, (version, _) in left.items())
    for version, some in versions.items():
        tx.add_entry(version, JobsMoved(tuple(some)))
    tx.add_entry(to, JobsMoved(tuple(left)))
    tx.add_arrived([(to, run_id) for run_id in held])
    entries = [(row[0], row[1]) for version in sorted(versions) for row in tx.rows(_move.unread, feed_numbers(version))]
    memories = {job_id: memory for job_id, (_, memory) in left.items()}
    tx.add_ends([(to, end) for end in unlearnt_ends(entries, memories)])


def bury(tx: SqliteTransaction, rows: Sequence[Row]) -> None:
    """Delete jobs of (id, revision, last_due_ms, version); the first three stay."""
    if rows:
        tx.write_many(_delete.delete, [row[:1] for row in rows])
        tx.write_many(_delete.bury, [row[:3] for row in rows])
        tx.write(_delete.clear_tombs, (TOMBS_MAX,))
        for row in rows:
            tx.counters_of(row[3]).jobs -= 1


def get_jobs(tx: SqliteTransaction, ids: Sequence[str]) -> dict[str, Row]:
    return {row[0]: row for row in tx.rows(_get.get, (ids_json(ids),))}


def list_jobs(tx: SqliteTransaction, where: JobFilter, after: str | None, limit: int) -> Page:
    tag = None if where.tag is None else f"\x1f{where.tag}\x1f"
    bounds = (after or "", where.group, where.target, tag, where.source, where.handler, where.text, limit + 1)
    more = (where.scheduler_version, where.priority, where.source_id, where.enabled)
    found = tx.rows(_list.page, (*bounds, *more))
    return Page(found[:limit], found[limit - 1][0] if len(found) > limit else None)


def due(tx: SqliteTransaction, after: tuple[int, str] | None, before_ms: int, limit: int) -> list[Row]:
    return tx.rows(_due.page, (tx.version, *(after or (-(2**63), "")), before_ms, limit))
