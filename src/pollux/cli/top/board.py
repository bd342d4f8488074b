"""Data of `pollux top`: a snapshot a second and a sweep over all jobs.

A snapshot reads the counts, the nodes, the pauses, a page of running and one of held runs, and the jobs that
are on the screen.  To sort all jobs, a few fields of each are kept: they are swept up page by page, round and round,
the first round without a rest.  So a fleet of 100,000 is sorted as a whole, and costs two pages a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest, nsmallest
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from pollux.app import JobRow
from pollux.app.operations.status import last_outcome, live_by_job, live_runs, progress_by_job, rows_of
from pollux.model import Counts, Job, Node, Note, Run, RunState, leader_of
from pollux.store.contract import PAGE_MAX, JobFilter, RunFilter

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

RUNS_SHOWN = 50  # running ones, and held ones
RUNS_EACH = 10  # live runs that are read of a job asked for alone
LIVE_PAGE = 1_000  # live runs read at once; where there are more, jobs on the screen are asked one by one
READY_PAGE = 100
SWEEP_PAGES = 2  # of jobs, each look,
FIRST_PAGES = 20  # and in the first round, which is not rested in
ROWS_MAX = 200
_KINDS = ("group", "target", "tag", "source", "handler")


class SortKeys(NamedTuple):
    """As much of a job as sorting needs."""

    id: str
    next_due_ms: int | None
    failures: int
    last_success_ms: int | None
    last_end_ms: int | None
    duration_ms: int
    last: str


FAR = 2**62
SORTS: dict[str, Callable[[SortKeys], Any]] = {
    "id": lambda entry: entry.id,
    "next due": lambda entry: (FAR if entry.next_due_ms is None else entry.next_due_ms, entry.id),
    "failures": lambda entry: (-entry.failures, -(entry.last_end_ms or 0), entry.id),
    "oldest success": lambda entry: (entry.last_success_ms or 0, entry.id),
    "last run": lambda entry: (-(entry.last_end_ms or 0), entry.id),
    "duration": lambda entry: (-entry.duration_ms, entry.id),
}


class StoreSummary(Struct, frozen=True):
    """What is true of the whole store at one moment."""

    now_ms: int
    counts: Counts
    nodes: tuple[Node, ...]
    stops: tuple[Note, ...]
    running: tuple[Run, ...]  # the oldest of them
    held: tuple[Run, ...]
    waits_ms: int  # the longest that a ready run waits now
    overdue_ms: int  # how late the most overdue job is

    @property
    def leader(self) -> Node | None:
        return leader_of(self.nodes)

    @property
    def seats(self) -> int:
        return sum(node.seats for node in self.nodes)


async def look_at(operations: OperationsProtocol, now_ms: int) -> StoreSummary:
    running = await operations.runs.list_runs(RunFilter(states=(RunState.LEASED,)), limit=RUNS_SHOWN)
    held = await operations.runs.list_runs(RunFilter(states=(RunState.HELD,)), limit=RUNS_SHOWN)
    ready = await operations.runs.list_runs(RunFilter(states=(RunState.READY,)), limit=READY_PAGE)
    waiting = (run.visible_ms for run in ready.runs if run.visible_ms <= now_ms)
    overdue = await operations.status.overdue()
    return StoreSummary(
        now_ms=now_ms,
        counts=await operations.status.counts(),
        nodes=tuple(await operations.status.nodes()),
        stops=tuple(await operations.pauses.stops()),
        running=running.runs,
        held=held.runs,
        waits_ms=now_ms - min(waiting, default=now_ms),
        overdue_ms=max((now_ms - (job.next_due_ms or now_ms) for job in overdue), default=0),
    )


async def rows_for(operations: OperationsProtocol, look: StoreSummary, ids: Sequence[str]) -> tuple[JobRow, ...]:
    """The rows of these jobs as they are now; jobs that were deleted are left out."""
    jobs = [job for job in await operations.jobs.jobs_by_id(ids) if job is not None]
    live = await _live_of(operations, look.counts, [job.id for job in jobs])
    return rows_of(
        jobs,
        live=live_by_job(live, look.now_ms),
        stops=look.stops,
        nodes=look.nodes,
        progress=progress_by_job(live),
        now_ms=look.now_ms,
    )


async def _live_of(operations: OperationsProtocol, counts: Counts, ids: Iterable[str]) -> list[Run]:
    """The live runs of these jobs: by one page if it holds all there are, else job by job."""
    if counts.held + counts.ready + counts.leased <= LIVE_PAGE:
        return list((await live_runs(operations.runs, limit=LIVE_PAGE)).runs)
    found: list[Run] = []
    for job_id in ids:
        found += (await live_runs(operations.runs, job_id=job_id, limit=RUNS_EACH)).runs
    return found


class Sweep:
    """All jobs that are asked for, as far as they have been read."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.entries: dict[str, SortKeys] = {}
        self.is_whole = False  # every job was read once
        self.unreadable: set[str] = set()  # jobs that cannot be read, as of the last round
        self._where = filter_of(text)
        self._after: str | None = None
        self._seen: set[str] = set()
        self._met: set[str] = set()

    async def go_on(self, operations: OperationsProtocol) -> None:
        """Read some more pages: many in the first round, then few; never beyond the end of a round."""
        for _ in range(SWEEP_PAGES if self.is_whole else FIRST_PAGES):
            page = await operations.jobs.list_jobs(self._where, after=self._after, limit=PAGE_MAX)
            for job in page.jobs:
                self.entries[job.id] = entry_of(job)
                self._seen.add(job.id)
            self._met |= {job.name for job in page.unreadable}
            self._after = page.next
            if page.next is None:
                self._end_round()
                return

    def _end_round(self) -> None:
        for removed in self.entries.keys() - self._seen:
            del self.entries[removed]
        self._seen, self.unreadable, self._met = set(), self._met, set()
        self.is_whole = True

    def learn(self, jobs: Iterable[Job]) -> None:
        """These were read in another way."""
        for job in jobs:
            if job.id in self.entries:
                self.entries[job.id] = entry_of(job)

    def first(self, sort: str, *, is_reversed: bool) -> list[str]:
        """The ids of the first jobs in an order over all of them."""
        choose = nlargest if is_reversed else nsmallest
        return [entry.id for entry in choose(ROWS_MAX, self.entries.values(), key=SORTS[sort])]


def entry_of(job: Job) -> SortKeys:
    memory = job.memory
    return SortKeys(
        job.id,
        job.next_due_ms,
        memory.failures,
        memory.last_success_ms,
        memory.last_end_ms,
        memory.duration_ms,
        last_outcome(job),
    )


def filter_of(text: str) -> JobFilter:
    """`edge`: in the id or name; `group:edge`, `target:db-1`, `tag:fast`: by that; both together, too."""
    chosen: dict[str, Any] = {}
    words = []
    for word in text.split():
        kind, colon, value = word.partition(":")
        if colon and value and kind in _KINDS:
            chosen[kind] = value
        else:
            words.append(word)
    return JobFilter(**chosen, text=" ".join(words) or None)
