"""Table of the metrics, and the functions that read their samples from one snapshot.

A row has the name after the prefix, the kind, whose number it is, and the function that reads it.  Whose number:

* `node`: this process has counted it since it started.  Of several nodes, add them up.
* `leader`: only the node that leads has it; elsewhere the metric has no samples.  Of several nodes, take the largest.
* `store`: all nodes read the same from the store.  Of several nodes, take the largest, never the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from pollux.log_format import safe
from pollux.observe.snapshot import (
    Counters,
    Deployment,
    EndCounts,
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
    """All that the metrics are made of."""

    prefix: str
    version: str
    python: str
    scheduler_version: int
    snapshot: Snapshot
    age_ms: float  # of what was read from the store
    calls: dict[str, VerbCalls]  # by verb
    tally: Counters | None
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


def of_node(value: Callable[[NodeSnapshot], float | None]) -> Read:
    return one(lambda readings: None if readings.snapshot.node is None else value(readings.snapshot.node))


def of_store(value: Callable[[Deployment], float | None]) -> Read:
    def read(readings: Readings) -> float | None:
        seen = readings.snapshot.deployment
        return None if seen is None else value(seen)

    return one(read)


def tallied(value: Callable[[Counters], float]) -> Read:
    return one(lambda readings: None if readings.tally is None else value(readings.tally))


def histogram(value: Callable[[Counters], Histogram]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        if readings.tally is not None:
            yield (), value(readings.tally)

    return read


def each(rows: Callable[[Counters], Iterable[Sample]]) -> Read:
    return lambda readings: () if readings.tally is None else rows(readings.tally)


def by_loop(value: Callable[[LoopSnapshot], float | None]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        node = readings.snapshot.node
        for loop in () if node is None else node.loops:
            found = value(loop)
            if found is not None:
                yield (loop.name,), found

    return read


def by_verb(value: Callable[[VerbCalls], float]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        for verb, calls in readings.calls.items():
            if calls.calls:
                yield (verb,), value(calls)

    return read


def by_job(value: Callable[[JobSnapshot, int], float | None]) -> Read:
    def read(readings: Readings) -> Iterator[Sample]:
        seen, now_ms = readings.snapshot.deployment, readings.snapshot.now_ms
        for job in () if seen is None else seen.jobs:
            found = value(job, now_ms)
            if found is not None:
                yield (safe(job.kind, KIND_CHARS_MAX), job.id), found

    return read


def priorities(counts: Callable[[Counters], Iterable[int]]) -> Read:
    def rows(tally: Counters) -> Iterator[Sample]:
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


def scheduled(tally: Counters) -> Iterator[Sample]:
    for (kind, priority), count in list(tally.scheduled.items()):
        yield (kind, PRIORITIES.get(priority, str(priority))), count


def executed(tally: Counters) -> Iterator[Sample]:
    for ends in tally.by_source:
        for status, count in list(ends.by_status.items()):
            yield (status, ends.name), count


def ended(status: str) -> Callable[[Counters], float]:
    return lambda tally: sum(ends.by_status.get(status, 0) for ends in tally.by_source)


def durations(
    rows: Callable[[Counters], Iterable[EndCounts]], *, typed: bool
) -> Callable[[Counters], Iterator[Sample]]:
    def read(tally: Counters) -> Iterator[Sample]:
        for ends in rows(tally):
            labels = (ends.kind, ends.name) if typed else (ends.name,)
            yield labels, Histogram(tally.bounds_ms, tuple(ends.buckets), ends.sum_ms)

    return read


def polls(tally: Counters) -> Iterator[Sample]:
    for ends in tally.by_job:
        yield (ends.kind, ends.name, "success"), ends.ok
        yield (ends.kind, ends.name, "error"), ends.failed


def errors(tally: Counters) -> Iterator[Sample]:
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


_PAGE = ("instance_type", "instance")

FAMILIES: tuple[Family, ...] = (
    # jobs
    Family("scheduler_jobs", GAUGE, STORE, "jobs that there are", (), of_store(lambda s: s.counts.jobs)),
    Family(
        "scheduler_timers", GAUGE, LEADER, "due times in memory, of the next minute", (), of_node(lambda n: n.timers)
    ),
    Family(
        "scheduler_jobs_scheduled_total",
        COUNTER,
        NODE,
        "firings written by this node",
        ("schedule_type", "priority"),
        each(scheduled),
    ),
    Family(
        "scheduler_jobs_executed_total",
        COUNTER,
        NODE,
        "attempts that ended here: done, failed (the next firing is the retry), retried, dead or cancelled",
        ("status", "source_id"),
        each(executed),
    ),
    Family(
        "scheduler_job_duration_seconds",
        HISTOGRAM,
        NODE,
        "how long attempts took",
        ("source_id",),
        each(durations(lambda t: t.by_source, typed=False)),
    ),
    Family(
        "scheduler_jobs_currently_running",
        GAUGE,
        NODE,
        "handlers at work in this process",
        (),
        of_node(lambda n: len(n.sitting)),
    ),
    Family("scheduler_retries_total", COUNTER, NODE, "attempts to be tried again", (), tallied(ended("retried"))),
    Family("scheduler_runs_dead_total", COUNTER, NODE, "runs that became dead letters", (), tallied(ended("dead"))),
    Family("scheduler_dead_letter_depth", GAUGE, STORE, "dead letters", (), of_store(lambda s: s.counts.dead)),
    # due times
    Family(
        "scheduler_fire_lateness_seconds",
        HISTOGRAM,
        NODE,
        "from when a run was due until it was written",
        (),
        histogram(lambda t: t.fire_late),
    ),
    Family(
        "scheduler_start_lateness_seconds",
        HISTOGRAM,
        NODE,
        "from when a run was due, or visible again, until its handler started",
        (),
        histogram(lambda t: t.start_late),
    ),
    Family(
        "scheduler_firings_skipped_total",
        COUNTER,
        NODE,
        "due times that were not fired: overlap, paused, late, full, undeclared or broken",
        ("reason",),
        each(lambda t: [((reason,), count) for reason, count in list(t.skipped.items())]),
    ),
    Family(
        "scheduler_queue_due_soon",
        GAUGE,
        LEADER,
        "jobs due within 12 s, up to 1,000",
        (),
        of_node(lambda n: n.due_soon),
    ),
    Family(
        "scheduler_jobs_late",
        GAUGE,
        LEADER,
        "jobs whose missed due time waits for its turn",
        (),
        of_node(lambda n: n.late),
    ),
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
    Family(
        "scheduler_queue_enqueued_total",
        COUNTER,
        NODE,
        "runs that this node made ready: fired, let through by the gate, or enqueued by its API",
        ("priority",),
        priorities(lambda t: t.enqueued),
    ),
    Family(
        "scheduler_queue_dequeued_total",
        COUNTER,
        NODE,
        "runs that this node claimed",
        ("priority",),
        priorities(lambda t: t.dequeued),
    ),
    Family(
        "scheduler_queue_wait_seconds",
        HISTOGRAM,
        NODE,
        "the same as scheduler_start_lateness_seconds, under an older name",
        (),
        histogram(lambda t: t.start_late),
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
        "runs at the gate by what they wait for: paused, previous_run, undeclared, handler (no node knows it), "
        "unreadable_job (the leader cannot read it), retry (their time), gate (about to be looked at)",
        ("reason",),
        held,
    ),
    Family(
        "scheduler_runs_released_total",
        COUNTER,
        NODE,
        "runs let through by the gate",
        (),
        tallied(lambda t: t.released),
    ),
    # workers
    Family("scheduler_worker_pool_size", GAUGE, NODE, "seats of this node", (), of_node(lambda n: n.seats)),
    Family("scheduler_workers_busy", GAUGE, NODE, "seats that are taken", (), of_node(lambda n: n.busy)),
    Family(
        "scheduler_workers_idle", GAUGE, NODE, "seats that are free", (), of_node(lambda n: max(0, n.seats - n.busy))
    ),
    Family(
        "scheduler_workers_stuck",
        GAUGE,
        NODE,
        "seats of handlers that did not stop when they were asked to",
        (),
        of_node(lambda n: n.stuck),
    ),
    Family(
        "scheduler_worker_tasks_wait_seconds",
        HISTOGRAM,
        NODE,
        "the same as scheduler_start_lateness_seconds, under an older name",
        (),
        histogram(lambda t: t.start_late),
    ),
    Family("scheduler_leases", GAUGE, NODE, "leases that this node keeps", (), of_node(lambda n: n.leases)),
    Family(
        "scheduler_leases_lost_total",
        COUNTER,
        NODE,
        "leases lost while their run was under way",
        (),
        tallied(lambda t: t.leases_lost),
    ),
    Family("scheduler_settle_backlog", GAUGE, NODE, "ends that are not recorded yet", (), of_node(lambda n: n.backlog)),
    Family("scheduler_settled_total", COUNTER, NODE, "ends recorded", (), tallied(lambda t: t.settled)),
    Family(
        "scheduler_outcomes_discarded_total",
        COUNTER,
        NODE,
        "outcomes that came after their lease had ended",
        (),
        tallied(lambda t: t.discarded),
    ),
    Family(
        "scheduler_runs_handed_back_total",
        COUNTER,
        NODE,
        "runs given back uncharged: to the line (a drain), or to the gate (paused, unknown handler)",
        ("to",),
        each(lambda t: [(("line",), t.backs), (("gate",), t.holds)]),
    ),
    Family(
        "scheduler_is_draining", GAUGE, NODE, "1 while this node is about to end", (), of_node(lambda n: n.is_draining)
    ),
    Family(
        "scheduler_is_paused",
        GAUGE,
        NODE,
        "1 while this node is asked to claim nothing",
        (),
        of_node(lambda n: n.is_paused),
    ),
    # leading
    Family("scheduler_is_leader", GAUGE, NODE, "1 on the node that leads", (), of_node(lambda n: n.term is not None)),
    Family("scheduler_leader_term", GAUGE, LEADER, "the number of its term", (), of_node(lambda n: n.term)),
    Family(
        "scheduler_leader_election_attempts_total",
        COUNTER,
        NODE,
        "times that the term was asked for, or renewed",
        (),
        tallied(lambda t: t.attempts),
    ),
    Family("scheduler_leader_election_wins_total", COUNTER, NODE, "terms won", (), tallied(lambda t: t.wins)),
    Family(
        "scheduler_leader_election_losses_total",
        COUNTER,
        NODE,
        "terms lost, not resigned",
        (),
        tallied(lambda t: t.losses),
    ),
    Family("scheduler_nodes", GAUGE, STORE, "nodes that live", (), of_store(lambda s: len(s.nodes))),
    Family(
        "scheduler_leaders",
        GAUGE,
        STORE,
        "1 if a living node leads, else 0",
        (),
        of_store(lambda s: any(node.leads for node in s.nodes)),
    ),
    Family("scheduler_plans_total", COUNTER, NODE, "plans written", (), tallied(lambda t: t.plans)),
    Family(
        "scheduler_plans_fenced_total",
        COUNTER,
        NODE,
        "plans refused, because they came after their term",
        (),
        tallied(lambda t: t.fenced),
    ),
    Family(
        "scheduler_plan_rebuilds_total",
        COUNTER,
        NODE,
        "times that the plan was read anew from the store",
        (),
        tallied(lambda t: t.rebuilds),
    ),
    Family(
        "scheduler_feed_depth",
        GAUGE,
        STORE,
        "entries that the leader has not read",
        (),
        of_store(lambda s: s.counts.feed),
    ),
    Family(
        "scheduler_feed_ends_depth", GAUGE, STORE, "ends of runs inside them", (), of_store(lambda s: s.counts.ends)
    ),
    Family("scheduler_history_pruned_total", COUNTER, NODE, "finished runs forgotten", (), tallied(lambda t: t.pruned)),
    # polls
    Family("monitor_poll_total", COUNTER, NODE, "attempts that ended here, by job", (*_PAGE, "result"), each(polls)),
    Family(
        "monitor_poll_duration_seconds",
        HISTOGRAM,
        NODE,
        "how long they took",
        _PAGE,
        each(durations(lambda t: t.by_job, typed=True)),
    ),
    Family(
        "monitor_poll_errors_total",
        COUNTER,
        NODE,
        "those that failed: transient, permanent, timeout or crash",
        (*_PAGE, "error_type"),
        each(errors),
    ),
    Family(
        "monitor_poll_staleness_seconds",
        GAUGE,
        STORE,
        "age of the last success of a job that recurs; -1: it never had one",
        _PAGE,
        by_job(staleness),
    ),
    Family(
        "monitor_poll_planned_seconds",
        GAUGE,
        STORE,
        "what is planned between two successes of it",
        _PAGE,
        by_job(lambda job, _: seconds(job.planned_ms) if job.is_watched else None),
    ),
    Family(
        "monitor_poll_last_success_timestamp",
        GAUGE,
        STORE,
        "when a job last succeeded, as a Unix time",
        _PAGE,
        by_job(lambda job, _: seconds(job.last_success_ms)),
    ),
    Family(
        "monitor_poll_queue_depth",
        GAUGE,
        STORE,
        "the same of all priorities together",
        (),
        of_store(lambda s: s.waiting),
    ),
    Family("monitor_poll_inflight", GAUGE, NODE, "handlers at work, by kind", ("instance_type",), in_flight),
    # the store
    Family("store_calls_total", COUNTER, NODE, "calls to the store", ("verb",), by_verb(lambda c: c.calls)),
    Family(
        "store_errors_total",
        COUNTER,
        NODE,
        "those that failed or were not answered in time",
        ("verb",),
        by_verb(lambda c: c.errors),
    ),
    Family(
        "store_call_seconds_total",
        COUNTER,
        NODE,
        "the time they took; claim and feed wait in there",
        ("verb",),
        by_verb(lambda c: c.total_us / 1e6),
    ),
    Family("store_call_seconds_max", GAUGE, NODE, "the longest of them", ("verb",), by_verb(lambda c: c.max_us / 1e6)),
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
    Family("loop_turns_total", COUNTER, NODE, "turns of each loop", ("loop",), by_loop(lambda loop: loop.turns)),
    Family("loop_errors_total", COUNTER, NODE, "turns that failed", ("loop",), by_loop(lambda loop: loop.errors)),
    Family(
        "loop_failing",
        GAUGE,
        NODE,
        "failures in a row; 0: its last turn went well",
        ("loop",),
        by_loop(lambda loop: loop.errors_in_a_row),
    ),
    Family(
        "loop_silent_seconds",
        GAUGE,
        NODE,
        "since its last turn ended",
        ("loop",),
        by_loop(lambda loop: seconds(loop.silent_ms)),
    ),
    Family(
        "event_loop_lag_seconds",
        HISTOGRAM,
        NODE,
        "how late a timer rings, tried twice a second",
        (),
        histogram(lambda t: t.loop_lag),
    ),
    Family(
        "event_loop_lag_worst_seconds",
        GAUGE,
        NODE,
        "the latest that it rang in the last minute",
        (),
        of_node(lambda n: n.lag_ms / 1_000),
    ),
    # the API
    Family(
        "api_requests_refused_total",
        COUNTER,
        NODE,
        "requests that were turned away: 401 no good token, 403 not for that role, 421 another host, 429 too many",
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
    Family(
        "metrics_series_dropped_total",
        COUNTER,
        NODE,
        "times that something was counted under `other`, because 200 others came first",
        ("label",),
        each(lambda t: [((label,), count) for label, count in t.dropped.items()]),
    ),
    Family(
        "event_listener_errors_total",
        COUNTER,
        NODE,
        "listeners of events that raised",
        (),
        tallied(lambda t: t.listener_errors),
    ),
    Family(
        "build",
        INFO,
        NODE,
        "what runs here, and which version of the deployment it serves",
        ("version", "python", "store", "scheduler_version"),
        build,
    ),
)
