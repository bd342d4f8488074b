"""Which metrics are there?  A row each: its name after the prefix, its kind, whose number it is, and where it is read.

Whose number:
* `node`: this process has counted it since it started.  Of several nodes, add them up.
* `leader`: only the node that leads knows it; elsewhere the metric has no samples.  Of several nodes, take the largest.
* `store`: all nodes read the same from the store.  Of several nodes, take the largest, never the sum.
"""

from __future__ import annotations

from typing import NamedTuple

from pollux.observe import metrics_reading as at
from pollux.observe.metrics_reading import Read

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
    Family("scheduler_jobs", GAUGE, STORE, "jobs that there are", (), at.of_store(lambda s: s.counts.jobs)),
    Family(
        "scheduler_timers", GAUGE, LEADER, "due times in memory, of the next minute", (), at.of_node(lambda n: n.timers)
    ),
    Family(
        "scheduler_jobs_scheduled_total",
        COUNTER,
        NODE,
        "firings written by this node",
        ("schedule_type", "priority"),
        at.each(at.scheduled),
    ),
    Family(
        "scheduler_jobs_executed_total",
        COUNTER,
        NODE,
        "attempts that ended here: done, failed (the next firing is the retry), retried, dead or cancelled",
        ("status", "source_id"),
        at.each(at.executed),
    ),
    Family(
        "scheduler_job_duration_seconds",
        HISTOGRAM,
        NODE,
        "how long attempts took",
        ("source_id",),
        at.each(at.durations(lambda t: t.by_source, typed=False)),
    ),
    Family(
        "scheduler_jobs_currently_running",
        GAUGE,
        NODE,
        "handlers at work in this process",
        (),
        at.of_node(lambda n: len(n.sitting)),
    ),
    Family("scheduler_retries_total", COUNTER, NODE, "attempts to be tried again", (), at.tallied(at.ended("retried"))),
    Family("scheduler_runs_dead_total", COUNTER, NODE, "runs given up on", (), at.tallied(at.ended("dead"))),
    Family("scheduler_dead_letter_depth", GAUGE, STORE, "dead letters", (), at.of_store(lambda s: s.counts.dead)),
    # due times
    Family(
        "scheduler_fire_lateness_seconds",
        HISTOGRAM,
        NODE,
        "from when a run was due until it was written",
        (),
        at.histogram(lambda t: t.fire_late),
    ),
    Family(
        "scheduler_start_lateness_seconds",
        HISTOGRAM,
        NODE,
        "from when a run was due, or visible again, until its handler started",
        (),
        at.histogram(lambda t: t.start_late),
    ),
    Family(
        "scheduler_firings_skipped_total",
        COUNTER,
        NODE,
        "due times that were not fired: overlap, paused, late, full, undeclared or broken",
        ("reason",),
        at.each(lambda t: [((reason,), count) for reason, count in list(t.skipped.items())]),
    ),
    Family(
        "scheduler_queue_due_soon",
        GAUGE,
        LEADER,
        "jobs due within 12 s, up to 1,000",
        (),
        at.of_node(lambda n: n.due_soon),
    ),
    Family(
        "scheduler_jobs_late",
        GAUGE,
        LEADER,
        "jobs whose missed due time waits for its turn",
        (),
        at.of_node(lambda n: n.late),
    ),
    Family(
        "scheduler_overdue_seconds",
        GAUGE,
        STORE,
        "for how long the job that is due for the longest time has not been fired; 0: none is",
        (),
        at.one(at.overdue),
    ),
    # the queue
    Family(
        "scheduler_queue_depth",
        GAUGE,
        STORE,
        "runs that could be claimed now, counted to 10,000",
        ("priority",),
        at.lines(lambda ready, _, __: ready),
    ),
    Family(
        "scheduler_queue_process_lag_seconds",
        GAUGE,
        STORE,
        "for how long the first ready run has waited for a seat",
        ("priority",),
        at.lines(at.waited),
    ),
    Family(
        "scheduler_queue_enqueued_total",
        COUNTER,
        NODE,
        "runs that this node made ready: fired, let through by the gate, or enqueued by its API",
        ("priority",),
        at.priorities(lambda t: t.enqueued),
    ),
    Family(
        "scheduler_queue_dequeued_total",
        COUNTER,
        NODE,
        "runs that this node claimed",
        ("priority",),
        at.priorities(lambda t: t.dequeued),
    ),
    Family(
        "scheduler_queue_wait_seconds",
        HISTOGRAM,
        NODE,
        "the same as scheduler_start_lateness_seconds, under an older name",
        (),
        at.histogram(lambda t: t.start_late),
    ),
    Family(
        "scheduler_runs",
        GAUGE,
        STORE,
        "live runs: held, ready (those that wait for a retry or a later time, too) or leased",
        ("state",),
        at.runs,
    ),
    Family(
        "scheduler_runs_held",
        GAUGE,
        LEADER,
        "runs at the gate by what they wait for: paused, previous_run, undeclared, handler (no node knows it), "
        "unreadable_job (the leader cannot read it), retry (their time), gate (about to be looked at)",
        ("reason",),
        at.held,
    ),
    Family(
        "scheduler_runs_released_total",
        COUNTER,
        NODE,
        "runs let through by the gate",
        (),
        at.tallied(lambda t: t.released),
    ),
    # workers
    Family("scheduler_worker_pool_size", GAUGE, NODE, "seats of this node", (), at.of_node(lambda n: n.seats)),
    Family("scheduler_workers_busy", GAUGE, NODE, "seats that are taken", (), at.of_node(lambda n: n.busy)),
    Family(
        "scheduler_workers_idle", GAUGE, NODE, "seats that are free", (), at.of_node(lambda n: max(0, n.seats - n.busy))
    ),
    Family(
        "scheduler_workers_stuck",
        GAUGE,
        NODE,
        "seats of handlers that did not stop when they were asked to",
        (),
        at.of_node(lambda n: n.stuck),
    ),
    Family(
        "scheduler_worker_tasks_wait_seconds",
        HISTOGRAM,
        NODE,
        "the same as scheduler_start_lateness_seconds, under an older name",
        (),
        at.histogram(lambda t: t.start_late),
    ),
    Family("scheduler_leases", GAUGE, NODE, "leases that this node keeps", (), at.of_node(lambda n: n.leases)),
    Family(
        "scheduler_leases_lost_total",
        COUNTER,
        NODE,
        "leases lost while their run was under way",
        (),
        at.tallied(lambda t: t.leases_lost),
    ),
    Family(
        "scheduler_settle_backlog", GAUGE, NODE, "ends that are not recorded yet", (), at.of_node(lambda n: n.backlog)
    ),
    Family("scheduler_settled_total", COUNTER, NODE, "ends recorded", (), at.tallied(lambda t: t.settled)),
    Family(
        "scheduler_outcomes_discarded_total",
        COUNTER,
        NODE,
        "outcomes that came after their lease was gone",
        (),
        at.tallied(lambda t: t.discarded),
    ),
    Family(
        "scheduler_runs_handed_back_total",
        COUNTER,
        NODE,
        "runs given back uncharged: to the line (a drain), or to the gate (paused, unknown handler)",
        ("to",),
        at.each(lambda t: [(("line",), t.backs), (("gate",), t.holds)]),
    ),
    Family(
        "scheduler_is_draining",
        GAUGE,
        NODE,
        "1 while this node is about to end",
        (),
        at.of_node(lambda n: n.is_draining),
    ),
    Family(
        "scheduler_is_paused",
        GAUGE,
        NODE,
        "1 while this node is asked to claim nothing",
        (),
        at.of_node(lambda n: n.is_paused),
    ),
    # leading
    Family(
        "scheduler_is_leader", GAUGE, NODE, "1 on the node that leads", (), at.of_node(lambda n: n.term is not None)
    ),
    Family("scheduler_leader_term", GAUGE, LEADER, "the number of its term", (), at.of_node(lambda n: n.term)),
    Family(
        "scheduler_leader_election_attempts_total",
        COUNTER,
        NODE,
        "times that the term was asked for, or renewed",
        (),
        at.tallied(lambda t: t.attempts),
    ),
    Family("scheduler_leader_election_wins_total", COUNTER, NODE, "terms won", (), at.tallied(lambda t: t.wins)),
    Family(
        "scheduler_leader_election_losses_total",
        COUNTER,
        NODE,
        "terms lost, not given up",
        (),
        at.tallied(lambda t: t.losses),
    ),
    Family("scheduler_nodes", GAUGE, STORE, "nodes that live", (), at.of_store(lambda s: len(s.nodes))),
    Family(
        "scheduler_leaders",
        GAUGE,
        STORE,
        "1 if a living node leads, else 0",
        (),
        at.of_store(lambda s: any(node.leads for node in s.nodes)),
    ),
    Family("scheduler_plans_total", COUNTER, NODE, "plans written", (), at.tallied(lambda t: t.plans)),
    Family(
        "scheduler_plans_fenced_total",
        COUNTER,
        NODE,
        "plans refused, because they came after their term",
        (),
        at.tallied(lambda t: t.fenced),
    ),
    Family(
        "scheduler_plan_rebuilds_total",
        COUNTER,
        NODE,
        "times that the plan was read anew from the store",
        (),
        at.tallied(lambda t: t.rebuilds),
    ),
    Family(
        "scheduler_feed_depth",
        GAUGE,
        STORE,
        "entries that the leader has not read",
        (),
        at.of_store(lambda s: s.counts.feed),
    ),
    Family(
        "scheduler_feed_ends_depth", GAUGE, STORE, "ends of runs inside them", (), at.of_store(lambda s: s.counts.ends)
    ),
    Family(
        "scheduler_history_pruned_total", COUNTER, NODE, "finished runs forgotten", (), at.tallied(lambda t: t.pruned)
    ),
    # polls
    Family(
        "monitor_poll_total", COUNTER, NODE, "attempts that ended here, by job", (*_PAGE, "result"), at.each(at.polls)
    ),
    Family(
        "monitor_poll_duration_seconds",
        HISTOGRAM,
        NODE,
        "how long they took",
        _PAGE,
        at.each(at.durations(lambda t: t.by_job, typed=True)),
    ),
    Family(
        "monitor_poll_errors_total",
        COUNTER,
        NODE,
        "those that failed: transient, permanent, timeout or crash",
        (*_PAGE, "error_type"),
        at.each(at.errors),
    ),
    Family(
        "monitor_poll_staleness_seconds",
        GAUGE,
        STORE,
        "age of the last success of a job that recurs; -1: it never had one",
        _PAGE,
        at.by_job(at.staleness),
    ),
    Family(
        "monitor_poll_planned_seconds",
        GAUGE,
        STORE,
        "what is planned between two successes of it",
        _PAGE,
        at.by_job(lambda job, _: at.seconds(job.planned_ms) if job.is_watched else None),
    ),
    Family(
        "monitor_poll_last_success_timestamp",
        GAUGE,
        STORE,
        "when a job last succeeded, as a Unix time",
        _PAGE,
        at.by_job(lambda job, _: at.seconds(job.last_success_ms)),
    ),
    Family(
        "monitor_poll_queue_depth",
        GAUGE,
        STORE,
        "the same of all priorities together",
        (),
        at.of_store(lambda s: s.waiting),
    ),
    Family("monitor_poll_inflight", GAUGE, NODE, "handlers at work, by kind", ("instance_type",), at.in_flight),
    # the store
    Family("store_calls_total", COUNTER, NODE, "calls to the store", ("verb",), at.by_verb(lambda c: c.calls)),
    Family(
        "store_errors_total",
        COUNTER,
        NODE,
        "those that failed or were not answered in time",
        ("verb",),
        at.by_verb(lambda c: c.errors),
    ),
    Family(
        "store_call_seconds_total",
        COUNTER,
        NODE,
        "the time they took; claim and feed wait in there",
        ("verb",),
        at.by_verb(lambda c: c.total_us / 1e6),
    ),
    Family(
        "store_call_seconds_max", GAUGE, NODE, "the longest of them", ("verb",), at.by_verb(lambda c: c.max_us / 1e6)
    ),
    Family(
        "store_reachable",
        GAUGE,
        NODE,
        "1 if the store answered for this scrape",
        (),
        at.one(lambda r: r.snapshot.deployment is not None),
    ),
    Family(
        "store_reading_age_seconds",
        GAUGE,
        NODE,
        "how old the numbers of the store are",
        (),
        at.one(lambda r: r.age_ms / 1_000),
    ),
    # loops
    Family("loop_turns_total", COUNTER, NODE, "turns of each loop", ("loop",), at.by_loop(lambda loop: loop.turns)),
    Family("loop_errors_total", COUNTER, NODE, "turns that failed", ("loop",), at.by_loop(lambda loop: loop.errors)),
    Family(
        "loop_failing",
        GAUGE,
        NODE,
        "failures in a row; 0: its last turn went well",
        ("loop",),
        at.by_loop(lambda loop: loop.errors_in_a_row),
    ),
    Family(
        "loop_silent_seconds",
        GAUGE,
        NODE,
        "since its last turn ended",
        ("loop",),
        at.by_loop(lambda loop: at.seconds(loop.silent_ms)),
    ),
    Family(
        "event_loop_lag_seconds",
        HISTOGRAM,
        NODE,
        "how late a timer rings, tried twice a second",
        (),
        at.histogram(lambda t: t.loop_lag),
    ),
    Family(
        "event_loop_lag_worst_seconds",
        GAUGE,
        NODE,
        "the latest that it rang in the last minute",
        (),
        at.of_node(lambda n: n.lag_ms / 1_000),
    ),
    # the API
    Family(
        "api_requests_refused_total",
        COUNTER,
        NODE,
        "requests that were turned away: 401 no good token, 403 not for that role, 421 another host, 429 too many",
        ("status",),
        at.refused,
    ),
    # traces
    Family(
        "traces_spans_total",
        COUNTER,
        NODE,
        "spans of traces, where these are on: exported, dropped (there was no room for them) or failed (the collector "
        "did not take them)",
        ("result",),
        at.spans,
    ),
    Family("traces_spans_waiting", GAUGE, NODE, "spans that wait to be sent", (), at.one(lambda r: r.spans_waiting)),
    # the metrics themselves
    Family(
        "metrics_series_dropped_total",
        COUNTER,
        NODE,
        "times that something was counted under `other`, because 200 others came first",
        ("label",),
        at.each(lambda t: [((label,), count) for label, count in t.dropped.items()]),
    ),
    Family(
        "event_listener_errors_total",
        COUNTER,
        NODE,
        "listeners of events that raised",
        (),
        at.tallied(lambda t: t.listener_errors),
    ),
    Family(
        "build",
        INFO,
        NODE,
        "what runs here, and which version of the deployment it serves",
        ("version", "python", "store", "scheduler_version"),
        at.build,
    ),
)
