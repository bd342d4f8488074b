"""Results of a simulation: counts by job and by minute, clock changes, warnings, and the check that the counts balance.

Every due time is either fired or skipped for a reason.  Both are counted where they are written, at the store; the
number of due times comes from the schedule itself.  A planner that loses or doubles one is detected here.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from pollux.events import FiringSkipped
from pollux.model import Advanced, Answer, Cron, Dead, Done, Interval, Job, Plan, RetryAt
from pollux.registry import Context
from pollux.schedule import compile_cron, next_due
from pollux.schedule.interval import CROWD_SPREAD_MAX_MS
from pollux.schedule.timezones import segment_at
from pollux.simulate.scenario import Scenario
from pollux.store.contract import Settlement
from pollux.units import HOUR_MS, MINUTE_MS, counted, format_moment, format_ms

SLACK_MS = 1_000
STEPS = 16  # buckets for each doubling: a quantile is accurate to 5 %


class QuantileSketch:
    """Histogram of milliseconds in buckets that grow by a twentieth: any quantile, in a few integers."""

    __slots__ = ("_counts", "count", "max", "sum")

    def __init__(self) -> None:
        self.count = self.sum = self.max = 0
        self._counts: dict[int, int] = {}

    def add(self, value: int) -> None:
        self.count += 1
        self.sum += value
        self.max = max(self.max, value)
        place = 0 if value <= 0 else 1 + int(math.log2(value) * STEPS)
        self._counts[place] = self._counts.get(place, 0) + 1

    def merge(self, other: QuantileSketch) -> None:
        self.count, self.sum, self.max = self.count + other.count, self.sum + other.sum, max(self.max, other.max)
        for place, count in other._counts.items():
            self._counts[place] = self._counts.get(place, 0) + count

    def at_most(self, share: float) -> int:
        """Return the bound below which this share lies."""
        wanted, seen = share * self.count, 0
        for place in sorted(self._counts):
            seen += self._counts[place]
            if seen >= wanted:
                return 0 if place == 0 else min(self.max, int(2 ** (place / STEPS)))
        return self.max


class JobResults:
    """Counts of one job."""

    __slots__ = (
        *("attempts", "begins_ms", "busy_us", "dead", "failed", "fired", "fired_ever", "first_ms", "job", "late"),
        "skips",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self.fired = self.fired_ever = 0  # inside the window, and in all
        self.attempts = self.failed = self.dead = self.busy_us = 0
        self.first_ms: int | None = None
        self.begins_ms: int | None = None  # an interval's first due comes no later
        self.late = QuantileSketch()
        self.skips: dict[str, int] = {}

    def saw_due(self, due_ms: int) -> None:
        self.first_ms = due_ms if self.first_ms is None else min(self.first_ms, due_ms)

    def expect(self, from_ms: int) -> None:
        """Set where its due times begin: those of a cron line are known, an interval begins when it is planned."""
        schedule = self.job.schedule
        if self.job.enabled and isinstance(schedule, Cron):
            self.saw_due(compile_cron(schedule.line, schedule.tz, self.job.id).next_after(from_ms))
        elif self.job.enabled and isinstance(schedule, Interval):
            begins_ms = from_ms + min(schedule.every_ms, CROWD_SPREAD_MAX_MS) + SLACK_MS
            self.begins_ms = max(begins_ms, schedule.start_ms or 0)

    @property
    def has_begun(self) -> bool:
        """Whether an interval has fired: it does at its start, or within a minute if it came with many others."""
        return self.begins_ms is None or (self.first_ms is not None and self.first_ms <= self.begins_ms)

    @property
    def skipped(self) -> int:
        return sum(self.skips.values())

    def dues_before(self, next_ms: int) -> int:
        """Return how many due times the schedule has from the first one up to the next one."""
        schedule, first_ms = self.job.schedule, self.first_ms
        if first_ms is None or first_ms >= next_ms:
            return 0
        match schedule:
            case Interval(every_ms=every_ms):
                second_ms = next_due(schedule, self.job.id, first_ms)
                assert second_ms is not None
                return 1 + max(0, -((second_ms - next_ms) // every_ms))
            case Cron(line=line, tz=tz):
                return 1 + compile_cron(line, tz, self.job.id).count_between(first_ms, next_ms - 1)
            case _:
                return 1


class Minute(Struct, frozen=True):
    at_ms: int
    fired: int
    peak_seats: int
    late_ms: int


class SimulationResults:
    """The listener of a simulation that collects its results."""

    def __init__(self, jobs: Iterable[Job], from_ms: int, until_ms: int) -> None:
        self.from_ms, self.until_ms = from_ms, until_ms
        self.jobs = {job.id: JobResults(job) for job in jobs}
        for results in self.jobs.values():
            results.expect(from_ms)
        self.changes = ClockChanges([results.job for results in self.jobs.values()], from_ms, until_ms)
        minutes = -(-(until_ms - from_ms) // MINUTE_MS)
        self._fired, self._peak, self._late = (array("q", bytes(8 * minutes)) for _ in range(3))
        self.peak_seats = 0
        self.retries = 0
        self._trace = hashlib.blake2b(digest_size=16)

    # called by the engine

    def begun(self, ctx: Context, now_ms: int, busy: int) -> None:
        run, results = ctx.run, self.jobs[ctx.run.job_id]
        results.attempts += 1
        self._write("begin", run.id, now_ms)
        if run.due_ms > self.until_ms:
            return
        self.peak_seats = max(self.peak_seats, busy)
        minute = self._minute(now_ms)
        self._peak[minute] = max(self._peak[minute], busy)
        if run.attempt == 0:
            late_ms = now_ms - run.due_ms
            results.late.add(late_ms)
            minute = self._minute(run.due_ms)
            self._late[minute] = max(self._late[minute], late_ms)

    def worked(self, job_id: str, duration_us: int) -> None:
        self.jobs[job_id].busy_us += duration_us

    def planned(self, plan: Plan, advanced: Advanced) -> None:
        for firing, answer in zip(plan.firings, advanced.firings, strict=True):
            run = firing.run
            results = self.jobs[run.job_id]
            results.saw_due(run.due_ms)
            self._write(answer.value, run.id, advanced.now_ms)
            if answer is not Answer.OK and answer is not Answer.WAITS:
                continue
            results.fired_ever += 1
            if run.due_ms <= self.until_ms:
                results.fired += 1
                self._fired[self._minute(run.due_ms)] += 1
                self.changes.fired(results.job, run.due_ms)

    def skipped(self, event: FiringSkipped) -> None:
        results = self.jobs[event.job_id]
        results.saw_due(event.due_ms)
        results.skips[event.reason] = results.skips.get(event.reason, 0) + event.count
        self._write(event.reason, event.job_id, event.due_ms)

    def settled(self, settlements: Sequence[Settlement], now_ms: int) -> None:
        for settlement in settlements:
            run_id, verdict = settlement.run_id, settlement.verdict
            self._write(type(verdict).__name__, run_id, now_ms)
            if isinstance(verdict, Done) and not verdict.failed:
                continue
            results = self.jobs[run_id.rpartition("@")[0]]
            results.failed += 1
            results.dead += isinstance(verdict, Dead)
            self.retries += isinstance(verdict, RetryAt)

    # results

    @property
    def trace(self) -> str:
        """A hash of everything that happened, in its order: the same seed gives the same."""
        return self._trace.hexdigest()

    def minutes(self) -> list[Minute]:
        rows = zip(self._fired, self._peak, self._late, strict=True)
        return [Minute(self.from_ms + n * MINUTE_MS, *row) for n, row in enumerate(rows)]

    def unbalanced(self, next_dues: Iterable[tuple[str, int | None]]) -> list[str]:
        """Return jobs whose fired and skipped counts are not what their schedule has before `next_dues`."""
        wrong = []
        for job_id, next_ms in next_dues:
            results = self.jobs[job_id]
            if next_ms is not None and next_ms <= self.until_ms:
                wrong.append(f"job {job_id}: the due at {next_ms} was not planned before the window ended")
            if not results.has_begun and (results.begins_ms or 0) <= self.until_ms:
                wrong.append(f"job {job_id}: it never fired, or began too late")
            if next_ms is None and results.job.enabled and results.job.is_recurring:
                wrong.append(f"job {job_id}: nothing is planned for it")
            due = results.dues_before(self.until_ms + 2**40 if next_ms is None else next_ms)
            if results.fired_ever + results.skipped != due:
                wrong.append(f"job {job_id}: {due} due, {results.fired_ever} fired and {results.skipped} skipped")
        return wrong

    def _minute(self, at_ms: int) -> int:
        """Return the index of the minute; runs that begin after the window (no seat before) count in the last one."""
        return min((at_ms - self.from_ms) // MINUTE_MS, len(self._fired) - 1)

    def _write(self, what: str, which: str, at_ms: int) -> None:
        self._trace.update(f"{at_ms} {what} {which}\n".encode())


NEAR_MS = 3 * HOUR_MS
FIRINGS_MAX = 50  # shown of each transition


class ClockChange(Struct, frozen=True):
    """`before` and `after`: local time at that instant by the old and the new offset."""

    tz: str
    at_ms: int
    before: str
    after: str
    firings: tuple[str, ...]  # "02:30 report/daily", within three hours
    more: int

    @property
    def words(self) -> str:
        forwards = self.after[11:16] > self.before[11:16]
        what = "that hour does not exist" if forwards else "that hour comes twice"
        first, last = (self.before, self.after) if forwards else (self.after, self.before)
        return f"{self.tz}: on {self.before[:10]} {first[11:16]} to {last[11:16]}: {what}"


class ClockChanges:
    """Collector of firings near a transition."""

    def __init__(self, jobs: Sequence[Job], from_ms: int, until_ms: int) -> None:
        zones = sorted({job.schedule.tz for job in jobs if isinstance(job.schedule, Cron)})
        self._at = {tz: list(transitions(tz, from_ms, until_ms)) for tz in zones}
        self._at = {tz: found for tz, found in self._at.items() if found}
        self._fired: dict[tuple[str, int], list[tuple[int, str]]] = {}

    def fired(self, job: Job, due_ms: int) -> None:
        if not self._at or not isinstance(job.schedule, Cron):
            return
        for at_ms, _, _ in self._at.get(job.schedule.tz, ()):
            if abs(due_ms - at_ms) <= NEAR_MS:
                self._fired.setdefault((job.schedule.tz, at_ms), []).append((due_ms, job.id))

    def found(self) -> tuple[ClockChange, ...]:
        changes = []
        for tz, found in self._at.items():
            for at_ms, before_s, after_s in found:
                near = sorted(self._fired.get((tz, at_ms), ()), key=lambda firing: abs(firing[0] - at_ms))
                shown = sorted(near[:FIRINGS_MAX])
                words = tuple(f"{format_moment(due_ms, tz)} {job_id}" for due_ms, job_id in shown)
                walls = (_wall(at_ms, before_s), _wall(at_ms, after_s))
                changes.append(ClockChange(tz, at_ms, *walls, words, len(near) - len(shown)))
        return tuple(sorted(changes, key=lambda change: (change.at_ms, change.tz)))


def transitions(tz: str, from_ms: int, until_ms: int) -> Iterator[tuple[int, int, int]]:
    """Yield the changes of a zone's offset within (from, until]: the instant, and the offsets before and after it."""
    segment = segment_at(tz, from_ms // 1_000)
    while segment.end_s * 1_000 <= until_ms:
        after = segment_at(tz, segment.end_s)
        if after.offset_s != segment.offset_s:
            yield segment.end_s * 1_000, segment.offset_s, after.offset_s
        segment = after


def _wall(at_ms: int, offset_s: int) -> str:
    return format_moment(at_ms + offset_s * 1_000).removesuffix("Z")


WARNINGS_MAX = 20
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
    warnings = [*_seats(seen), *_jobs(seen), *_herd(seen)]
    more = len(warnings) - WARNINGS_MAX
    return tuple(warnings if more <= 0 else [*warnings[:WARNINGS_MAX], f"and {more} more like these"])


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
    warnings = []
    for row in seen.rows:
        job, schedule = row.job, row.job.schedule
        overlaps = row.skips.get("overlap", 0)
        if overlaps:
            warnings.append(f"job {job.id} overlaps itself {counted(overlaps, 'time')}: {_cause(row)}")
        if late := row.skips.get("late", 0):
            missed = counted(late, "due time")
            warnings.append(f"job {job.id} misses {missed} that came too late to be fired (misfire: {job.misfire})")
        if full := row.skips.get("full", 0):
            warnings.append(f"job {job.id} loses {counted(full, 'due time')} to a full ready queue: add seats")
        if row.dead:
            times = counted(row.dead, "time")
            warnings.append(f"job {job.id} ends dead {times}: more attempts (retry), or fix what fails")
        if not row.fired and not row.skipped and job.enabled and schedule is not None:
            warnings.append(f"job {job.id} is never due in this time")
    return warnings


def _cause(row: JobResults) -> str:
    schedule = row.job.schedule
    mean_ms = row.busy_us // 1_000 // max(1, row.attempts)
    if isinstance(schedule, Interval) and mean_ms >= schedule.every_ms:
        return (
            f"its runs take {format_ms(mean_ms)} and it is due every {format_ms(schedule.every_ms)}; "
            "make the interval longer or the runs shorter, or set overlap: allow"
        )
    if row.late.max >= mean_ms:
        return "its runs wait for a seat until the next one is due; add seats"
    return (
        "some of its runs, or their retries, last until the next one is due; set overlap: queue, or give it a timeout"
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
