"""The verbs of the jobs: put, delete, get, list, due."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from pollux.model import End, Job, JobsDeleted, JobsPut, Once, definition
from pollux.store.contract import Answer, JobAnswer, JobFilter, JobPage, JobPut
from pollux.store.memory.state import GONE_MAX, JOB_GONE, Gone, State


def put_jobs(state: State, puts: Sequence[JobPut]) -> list[JobAnswer]:
    written: dict[str, None] = {}
    before = len(state.jobs)
    answers = []
    for put in puts:
        answer = _put_job(state, put)
        if answer.answer is Answer.OK:
            written[answer.id] = None
        answers.append(answer)
    if written:
        state.tell(JobsPut(tuple(written), len(state.jobs) - before))
    return answers


def _put_job(state: State, put: JobPut) -> JobAnswer:
    job, stored = definition(put.job), state.jobs.get(put.job.id)
    if stored is None:
        if put.revision:
            return JobAnswer(
                Answer.CONFLICT, job.id, 0, f"revision {put.revision} was expected, but there is no such job"
            )
        return _add_job(state, job)
    if job == definition(stored):
        return JobAnswer(Answer.ALREADY, job.id, stored.revision)
    against = _against(put, job, stored)
    if against:
        return JobAnswer(Answer.CONFLICT, job.id, stored.revision, against)
    revision = stored.revision + 1
    state.set_job(
        replace(
            job,
            revision=revision,
            next_due_ms=stored.next_due_ms,
            last_due_ms=stored.last_due_ms,
            memory=stored.memory,
        )
    )
    return JobAnswer(Answer.OK, job.id, revision)


def _against(put: JobPut, job: Job, stored: Job) -> str:
    """What stands against the put, in words; empty if nothing does."""
    if put.revision is not None and put.revision != stored.revision:
        return f"revision {put.revision} was expected, the stored one is {stored.revision}"
    if job.source != stored.source:
        return f"{stored.source} owns it, not {job.source}"
    if job.release < stored.release:
        return f"release {stored.release} is stored, this is release {job.release}"
    return ""


def _add_job(state: State, job: Job) -> JobAnswer:
    gone = state.gone.pop(job.id, None)
    new = replace(job, revision=1) if gone is None else _after(gone, job)
    state.set_job(new)
    return JobAnswer(Answer.OK, job.id, new.revision)


def _after(gone: Gone, job: Job) -> Job:
    """A new job in the place of a deleted one: no due time that fired there fires here."""
    return replace(job, revision=gone.revision + 1, last_due_ms=gone.last_due_ms)


def delete_jobs(state: State, ids: Sequence[str], reason: str, now_ms: int) -> list[Answer]:
    ends: list[End] = []
    deleted, answers = [], []
    for job_id in ids:
        if job_id not in state.jobs:
            answers.append(Answer.LOST)
            continue
        job = state.drop_job(job_id)
        _remember(state, job)
        waiting = [run_id for run_id in state.live_of.get(job_id, ()) if run_id not in state.leased]
        ends += [state.cancel_waiting(state.live[run_id], reason or JOB_GONE, now_ms) for run_id in waiting]
        deleted.append(job_id)
        answers.append(Answer.OK)
    state.tell_ends(ends)
    if deleted:
        state.tell(JobsDeleted(tuple(deleted)))
    return answers


def _remember(state: State, job: Job) -> None:
    state.gone[job.id] = Gone(job.revision, job.last_due_ms)
    if len(state.gone) > GONE_MAX:
        del state.gone[next(iter(state.gone))]


def get_jobs(state: State, ids: Sequence[str]) -> list[Job | None]:
    return [state.jobs.get(job_id) for job_id in ids]


def list_jobs(state: State, where: JobFilter, after: str | None, limit: int) -> JobPage:
    ids = state.sorted_ids()
    start = 0 if after is None else bisect_right(ids, after)
    jobs = (state.jobs[ids[place]] for place in range(start, len(ids)))
    page = tuple(islice((job for job in jobs if _fits(job, where)), limit + 1))
    if len(page) <= limit:
        return JobPage(page, None)
    return JobPage(page[:limit], page[limit - 1].id)


def _fits(job: Job, where: JobFilter) -> bool:
    return (
        (where.group is None or job.group == where.group)
        and (where.target is None or job.target == where.target)
        and (where.tag is None or where.tag in job.tags)
        and (where.source is None or job.source == where.source)
        and (where.handler is None or job.handler == where.handler)
        and (where.text is None or where.text in job.id or where.text in job.name)
    )


def due(state: State, after: tuple[int, str] | None, before_ms: int, limit: int) -> list[Job]:
    return list(islice(state.due.read(after, before_ms), limit))


def is_spent(job: Job) -> bool:
    """A once-job that has fired and fires no more."""
    return type(job.schedule) is Once and job.last_due_ms is not None and job.next_due_ms is None
