"""Operations on jobs: find, list, put and delete.

A job that this release cannot decode is still listed and can be paused, replaced and deleted by its id; only a node
that can decode it can run or show it.  A job whose source has a live node is not deleted, as the node would add it
again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pollux.app.operations.audit import as_words, change_words
from pollux.app.operations.context import OperationGroup
from pollux.app.process import app_words, note_start
from pollux.errors import (
    Conflict,
    Illegible,
    InvalidConfig,
    InvalidInput,
    NotFound,
    PolluxError,
    Unreadable,
    did_you_mean,
    problems_of,
)
from pollux.job_builder import check_job
from pollux.model import API_SOURCE, Job, check_version
from pollux.observe.logs import warn_unknown_handler
from pollux.plan import is_backed, orphaned
from pollux.registry import Registry, job_id_of
from pollux.store.contract import BATCH_MAX, PAGE_MAX, Answer, JobAnswer, JobFilter, JobPage, JobPut, RunAnswer, Store
from pollux.store.decoding import readable_part

__all__ = ["JobLookup", "JobOperations", "PutResult", "cure_of", "orphaned", "place_of", "refuse_backed"]
NAMED_MAX = 5


class PutResult(Struct, frozen=True):
    """The answer of the store to the put of a job."""

    job: Job
    answer: Answer
    revision: int
    detail: str


class JobOperations(OperationGroup):
    """Find, put and delete jobs."""

    async def get_job(self, job: object) -> Job:
        """The job as it is now; `NotFound` if there is none."""
        return await stored_job(self._store, job)

    async def find_job(self, job: object) -> Job | Unreadable:
        """The job as it is now, or why it cannot be read here; `NotFound` if there is none."""
        return await find_job(self._store, job)

    async def jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        """These jobs as they are now, in order, at most a page; None for one that is missing or unreadable."""
        return (await readable_part(self._store.get_jobs(ids)))[0]

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        """A page of jobs, with the unreadable ones named apart."""
        page, unreadable = await readable_part(self._store.list_jobs(where, after=after, limit=limit))
        return replace(page, unreadable=unreadable) if unreadable else page

    async def put_jobs(self, jobs: Sequence[Job]) -> list[JobAnswer]:
        """Add or change jobs; raises `Conflict` with every job that is refused, the others are written."""
        checked = [self._adopted(check_job(job)) for job in jobs]
        answers = await self._audit.put_on_record(self._store, [JobPut(job) for job in checked])
        await log_unknown_handlers(self._store, self._registry, checked)
        refused = [answer for answer in answers if answer.answer not in (Answer.OK, Answer.ALREADY)]
        if refused:
            raise Conflict("; ".join(f"job {answer.id!r}: {answer.detail}" for answer in refused[:20]))
        return answers

    async def delete_jobs(self, ids: Sequence[str], *, reason: str = "") -> None:
        """Delete jobs; waiting runs are cancelled, running ones may end.

        Raises `Conflict`, and deletes none, if a live node declares one of them, as it would be added again.
        """
        there = {job.id: job for job in await refuse_backed(self._store, ids)}
        for start in range(0, len(ids), BATCH_MAX):
            batch = list(ids[start : start + BATCH_MAX])
            was = change_words(there.get(batch[0]), None) if len(batch) == 1 else ""
            audit = self._audit.jobs_on_record("delete", batch, was)
            why = as_words(reason) or f"deleted by {self._actor}"
            answers = await self._store.delete_jobs(batch, reason=why, audit=audit)
            missing = [job_id for job_id, answer in zip(batch, answers, strict=True) if answer is not Answer.OK]
            if missing:
                raise NotFound("job", missing[0], cure="`pollux jobs` lists them")

    async def put_each(self, puts: Sequence[JobPut], *, version: int | None = None) -> list[PutResult | PolluxError]:
        """Add or change jobs in a version (None: this one); for each the answer of the store, or its refusal."""
        made = [self._to_put(put) for put in puts]
        store = self._store if version is None else self._store.of_version(check_version(version))
        left = iter(await self._audit.put_on_record(store, [put for put in made if isinstance(put, JobPut)]))
        return [put if isinstance(put, PolluxError) else _written(put, next(left), store) for put in made]

    def _to_put(self, put: JobPut) -> JobPut | PolluxError:
        try:
            return JobPut(self._registry.adopt(put.job), put.revision)
        except InvalidInput as error:
            return InvalidConfig([one.at("params") for one in problems_of(error)])

    def check_params(self, handler: str, params: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` for params of a job that a handler of this process does not accept."""
        if (refusal := self._registry.refusal(handler)) is not None:
            raise refusal
        known = self._registry.get(handler)
        if known is not None:
            known.check(params, partial=True)

    def handler_names(self) -> tuple[str, ...]:
        """The handlers registered in this process."""
        return self._registry.names()

    def _adopted(self, job: Job) -> Job:
        try:
            return self._registry.adopt(job)
        except InvalidInput as error:
            raise error.at(f"job {job.id!r}: params") from error


class JobLookup(OperationGroup):
    """Jobs of the registry of this program or of the store; one that is declared here and not stored is added."""

    async def known(self, ref: object) -> Job:
        """The job of the registry, else the stored one."""
        if isinstance(ref, Job):
            return ref
        try:
            return self._registry.job(ref)
        except NotFound:
            return await stored_job(self._store, ref)

    async def to_run(self, ref: object) -> Job:
        """The stored job; one that this program declares and that is not stored is added."""
        declared = self._registry.unwritten(job_id_of(ref))
        try:
            return await stored_job(self._store, ref)
        except NotFound:
            if declared is None or not await self._add_declared(declared):
                raise
        return await stored_job(self._store, ref)

    async def offered(self, job: Job, write: Callable[[], Awaitable[list[RunAnswer]]]) -> list[RunAnswer]:
        """Call `write`, which enqueues runs of the job; if the job is missing, add it and call again."""
        declared = self._registry.unwritten(job.id)
        answers = await write()
        if not any(answer.answer is Answer.STALE for answer in answers[:1]):
            self._registry.mark_written([job.id])
        elif declared is not None and await self._add_declared(declared):
            return await write()
        return answers

    async def ensure_written(self, job: Job) -> None:
        """Add a missing job before the caller's own transaction, whose snapshot would not have it."""
        declared = self._registry.unwritten(job.id)
        if declared is None:
            return
        [there], unreadable = await readable_part(self._store.get_jobs([job.id]))
        if there is not None or unreadable:
            self._registry.mark_written([job.id])
        else:
            await self._add_declared(declared)

    async def _add_declared(self, job: Job) -> bool:
        """Add a missing job that this program declares; a concurrent put wins.

        Raises `NotFound` if a newer release of its source is known, which has no such job.
        """
        if self._registry.unwritten(job.id) is None:
            return True
        newest = await self._context.releases.of(self._store, job.source)
        if newest > job.release:
            cure = f"release {newest} of {job.source} is known and has no such job, this program is release"
            raise NotFound("job", job.id, cure=f"{cure} {job.release}: ask in the newer one")
        put = JobPut(job, revision=0)
        await self._store.put_jobs([put], audit=self._audit.puts_on_record([put], {job.id: None}))
        self._registry.mark_written([job.id])
        await note_start(self._store, [job.source], app_words(self._registry, job), revision=0)
        return True


def _written(put: JobPut, answer: JobAnswer, store: Store) -> PutResult:
    job = replace(put.job, revision=answer.revision, scheduler_version=store.scheduler_version)
    return PutResult(job, answer.answer, answer.revision, answer.detail)


async def find_job(store: Store, ref: object) -> Job | Unreadable:
    """The job as it is now, or why it cannot be decoded; `NotFound` if there is none."""
    name = job_id_of(ref)
    [found], unreadable = await readable_part(store.get_jobs([name]))
    if found is None and not unreadable:
        raise NotFound("job", name, cure="`pollux jobs` lists them")
    return unreadable[0] if found is None else found


async def stored_job(store: Store, ref: object) -> Job:
    """The job as it is now; `NotFound` if there is none, `Illegible` if it cannot be decoded."""
    found = await find_job(store, ref)
    if isinstance(found, Unreadable):
        raise Illegible("job", [found], [None])
    return found


async def refuse_backed(store: Store, ids: Sequence[str]) -> list[Job]:
    """Raise `Conflict` for jobs that a live node would add again; returns the readable ones."""
    jobs: list[Job] = []
    for start in range(0, len(ids), PAGE_MAX):
        found, _ = await readable_part(store.get_jobs(ids[start : start + PAGE_MAX]))
        jobs += [job for job in found if job is not None]
    nodes = await store.nodes() if any(job.source != API_SOURCE for job in jobs) else []
    if backed := [job for job in jobs if is_backed(job, nodes)]:
        cure = cure_of(backed[0], f"pollux pause {backed[0].id}")
        raise Conflict(_words(backed), cure=f"{cure}; once the nodes that declare it are stopped it can be deleted")
    return jobs


def cure_of(job: Job, pause: str, *, do: str = "take it out of") -> str:
    """What to `do` in the place of its declaration instead; `pause` is the command or request that pauses it."""
    again = "it is read again by itself" if job.source.startswith("file:") else "and restart it"
    return f"{do} {place_of(job.source)} ({again}), or pause it: {pause}"


def place_of(source: str) -> str:
    """`the file pollux.yaml`, `the file with name: shop`, `the code of shop`."""
    kind, _, name = source.partition(":")
    if kind != "file":
        return f"the code of {name}"
    return f"the file {name}" if "." in name else f"the file with name: {name}"


def _words(backed: Sequence[Job]) -> str:
    sources = ", ".join(sorted({job.source for job in backed}))
    if len(backed) == 1:
        return f"job {backed[0].id!r} is declared by {sources}, whose node is alive: it would add the job again"
    names = ", ".join(job.id for job in backed[:NAMED_MAX]) + (", ..." if len(backed) > NAMED_MAX else "")
    return f"{len(backed)} of these jobs ({names}) are declared by {sources}, whose nodes would add them again"


async def log_unknown_handlers(store: Store, registry: Registry, jobs: Sequence[Job]) -> None:
    """Log a warning for each handler that neither this program nor a live node has; no job is refused for it."""
    first = {job.handler: job.id for job in reversed(jobs) if registry.get(job.handler) is None}
    if not first:
        return
    known = {name for node in await store.nodes() for name in node.handlers}
    for handler, job_id in first.items():
        if handler not in known:
            warn_unknown_handler(job_id, handler, did_you_mean(handler, {*known, *registry.names()}).rstrip("?"))
