"""Where is each metric read?  Small functions, from one look to the samples of a family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from pollux.lines import safe
from pollux.model import ALL_VERSIONS
from pollux.observe.snapshot import Calls, Deployment, Ends, Histogram, JobSeen, LoopSeen, NodeSeen, Snapshot, Tally

PRIORITIES = {1: "high", 2: "normal", 3: "low"}
HELD = {
    "stop": "paused",
    "previous": "previous_run",
    "declared": "undeclared",
    "handler": "handler",
    "unreadable": "unreadable_job",
    "gate": "gate",
    "later": "retry",
}
KINDS_MAX = 200  # of what runs now
KIND_CHARS_MAX = 200

Sample = tuple[tuple[str, ...], "float | Histogram"]


class Readings(Struct, frozen=True, kw_only=True):
    """All that the metrics are made of."""

    prefix: str
    version: str
    python: str
    scheduler_version: int
    snapshot: Snapshot
    age_ms: float  # of what was read from the store
    calls: dict[str, Calls]  # by verb
    tally: Tally | None
    spans: Mapping[str, int] = {}  # of traces, by what became of them; empty: there are none
    spans_waiting: int | None = None
    refused: Mapping[int, int] = {}  # requests, by status


Read = Callable[[Readings], Iterable[Sample]]


def one(value: Callable[[Readings], float | None]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        found = value(readings)
        if found is not None:
            yield (), found

    return read


def of_node(value: Callable[[NodeSeen], float | None]) -> Read:
    return one(lambda readings: None if readings.snapshot.node is None else value(readings.snapshot.node))


def of_store(value: Callable[[Deployment], float | None]) -> Read:
    def read(readings: Readings) -> float | None:
        seen = readings.snapshot.deployment
        return None if seen is None else value(seen)

    return one(read)


def tallied(value: Callable[[Tally], float]) -> Read:
    return one(lambda readings: None if readings.tally is None else value(readings.tally))


def histogram(value: Callable[[Tally], Histogram]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        if readings.tally is not None:
            yield (), value(readings.tally)

    return read


def each(rows: Callable[[Tally], Iterable[Sample]]) -> Read:
    return lambda readings: () if readings.tally is None else rows(readings.tally)


def by_loop(value: Callable[[LoopSeen], float | None]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        node = readings.snapshot.node
        for loop in () if node is None else node.loops:
            found = value(loop)
            if found is not None:
                yield (loop.name,), found

    return read


def by_verb(value: Callable[[Calls], float]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        for verb, calls in readings.calls.items():
            if calls.calls:
                yield (verb,), value(calls)

    return read


def by_job(value: Callable[[JobSeen, int], float | None]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        seen, now_ms = readings.snapshot.deployment, readings.snapshot.now_ms
        for job in () if seen is None else seen.jobs:
            found = value(job, now_ms)
            if found is not None:
                yield (safe(job.kind, KIND_CHARS_MAX), job.id), found

    return read


def priorities(counts: Callable[[Tally], Iterable[int]]) -> Read:
    def rows(tally: Tally) -> Iterator[Sample]:
        for priority, count in enumerate(counts(tally)):
            if priority in PRIORITIES:
                yield (PRIORITIES[priority],), count

    return each(rows)


def lines(value: Callable[[int, int | None, int], float]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        seen, now_ms = readings.snapshot.deployment, readings.snapshot.now_ms
        for number, line in enumerate(() if seen is None else seen.lines, 1):
            yield (PRIORITIES[number],), value(line.ready, line.first_ms, now_ms)

    return read


def scheduled(tally: Tally) -> Iterator[Sample]:
    for (kind, priority), count in list(tally.scheduled.items()):
        yield (kind, PRIORITIES.get(priority, str(priority))), count


def executed(tally: Tally) -> Iterator[Sample]:
    for ends in tally.by_source:
        for status, count in list(ends.by_status.items()):
            yield (status, ends.name), count


def ended(status: str) -> Callable[[Tally], float]:
    return lambda tally: sum(ends.by_status.get(status, 0) for ends in tally.by_source)


def durations(rows: Callable[[Tally], Iterable[Ends]], *, typed: bool) -> Callable[[Tally], Iterator[Sample]]:
    def read(tally: Tally) -> Iterator[Sample]:
        for ends in rows(tally):
            labels = (ends.kind, ends.name) if typed else (ends.name,)
            yield labels, Histogram(tally.bounds_ms, tuple(ends.buckets), ends.sum_ms)

    return read


def polls(tally: Tally) -> Iterator[Sample]:
    for ends in tally.by_job:
        yield (ends.kind, ends.name, "success"), ends.ok
        yield (ends.kind, ends.name, "error"), ends.failed


def errors(tally: Tally) -> Iterator[Sample]:
    for ends in tally.by_job:
        for kind, count in list(ends.by_error.items()):
            yield (ends.kind, ends.name, kind), count


def in_flight(readings: Readings) -> Iterator[Sample]:
    """A kind of which none is at work is told, too, once it was: a gauge that is not there is not 0."""
    node, tally = readings.snapshot.node, readings.tally
    kinds = {} if tally is None else dict.fromkeys((ends.kind for ends in tally.by_job), 0)
    for sitting in () if node is None else node.sitting:
        kind = safe(sitting.kind, KIND_CHARS_MAX)
        kind = kind if kind in kinds or len(kinds) < KINDS_MAX else "other"
        kinds[kind] = kinds.get(kind, 0) + 1
    for kind, count in kinds.items():
        yield (kind,), count


def runs(readings: Readings) -> Iterator[Sample]:
    seen = readings.snapshot.deployment
    if seen is not None:
        yield ("held",), seen.counts.held
        yield ("ready",), seen.counts.ready
        yield ("leased",), seen.counts.leased


def held(readings: Readings) -> Iterator[Sample]:
    node = readings.snapshot.node
    if node is not None and node.held is not None:
        for key, reason in HELD.items():
            yield (reason,), node.held.get(key, 0)


def build(readings: Readings) -> Iterator[Sample]:
    served = "all" if readings.scheduler_version == ALL_VERSIONS else str(readings.scheduler_version)
    yield (readings.version, readings.python, readings.snapshot.store, served), 1


def refused(readings: Readings) -> Iterator[Sample]:
    for status, count in readings.refused.items():
        yield (str(status),), count


def spans(readings: Readings) -> Iterator[Sample]:
    for result, count in readings.spans.items():
        yield (result,), count


def staleness(job: JobSeen, now_ms: int) -> float | None:
    if not job.is_watched:
        return None
    return -1 if job.last_success_ms is None else max(0, now_ms - job.last_success_ms) / 1_000


def waited(_: int, first_ms: int | None, now_ms: int) -> float:
    return 0 if first_ms is None else max(0, now_ms - first_ms) / 1_000


def overdue(readings: Readings) -> float | None:
    seen = readings.snapshot.deployment
    if seen is None:
        return None
    return 0 if seen.overdue_ms is None else max(0, readings.snapshot.now_ms - seen.overdue_ms) / 1_000


def seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1_000
