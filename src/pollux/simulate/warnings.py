"""Warnings about a simulation: one sentence each, with what to do."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from pollux.model import Interval
from pollux.simulate.results import JobResults, Minute, QuantileSketch
from pollux.simulate.scenario import Scenario
from pollux.units import counted, format_moment, format_ms

SAID_MAX = 20
LATE_MS = 1_000  # a higher p99 is reported
TIGHT = 0.8  # of the seats, taken on average
HERD = 10  # times the mean minute
HERD_MIN = 50


class SimulationSummary(Struct, frozen=True):
    """Figures of a simulation that the warnings need."""

    scenario: Scenario
    rows: Sequence[JobResults]
    late: QuantileSketch
    peak_seats: int
    mean_seats: float
    minutes: Sequence[Minute]


def warnings_of(seen: SimulationSummary) -> tuple[str, ...]:
    said = [*_seats(seen), *_jobs(seen), *_herd(seen)]
    more = len(said) - SAID_MAX
    return tuple(said if more <= 0 else [*said[:SAID_MAX], f"and {more} more like these"])


def _seats(seen: SimulationSummary) -> list[str]:
    seats, p99 = seen.scenario.seats, seen.late.at_most(0.99)
    if seen.mean_seats >= TIGHT * seats:
        share = f"{min(1.0, seen.mean_seats / seats):.0%}"
        taken = f"{share} of the {counted(seats, 'seat')} is taken on average"
        return [f"{taken}: runs wait; try --seats {seats},{2 * seats}"]
    if p99 >= LATE_MS and seen.peak_seats >= seats:
        late = f"1 run in 100 began {format_ms(p99)} late or more"
        return [f"all of {counted(seats, 'seat')} were taken at times, and {late}: try --seats {seats},{2 * seats}"]
    return []


def _jobs(seen: SimulationSummary) -> list[str]:
    said = []
    for row in seen.rows:
        job, schedule = row.job, row.job.schedule
        overlaps = row.skips.get("overlap", 0)
        if overlaps:
            said.append(f"job {job.id} overlaps itself {counted(overlaps, 'time')}: {_cause(row)}")
        if late := row.skips.get("late", 0):
            missed = counted(late, "due time")
            said.append(f"job {job.id} misses {missed} that came too late to be fired (misfire: {job.misfire})")
        if full := row.skips.get("full", 0):
            said.append(f"job {job.id} loses {counted(full, 'due time')} to a full ready line: add seats")
        if row.dead:
            times = counted(row.dead, "time")
            said.append(f"job {job.id} ends dead {times}: more attempts (retry), or mend what fails")
        if not row.fired and not row.skipped and job.enabled and schedule is not None:
            said.append(f"job {job.id} is never due in this time")
    return said


def _cause(row: JobResults) -> str:
    schedule = row.job.schedule
    mean_ms = row.busy_us // 1_000 // max(1, row.attempts)
    if isinstance(schedule, Interval) and mean_ms >= schedule.every_ms:
        return (
            f"its runs take {format_ms(mean_ms)} and it is due every {format_ms(schedule.every_ms)}; "
            "make the interval longer or the runs shorter, or say overlap: allow"
        )
    if row.late.max >= mean_ms:
        return "its runs wait for a seat until the next one is due; add seats"
    return (
        "some of its runs, or their retries, last until the next one is due; say overlap: queue, or give it a timeout"
    )


def _herd(seen: SimulationSummary) -> list[str]:
    total = sum(minute.fired for minute in seen.minutes)
    peak = max(seen.minutes, key=lambda minute: minute.fired)
    mean = total / len(seen.minutes)
    if peak.fired < max(HERD_MIN, HERD * mean):
        return []
    herd = f"{peak.fired} firings fall into the minute {format_moment(peak.at_ms)}"
    return [
        f"{herd}, {peak.fired / mean:.0f} times the usual: write H instead of 0 in cron lines, or leave `spread` on"
    ]
