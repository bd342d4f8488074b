"""The verbs of the jobs: put, delete, get, list, due."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import JobsDeleted, JobsPut
from pollux.store.contract import Answer, JobAnswer, JobFilter, JobPut
from pollux.store.relational.ends import JOB_GONE
from pollux.store.relational.jobs import TOMBS_MAX, Stored, each_once, judge
from pollux.store.relational.rows import Row, job_row
from pollux.store.sqlite.runs import cancel_waiting
from pollux.store.sqlite.sql import Statements, ids_json
from pollux.store.sqlite.transaction import Transaction

_put = Statements("put_jobs")
_delete = Statements("delete_jobs")
_get = Statements("get_jobs")
_list = Statements("list_jobs")
_due = Statements("due")


def put_jobs(tx: Transaction, puts: Sequence[JobPut]) -> list[JobAnswer]:
    ids = ids_json([put.job.id for put in puts])
    stored = {row[0]: Stored(*row[1:]) for row in tx.rows(_put.stored, (ids,))}
    before = tx.tally.jobs
    answers = [_put_job(tx, put, stored) for put in puts]
    written = dict.fromkeys(answer.id for answer in answers if answer.answer is Answer.OK)
    if written:
        tx.tell(JobsPut(tuple(written), tx.tally.jobs - before))
    return answers


def _put_job(tx: Transaction, put: JobPut, stored: dict[str, Stored]) -> JobAnswer:
    """In the place of a deleted job: no due time that fired there fires here."""
    job, there = put.job, stored.get(put.job.id)
    tomb = tx.row(_put.tomb, (job.id,)) if there is None else None
    answer, after = judge(put, there, None if tomb is None else tomb[0])
    if answer.answer is not Answer.OK:
        return answer
    row = job_row(job, after.revision, after.definition)
    if there is not None:
        tx.write(_put.change, row)
    else:
        if tomb is not None:
            tx.write(_put.forget_tomb, (job.id,))
        tx.write(_put.add, (*row, None if tomb is None else tomb[1]))
        tx.tally.jobs += 1
    stored[job.id] = after
    return answer


def delete_jobs(tx: Transaction, ids: Sequence[str], reason: str, now_ms: int) -> list[Answer]:
    stored = {row[0]: row for row in tx.rows(_delete.stored, (ids_json(ids),))}
    deleted = [job_id for job_id in dict.fromkeys(ids) if job_id in stored]
    ends = []
    for job_id in deleted:
        waiting = tx.rows(_delete.waiting, (job_id,))
        ends += cancel_waiting(tx, waiting, reason or JOB_GONE, now_ms)
    tx.tell_ends(ends)
    if deleted:
        bury(tx, [stored[job_id] for job_id in deleted])
        tx.tell(JobsDeleted(tuple(deleted)))
    return each_once(ids, deleted)


def bury(tx: Transaction, rows: Sequence[Row]) -> None:
    """Delete jobs, of which (id, revision, last_due_ms) stay."""
    if rows:
        tx.write_many(_delete.delete, [row[:1] for row in rows])
        tx.write_many(_delete.bury, rows)
        tx.write(_delete.clear_tombs, (TOMBS_MAX,))
        tx.tally.jobs -= len(rows)


def get_jobs(tx: Transaction, ids: Sequence[str]) -> dict[str, Row]:
    return {row[0]: row for row in tx.rows(_get.get, (ids_json(ids),))}


def list_jobs(tx: Transaction, where: JobFilter, after: str | None, limit: int) -> list[Row]:
    tag = None if where.tag is None else f"\x1f{where.tag}\x1f"
    bounds = (after or "", where.group, where.target, tag, where.source, where.handler, where.text, limit)
    return tx.rows(_list.page, bounds)


def due(tx: Transaction, after: tuple[int, str] | None, before_ms: int, limit: int) -> list[Row]:
    return tx.rows(_due.page, (*(after or (-(2**63), "")), before_ms, limit))
