"""Verbs of the jobs: put, delete, move, get, list, due; and whether a definition may replace another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pollux.model import SCHEDULER_VERSION, Job, JobsDeleted, JobsMoved, JobsPut
from pollux.store.backend import Page
from pollux.store.contract import Answer, JobAnswer, JobFilter, JobPut
from pollux.store.limits import stands_against
from pollux.store.relational.feed_entries import JOB_GONE, unlearnt_ends
from pollux.store.relational.rows import HELD, JOB_TEXTS, LEASED, READY, Row, by_version, definition_json, job_row
from pollux.store.relational.runs import cancel_waiting
from pollux.store.relational.transaction import JOBS_LOCK, Transaction, TransactionRetry
from pollux.store.relational.wakeup import RUNS
from pollux.store.versions import other_version

TOMBS_MAX = 100_000


class StoredJobRow(NamedTuple):
    revision: int
    release: int
    source: str
    definition: bytes
    version: int = SCHEDULER_VERSION


class Puts:
    """The puts of one call, in their order; what they write is gathered, and written together.

    `tombs` are what is left of deleted jobs: in their place no due time fires again that fired there.
    """

    def __init__(self, stored: dict[str, StoredJobRow], tombs: Mapping[str, Row], version: int) -> None:
        self._stored, self._tombs, self._version = stored, tombs, version
        self.added: dict[str, tuple[Job, StoredJobRow]] = {}
        self.changed: dict[str, tuple[Job, StoredJobRow]] = {}

    def put(self, each: JobPut) -> JobAnswer:
        job, there, tomb = each.job, self._stored.get(each.job.id), self._tombs.get(each.job.id)
        answer, after = judge(each, there, None if tomb is None else tomb[1], self._version)
        if answer.answer is Answer.OK:
            is_new = there is None or job.id in self.added
            (self.added if is_new else self.changed)[job.id] = (job, after)
            self._stored[job.id] = after
        return answer

    def last_due_ms(self, job_id: str) -> int | None:
        """Of the deleted job that it replaces."""
        tomb = self._tombs.get(job_id)
        return None if tomb is None else tomb[2]


def judge(
    put: JobPut, there: StoredJobRow | None, buried: int | None, version: int = SCHEDULER_VERSION
) -> tuple[JobAnswer, StoredJobRow]:
    """The answer to a put, and what is stored if it is ok.  `buried`: the last revision of one that was deleted."""
    job = put.job
    after = StoredJobRow(1 if buried is None else buried + 1, job.release, job.source, definition_json(job), version)
    if there is None:
        if put.revision:
            reason = f"revision {put.revision} was expected, but there is no such job"
            return JobAnswer(Answer.CONFLICT, job.id, 0, reason), after
        return JobAnswer(Answer.OK, job.id, after.revision), after
    if there.version != version:
        return JobAnswer(Answer.CONFLICT, job.id, there.revision, other_version(there.version, version)), there
    if there.definition == after.definition:
        return JobAnswer(Answer.ALREADY, job.id, there.revision), there
    if reason := stands_against(put, there):
        return JobAnswer(Answer.CONFLICT, job.id, there.revision, reason), there
    after = after._replace(revision=there.revision + 1)
    return JobAnswer(Answer.OK, job.id, after.revision), after


def each_once(ids: Sequence[str], done: Sequence[str]) -> list[Answer]:
    """The answers to a list of ids of which some were there; of one that was named twice the second is lost."""
    left = set(done)
    answers = []
    for job_id in ids:
        answers.append(Answer.OK if job_id in left else Answer.LOST)
        left.discard(job_id)
    return answers


def moved_once(ids: Sequence[str], there: Mapping[str, object], moved: Sequence[str]) -> list[Answer]:
    """The answers to a move of a list of ids; one that was named twice is there already the second time."""
    left = set(moved)
    answers = []
    for job_id in ids:
        answers.append(Answer.OK if job_id in left else Answer.ALREADY if job_id in there else Answer.LOST)
        left.discard(job_id)
    return answers


# verbs


async def put_jobs(tx: Transaction, puts: Sequence[JobPut]) -> list[JobAnswer]:
    await tx.lock(JOBS_LOCK)
    ids = [each.job.id for each in puts]
    found = await tx.fetch("put_jobs.stored", ids)
    stored = {row[0]: StoredJobRow(row[1], row[2], tx.got(row[3]), *row[4:]) for row in found}
    missing = [job_id for job_id in ids if job_id not in stored]
    tombs = {row[0]: row for row in await tx.fetch("put_jobs.tombs", missing)} if missing else {}
    batch = Puts(stored, tombs, tx.version)
    answers = [batch.put(each) for each in puts]
    if batch.added:
        rows = [
            (*_row(tx, *each), None, batch.last_due_ms(job_id), None, None, tx.version)
            for job_id, each in batch.added.items()
        ]
        if len(await tx.write_rows("put_jobs.add", rows)) < len(rows):
            raise TransactionRetry  # written by another process, without the lock
        tx.counters.jobs += len(rows)
        if again := [job_id for job_id in batch.added if job_id in tombs]:
            await tx.fetch("put_jobs.forget_tombs", again)
            await _take_runs(tx, again, tx.version)
    if batch.changed:
        await tx.write_rows("put_jobs.change", [_row(tx, *each) for each in batch.changed.values()])
    if written := dict.fromkeys(answer.id for answer in answers if answer.answer is Answer.OK):
        await tx.use(tx.version)
        tx.add_entry(tx.version, JobsPut(tuple(written), len(batch.added)))
    return answers


def _row(tx: Transaction, job: Job, stored: StoredJobRow) -> Row:
    return tx.put_at(job_row(job, stored.revision, stored.definition), JOB_TEXTS)


async def delete_jobs(tx: Transaction, ids: Sequence[str], reason: str) -> list[Answer]:
    await tx.lock(JOBS_LOCK)
    stored = {row[0]: row for row in await tx.fetch("delete_jobs.stored", list(ids))}
    deleted = [job_id for job_id in dict.fromkeys(ids) if job_id in stored]
    if deleted:
        waiting = _in_order(await tx.fetch("delete_jobs.waiting", deleted), deleted)
        tx.add_ends(await cancel_waiting(tx, waiting, [reason or JOB_GONE] * len(waiting)))
        await bury(tx, [stored[job_id] for job_id in deleted])
        for version, some in by_version((stored[job_id][3], job_id) for job_id in deleted).items():
            tx.add_entry(version, JobsDeleted(tuple(some)))
    return each_once(ids, deleted)


async def bury(tx: Transaction, rows: Sequence[Row]) -> None:
    """Delete jobs of (id, revision, last_due_ms, version); the first three stay."""
    if rows:
        await tx.fetch("delete_jobs.delete", [row[0] for row in rows])
        await tx.write_rows("delete_jobs.bury", [tuple(row[:3]) for row in rows])
        await tx.fetch("delete_jobs.clear_tombs", TOMBS_MAX)
        for row in rows:
            tx.counters_of(row[3]).jobs -= 1


async def move_jobs(tx: Transaction, ids: Sequence[str], to: int) -> list[Answer]:
    await tx.lock(JOBS_LOCK)
    rows = {row[0]: (row[1], row[2]) for row in await tx.fetch("move_jobs.stored", list(ids))}
    stored: dict[str, int] = {job_id: row[0] for job_id, row in rows.items()}
    moved = [job_id for job_id in dict.fromkeys(ids) if stored.get(job_id, to) != to]
    if moved:
        await tx.use(to)
        await tx.fetch("move_jobs.jobs", moved, to)
        held = await _take_runs(tx, moved, to)
        tx.wakeups |= RUNS
        await _add_moved(tx, {job_id: rows[job_id] for job_id in moved}, held, to)
    return moved_once(ids, stored, moved)


async def _take_runs(tx: Transaction, job_ids: Sequence[str], to: int) -> list[str]:
    """The live runs of jobs, wherever they are, come along; answers those that are held.

    Of a deleted job that was put anew only leased ones are left.
    """
    runs = _in_order(await tx.fetch("move_jobs.live", job_ids), job_ids)
    elsewhere = {row[7] for row in runs} - {to}
    if elsewhere:
        await tx.fetch("move_jobs.runs", job_ids, to)
        tx.wakeups |= RUNS
        after = tx.counters_of(to)
        after.clock_ms = max(after.clock_ms, await tx.clock_ms(elsewhere))
    for row in runs:
        for counters, count in ((tx.counters_of(row[7]), -1), (tx.counters_of(to), 1)):
            counters.held += count * (row[1] == HELD)
            counters.ready += count * (row[1] == READY)
            counters.leased += count * (row[1] == LEASED)
    return [row[2] for row in runs if row[1] == HELD]


def _in_order(runs: Sequence[Row], job_ids: Sequence[str]) -> list[Row]:
    """Of (seq, state, id, job_id, ...): job by job, the oldest first."""
    place = {job_id: n for n, job_id in enumerate(job_ids)}
    return sorted(runs, key=lambda row: (place[row[3]], row[0]))


async def _add_moved(tx: Transaction, left: dict[str, Row], held: Sequence[str], to: int) -> None:
    """Feed entries for both leaders; the new one gets what the jobs bring: held runs, and ends not learnt yet.

    `left` are their versions and memories, as they were.
    """
    parts = by_version((version, job_id) for job_id, (version, _) in left.items())
    for version, some in parts.items():
        tx.counters_of(version).jobs -= len(some)
        tx.add_entry(version, JobsMoved(tuple(some)))
    after = tx.counters_of(to)
    after.jobs += len(left)
    after.clock_ms = max(after.clock_ms, await tx.clock_ms(parts))
    tx.add_entry(to, JobsMoved(tuple(left)))
    tx.add_arrived([(to, run_id) for run_id in held])
    entries = [(row[0], row[1]) for row in await tx.unread_ends(sorted(parts))]
    memories = {job_id: memory for job_id, (_, memory) in left.items()}
    tx.add_ends([(to, end) for end in unlearnt_ends(entries, memories)])


async def get_jobs(tx: Transaction, ids: Sequence[str]) -> dict[str, Row]:
    return {row[0]: row for row in await tx.fetch("jobs.get", list(ids))}


async def list_jobs(tx: Transaction, where: JobFilter, after: str | None, limit: int) -> Page:
    tag = None if where.tag is None else f"\x1f{where.tag}\x1f"
    asked = (where.group, where.target, tag, where.source, where.handler, where.text, where.source_id)
    *texts, source_id = [None if text is None else tx.put(text) for text in asked]
    more = (where.scheduler_version, where.priority, source_id, where.enabled)
    found = await tx.fetch("jobs.page", after or "", *texts, limit + 1, *more)
    return Page(found[:limit], found[limit - 1][0] if len(found) > limit else None)


async def due(tx: Transaction, after: tuple[int, str] | None, before_ms: int, limit: int) -> list[Row]:
    return await tx.fetch("jobs.due", *(after or (-(2**63), "")), before_ms, limit, tx.version)
