"""Firing forecast: the firing times of one job, and the counts of a window over all jobs.

The times of a job are its overdue due times, the next one, and a rule for the rest:

    now      heads            tail: a grid (interval) or a line (cron), listed only on request
     |  late late   next  |   x     x     x     x     x ...

The rules are the planner's: a missed due time fires at once by its job's misfire policy, due times in a pause are
skipped (but a once-job waits), a job that is disabled or no longer declared does not fire.

A window is counted, not listed, so that the cost depends on the number of distinct intervals and cron lines.  Jobs of
one interval are counted together.  Up to a time `t` of a window that begins at `w` each has fired once per full
interval, and once more if its offset in the interval has passed:

    fired(t) = laps * jobs + (offsets before rest)        laps, rest = divmod(t - w, every)

One bisection per bucket counts them all, and cumulative durations along the offsets give the busy time of the seats.
A cron line is counted once for all jobs that share it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, nsmallest
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from pollux.model import Cron, Interval, Job, Note, Once, OnEvent
from pollux.outcome import describe
from pollux.plan.due_decision import catch_up, place
from pollux.plan.gate import UNDECLARED, stop_words, stops_of
from pollux.schedule import CompiledCron, compile_cron, interval
from pollux.schedule.builders import describe_schedule
from pollux.schedule.timezones import segment_at
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS


class FiringTimes(Struct, frozen=True, gc=False):
    """The firing times of a job: the heads, then the tail, which begins after the last head."""

    job: Job
    heads: tuple[tuple[int, int], ...] = ()  # (firing time, due time)
    first_ms: int | None = None  # of the tail
    every_ms: int = 0  # of a tail that is a grid
    cron: CompiledCron | None = None  # of a tail that is a cron line


class NeverFires(Struct, frozen=True, gc=False):
    """A job that will not fire by itself: the kind of reason, to count by, and the reason as text."""

    job_id: str
    kind: str
    reason: str


def firing_times(job: Job, *, stops: Mapping[str, Note], now_ms: int) -> FiringTimes | NeverFires:
    """The firing times of a job from `now_ms` on, starting with its stored next due time."""
    if job.schedule is None or isinstance(job.schedule, OnEvent):
        return NeverFires(job.id, "asked", "runs when asked")
    if not job.enabled:
        return NeverFires(job.id, "disabled", "is disabled")
    if job.next_due_ms is None:
        reason = "has fired" if isinstance(job.schedule, Once) else f"has no next due: {job.memory.last_error}"
        return NeverFires(job.id, "over" if isinstance(job.schedule, Once) else "broken", reason.removesuffix(": "))
    if not job.declared:
        return NeverFires(job.id, "undeclared", UNDECLARED)
    pauses = list(stops_of(stops, job_id=job.id, group=job.group, target=job.target, now_ms=now_ms)) if stops else []
    forever = next((stop for stop in pauses if stop.expires_ms is None), None)
    if forever is not None:
        return NeverFires(job.id, "paused", stop_words(forever))
    quiet_ms = max((stop.expires_ms or 0 for stop in pauses), default=now_ms)
    try:
        return _firing_times(job, job.next_due_ms, now_ms, quiet_ms)
    except Exception as error:  # noqa: BLE001  one bad job must not hide the others
        return NeverFires(job.id, "broken", f"its schedule cannot be used: {describe(error)}")


def placed(job: Job, old: Job | None, *, now_ms: int, batch_size: int) -> Job:
    """The job with the next due time that the leader would compute if it were put now over `old`."""
    known = job if old is None else replace(job, next_due_ms=old.next_due_ms, last_due_ms=old.last_due_ms)
    try:
        next_ms = place(known, old, is_placed=False, now_ms=now_ms, batch_size=batch_size)
    except Exception as error:  # noqa: BLE001  one bad job must not hide the others
        return replace(known, next_due_ms=None, memory=replace(job.memory, last_error=describe(error)))
    return replace(known, next_due_ms=next_ms, memory=job.memory if old is None else old.memory)


def moments(times: FiringTimes, from_ms: int) -> Iterator[tuple[int, int]]:
    """The pairs of firing time and due time from `from_ms` on, without end."""
    yield from (head for head in times.heads if head[0] >= from_ms)
    due_ms = first_of_tail(times, from_ms)
    while due_ms is not None:
        yield due_ms, due_ms
        due_ms = due_ms + times.every_ms if times.cron is None else times.cron.next_after(due_ms)


def first_of_tail(times: FiringTimes, from_ms: int) -> int | None:
    """The first due time of the tail at or after `from_ms`."""
    first_ms = times.first_ms
    if first_ms is None or first_ms >= from_ms:
        return first_ms
    if times.cron is not None:
        return times.cron.next_after(from_ms - 1)
    return from_ms + (first_ms - from_ms) % times.every_ms


def _firing_times(job: Job, due_ms: int, now_ms: int, quiet_ms: int) -> FiringTimes:
    schedule = job.schedule
    if isinstance(schedule, Once):
        return FiringTimes(job, ((max(due_ms, now_ms, quiet_ms), due_ms),))
    assert isinstance(schedule, Interval | Cron)
    cron = compile_cron(schedule.line, schedule.tz, job.id) if isinstance(schedule, Cron) else None
    every_ms = schedule.every_ms if isinstance(schedule, Interval) else 0
    if quiet_ms > now_ms and due_ms < quiet_ms:
        tail = FiringTimes(job, (), _following(schedule, cron, job.id, due_ms), every_ms, cron)
        return FiringTimes(job, (), first_of_tail(tail, quiet_ms), every_ms, cron)
    if due_ms > now_ms:
        return FiringTimes(job, ((due_ms, due_ms),), _following(schedule, cron, job.id, due_ms), every_ms, cron)
    missed = catch_up(job, job.memory, due_ms=due_ms, now_ms=now_ms)
    return FiringTimes(job, tuple((now_ms, late_ms) for late_ms in missed.fire), missed.next_ms, every_ms, cron)


def _following(schedule: Interval | Cron, cron: CompiledCron | None, job_id: str, due_ms: int) -> int:
    if isinstance(schedule, Interval):
        return interval.next_due(schedule, job_id, due_ms)
    assert cron is not None
    return cron.next_after(due_ms)


BUCKETS_MAX = 1_440
SILENT_MAX = 20  # jobs named of each kind; all are counted
_WIDTHS = (
    SECOND_MS, MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS, 30 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS, 7 * DAY_MS
)  # fmt: skip
_BY_SECONDS_MS = 10 * MINUTE_MS  # windows up to this length have buckets of seconds


class ComingFiring(Struct, frozen=True):
    """A future firing.  `due_ms` differs from `at_ms` if it was missed, or waits for the end of a pause."""

    at_ms: int
    due_ms: int
    job_id: str
    schedule: str


class ZoneChange(Struct, frozen=True):
    """A change of a zone's offset: `by_ms` is positive for a jump forward."""

    at_ms: int
    tz: str
    by_ms: int


class SilentJobs(Struct, frozen=True):
    """Jobs that will not fire by themselves, for one kind of reason: their number, and some of them."""

    kind: str
    count: int
    some: tuple[NeverFires, ...]


class FiringForecast(Struct, frozen=True):
    from_ms: int
    to_ms: int
    start_ms: int  # of the first bucket: a round time, at or before `from_ms`
    bucket_ms: int
    counts: tuple[int, ...]  # firings by bucket
    busy_ms: tuple[int, ...]  # their handler time by bucket, from the durations of the last runs
    total: int
    late: int  # of them, missed due times that fire at once (at a bounded rate)
    jobs: int  # that fire in the window
    untimed: int  # of them, jobs without a known duration
    firings: tuple[ComingFiring, ...]  # the first ones
    quiet: tuple[SilentJobs, ...]
    changes: tuple[ZoneChange, ...]

    @property
    def peak(self) -> int | None:
        """The first bucket with most firings; None if nothing fires."""
        return max(range(len(self.counts)), key=lambda index: (self.counts[index], -index)) if self.total else None

    def seats(self, bucket: int) -> int:
        """The number of seats that finish the firings of a bucket before the next one begins, by known durations."""
        start_ms = max(self.from_ms, self.start_ms + bucket * self.bucket_ms)
        width_ms = min(self.to_ms, self.start_ms + (bucket + 1) * self.bucket_ms) - start_ms
        return -(-self.busy_ms[bucket] // max(1, width_ms))


def forecast(
    jobs: Iterable[Job],
    *,
    stops: Mapping[str, Note],
    now_ms: int,
    from_ms: int,
    to_ms: int,
    rows_max: int,
    zones: Sequence[str] = (),
) -> FiringForecast:
    """The firings in [from_ms, to_ms) if nothing changes from `now_ms` on; each job has its next due time."""
    judged = [firing_times(job, stops=stops, now_ms=now_ms) for job in jobs]
    timed = [times for times in judged if isinstance(times, FiringTimes)]
    buckets = _BucketCounts(from_ms, to_ms)
    buckets.add_all(timed)
    firsts = [(first, times) for times in timed if (first := _first(times, from_ms)) is not None and first < to_ms]
    lines = {times.job.schedule.tz for times in timed if isinstance(times.job.schedule, Cron)}
    return FiringForecast(
        from_ms=from_ms,
        to_ms=to_ms,
        start_ms=buckets.start_ms,
        bucket_ms=buckets.bucket_ms,
        counts=tuple(buckets.counts),
        busy_ms=tuple(buckets.busy_ms),
        total=sum(buckets.counts),
        late=sum(at > due and from_ms <= at < to_ms for times in timed for at, due in times.heads),
        jobs=len(firsts),
        untimed=sum(not times.job.memory.ended for _, times in firsts),
        firings=_first_rows(firsts, from_ms, to_ms, rows_max),
        quiet=_quiet([silent for silent in judged if isinstance(silent, NeverFires)]),
        changes=tuple(sorted(_changes({*lines, *zones}, from_ms, to_ms), key=lambda change: (change.at_ms, change.tz))),
    )


def bucket_width(span_ms: int) -> int:
    """A round bucket width: seconds for a few minutes, minutes for a day, at most `BUCKETS_MAX` buckets."""
    widths = _WIDTHS if span_ms <= _BY_SECONDS_MS else _WIDTHS[1:]
    return next((width for width in widths if span_ms <= width * BUCKETS_MAX), widths[-1])


class _BucketCounts:
    """Firings and their durations, by bucket."""

    def __init__(self, from_ms: int, to_ms: int) -> None:
        self.from_ms, self.to_ms = from_ms, to_ms
        self.bucket_ms = bucket_width(to_ms - from_ms)
        self.start_ms = from_ms - from_ms % self.bucket_ms
        self.size = -(-(to_ms - self.start_ms) // self.bucket_ms)
        self.edges = [from_ms, *(self.start_ms + index * self.bucket_ms for index in range(1, self.size)), to_ms]
        self.counts, self.busy_ms = [0] * self.size, [0] * self.size

    def add_all(self, timed: Sequence[FiringTimes]) -> None:
        grids: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (every, laps before the first) -> offsets, durations
        lines: dict[tuple[CompiledCron, int], list[int]] = {}  # (line, first) -> durations
        for times in timed:
            duration_ms = times.job.memory.duration_ms
            for at_ms, _ in times.heads:
                self._add(at_ms, 1, duration_ms)
            first_ms = first_of_tail(times, self.from_ms)
            if first_ms is None or first_ms >= self.to_ms:
                continue
            if times.cron is not None:
                lines.setdefault((times.cron, first_ms), []).append(duration_ms)
            else:
                laps, place_ms = divmod(first_ms - self.from_ms, times.every_ms)
                grids.setdefault((times.every_ms, laps), []).append((place_ms, duration_ms))
        for (every_ms, laps), members in grids.items():
            self._add_grid(every_ms, laps, members)
        for (cron, first_ms), durations in lines.items():
            self._add_line(cron, first_ms, len(durations), sum(durations))

    def _add(self, at_ms: int, count: int, busy_ms: int) -> None:
        if self.from_ms <= at_ms < self.to_ms:
            index = (at_ms - self.start_ms) // self.bucket_ms
            self.counts[index] += count
            self.busy_ms[index] += busy_ms

    def _add_grid(self, every_ms: int, laps: int, members: list[tuple[int, int]]) -> None:
        rounds = (self.to_ms - self.from_ms) // every_ms + 1 - laps
        if rounds * len(members) <= self.size:  # few: listing them is cheaper than a bisection for each bucket
            for place_ms, duration_ms in members:
                for at_ms in range(self.from_ms + laps * every_ms + place_ms, self.to_ms, every_ms):
                    self._add(at_ms, 1, duration_ms)
            return
        members.sort()
        places = [place_ms for place_ms, _ in members]
        durations = [0, *accumulate(duration_ms for _, duration_ms in members)]
        fired_before = busy_before = 0
        for index, edge_ms in enumerate(self.edges[1:]):
            full, rest_ms = divmod(edge_ms - self.from_ms, every_ms)
            if full < laps:
                continue
            come = bisect_left(places, rest_ms)
            fired = (full - laps) * len(places) + come
            busy = (full - laps) * durations[-1] + durations[come]
            self.counts[index] += fired - fired_before
            self.busy_ms[index] += busy - busy_before
            fired_before, busy_before = fired, busy

    def _add_line(self, cron: CompiledCron, first_ms: int, jobs: int, busy_ms: int) -> None:
        if cron.count_between(first_ms - 1, self.to_ms - 1) <= self.size:
            while first_ms < self.to_ms:
                self._add(first_ms, jobs, busy_ms)
                first_ms = cron.next_after(first_ms)
            return
        for index, edge_ms in enumerate(self.edges[1:]):
            fired = cron.count_between(max(self.edges[index], first_ms) - 1, edge_ms - 1) if edge_ms > first_ms else 0
            self.counts[index] += fired * jobs
            self.busy_ms[index] += fired * busy_ms


def _first(times: FiringTimes, from_ms: int) -> int | None:
    """The first firing at or after `from_ms`."""
    head_ms = next((at_ms for at_ms, _ in times.heads if at_ms >= from_ms), None)
    return first_of_tail(times, from_ms) if head_ms is None else head_ms


def _first_rows(
    firsts: Sequence[tuple[int, FiringTimes]], from_ms: int, to_ms: int, rows_max: int
) -> tuple[ComingFiring, ...]:
    """The first firings over all jobs, merged from the jobs that fire first."""
    soon = nsmallest(rows_max, firsts, key=lambda entry: (entry[0], entry[1].job.id))
    rows: list[ComingFiring] = []
    heap: list[tuple[int, str, int, int]] = []
    walks = [moments(times, from_ms) for _, times in soon]

    def go_on(index: int) -> None:
        found = next(walks[index], None)
        if found is not None and found[0] < to_ms:
            heappush(heap, (found[0], soon[index][1].job.id, found[1], index))

    for index in range(len(soon)):
        go_on(index)
    while heap and len(rows) < rows_max:
        at_ms, job_id, due_ms, index = heappop(heap)
        rows.append(ComingFiring(at_ms, due_ms, job_id, describe_schedule(soon[index][1].job.schedule)))
        go_on(index)
    return tuple(rows)


def _quiet(silent: Sequence[NeverFires]) -> tuple[SilentJobs, ...]:
    kinds: dict[str, list[NeverFires]] = {}
    for each in silent:
        kinds.setdefault(each.kind, []).append(each)
    return tuple(SilentJobs(kind, len(found), tuple(found[:SILENT_MAX])) for kind, found in kinds.items())


def _changes(zones: Iterable[str], from_ms: int, to_ms: int) -> list[ZoneChange]:
    """Every offset change of these zones in the window."""
    found = []
    for tz in zones:
        segment = segment_at(tz, from_ms // SECOND_MS)
        while segment.end_s * SECOND_MS < to_ms:
            following = segment_at(tz, segment.end_s)
            if following.offset_s != segment.offset_s:
                by_ms = (following.offset_s - segment.offset_s) * SECOND_MS
                found.append(ZoneChange(following.start_s * SECOND_MS, tz, by_ms))
            segment = following
    return found
