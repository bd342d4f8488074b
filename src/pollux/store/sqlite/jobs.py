"""The verbs of the jobs: put, delete, get, list, due."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import Job, JobsDeleted, JobsPut
from pollux.store.contract import Answer, JobAnswer, JobFilter, JobPut
from pollux.store.sqlite.rows import Row, definition_json, ids_json, job_row
from pollux.store.sqlite.runs import JOB_GONE, cancel_waiting
from pollux.store.sqlite.sql import Statements
from pollux.store.sqlite.transaction import Transaction

TOMBS_MAX = 100_000

_put = Statements("put_jobs")
_delete = Statements("delete_jobs")
_get = Statements("get_jobs")
_list = Statements("list_jobs")
_due = Statements("due")


class Stored:
    __slots__ = ("definition", "release", "revision", "source")

    def __init__(self, revision: int, release: int, source: str, definition: bytes) -> None:
        self.revision, self.release, self.source, self.definition = revision, release, source, definition


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
    job, there = put.job, stored.get(put.job.id)
    written = definition_json(job)
    if there is None:
        if put.revision:
            detail = f"revision {put.revision} was expected, but there is no such job"
            return JobAnswer(Answer.CONFLICT, job.id, 0, detail)
        revision = _add_job(tx, job, written)
    else:
        if there.definition == written:
            return JobAnswer(Answer.ALREADY, job.id, there.revision)
        if words := against(put, there):
            return JobAnswer(Answer.CONFLICT, job.id, there.revision, words)
        revision = there.revision + 1
        tx.write(_put.change, job_row(job, revision, written))
    stored[job.id] = Stored(revision, job.release, job.source, written)
    return JobAnswer(Answer.OK, job.id, revision)


def against(put: JobPut, there: Stored) -> str:
    """What stands against the put, in words; empty if nothing does."""
    if put.revision is not None and put.revision != there.revision:
        return f"revision {put.revision} was expected, the stored one is {there.revision}"
    if put.job.source != there.source:
        return f"{there.source} owns it, not {put.job.source}"
    if put.job.release < there.release:
        return f"release {there.release} is stored, this is release {put.job.release}"
    return ""


def _add_job(tx: Transaction, job: Job, written: bytes) -> int:
    """In the place of a deleted job: no due time that fired there fires here."""
    tomb = tx.row(_put.tomb, (job.id,))
    revision, last_due_ms = (1, None) if tomb is None else (tomb[0] + 1, tomb[1])
    if tomb is not None:
        tx.write(_put.forget_tomb, (job.id,))
    tx.write(_put.add, (*job_row(job, revision, written), last_due_ms))
    tx.tally.jobs += 1
    return revision


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
    left = set(deleted)
    return [_once(left, job_id) for job_id in ids]


def _once(left: set[str], job_id: str) -> Answer:
    """Of an id that was named twice, the second is lost."""
    if job_id not in left:
        return Answer.LOST
    left.remove(job_id)
    return Answer.OK


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
