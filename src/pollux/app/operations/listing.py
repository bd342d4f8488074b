"""Operations that list jobs with their states, also filtered by state.

The state of a job is not stored: it follows from its definition, the pauses and its live runs.  A page filtered by
state looks at a bounded number of jobs; if more are left, its cursor continues there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from pollux.app.operations.context import OperationContext, OperationGroup
from pollux.app.operations.jobs import JobOperations
from pollux.app.operations.pauses import PauseOperations
from pollux.app.operations.runs import RunOperations
from pollux.app.operations.status import JobState, StatusOperations, live_by_job, live_runs, standings_of
from pollux.errors import InvalidInput, Unreadable
from pollux.model import LIVE, Counts, Job, Node, Note, Run, RunState
from pollux.plan import unreadable_words
from pollux.plan.forecast import placed
from pollux.store.contract import PAGE_MAX, JobFilter, RunFilter, RunPage
from pollux.store.filters import job_fits

OFFSET_MAX = 10_000
SCAN_PAGES = 10  # of `PAGE_MAX` jobs or runs that are looked at for one page
EACH_MAX = 100  # jobs of a page whose live runs are asked for one by one
RUNS_A_CALL = 25  # that are read in the time of one more call
AT_ONCE = 100  # jobs that are looked at before others have their turn on the loop
STATES = ("active", "running", "waiting", "paused", "disabled", "undeclared", "done")
_LIVE = tuple(sorted(LIVE))
_BY_RUNS = {"running": (RunState.LEASED,), "waiting": _LIVE}


class JobRows(Struct, frozen=True):
    rows: tuple[JobState, ...]
    next: str | None
    total: int | None = None  # of all that the filter means; None: nobody counted
    unreadable: tuple[Unreadable, ...] = ()  # jobs that should be among them
    unreadable_runs: tuple[Unreadable, ...] = ()  # live ones that were met: what is told of their jobs leaves them out


class ListingOperations(OperationGroup):
    """Pages of jobs with their states."""

    def __init__(self, context: OperationContext) -> None:
        super().__init__(context)
        self._jobs, self._runs = JobOperations(context), RunOperations(context)
        self._pauses, self._status = PauseOperations(context), StatusOperations(context)

    async def job_rows(
        self,
        where: JobFilter | None = None,
        *,
        state: str | None = None,
        after: str | None = None,
        offset: int = 0,
        limit: int = 50,
    ) -> JobRows:
        """A page of jobs with their states; the first `offset` of them are passed over."""
        where, is_whole = where or JobFilter(), after is None
        if not 0 <= offset <= OFFSET_MAX:
            raise InvalidInput(f"an offset of {offset}", where="offset", cure=f"0 to {OFFSET_MAX:,}; or go by cursor")
        left, passed, counts = offset, 0, await self._status.counts()
        while left:
            count, after = await self._pass_over(where, state, after, min(left, PAGE_MAX), counts)
            left, passed = left - count, passed + count
            if after is None:
                return JobRows((), None, passed if is_whole else None)
        page = await self._found(where, state, after, limit, counts)
        if where == JobFilter() and state is None:
            return replace(page, total=counts.jobs)
        return replace(page, total=passed + len(page.rows) if is_whole and page.next is None else None)

    async def job_row(self, job_id: str) -> JobState:
        """One job with its state, as exactly as it can be known; all that it takes is asked for at once."""
        [job], page, stops, nodes = await asyncio.gather(
            self._jobs.jobs_by_id([job_id]),
            live_runs(self._runs, job_id=job_id, limit=EACH_MAX),
            self._pauses.stops(),
            self._status.nodes(),
        )
        if job is None:
            job = await self._jobs.get_job(job_id)  # it was added meanwhile, or this is refused, and says why
        [row] = await self._standings([job], page.runs, stops, nodes)
        return row if row.held or not page.unreadable else replace(row, held=unreadable_words(page.unreadable[0]))

    async def new_row(self, job: Job, stops: Sequence[Note]) -> JobState:
        """A job that was added just now: it has no runs yet, and the due that the leader is about to give it."""
        now_ms = self._clock.now_ms()
        if job.revision > 1:  # it stands in the place of a deleted one, whose last due counts
            row = await self.job_row(job.id)
        else:
            is_elsewhere = job.scheduler_version != self._store.scheduler_version  # where perhaps nobody is
            nodes = await self._store.nodes() if is_elsewhere else ()
            [row] = standings_of([job], live={}, stops=stops, nodes=nodes, now_ms=now_ms)
        return replace(row, job=placed(row.job, None, now_ms=now_ms, crowd=1))

    async def _pass_over(
        self, where: JobFilter, state: str | None, after: str | None, limit: int, counts: Counts
    ) -> tuple[int, str | None]:
        """How many there are up to so many, and where they go on; where any state will do nobody asks for it."""
        if state is None:
            page = await self._jobs.list_jobs(where, after=after, limit=limit)
            return len(page.jobs), page.next
        found = await self._found(where, state, after, limit, counts)
        return len(found.rows), found.next

    async def _found(
        self, where: JobFilter, state: str | None, after: str | None, limit: int, counts: Counts
    ) -> JobRows:
        if state is None:
            page = await self._jobs.list_jobs(where, after=after, limit=limit)
            rows, runs = await self._rows(page.jobs, counts)
            return JobRows(rows, page.next, unreadable=page.unreadable, unreadable_runs=runs)
        if state not in STATES:
            raise InvalidInput(f"no job is {state[:60]!r}", where="state", cure=f"one of {', '.join(STATES)}")
        if state in _BY_RUNS:
            return await self._by_runs(where, state, after, limit)
        return await self._by_jobs(where, state, after, limit, counts)

    async def _by_jobs(self, where: JobFilter, state: str, after: str | None, limit: int, counts: Counts) -> JobRows:
        """Those of that state among the jobs that come next."""
        if where.enabled not in (None, state != "disabled"):
            return JobRows((), None)
        where = replace(where, enabled=state != "disabled")
        found, unreadable, runs = list[JobState](), list[Unreadable](), dict[str, Unreadable]()
        for _ in range(SCAN_PAGES):
            page = await self._jobs.list_jobs(where, after=after, limit=PAGE_MAX)
            rows, met = await self._rows(page.jobs, counts)
            found += [row for row in rows if row.state == state]
            unreadable += page.unreadable
            runs |= {run.name: run for run in met}
            after = page.next
            if len(found) > limit:
                found, after = found[:limit], found[limit - 1].job.id
                unreadable = [job for job in unreadable if job.name <= after]  # the others come with the next page
                break
            if after is None:
                break
        return JobRows(tuple(found), after, unreadable=tuple(unreadable), unreadable_runs=tuple(runs.values()))

    async def _by_runs(self, where: JobFilter, state: str, after: str | None, limit: int) -> JobRows:
        """Those that have live runs; of the first ten thousand runs."""
        live, unreadable = list[Run](), list[Unreadable]()
        cursor: str | None = None
        for _ in range(SCAN_PAGES):
            page = await self._runs.list_runs(RunFilter(states=_BY_RUNS[state]), after=cursor, limit=PAGE_MAX)
            live += page.runs
            unreadable += page.unreadable
            cursor = page.next
            if cursor is None:
                break
        ids = sorted({run.job_id for run in live if after is None or run.job_id > after})
        found: list[JobState] = []
        stops, nodes = await asyncio.gather(self._pauses.stops(), self._status.nodes())
        for start in range(0, len(ids), PAGE_MAX):
            jobs = [job for job in await self._jobs.jobs_by_id(ids[start : start + PAGE_MAX]) if job is not None]
            rows = await self._standings([job for job in jobs if job_fits(job, where)], live, stops, nodes)
            found += [row for row in rows if row.state == state]
            if len(found) > limit:
                break
        after = found[limit - 1].job.id if len(found) > limit else None
        return JobRows(tuple(found[:limit]), after, unreadable_runs=tuple(unreadable))

    async def _live_of(self, jobs: Sequence[Job], counts: Counts) -> RunPage:
        """Live runs of these jobs: all that matter, unless the page is long and so is the line."""
        count = counts.held + counts.ready + counts.leased
        if not count or not jobs:
            return RunPage((), None)
        if len(jobs) > EACH_MAX or count <= min(PAGE_MAX, RUNS_A_CALL * len(jobs)):
            return await live_runs(self._runs, limit=PAGE_MAX)
        asked = (live_runs(self._runs, job_id=job.id, limit=RUNS_A_CALL) for job in jobs)
        pages = await asyncio.gather(*asked)
        runs = tuple(run for page in pages for run in page.runs)
        return RunPage(runs, None, tuple(run for page in pages for run in page.unreadable))

    async def _rows(self, jobs: Sequence[Job], counts: Counts) -> tuple[tuple[JobState, ...], tuple[Unreadable, ...]]:
        """What each is at, and the live runs that cannot be read."""
        if not jobs:
            return (), ()
        live, stops, nodes = await asyncio.gather(
            self._live_of(jobs, counts), self._pauses.stops(), self._status.nodes()
        )
        return await self._standings(jobs, live.runs, stops, nodes), live.unreadable

    async def _standings(
        self, jobs: Sequence[Job], live: Sequence[Run], stops: Sequence[Note], nodes: Sequence[Node]
    ) -> tuple[JobState, ...]:
        """A crowd is looked at in pieces, so that no firing waits for it."""
        now_ms, found = self._clock.now_ms(), list[JobState]()
        by_job = live_by_job(live, now_ms)
        for start in range(0, len(jobs), AT_ONCE):
            if start:
                await asyncio.sleep(0)
            some = jobs[start : start + AT_ONCE]
            found += standings_of(some, live=by_job, stops=stops, nodes=nodes, now_ms=now_ms)
        return tuple(found)
