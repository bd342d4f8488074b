"""Forecast of firings: of a new file, of a store, or of a file applied to its store.

A file is treated as a start would: new jobs get the first due time that the leader would give them, known ones keep
the stored due time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pollux.app.operations import OperationsProtocol
from pollux.app.pollux import Pollux
from pollux.config import Config
from pollux.errors import Unreadable
from pollux.model import Job, Note, Run, RunState
from pollux.plan import reconcile
from pollux.plan.forecast import ComingFiring, FiringForecast, forecast, placed
from pollux.store.contract import BATCH_MAX, PAGE_MAX, JobFilter, RunFilter

__all__ = ["ComingFiring", "FiringForecast", "ForecastInput", "declared_by", "foretell", "known_of", "laid_over"]

HELD_SHOWN = 20


class ForecastInput(Struct, frozen=True):
    """The content of a store that determines the next firings."""

    jobs: tuple[Job, ...]
    stops: tuple[Note, ...]
    held: tuple[Run, ...]  # some of them
    held_count: int
    seats: int  # of living nodes
    nodes: int
    unreadable: tuple[Unreadable, ...] = ()  # jobs whose firings are unknown here


NOTHING = ForecastInput((), (), (), 0, 0, 0)


def declared_by(config: Config) -> list[Job]:
    """The jobs of a file, and of the code that it names."""
    return Pollux.from_config(config).declared_jobs() if config.app else list(config.jobs)


async def known_of(operations: OperationsProtocol) -> ForecastInput:
    """Read all that is needed, page by page."""
    jobs: list[Job] = []
    unreadable: list[Unreadable] = []
    after: str | None = None
    while True:
        page = await operations.jobs.list_jobs(JobFilter(), after=after, limit=PAGE_MAX)
        jobs += page.jobs
        unreadable += page.unreadable
        after = page.next
        if after is None:
            break
    held = await operations.runs.list_runs(RunFilter(states=(RunState.HELD,)), limit=HELD_SHOWN)
    nodes = await operations.status.nodes()
    return ForecastInput(
        jobs=tuple(jobs),
        stops=tuple(await operations.pauses.stops()),
        held=held.runs,
        held_count=(await operations.status.counts()).held,
        seats=sum(node.seats for node in nodes if not node.draining),
        nodes=len(nodes),
        unreadable=tuple(unreadable),
    )


def laid_over(known: Sequence[Job], declared: Sequence[Job], *, now_ms: int) -> list[Job]:
    """The jobs as they would be after a start that declares these."""
    jobs = {job.id: job for job in known}
    for source in dict.fromkeys(job.source for job in declared):
        wanted = [job for job in declared if job.source == source]
        diff = reconcile(known, wanted, source)
        for job in diff.remove:
            del jobs[job.id]
        for job in diff.undeclare:
            jobs[job.id] = replace(job, declared=False)
        puts: list[tuple[Job, Job | None]] = [
            *((job, None) for job in diff.add),
            *((new, old) for old, new in diff.change),
        ]
        for start in range(0, len(puts), BATCH_MAX):
            batch = puts[start : start + BATCH_MAX]
            crowd = sum(old is None for _, old in batch)
            jobs |= {job.id: placed(job, old, now_ms=now_ms, batch_size=crowd) for job, old in batch}
    return list(jobs.values())


def foretell(
    jobs: Sequence[Job],
    known: ForecastInput = NOTHING,
    *,
    now_ms: int,
    from_ms: int,
    to_ms: int,
    rows_max: int,
    zones: Sequence[str] = (),
    choose: Callable[[Job], bool] | None = None,
) -> FiringForecast:
    """The firings of these jobs in the window; new jobs get the due times that the leader will give them."""
    new = sum(_is_new(job) for job in jobs)
    chosen = [job for job in jobs if choose is None or choose(job)]
    planned = [placed(job, None, now_ms=now_ms, batch_size=new) if _is_new(job) else job for job in chosen]
    stops = {stop.key: stop for stop in known.stops}
    return forecast(planned, stops=stops, now_ms=now_ms, from_ms=from_ms, to_ms=to_ms, rows_max=rows_max, zones=zones)


def _is_new(job: Job) -> bool:
    return job.next_due_ms is None and job.last_due_ms is None and not job.memory.last_error
