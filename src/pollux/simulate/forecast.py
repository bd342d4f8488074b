"""Forecast of a simulation: counts, lateness, seats, the busiest minutes, and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from pollux.errors import InvalidInput, PolluxError
from pollux.events import FiringSkipped
from pollux.model import Cron, Interval, Job, Once
from pollux.schedule import compile_cron
from pollux.schedule.builders import describe_schedule
from pollux.simulate.engine import SimulationEngine, at_once
from pollux.simulate.results import (
    ClockChange,
    JobResults,
    Minute,
    QuantileSketch,
    SimulationResults,
    SimulationSummary,
    warnings_of,
)
from pollux.simulate.scenario import SCALE_MAX, Scenario

AFTERWARDS_MS = 1_000  # due times at the very end have this long to be planned
SLICES = 200  # how often progress is reported
BUSIEST = 5
JOBS_MAX = 200_000
FIRINGS_EXACT = 300_000
FIRINGS_PER_GRAIN = 4
GRAIN_USUAL_MAX_MS = 250

Progress = Callable[[float], None]


class LatenessQuantiles(Struct, frozen=True):
    """From due to the handler's start, first attempts only, in milliseconds; quantiles are accurate to 5 %."""

    p50_ms: int
    p95_ms: int
    p99_ms: int
    max_ms: int


class JobForecast(Struct, frozen=True):
    id: str
    schedule: str
    fired: int
    skipped: dict[str, int]  # by reason
    late: LatenessQuantiles
    attempts: int
    failed: int  # attempts
    dead: int
    busy_ms: int  # all its attempts together


class Forecast(Struct, frozen=True):
    from_ms: int
    until_ms: int
    seats: int
    seed: int
    grain_ms: int
    jobs: tuple[JobForecast, ...]
    fired: int
    skipped: dict[str, int]
    late: LatenessQuantiles
    attempts: int
    failed: int
    retries: int
    dead: int
    waiting: int  # runs without a seat when the window ended
    peak_seats: int
    mean_seats: float
    load: tuple[Minute, ...]  # every minute
    busiest: tuple[Minute, ...]
    clock_changes: tuple[ClockChange, ...]
    warnings: tuple[str, ...]
    trace: str  # a hash of all that happened: the same seed gives the same


class Unbalanced(PolluxError):
    """A due time was neither fired nor skipped, or was both: the counts of a simulation do not balance."""

    def __init__(self, wrong: Sequence[str]) -> None:
        self.wrong = tuple(wrong)
        shown = "; ".join(self.wrong[:5])
        super().__init__(f"the engine lost or doubled due times: {shown}.  This is a fault of Pollux: please report it")


def simulate(jobs: Sequence[Job], scenario: Scenario, *, progress: Progress | None = None) -> Forecast:
    """Play the scenario with these jobs, from a fresh start, and return the forecast.

    Raises `Unbalanced` if not every due time was fired or skipped exactly once.
    """
    _check(jobs)
    results = SimulationResults(jobs, scenario.from_ms, scenario.until_ms)
    engine = SimulationEngine(scenario, results)
    engine.events.listen(FiringSkipped, results.skipped)
    engine.open(jobs)
    for n in range(1, SLICES + 1):
        engine.play_until(scenario.from_ms + scenario.for_ms * n // SLICES)
        if progress is not None:
            progress(n / SLICES)
    waiting = engine.store.ready
    engine.play_until(scenario.until_ms + AFTERWARDS_MS)
    wrong = results.unbalanced(_next_dues(engine, jobs))
    if wrong:
        raise Unbalanced(wrong)
    return _forecast(scenario, results, waiting)


def scaled(jobs: Sequence[Job], times: int) -> list[Job]:
    """Return the fleet repeated so many times: `home`, `home~2`, `home~3`, each with a phase of its own."""
    if not 1 <= times <= SCALE_MAX:
        raise InvalidInput(f"{times} times the jobs", where="scale", cure=f"give 1 to {SCALE_MAX}")
    more = [msgspec.structs.replace(job, id=f"{job.id}~{n}") for n in range(2, times + 1) for job in jobs]
    return [*jobs, *more]


def firings_expected(jobs: Iterable[Job], from_ms: int, until_ms: int) -> int:
    """Return roughly how many due times there will be."""
    count = 0
    for job in jobs:
        match job.schedule if job.enabled else None:
            case Interval(every_ms=every_ms):
                count += 1 + (until_ms - from_ms) // every_ms
            case Cron(line=line, tz=tz):
                count += compile_cron(line, tz, job.id).count_between(from_ms, until_ms)
            case Once():
                count += 1
    return count


def fine_enough_ms(firings: int, for_ms: int) -> int:
    """Return a grain that keeps a big simulation short: a few firings share a step once there are very many."""
    if firings <= FIRINGS_EXACT:
        return 1
    return max(1, min(GRAIN_USUAL_MAX_MS, FIRINGS_PER_GRAIN * for_ms // firings))


def _check(jobs: Sequence[Job]) -> None:
    if not jobs:
        raise InvalidInput("there is nothing to simulate", cure="add jobs with a schedule")
    if len(jobs) > JOBS_MAX:
        raise InvalidInput(f"{len(jobs)} jobs are too many", cure=f"simulate at most {JOBS_MAX} at once")


def _next_dues(engine: SimulationEngine, jobs: Sequence[Job]) -> list[tuple[str, int | None]]:
    found = []
    for start in range(0, len(jobs), 1_000):
        stored = at_once(engine.store.get_jobs([job.id for job in jobs[start : start + 1_000]]))
        found += [(job.id, job.next_due_ms) for job in stored if job is not None]
    return found


def _forecast(scenario: Scenario, results: SimulationResults, waiting: int) -> Forecast:
    rows = sorted(results.jobs.values(), key=lambda row: (-row.skipped, -row.late.max, row.job.id))
    late, skipped = QuantileSketch(), dict[str, int]()
    for row in rows:
        late.merge(row.late)
        for reason, count in row.skips.items():
            skipped[reason] = skipped.get(reason, 0) + count
    minutes = results.minutes()
    busiest = sorted(minutes, key=lambda m: (-m.fired, -m.peak_seats, m.at_ms))[:BUSIEST]
    busy_us = sum(row.busy_us for row in rows)
    mean_seats = busy_us / 1_000 / scenario.for_ms
    seen = SimulationSummary(scenario, rows, late, results.peak_seats, mean_seats, minutes)
    return Forecast(
        from_ms=scenario.from_ms,
        until_ms=scenario.until_ms,
        seats=scenario.seats,
        seed=scenario.seed,
        grain_ms=scenario.grain_ms,
        jobs=tuple(_job(row) for row in rows),
        fired=sum(row.fired for row in rows),
        skipped=skipped,
        late=_lateness(late),
        attempts=sum(row.attempts for row in rows),
        failed=sum(row.failed for row in rows),
        retries=results.retries,
        dead=sum(row.dead for row in rows),
        waiting=waiting,
        peak_seats=results.peak_seats,
        mean_seats=round(mean_seats, 3),
        load=tuple(minutes),
        busiest=tuple(minute for minute in busiest if minute.fired),
        clock_changes=results.changes.found(),
        warnings=warnings_of(seen),
        trace=results.trace,
    )


def _job(row: JobResults) -> JobForecast:
    return JobForecast(
        id=row.job.id,
        schedule=describe_schedule(row.job.schedule),
        fired=row.fired,
        skipped=dict(sorted(row.skips.items())),
        late=_lateness(row.late),
        attempts=row.attempts,
        failed=row.failed,
        dead=row.dead,
        busy_ms=row.busy_us // 1_000,
    )


def _lateness(spread: QuantileSketch) -> LatenessQuantiles:
    return LatenessQuantiles(spread.at_most(0.5), spread.at_most(0.95), spread.at_most(0.99), spread.max)
