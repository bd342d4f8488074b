"""Verbs of jobs: put, delete, move, get, list, due."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from pollux.model import End, Ended, Job, JobsDeleted, JobsMoved, JobsPut, definition
from pollux.store.backend import Page
from pollux.store.contract import Answer, JobAnswer, JobFilter, JobPut
from pollux.store.filters import job_fits
from pollux.store.limits import stands_against
from pollux.store.memory.rows import is_same, job_of, memory_of
from pollux.store.memory.state import GONE_MAX, HELD, JOB_GONE, LEASED, DeletedJob, FeedWrites, VersionState
from pollux.store.versions import other_version

JobRow = tuple[str, Job]


def put_jobs(state: VersionState, puts: Sequence[JobPut]) -> list[JobAnswer]:
    written: dict[str, None] = {}
    before = state.job_count
    answers = []
    for put in puts:
        answer = _put_job(state, put)
        if answer.answer is Answer.OK:
            written[answer.id] = None
        answers.append(answer)
    if written:
        state.tell(JobsPut(tuple(written), state.job_count - before))
    return answers


def _put_job(state: VersionState, put: JobPut) -> JobAnswer:
    job, row = put.job, state.jobs.get(put.job.id)
    if row is None:
        if put.revision:
            return JobAnswer(
                Answer.CONFLICT, job.id, 0, f"revision {put.revision} was expected, but there is no such job"
            )
        return _add_job(state, definition(job))
    if row.version != state.version:
        return JobAnswer(Answer.CONFLICT, job.id, row.revision, other_version(row.version, state.version))
    if is_same(job, row):
        return JobAnswer(Answer.ALREADY, job.id, row.revision)
    against = stands_against(put, job_of(job.id, row))
    if against:
        return JobAnswer(Answer.CONFLICT, job.id, row.revision, against)
    state.redefine_job(job, row)
    return JobAnswer(Answer.OK, job.id, row.revision)


def _add_job(state: VersionState, job: Job) -> JobAnswer:
    """Add a job.  After a deleted job of its id it continues the revision and last due, and takes over leased runs."""
    gone = state.gone.pop(job.id, DeletedJob(0, None))
    state.add_job(replace(job, revision=gone.revision + 1, last_due_ms=gone.last_due_ms))
    state.take_runs(job.id)
    return JobAnswer(Answer.OK, job.id, gone.revision + 1)


def delete_jobs(state: VersionState, ids: Sequence[str], reason: str, now_ms: int) -> list[Answer]:
    told = FeedWrites()
    deleted: dict[int, list[str]] = {}
    answers = []
    for job_id in ids:
        if job_id not in state.jobs:
            answers.append(Answer.LOST)
            continue
        row = state.drop_job(job_id)
        remember(state, job_id, DeletedJob(row.revision, row.last_due_ms))
        mates = [state.live[run_id] for run_id in state.job_runs.of(job_id)]
        for run in mates:
            if run.state is not LEASED:
                told.end(run, state.cancel_waiting(run, reason or JOB_GONE, now_ms))
        deleted.setdefault(row.version, []).append(job_id)
        answers.append(Answer.OK)
    state.tell_told(told)
    for version, some in deleted.items():
        state.of(version).tell(JobsDeleted(tuple(some)))
    return answers


def move_jobs(state: VersionState, ids: Sequence[str], to: int) -> list[Answer]:
    target = state.of(to)
    left: dict[int, list[str]] = {}
    moved: list[str] = []
    answers = []
    for job_id in ids:
        row = state.jobs.get(job_id)
        if row is None:
            answers.append(Answer.LOST)
        elif row.version == to:
            answers.append(Answer.ALREADY)
        else:
            left.setdefault(row.version, []).append(job_id)
            moved.append(job_id)
            target.take_job(job_id, row)
            answers.append(Answer.OK)
    for version, some in left.items():
        state.of(version).tell(JobsMoved(tuple(some)))
    if moved:
        target.tell(JobsMoved(tuple(moved)))
        _tell_what_they_bring(state, target, left, moved)
    return answers


def _tell_what_they_bring(
    state: VersionState, target: VersionState, left: dict[int, list[str]], moved: list[str]
) -> None:
    """Write the held runs and the unlearnt ends of moved jobs to the feed of the target version."""
    told = FeedWrites()
    for run in (state.live[run_id] for job_id in moved for run_id in state.job_runs.of(job_id)):
        if run.state is HELD:
            told.arrive(run)
    state.tell_told(told)
    ends: list[End] = []
    for version, some in left.items():
        learnt = {job_id: memory_of(state.jobs[job_id]).learnt for job_id in some}
        for number, entry in state.of(version).entries.items():
            if isinstance(entry, Ended):
                mark = entry.mark(number)
                ends += [end for end in entry.ends if mark not in learnt.get(end.job_id, (mark,))]
    if ends:
        target.tell(Ended(tuple(ends)))


def remember(state: VersionState, job_id: str, gone: DeletedJob) -> None:
    state.gone[job_id] = replace(gone, place=next(state.house.seq))
    if len(state.gone) > GONE_MAX:
        del state.gone[next(iter(state.gone))]


def get_jobs(state: VersionState, ids: Sequence[str]) -> dict[str, JobRow]:
    return {job_id: (job_id, job) for job_id in ids if (job := state.job(job_id)) is not None}


def list_jobs(state: VersionState, where: JobFilter, after: str | None, limit: int) -> Page:
    ids = state.sorted_ids()
    start = 0 if after is None else bisect_right(ids, after)
    jobs = (job_of(ids[place], state.jobs[ids[place]]) for place in range(start, len(ids)))
    page = list(islice(((job.id, job) for job in jobs if job_fits(job, where)), limit + 1))
    return Page(page[:limit], page[limit - 1][0] if len(page) > limit else None)


def due(state: VersionState, after: tuple[int, str] | None, before_ms: int, limit: int) -> list[JobRow]:
    found = islice(state.due.read(after, before_ms), limit)
    return [(job_id, job_of(job_id, state.jobs[job_id])) for job_id in found]
