"""The verbs of the jobs: put, delete, get, list, due."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import Job, JobsDeleted, JobsPut
from pollux.store.contract import Answer, JobAnswer, JobFilter, JobPut
from pollux.store.postgres.rows import Row, columns, got, job_row, put
from pollux.store.postgres.runs import JOB_GONE, cancel_waiting
from pollux.store.postgres.sql import Statements
from pollux.store.postgres.transaction import JOBS_LOCK, Transaction
from pollux.store.sqlite.jobs import TOMBS_MAX, Stored, against
from pollux.store.sqlite.rows import definition_json

JOB_COLUMNS = 16
CHANGED_COLUMNS = 12

_put = Statements("put_jobs")
_delete = Statements("delete_jobs")
_jobs = Statements("jobs")


class _Puts:
    """The puts of one call, in their order; what they write is gathered and written together."""

    def __init__(self, stored: dict[str, Stored], tombs: dict[str, Row]) -> None:
        self._stored, self._tombs = stored, tombs
        self.added: dict[str, Row] = {}
        self.changed: dict[str, Row] = {}

    def put(self, each: JobPut) -> JobAnswer:
        job, there = each.job, self._stored.get(each.job.id)
        written = definition_json(job)
        if there is None:
            if each.revision:
                detail = f"revision {each.revision} was expected, but there is no such job"
                return JobAnswer(Answer.CONFLICT, job.id, 0, detail)
            tomb = self._tombs.get(job.id)
            revision = 1 if tomb is None else tomb[1] + 1
        else:
            if there.definition == written:
                return JobAnswer(Answer.ALREADY, job.id, there.revision)
            if words := against(each, there):
                return JobAnswer(Answer.CONFLICT, job.id, there.revision, words)
            revision = there.revision + 1
        self._keep(job, revision, written, is_new=there is None or job.id in self.added)
        return JobAnswer(Answer.OK, job.id, revision)

    def _keep(self, job: Job, revision: int, written: bytes, *, is_new: bool) -> None:
        row = job_row(job, revision, written)
        if is_new:
            tomb = self._tombs.get(job.id)
            self.added[job.id] = (*row, None, None if tomb is None else tomb[2], None, None)
        else:
            self.changed[job.id] = row
        self._stored[job.id] = Stored(revision, job.release, job.source, written)


async def put_jobs(tx: Transaction, puts: Sequence[JobPut]) -> list[JobAnswer]:
    await tx.lock(JOBS_LOCK)
    ids = [each.job.id for each in puts]
    stored = {row[0]: Stored(row[1], row[2], got(row[3]), row[4]) for row in await tx.rows(_put.stored, ids)}
    missing = [job_id for job_id in ids if job_id not in stored]
    tombs = {row[0]: row for row in await tx.rows(_put.tombs, missing)} if missing else {}
    batch = _Puts(stored, tombs)
    answers = [batch.put(each) for each in puts]
    if batch.added:
        await tx.rows(_put.add, *columns(list(batch.added.values()), JOB_COLUMNS))
        tx.tally.jobs += len(batch.added)
        if tombs:
            await tx.rows(_put.forget_tombs, list(batch.added))
    if batch.changed:
        await tx.rows(_put.change, *columns(list(batch.changed.values()), CHANGED_COLUMNS))
    written = dict.fromkeys(answer.id for answer in answers if answer.answer is Answer.OK)
    if written:
        tx.tell(JobsPut(tuple(written), len(batch.added)))
    return answers


async def delete_jobs(tx: Transaction, ids: Sequence[str], reason: str) -> list[Answer]:
    await tx.lock(JOBS_LOCK)
    now_ms = await tx.now()
    stored = {row[0]: row for row in await tx.rows(_delete.stored, ids)}
    deleted = [job_id for job_id in dict.fromkeys(ids) if job_id in stored]
    if deleted:
        place = {job_id: n for n, job_id in enumerate(deleted)}
        waiting = sorted(await tx.rows(_delete.waiting, deleted), key=lambda row: (place[row[3]], row[0]))
        tx.tell_ends(await cancel_waiting(tx, waiting, [reason or JOB_GONE] * len(waiting), now_ms))
        await bury(tx, [stored[job_id] for job_id in deleted])
        tx.tell(JobsDeleted(tuple(deleted)))
    left = set(deleted)
    answers = []
    for job_id in ids:  # of an id that was named twice the second is lost
        answers.append(Answer.OK if job_id in left else Answer.LOST)
        left.discard(job_id)
    return answers


async def bury(tx: Transaction, rows: Sequence[Row]) -> None:
    """Delete jobs, of which (id, revision, last_due_ms) stay."""
    if rows:
        await tx.rows(_delete.bury, *columns(rows, 3), TOMBS_MAX)
        tx.tally.jobs -= len(rows)


async def get_jobs(tx: Transaction, ids: Sequence[str]) -> dict[str, Row]:
    return {row[0]: row for row in await tx.rows(_jobs.get, ids)}


async def list_jobs(tx: Transaction, where: JobFilter, after: str | None, limit: int) -> list[Row]:
    tag = None if where.tag is None else f"\x1f{where.tag}\x1f"
    asked = (where.group, where.target, tag, where.source, where.handler, where.text)
    texts = [None if text is None else put(text) for text in asked]
    return await tx.rows(_jobs.page, after or "", *texts, limit)


async def due(tx: Transaction, after: tuple[int, str] | None, before_ms: int, limit: int) -> list[Row]:
    return await tx.rows(_jobs.due, *(after or (-(2**63), "")), before_ms, limit)
