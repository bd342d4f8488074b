"""Decisions of the verbs of jobs: whether a definition may replace another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pollux.model import SCHEDULER_VERSION, Job
from pollux.store.contract import Answer, JobAnswer, JobPut
from pollux.store.limits import stands_against
from pollux.store.relational.rows import Row, definition_json
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
