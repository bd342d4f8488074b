"""Operations on the state of the deployment: overview, reasons (`why`), nodes, counts, health, pages of jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from pollux.app.operations.context import OperationGroup
from pollux.app.operations.runs import FORGOTTEN, RunOperations
from pollux.app.process import app_words, named_start
from pollux.errors import InvalidInput, NotFound, Unreadable
from pollux.model import LIVE, SCHEDULED, Job, Node, Note, Run, RunState, by_term, leader_of
from pollux.observe.health import Health, health_document
from pollux.outcome import Freshness, RecentResult, freshness, marks, within_ms
from pollux.plan import (
    Why,
    unreadable_words,
    why_job,
    why_run,
    why_unreadable,
    why_unreadable_run,
    why_unwritten,
    with_unreadable_runs,
)
from pollux.plan.forecast import placed
from pollux.plan.why import failing_words
from pollux.registry import job_id_of
from pollux.schedule.builders import describe_schedule
from pollux.secrets import HIDDEN
from pollux.store.contract import PAGE_MAX, Counts, JobFilter, RunFilter, RunPage, Store
from pollux.store.decoding import readable_due, readable_part
from pollux.store.filters import job_fits

if TYPE_CHECKING:
    from pollux.app.health import HealthWatch
    from pollux.app.operations.contract import OperationsProtocol

LIVE_MAX = 1_000  # live runs that are read for the states of jobs
LIVE_CURSOR = "live:"  # how cursors of live runs begin, before their due time and id
SCAN_PAGES = 10  # pages of `PAGE_MAX` jobs or live runs that are read for one page of those in a state
LEASES_MAX = 200  # read to count the seats in use
OFFSET_MAX = 10_000
EACH_MAX = 100  # jobs of a page whose live runs are read job by job
RUNS_A_CALL = 25  # runs that are read in the time of one more call
AT_ONCE = 100  # states of jobs that are computed in one iteration of the loop
STATES = ("active", "running", "waiting", "paused", "disabled", "undeclared", "done")
_BY_RUNS = {"running": (RunState.LEASED,), "waiting": tuple(sorted(LIVE))}


class JobRow(Struct, frozen=True):
    job: Job
    schedule: str
    last: str  # of `last_outcome`
    freshness: Freshness
    next_due_ms: int | None
    held: str  # why it does not run although it should; else empty
    progress: str = ""
    answer: str = ""  # of `why`, in a word: running, waits, paused, ...
    failing: str = ""  # failures of its runs, or of attempts of a live one: how many, since when and why; else empty
    failing_since_ms: int | None = None  # when the first of these ended
    state: str = ""  # active, running, waiting, paused, disabled, undeclared or done

    @property
    def last_failure(self) -> str:
        """In a line: the last error of a failing job, or the failures of a run that is being retried."""
        return self.job.memory.last_error.partition("\n")[0] if self.job.memory.failures else self.failing


class JobState(Struct, frozen=True, gc=False):
    """A job with the part of a `JobRow` that the API shows."""

    job: Job
    state: str
    held: str
    failing_since_ms: int | None = None
    answer: str = ""


class Overview(Struct, frozen=True):
    rows: tuple[JobRow, ...]
    counts: Counts
    leader: str
    term: int
    nodes: int
    now_ms: int


class JobHistory(Struct, frozen=True):
    """The latest ends of a job, oldest first, with their summary.  Durations are upper bounds."""

    marks: tuple[RecentResult, ...]
    succeeded: int
    changed: int
    failures: int  # in a row, up to now
    p50_ms: int
    p95_ms: int

    @property
    def success_rate(self) -> float:
        return self.succeeded / len(self.marks) if self.marks else 0.0


class StatusOperations(OperationGroup):
    """What runs, what waits and why, the live nodes, and the health of the deployment."""

    async def overview(self, *, limit: int = 50) -> Overview:
        """The content of the live table, for the first `limit` jobs."""
        now_ms = self._clock.now_ms()
        page = await self._operations.jobs.list_jobs(limit=limit)
        live = await live_runs(self._operations.runs)
        nodes = await self.nodes()
        leader = leader_of(nodes)
        rows = rows_of(
            page.jobs,
            live=live_by_job(live.runs, now_ms),
            stops=await self._operations.pauses.stops(),
            nodes=nodes,
            progress=progress_by_job(live.runs) | self._progress_here(),
            now_ms=now_ms,
        )
        return Overview(
            rows=rows,
            counts=await self.counts(),
            leader=leader.id if leader else "",
            term=leader.leads if leader else 0,
            nodes=len(nodes),
            now_ms=now_ms,
        )

    async def why(self, ref: object) -> Why:
        """Why a run or a job runs or does not, with the expected start and the cure."""
        name = job_id_of(ref)
        now_ms = await self._store.now()
        stops, nodes = await self._operations.pauses.stops(), await self.nodes()
        [run], spoilt = await readable_part(self._store.get_runs([name]))
        if spoilt:
            return why_unreadable_run(spoilt[0])
        if run is not None:
            [owner], unreadable = await readable_part(self._store.get_jobs([run.job_id]))
            if unreadable and run.state in {RunState.HELD, RunState.READY}:
                return why_unreadable(unreadable[0], run)
            ahead = await ahead_of(self._store, run)
            why = why_run(run, owner, stops=stops, nodes=nodes, ahead=ahead, now_ms=now_ms)
            return await named_start(self._store, why, owner, run)
        try:
            job = await self._operations.jobs.find_job(name)
        except NotFound:
            if (declared := self._registry.unwritten(name)) is not None:
                return why_unwritten(declared, app_words(self._registry, declared))
            cure = f"`pollux jobs` and `pollux runs` list them; if it was a run: {FORGOTTEN}"
            raise NotFound("job or run", name, cure=cure) from None
        if isinstance(job, Unreadable):
            return why_unreadable(job)
        live = await live_runs(self._operations.runs, job_id=job.id)
        run = live_by_job(live.runs, now_ms).get(job.id)
        ahead = await ahead_of(self._store, run)
        failed = await self._last_failed(job)
        why = why_job(job, stops=stops, now_ms=now_ms, live=run, nodes=nodes, ahead=ahead, failed=failed)
        return with_unreadable_runs(await named_start(self._store, why, job), live.unreadable)

    async def nodes(self) -> list[Node]:
        """The live nodes; the stored term decides which one leads, not the last heartbeat."""
        return by_term(await self._store.nodes(), await self._store.versions())

    async def overdue(self, *, limit: int = 1) -> list[Job]:
        """Jobs whose due time has passed without a firing, the most overdue first; only readable ones."""
        now_ms, found = await self._store.now(), list[Job]()
        for version in await self._store.versions():
            found += await readable_due(self._store.of_version(version.number), before_ms=now_ms, limit=limit)
        return sorted(found, key=lambda job: (job.next_due_ms or 0, job.id))[:limit]

    async def counts(self) -> Counts:
        """Over all versions."""
        return await self._store.counts(all_versions=True)

    async def health(self) -> Health:
        """The health of the deployment and of this node; it costs at most a few store calls a second."""
        return await self._watch.health()

    async def health_document(self) -> dict[str, Any]:
        """The same as JSON: the answer of GET /api/v2/scheduler/health."""
        document: dict[str, Any] = HIDDEN.hide_in(health_document(await self.health()))
        return document

    # inside

    @property
    def _watch(self) -> HealthWatch:
        assert self._context.node is not None, "health is read by an app"
        return self._context.node.watch

    def _progress_here(self) -> dict[str, str]:
        """Progress of the handlers of this process; the store has it only from their last renewal."""
        node = self._context.node
        return {} if node is None or node.runtime is None else node.runtime.progress()

    async def _last_failed(self, job: Job) -> str:
        """The id of the last failed run of a failing job; empty if the job does not fail, or the run is pruned."""
        if not job.memory.failures:
            return ""
        where = RunFilter(states=(RunState.DONE, RunState.DEAD), job_id=job.id, failed=True)
        runs = (await self._operations.runs.list_runs(where, limit=1)).runs
        return runs[0].id if runs else ""


def rows_of(
    jobs: Sequence[Job],
    *,
    live: Mapping[str, Run],
    stops: Sequence[Note],
    nodes: Sequence[Node],
    progress: Mapping[str, str],
    now_ms: int,
) -> tuple[JobRow, ...]:
    """One row for each job; `live` from `live_by_job`, `progress` as running handlers reported it, by job."""
    return tuple(
        JobRow(
            job=row.job,
            schedule=describe_schedule(row.job.schedule),
            last=last_outcome(row.job),
            freshness=freshness(row.job, now_ms),
            next_due_ms=row.job.next_due_ms,
            held=row.held,
            progress=progress.get(row.job.id, ""),
            answer=row.answer,
            failing=failing_words(row.job, live.get(row.job.id), now_ms),
            failing_since_ms=row.failing_since_ms,
            state=row.state,
        )
        for row in standings_of(jobs, live=live, stops=stops, nodes=nodes, now_ms=now_ms)
    )


def failing_since_ms(job: Job, live: Run | None, now_ms: int) -> int | None:
    """When the first failure ended: of failed runs in a row, else of the attempts of a run that is being retried."""
    if job.memory.failing_since_ms is not None or live is None or not live.is_retried_at(now_ms):
        return job.memory.failing_since_ms
    return live.failing_since_ms


def standings_of(
    jobs: Sequence[Job], *, live: Mapping[str, Run], stops: Sequence[Note], nodes: Sequence[Node], now_ms: int
) -> list[JobState]:
    """The state of each job; `live` as in `rows_of`."""
    found = []
    for job in jobs:
        run = live.get(job.id)
        why = why_job(job, stops=stops, now_ms=now_ms, live=run, nodes=nodes)
        held = why.reason if why.is_held else ""
        found.append(JobState(job, state_of(run, why.answer), held, failing_since_ms(job, run, now_ms), why.answer))
    return found


def state_of(live: Run | None, answer: str) -> str:
    """The state of a job; `answer` is that of `why_job`."""
    if live is not None and live.state is RunState.LEASED:
        return "running"
    if answer in {"disabled", "paused", "undeclared", "done"}:
        return answer
    return "active" if live is None else "waiting"


def live_by_job(runs: Sequence[Run], now_ms: int) -> dict[str, Run]:
    """The live run of each job that determines the job's state.

    A running one, else a ready one, else a held one, else the next scheduled one; of several the first.
    """
    found: dict[str, Run] = {}
    for run in runs:
        known = found.setdefault(run.job_id, run)
        if known is not run and _rank(run, now_ms) < _rank(known, now_ms):
            found[run.job_id] = run
    return found


def _rank(run: Run, now_ms: int) -> tuple[int, int]:
    if run.state is RunState.LEASED:
        return 0, 0
    if run.visible_ms > now_ms:
        return 3, run.visible_ms
    return (1, 0) if run.state is RunState.READY else (2, 0)


async def live_runs(runs: RunOperations, *, job_id: str | None = None, limit: int = LIVE_MAX) -> RunPage:
    """The first live runs, of one job or of all; if there are more, also the running ones."""
    where = RunFilter(states=tuple(sorted(LIVE)), job_id=job_id)
    page = await runs.list_runs(where, limit=limit)
    if page.next is None:
        return page
    running = await runs.list_runs(replace(where, states=(RunState.LEASED,)), limit=limit)
    known = {run.id for run in page.runs}
    return replace(page, runs=(*page.runs, *[run for run in running.runs if run.id not in known]))


async def runs_in_state(
    runs: RunOperations, states: Collection[str], where: RunFilter, *, now_ms: int, after: str | None, limit: int
) -> RunPage:
    """A page of the runs in these states of `Run.shown_state`; none: all.

    `scheduled` is not a stored state, so held and ready runs are filtered here, among a bounded number of live ones;
    if there are more, `next` continues there, also after a page that is not full.
    """
    stored = {RunState(state) for state in states if state != SCHEDULED}
    shown = {SCHEDULED, RunState.HELD.value, RunState.READY.value}
    if not shown.intersection(states) or shown.issubset(states):
        return await runs.list_runs(replace(where, states=tuple(sorted(stored))), after=after, limit=limit)
    live = stored & LIVE | ({RunState.HELD, RunState.READY} if SCHEDULED in states else set())
    found, unreadable = list[Run](), list[Unreadable]()
    if after is None or after.startswith(LIVE_CURSOR):
        live_where = replace(where, states=tuple(sorted(live)))
        for _ in range(SCAN_PAGES):
            page = await runs.list_runs(live_where, after=after, limit=PAGE_MAX)
            found += [run for run in page.runs if run.shown_state(now_ms) in states]
            unreadable += page.unreadable
            after = page.next
            if after is None or len(found) > limit:
                break
        if len(found) > limit:
            last = found[limit - 1]
            after = f"{LIVE_CURSOR}{last.due_ms}:{last.id}"
        if after is not None:
            return RunPage(tuple(found[:limit]), after, tuple(unreadable))
    finished = stored - LIVE
    if not finished:
        return RunPage(tuple(found), None, tuple(unreadable))
    if len(found) == limit:
        last = found[-1]
        return RunPage(tuple(found), f"{LIVE_CURSOR}{last.due_ms}:{last.id}", tuple(unreadable))
    page = await runs.list_runs(replace(where, states=tuple(sorted(finished))), after=after, limit=limit - len(found))
    return replace(page, runs=(*found, *page.runs), unreadable=(*unreadable, *page.unreadable))


async def ahead_of(store: Store, run: Run | None) -> int | None:
    """How many ready runs will be claimed before this one; None if it is not ready."""
    if run is None or run.state is not RunState.READY:
        return None
    return sum(line.ready for line in await store.of_version(run.scheduler_version).lines(before=run.id))


def progress_by_job(runs: Sequence[Run]) -> dict[str, str]:
    """The last stored progress of running runs, on all nodes."""
    return {run.job_id: run.progress for run in runs if run.progress and run.state is RunState.LEASED}


def last_outcome(job: Job) -> str:
    """The last outcome: ok, changed, retrying, failing, failed, dead or cancelled; empty before the first end.

    A recurring job whose last run failed is failing, as it fires again; a job that does not fire again is failed or,
    with a dead letter, dead.  A failed attempt that is retried ends no run and counts no failure: its time is the
    latest end.
    """
    memory = job.memory
    if memory.last_end_ms is None:
        return ""
    if memory.failures:
        return "failing" if job.is_recurring else "dead" if memory.dead else "failed"
    if memory.last_success_ms == memory.last_end_ms:
        return "changed" if memory.last_change_ms == memory.last_end_ms else "ok"
    return "retrying" if memory.last_error_ms == memory.last_end_ms else "cancelled"


async def nodes_now(operations: OperationsProtocol) -> list[Node]:
    """The live nodes, with busy seats counted by leases if those are few and readable: a heartbeat is seconds old."""
    nodes = await operations.status.nodes()
    if not nodes or (await operations.status.counts()).leased > LEASES_MAX:
        return nodes
    page = await operations.runs.list_runs(RunFilter(states=(RunState.LEASED,)), limit=LEASES_MAX)
    if page.unreadable or page.next is not None:
        return nodes
    taken = Counter(run.owner for run in page.runs)
    return [replace(node, busy=taken[node.id]) for node in nodes]


async def nobody_of(operations: OperationsProtocol, *, group: str | None = None, target: str | None = None) -> str:
    """A hint if no job has that group or target: the pause may be early, or misspelt; else empty."""
    if group is None and target is None:
        return ""
    if (await operations.jobs.list_jobs(JobFilter(group=group, target=target), limit=1)).jobs:
        return ""
    name = f"target {target}" if group is None else f"group {group}"
    return f"no job has {name} now; the pause applies to the first one that has it"


def history_of(job: Job) -> JobHistory:
    seen = marks(job.memory.recent)
    return JobHistory(
        marks=seen,
        succeeded=sum(not mark.failed for mark in seen),
        changed=sum(mark.changed for mark in seen),
        failures=job.memory.failures,
        p50_ms=within_ms(seen, 0.5),
        p95_ms=within_ms(seen, 0.95),
    )


class JobRows(Struct, frozen=True):
    rows: tuple[JobState, ...]
    next: str | None
    total: int | None = None  # of all matching ones; None: not counted
    unreadable: tuple[Unreadable, ...] = ()  # jobs that may match
    unreadable_runs: tuple[Unreadable, ...] = ()  # live ones, which the states leave out


class ListingOperations(OperationGroup):
    """Pages of jobs with their states."""

    async def job_rows(
        self,
        where: JobFilter | None = None,
        *,
        state: str | None = None,
        after: str | None = None,
        offset: int = 0,
        limit: int = 50,
    ) -> JobRows:
        """A page of jobs with their states, without the first `offset` ones."""
        where, is_whole = where or JobFilter(), after is None
        if not 0 <= offset <= OFFSET_MAX:
            raise InvalidInput(f"an offset of {offset}", where="offset", cure=f"0 to {OFFSET_MAX:,}; or go by cursor")
        left, passed, counts = offset, 0, await self._operations.status.counts()
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
        """One job with its exact state, from concurrent reads."""
        [job], page, stops, nodes = await asyncio.gather(
            self._operations.jobs.jobs_by_id([job_id]),
            live_runs(self._operations.runs, job_id=job_id, limit=EACH_MAX),
            self._operations.pauses.stops(),
            self._operations.status.nodes(),
        )
        if job is None:
            job = await self._operations.jobs.get_job(
                job_id
            )  # it was added meanwhile, or this is refused, and says why
        [row] = await self._standings([job], page.runs, stops, nodes)
        return row if row.held or not page.unreadable else replace(row, held=unreadable_words(page.unreadable[0]))

    async def new_row(self, job: Job, stops: Sequence[Note]) -> JobState:
        """A job that was just added: without runs, and with the due time that the leader is about to give it."""
        now_ms, version = self._clock.now_ms(), self._store.scheduler_version
        if job.revision > 1:  # it replaces a deleted one, whose last due counts
            row = await self.job_row(job.id)
        else:
            here = Node("", scheduler_version=version)  # for its own version the node that answers is enough
            nodes = (here,) if job.scheduler_version == version else await self._store.nodes()
            [row] = standings_of([job], live={}, stops=stops, nodes=nodes, now_ms=now_ms)
        return replace(row, job=placed(row.job, None, now_ms=now_ms, batch_size=1))

    async def _pass_over(
        self, where: JobFilter, state: str | None, after: str | None, limit: int, counts: Counts
    ) -> tuple[int, str | None]:
        """Skip at most `limit` jobs; returns how many were skipped, and the cursor after them."""
        if state is None:
            page = await self._operations.jobs.list_jobs(where, after=after, limit=limit)
            return len(page.jobs), page.next
        found = await self._found(where, state, after, limit, counts)
        return len(found.rows), found.next

    async def _found(
        self, where: JobFilter, state: str | None, after: str | None, limit: int, counts: Counts
    ) -> JobRows:
        if state is None:
            page = await self._operations.jobs.list_jobs(where, after=after, limit=limit)
            rows, runs = await self._rows(page.jobs, counts)
            return JobRows(rows, page.next, unreadable=page.unreadable, unreadable_runs=runs)
        if state not in STATES:
            raise InvalidInput(f"no job is {state[:60]!r}", where="state", cure=f"one of {', '.join(STATES)}")
        if state in _BY_RUNS:
            return await self._by_runs(where, state, after, limit)
        return await self._by_jobs(where, state, after, limit, counts)

    async def _by_jobs(self, where: JobFilter, state: str, after: str | None, limit: int, counts: Counts) -> JobRows:
        """The next jobs that are in that state, among a bounded number."""
        if where.enabled not in (None, state != "disabled"):
            return JobRows((), None)
        where = replace(where, enabled=state != "disabled")
        found, unreadable, runs = list[JobState](), list[Unreadable](), dict[str, Unreadable]()
        for _ in range(SCAN_PAGES):
            page = await self._operations.jobs.list_jobs(where, after=after, limit=PAGE_MAX)
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
        """Jobs that are in that state by their live runs, among the first ten thousand runs."""
        live, unreadable = list[Run](), list[Unreadable]()
        cursor, where_runs = None, RunFilter(states=_BY_RUNS[state])
        for _ in range(SCAN_PAGES):
            page = await self._operations.runs.list_runs(where_runs, after=cursor, limit=PAGE_MAX)
            live += page.runs
            unreadable += page.unreadable
            cursor = page.next
            if cursor is None:
                break
        ids = sorted({run.job_id for run in live if after is None or run.job_id > after})
        found: list[JobState] = []
        stops, nodes = await asyncio.gather(self._operations.pauses.stops(), self._operations.status.nodes())
        for start in range(0, len(ids), PAGE_MAX):
            some = await self._operations.jobs.jobs_by_id(ids[start : start + PAGE_MAX])
            jobs = [job for job in some if job is not None and job_fits(job, where)]
            found += [row for row in await self._standings(jobs, live, stops, nodes) if row.state == state]
            if len(found) > limit:
                break
        after = found[limit - 1].job.id if len(found) > limit else None
        return JobRows(tuple(found[:limit]), after, unreadable_runs=tuple(unreadable))

    async def _live_of(self, jobs: Sequence[Job], counts: Counts) -> RunPage:
        """Live runs of these jobs; incomplete only if there are many jobs and many runs."""
        count = counts.held + counts.ready + counts.leased
        if not count or not jobs:
            return RunPage((), None)
        if len(jobs) > EACH_MAX or count <= min(PAGE_MAX, RUNS_A_CALL * len(jobs)):
            return await live_runs(self._operations.runs, limit=PAGE_MAX)
        asked = (live_runs(self._operations.runs, job_id=job.id, limit=RUNS_A_CALL) for job in jobs)
        pages = await asyncio.gather(*asked)
        runs = tuple(run for page in pages for run in page.runs)
        return RunPage(runs, None, tuple(run for page in pages for run in page.unreadable))

    async def _rows(self, jobs: Sequence[Job], counts: Counts) -> tuple[tuple[JobState, ...], tuple[Unreadable, ...]]:
        """The state of each, and the live runs that cannot be read."""
        if not jobs:
            return (), ()
        live, stops, nodes = await asyncio.gather(
            self._live_of(jobs, counts), self._operations.pauses.stops(), self._operations.status.nodes()
        )
        return await self._standings(jobs, live.runs, stops, nodes), live.unreadable

    async def _standings(
        self, jobs: Sequence[Job], live: Sequence[Run], stops: Sequence[Note], nodes: Sequence[Node]
    ) -> tuple[JobState, ...]:
        """The state of each; the loop runs in between, so that firings are not delayed."""
        now_ms, found = self._clock.now_ms(), list[JobState]()
        by_job = live_by_job(live, now_ms)
        for start in range(0, len(jobs), AT_ONCE):
            if start:
                await asyncio.sleep(0)
            some = jobs[start : start + AT_ONCE]
            found += standings_of(some, live=by_job, stops=stops, nodes=nodes, now_ms=now_ms)
        return tuple(found)
