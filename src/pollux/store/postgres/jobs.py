"""The verbs of the jobs: put, delete, get, list, due."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import JobsDeleted, JobsPut
from pollux.store.contract import Answer, JobAnswer, JobFilter, JobPut
from pollux.store.postgres.rows import columns, got, job_row, put
from pollux.store.postgres.runs import cancel_waiting
from pollux.store.postgres.sql import Statements
from pollux.store.postgres.transaction import JOBS_LOCK, Transaction
from pollux.store.relational.ends import JOB_GONE
from pollux.store.relational.jobs import TOMBS_MAX, Stored, each_once, judge
from pollux.store.relational.rows import Row

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
        job, there, tomb = each.job, self._stored.get(each.job.id), self._tombs.get(each.job.id)
        answer, after = judge(each, there, None if tomb is None else tomb[1])
        if answer.answer is not Answer.OK:
            return answer
        row = job_row(job, after.revision, after.definition)
        if there is None or job.id in self.added:
            self.added[job.id] = (*row, None, None if tomb is None else tomb[2], None, None)
        else:
            self.changed[job.id] = row
        self._stored[job.id] = after
        return answer


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
    return each_once(ids, deleted)


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
