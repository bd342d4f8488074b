"""Which job or run is meant, and can it be read here?  One that cannot be is there all the same, and often its id will
do.

A newer release wrote it, or somebody by hand.  Whoever lists is told of it; it can be paused, cancelled, put over and
taken away.  To run it, or to show what it is, takes a node that can read it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from pollux.app.audit_lines import ChangeVerbs
from pollux.app.declarations import NewestReleases
from pollux.app.start_notes import app_words, note_start
from pollux.errors import Illegible, NotFound, Unreadable
from pollux.model import Job, Run, RunState
from pollux.registry import Registry, job_id_of
from pollux.store.contract import Answer, JobFilter, JobPage, JobPut, RunAnswer, RunFilter, RunPage
from pollux.store.decoding import as_far

FORGOTTEN = "those that ended are forgotten after a while: `pollux config` has history.age (7d unless set otherwise)"


class LookupVerbs(ChangeVerbs):
    """How jobs and runs are found in the store."""

    _registry: Registry
    _releases: NewestReleases

    async def get_job(self, job: object) -> Job:
        return await self._job(job, fresh=True)

    async def find_job(self, job: object) -> Job | Unreadable:
        """The job as it is now, or why it cannot be read here; `NotFound` if there is none."""
        name = job_id_of(job)
        [found], unreadable = await as_far(self._store.get_jobs([name]))
        if found is not None:
            return found
        if not unreadable:
            raise NotFound("job", name, cure="`pollux jobs` lists them")
        return unreadable[0]

    async def jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        """These jobs as they are now, in order; None for one that is not there, or cannot be read.  At most a page."""
        return (await as_far(self._store.get_jobs(ids)))[0]

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        """A page of jobs, and beside it those that cannot be read."""
        page, unreadable = await as_far(self._store.list_jobs(where, after=after, limit=limit))
        return replace(page, unreadable=unreadable) if unreadable else page

    async def get_run(self, run_id: str) -> Run:
        found = await self.find_run(run_id)
        if isinstance(found, Unreadable):
            raise Illegible("run", [found], [None])
        return found

    async def find_run(self, run_id: str) -> Run | Unreadable:
        """The run as it is now, or why it cannot be read here; `NotFound` if there is none."""
        [found], unreadable = await as_far(self._store.get_runs([run_id]))
        if found is not None:
            return found
        if not unreadable:
            raise NotFound("run", run_id, cure=f"`pollux runs` lists them; {FORGOTTEN}")
        return unreadable[0]

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        """A page of runs, and beside it those that cannot be read."""
        page, unreadable = await as_far(self._store.list_runs(where, after=after, limit=limit))
        return replace(page, unreadable=unreadable) if unreadable else page

    # inside

    async def _job(self, ref: object, *, fresh: bool = False) -> Job:
        if isinstance(ref, Job) and not fresh:
            return ref
        if not fresh:
            try:
                return self._registry.job(ref)
            except NotFound:
                pass
        found = await self.find_job(ref)
        if isinstance(found, Unreadable):
            raise Illegible("job", [found], [None])
        return found

    async def _job_to_run(self, ref: object) -> Job:
        """The job as it is now; one that this program declares and that is not in the store yet is added."""
        declared = self._registry.unwritten(job_id_of(ref))
        try:
            return await self._job(ref, fresh=True)
        except NotFound:
            if declared is None or not await self._add_declared(declared):
                raise
        return await self._job(ref, fresh=True)

    async def _offered(self, job: Job, write: Callable[[], Awaitable[list[RunAnswer]]]) -> list[RunAnswer]:
        """What `write` answers, which enqueues runs of the job; where that is missing, it is added first."""
        declared = self._registry.unwritten(job.id)
        answers = await write()
        if not any(answer.answer is Answer.STALE for answer in answers[:1]):
            self._registry.mark_written([job.id])
        elif declared is not None and await self._add_declared(declared):
            return await write()
        return answers

    async def _see_to(self, job: Job) -> None:
        """Before the caller's own transaction looks: what is added later is not in its snapshot."""
        declared = self._registry.unwritten(job.id)
        if declared is None:
            return
        [there], unreadable = await as_far(self._store.get_jobs([job.id]))
        if there is not None or unreadable:
            self._registry.mark_written([job.id])
        else:
            await self._add_declared(declared)

    async def _add_declared(self, job: Job) -> bool:
        """Add a job that this program declares and that was not in the store when the caller looked; never change one.

        Another caller may have added it since: it is looked for again.  Raises `NotFound` where a newer release of its
        source decides, which has no such job.
        """
        if self._registry.unwritten(job.id) is None:
            return True
        newest = await self._releases.of(self._store, job.source)
        if newest > job.release:
            cure = f"release {newest} of {job.source} is known and has no such job, this program is release"
            raise NotFound("job", job.id, cure=f"{cure} {job.release}: ask in the newer one")
        put = JobPut(job, revision=0)
        await self._store.put_jobs([put], audit=self._puts_on_record([put], {job.id: None}))
        self._registry.mark_written([job.id])
        await note_start(self._store, [job.source], app_words(self._registry, job), revision=0)
        return True

    async def _last_failed(self, job: Job) -> str:
        """The id of the last run by which a failing job failed; nothing if none does, or it is pruned."""
        if not job.memory.failures:
            return ""
        where = RunFilter(states=(RunState.DONE, RunState.DEAD), job_id=job.id, failed=True)
        runs = (await self.list_runs(where, limit=1)).runs
        return runs[0].id if runs else ""
