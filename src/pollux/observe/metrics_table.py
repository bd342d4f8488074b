"""Table of the metrics, and the functions that read their samples from one snapshot.

A row has the name after the prefix, the kind, the scope, and the function that reads it.  Scopes:

* `node`: this process has counted it since it started.  Of several nodes, add them up.
* `leader`: only the node that leads has it; elsewhere the metric has no samples.  Of several nodes, take the largest.
* `store`: all nodes read the same number from the store.  Of several nodes, take the largest, never the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from pollux.log_format import safe
from pollux.observe.snapshot import (
    Counters,
    Deployment,
    Histogram,
    JobSnapshot,
    LoopSnapshot,
    NodeSnapshot,
    Snapshot,
    VerbCalls,
)

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
    """Everything that the metrics are computed from."""

    prefix: str
    version: str
    python: str
    scheduler_version: int
    snapshot: Snapshot
    age_ms: float  # of what was read from the store
    calls: dict[str, VerbCalls]  # by verb
    counters: Counters | None
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


def each(rows: Callable[[Counters], Iterable[Sample]]) -> Read:
    return lambda readings: () if readings.counters is None else rows(readings.counters)


def priorities(counts: Callable[[Counters], Iterable[int]]) -> Callable[[Counters], Iterator[Sample]]:
    return lambda totals: (
        ((PRIORITIES[priority],), count) for priority, count in enumerate(counts(totals)) if priority in PRIORITIES
    )


def lines(value: Callable[[int, int | None, int], float]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        seen, now_ms = readings.snapshot.deployment, readings.snapshot.now_ms
        for number, line in enumerate(() if seen is None else seen.lines, 1):
            yield (PRIORITIES[number],), value(line.ready, line.first_ms, now_ms)

    return read


def scheduled(totals: Counters) -> Iterator[Sample]:
    for (kind, priority), count in list(totals.scheduled.items()):
        yield (kind, PRIORITIES.get(priority, str(priority))), count


def executed(totals: Counters) -> Iterator[Sample]:
    for ends in totals.by_source:
        for status, count in list(ends.by_status.items()):
            yield (status, ends.name), count


def ended(status: str) -> Callable[[Counters], float]:
    return lambda totals: sum(ends.by_status.get(status, 0) for ends in totals.by_source)


def job_durations(totals: Counters) -> Iterator[Sample]:
    for ends in totals.by_job:
        yield (ends.kind, ends.name), Histogram(totals.bounds_ms, tuple(ends.buckets), ends.sum_ms)


def source_durations(totals: Counters) -> Iterator[Sample]:
    for ends in totals.by_source:
        yield (ends.name,), Histogram(totals.bounds_ms, tuple(ends.buckets), ends.sum_ms)


def polls(totals: Counters) -> Iterator[Sample]:
    for ends in totals.by_job:
        yield (ends.kind, ends.name, "success"), ends.ok
        yield (ends.kind, ends.name, "error"), ends.failed


def errors(totals: Counters) -> Iterator[Sample]:
    for ends in totals.by_job:
        for kind, count in list(ends.by_error.items()):
            yield (ends.kind, ends.name, kind), count


def in_flight(readings: Readings) -> Iterator[Sample]:
    """Yield kinds with no handler at work, too, once there was one: a missing gauge is not 0."""
    node, totals = readings.snapshot.node, readings.counters
    kinds = {} if totals is None else dict.fromkeys((ends.kind for ends in totals.by_job), 0)
    for seat in () if node is None else node.busy_seats:
        kind = safe(seat.kind, KIND_CHARS_MAX)
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
    served = readings.scheduler_version
    yield (readings.version, readings.python, readings.snapshot.store, str(served)), 1


def refused(readings: Readings) -> Iterator[Sample]:
    for status, count in readings.refused.items():
        yield (str(status),), count


def spans(readings: Readings) -> Iterator[Sample]:
    for result, count in readings.spans.items():
        yield (result,), count


def staleness(job: JobSnapshot, now_ms: int) -> float | None:
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


NODE, LEADER, STORE = "node", "leader", "store"
COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"


class Family(NamedTuple):
    name: str  # after the prefix
    kind: str
    scope: str
    help: str
    labels: tuple[str, ...]
    read: Read

    def full_name(self, prefix: str) -> str:
        return f"{prefix}_{self.name}"


def node_gauge(name: str, text: str, value: Callable[[NodeSnapshot], float | None], scope: str = NODE) -> Family:
    def read(readings: Readings) -> float | None:
        node = readings.snapshot.node
        return None if node is None else value(node)

    return Family(name, GAUGE, scope, text, (), one(read))


def leader_gauge(name: str, text: str, value: Callable[[NodeSnapshot], float | None]) -> Family:
    return node_gauge(name, text, value, LEADER)


def store_gauge(name: str, text: str, value: Callable[[Deployment], float | None]) -> Family:
    def read(readings: Readings) -> float | None:
        seen = readings.snapshot.deployment
        return None if seen is None else value(seen)

    return Family(name, GAUGE, STORE, text, (), one(read))


def counters(name: str, text: str, labels: tuple[str, ...], rows: Callable[[Counters], Iterable[Sample]]) -> Family:
    return Family(name, COUNTER, NODE, text, labels, each(rows))


def counter(name: str, text: str, value: Callable[[Counters], float]) -> Family:
    return counters(name, text, (), lambda totals: [((), value(totals))])


def histograms(name: str, text: str, labels: tuple[str, ...], rows: Callable[[Counters], Iterable[Sample]]) -> Family:
    return Family(name, HISTOGRAM, NODE, text, labels, each(rows))


def histogram(name: str, text: str, value: Callable[[Counters], Histogram]) -> Family:
    return histograms(name, text, (), lambda totals: [((), value(totals))])


def of_loops(kind: str, name: str, text: str, value: Callable[[LoopSnapshot], float | None]) -> Family:
    def read(readings: Readings) -> Iterator[Sample]:
        node = readings.snapshot.node
        for loop in () if node is None else node.loops:
            found = value(loop)
            if found is not None:
                yield (loop.name,), found

    return Family(name, kind, NODE, text, ("loop",), read)


def of_verbs(kind: str, name: str, text: str, value: Callable[[VerbCalls], float]) -> Family:
    def read(readings: Readings) -> Iterator[Sample]:
        return (((verb,), value(calls)) for verb, calls in readings.calls.items() if calls.calls)

    return Family(name, kind, NODE, text, ("verb",), read)


_PAGE = ("instance_type", "instance")


def of_jobs(name: str, text: str, value: Callable[[JobSnapshot, int], float | None]) -> Family:
    def read(readings: Readings) -> Iterator[Sample]:
        seen, now_ms = readings.snapshot.deployment, readings.snapshot.now_ms
        for job in () if seen is None else seen.jobs:
            found = value(job, now_ms)
            if found is not None:
                yield (safe(job.kind, KIND_CHARS_MAX), job.id), found

    return Family(name, GAUGE, STORE, text, _PAGE, read)


FAMILIES: tuple[Family, ...] = (
    # jobs
    store_gauge("scheduler_jobs", "stored jobs", lambda s: s.counts.jobs),
    leader_gauge("scheduler_timers", "due times in memory, of the next minute", lambda n: n.timers),
    counters(
        "scheduler_jobs_scheduled_total", "firings written by this node", ("schedule_type", "priority"), scheduled
    ),
    counters(
        "scheduler_jobs_executed_total",
        "attempts that ended here: done, failed (the next firing is the retry), retried, dead or cancelled",
        ("status", "source_id"),
        executed,
    ),
    histograms("scheduler_job_duration_seconds", "how long attempts took", ("source_id",), source_durations),
    node_gauge("scheduler_jobs_currently_running", "handlers at work in this process", lambda n: len(n.busy_seats)),
    counter("scheduler_retries_total", "attempts to be tried again", ended("retried")),
    counter("scheduler_runs_dead_total", "runs that became dead letters", ended("dead")),
    store_gauge("scheduler_dead_letter_depth", "dead letters", lambda s: s.counts.dead),
    # due times
    histogram("scheduler_fire_lateness_seconds", "from when a run was due until it was written", lambda t: t.fire_late),
    histogram(
        "scheduler_start_lateness_seconds",
        "from when a run was due, or visible again, until its handler started",
        lambda t: t.start_late,
    ),
    counters(
        "scheduler_firings_skipped_total",
        "due times that were not fired: overlap, paused, late, full, undeclared or broken",
        ("reason",),
        lambda t: [((reason,), count) for reason, count in list(t.skipped.items())],
    ),
    leader_gauge("scheduler_queue_due_soon", "jobs due within 12 s, up to 1,000", lambda n: n.due_soon),
    leader_gauge("scheduler_jobs_late", "jobs whose missed due time waits for its turn", lambda n: n.late),
    Family(
        "scheduler_overdue_seconds",
        GAUGE,
        STORE,
        "for how long the job that is due for the longest time has not been fired; 0: none is",
        (),
        one(overdue),
    ),
    # the queue
    Family(
        "scheduler_queue_depth",
        GAUGE,
        STORE,
        "runs that could be claimed now, counted to 10,000",
        ("priority",),
        lines(lambda ready, _, __: ready),
    ),
    Family(
        "scheduler_queue_process_lag_seconds",
        GAUGE,
        STORE,
        "for how long the first ready run has waited for a seat",
        ("priority",),
        lines(waited),
    ),
    counters(
        "scheduler_queue_enqueued_total",
        "runs that this node made ready: fired, released by the gate, or enqueued by its API",
        ("priority",),
        priorities(lambda t: t.enqueued),
    ),
    counters(
        "scheduler_queue_dequeued_total", "runs that this node claimed", ("priority",), priorities(lambda t: t.dequeued)
    ),
    histogram(
        "scheduler_queue_wait_seconds",
        "the same as scheduler_start_lateness_seconds, under an older name",
        lambda t: t.start_late,
    ),
    Family(
        "scheduler_runs",
        GAUGE,
        STORE,
        "live runs: held, ready (those that wait for a retry or a later time, too) or leased",
        ("state",),
        runs,
    ),
    Family(
        "scheduler_runs_held",
        GAUGE,
        LEADER,
        "runs at the gate by what they wait for: paused, previous_run, undeclared, handler (no node has it), "
        "unreadable_job (the leader cannot read it), retry (their time), gate (about to be looked at)",
        ("reason",),
        held,
    ),
    counter("scheduler_runs_released_total", "runs released by the gate", lambda t: t.released),
    # workers
    node_gauge("scheduler_worker_pool_size", "seats of this node", lambda n: n.seats),
    node_gauge("scheduler_workers_busy", "seats that are taken", lambda n: n.busy),
    node_gauge("scheduler_workers_idle", "seats that are free", lambda n: max(0, n.seats - n.busy)),
    node_gauge(
        "scheduler_workers_stuck", "seats of handlers that did not stop when they were asked to", lambda n: n.stuck
    ),
    histogram(
        "scheduler_worker_tasks_wait_seconds",
        "the same as scheduler_start_lateness_seconds, under an older name",
        lambda t: t.start_late,
    ),
    node_gauge("scheduler_leases", "leases that this node keeps", lambda n: n.leases),
    counter("scheduler_leases_lost_total", "leases lost while their run was under way", lambda t: t.leases_lost),
    node_gauge("scheduler_settle_backlog", "ends that are not recorded yet", lambda n: n.backlog),
    counter("scheduler_settled_total", "ends recorded", lambda t: t.settled),
    counter(
        "scheduler_outcomes_discarded_total", "outcomes that came after their lease had ended", lambda t: t.discarded
    ),
    counters(
        "scheduler_runs_handed_back_total",
        "runs handed back without an attempt: to the queue (a drain), or to the gate (paused, unknown handler)",
        ("to",),
        lambda t: [(("queue",), t.backs), (("gate",), t.holds)],
    ),
    node_gauge("scheduler_is_draining", "1 while this node is about to end", lambda n: n.is_draining),
    node_gauge("scheduler_is_paused", "1 while this node is asked to claim nothing", lambda n: n.is_paused),
    # leading
    node_gauge("scheduler_is_leader", "1 on the node that leads", lambda n: n.term is not None),
    leader_gauge("scheduler_leader_term", "the number of its term", lambda n: n.term),
    counter(
        "scheduler_leader_election_attempts_total",
        "times that the term was asked for, or renewed",
        lambda t: t.attempts,
    ),
    counter("scheduler_leader_election_wins_total", "terms won", lambda t: t.wins),
    counter("scheduler_leader_election_losses_total", "terms lost, not resigned", lambda t: t.losses),
    store_gauge("scheduler_nodes", "nodes that live", lambda s: len(s.nodes)),
    store_gauge("scheduler_leaders", "1 if a living node leads, else 0", lambda s: any(node.leads for node in s.nodes)),
    counter("scheduler_plans_total", "plans written", lambda t: t.plans),
    counter("scheduler_plans_fenced_total", "plans refused, because they came after their term", lambda t: t.fenced),
    counter("scheduler_plan_rebuilds_total", "times that the plan was read anew from the store", lambda t: t.rebuilds),
    store_gauge("scheduler_feed_depth", "entries that the leader has not read", lambda s: s.counts.feed),
    store_gauge("scheduler_feed_ends_depth", "ends of runs inside them", lambda s: s.counts.ends),
    counter("scheduler_history_pruned_total", "finished runs deleted from the history", lambda t: t.pruned),
    # polls
    counters("monitor_poll_total", "attempts that ended here, by job", (*_PAGE, "result"), polls),
    histograms("monitor_poll_duration_seconds", "how long they took", _PAGE, job_durations),
    counters(
        "monitor_poll_errors_total",
        "those that failed: transient, permanent, timeout or crash",
        (*_PAGE, "error_type"),
        errors,
    ),
    of_jobs(
        "monitor_poll_staleness_seconds",
        "age of the last success of a job that recurs; -1: it never had one",
        staleness,
    ),
    of_jobs(
        "monitor_poll_planned_seconds",
        "what is planned between two successes of it",
        lambda job, _: seconds(job.planned_ms) if job.is_watched else None,
    ),
    of_jobs(
        "monitor_poll_last_success_timestamp",
        "when a job last succeeded, as a Unix time",
        lambda job, _: seconds(job.last_success_ms),
    ),
    store_gauge("monitor_poll_queue_depth", "the same of all priorities together", lambda s: s.waiting),
    Family("monitor_poll_inflight", GAUGE, NODE, "handlers at work, by kind", ("instance_type",), in_flight),
    # the store
    of_verbs(COUNTER, "store_calls_total", "calls to the store", lambda c: c.calls),
    of_verbs(COUNTER, "store_errors_total", "those that failed or were not answered in time", lambda c: c.errors),
    of_verbs(
        COUNTER,
        "store_call_seconds_total",
        "the time they took; claim and feed wait in there",
        lambda c: c.total_us / 1e6,
    ),
    of_verbs(GAUGE, "store_call_seconds_max", "the longest of them", lambda c: c.max_us / 1e6),
    Family(
        "store_reachable",
        GAUGE,
        NODE,
        "1 if the store answered for this scrape",
        (),
        one(lambda r: r.snapshot.deployment is not None),
    ),
    Family(
        "store_reading_age_seconds",
        GAUGE,
        NODE,
        "how old the numbers of the store are",
        (),
        one(lambda r: r.age_ms / 1_000),
    ),
    # loops
    of_loops(COUNTER, "loop_turns_total", "turns of each loop", lambda loop: loop.turns),
    of_loops(COUNTER, "loop_errors_total", "turns that failed", lambda loop: loop.errors),
    of_loops(GAUGE, "loop_failing", "failures in a row; 0: its last turn went well", lambda loop: loop.errors_in_a_row),
    of_loops(GAUGE, "loop_silent_seconds", "since its last turn ended", lambda loop: seconds(loop.silent_ms)),
    histogram("event_loop_lag_seconds", "how late a timer fires, measured twice a second", lambda t: t.loop_lag),
    node_gauge("event_loop_lag_worst_seconds", "the worst of the last minute", lambda n: n.lag_ms / 1_000),
    # the API
    Family(
        "api_requests_refused_total",
        COUNTER,
        NODE,
        "requests that were refused: 401 no valid token, 403 not for that role, 421 another host, 429 too many",
        ("status",),
        refused,
    ),
    # traces
    Family(
        "traces_spans_total",
        COUNTER,
        NODE,
        "spans of traces, where these are on: exported, dropped (there was no room for them) or failed (the collector "
        "did not take them)",
        ("result",),
        spans,
    ),
    Family("traces_spans_waiting", GAUGE, NODE, "spans that wait to be sent", (), one(lambda r: r.spans_waiting)),
    # the metrics themselves
    counters(
        "metrics_series_dropped_total",
        "times that something was counted under `other`, because 200 others came first",
        ("label",),
        lambda t: [((label,), count) for label, count in t.dropped.items()],
    ),
    counter("event_listener_errors_total", "listeners of events that raised", lambda t: t.listener_errors),
    Family(
        "build",
        INFO,
        NODE,
        "what runs here, and which version of the deployment it serves",
        ("version", "python", "store", "scheduler_version"),
        build,
    ),
)
