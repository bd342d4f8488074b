"""How are many things asked for at once?  Each has an answer of its own, and stands in nobody else's way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pollux.app.answers import RunAccepted, there_already
from pollux.app.audit_lines import filter_words
from pollux.app.expiring_notes import ExpiringNoteVerbs
from pollux.app.listing import ListingVerbs
from pollux.errors import Illegible, InvalidConfig, InvalidInput, NotFound, PolluxError, Unreadable, problems_of
from pollux.ids import new_id
from pollux.model import Job, NotePut, Run, check_version
from pollux.store.contract import BATCH_MAX, PAGE_MAX, Answer, JobAnswer, JobPut, RunAnswer, RunFilter, Store
from pollux.store.decoding import as_far


class RunRequest(Struct, frozen=True):
    """One run that is asked for."""

    job_id: str
    params: Mapping[str, Any] | None = None
    id: str | None = None
    key: str | None = None
    at: str | None = None
    delay: str | float | None = None
    priority: int | str | None = None


class PutResult(Struct, frozen=True):
    """A job as it was put, and what the store said to it."""

    job: Job
    answer: Answer
    revision: int
    detail: str


class BatchVerbs(ExpiringNoteVerbs, ListingVerbs):
    """The verbs for many, item by item."""

    async def put_each(self, puts: Sequence[JobPut], *, version: int | None = None) -> list[PutResult | PolluxError]:
        """Add or change jobs in a version (None: our own): the answer of the store to each, or why it was not asked."""
        made = [self._to_put(put) for put in puts]
        store = self._store if version is None else self._store.of_version(check_version(version))
        left = iter(await self._put_on_record(store, [put for put in made if isinstance(put, JobPut)]))
        return [put if isinstance(put, PolluxError) else _written(put, next(left), store) for put in made]

    def _to_put(self, put: JobPut) -> JobPut | PolluxError:
        try:
            return JobPut(self._registry.adopt(put.job), put.revision)
        except InvalidInput as error:
            return InvalidConfig([one.at("params") for one in problems_of(error)])

    def check_params(self, handler: str, params: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` if a handler of this process could not use these, as the params of a job."""
        if (refusal := self._registry.refusal(handler)) is not None:
            raise refusal
        known = self._registry.get(handler)
        if known is not None:
            known.check(params, partial=True)

    def new_id(self) -> str:
        """For a job that was sent without one.  Its time is our own clock's and decides nothing; see 0045 for runs."""
        return new_id(self._clock.now_ms(), self._dice)

    @property
    def scheduler_version(self) -> int:
        """The one that this app serves."""
        return self._store.scheduler_version

    def handler_names(self) -> tuple[str, ...]:
        """Those of this process."""
        return self._registry.names()

    async def enqueue_each(self, asks: Sequence[RunRequest]) -> list[RunAccepted | PolluxError]:
        """Accept runs of jobs that are there, in batches: each run as it was accepted, or why it was not."""
        ids = list(dict.fromkeys(ask.job_id for ask in asks))
        jobs: dict[str, Job] = {}
        unreadable: dict[str, Unreadable] = {}
        for start in range(0, len(ids), PAGE_MAX):
            found, unread = await as_far(self._store.get_jobs(ids[start : start + PAGE_MAX]))
            jobs |= {job.id: job for job in found if job is not None}
            unreadable |= {job.name: job for job in unread}
        now_ms = await self._store.now()
        made = [self._asked(ask, jobs, unreadable, now_ms) for ask in asks]
        runs = [run for run in made if isinstance(run, Run)]
        told: list[RunAnswer] = []
        for start in range(0, len(runs), BATCH_MAX):
            told += await self._store.enqueue(runs[start : start + BATCH_MAX], ready_max=self._ready_max)
        there = await self._there([answer.id for answer in told if answer.answer is Answer.ALREADY])
        left = iter(told)
        answers = [
            run if isinstance(run, PolluxError) else self._accepted(run, next(left), jobs, there) for run in made
        ]
        await self._record_accepted(answers)
        return answers

    def _asked(
        self, ask: RunRequest, jobs: Mapping[str, Job], unreadable: Mapping[str, Unreadable], now_ms: int
    ) -> Run | PolluxError:
        job = jobs.get(ask.job_id)
        if ask.job_id in unreadable:
            return Illegible("job", [unreadable[ask.job_id]], None)
        if job is None:
            return NotFound("job", ask.job_id, cure="add it first")
        try:
            return self._wanted(job, ask.params, ask.at, ask.delay, ask.priority, id=ask.id, key=ask.key, now_ms=now_ms)
        except InvalidInput as error:
            return error

    async def _there(self, ids: Sequence[str]) -> dict[str, Run]:
        found: dict[str, Run] = {}
        for start in range(0, len(ids), PAGE_MAX):
            runs = await self._store.get_runs(ids[start : start + PAGE_MAX])
            found |= {run.id: run for run in runs if run is not None}
        return found

    def _accepted(
        self, run: Run, answer: RunAnswer, jobs: Mapping[str, Job], there: Mapping[str, Run]
    ) -> RunAccepted | PolluxError:
        try:
            self._refuse(answer, jobs[run.job_id])
            return RunAccepted(run) if answer.answer is Answer.OK else there_already(run, there.get(run.id, run))
        except PolluxError as error:
            return error

    async def _record_accepted(self, answers: Sequence[RunAccepted | PolluxError]) -> None:
        new = [each.run for each in answers if isinstance(each, RunAccepted) and each.is_new]
        jobs, params = dict.fromkeys(run.job_id for run in new), new[0].payload if len(new) == 1 else None
        await self._record_enqueued(jobs, [run.id for run in new], params)

    async def reset_breaker(self, name: str) -> None:
        """Forget what a breaker has seen."""
        audit = self._on_record("reset", f"breaker {name}")
        await self._store.put_notes([NotePut(f"breaker:{name}")], audit=audit)

    async def revive_where(self, where: RunFilter) -> list[RunAnswer]:
        """Let all dead letters run again that the filter means."""
        return await self._revive_each(self._dead_where(where), filter_words(where))

    async def drop_where(self, where: RunFilter) -> int:
        """Forget all dead letters for good that the filter means."""
        return await self._drop_each(self._dead_where(where), filter_words(where))


def _written(put: JobPut, answer: JobAnswer, store: Store) -> PutResult:
    job = replace(put.job, revision=answer.revision, scheduler_version=store.scheduler_version)
    return PutResult(job, answer.answer, answer.revision, answer.detail)
