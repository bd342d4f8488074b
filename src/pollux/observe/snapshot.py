"""Snapshot of the deployment, read from its store, and of this node: values without a clock.

Metrics and health are made of the same snapshot, so they never contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from pollux.model import (
    SCHEDULER_VERSION,
    Counts,
    DeclarationConflict,
    Drained,
    Node,
    NodeLoad,
    QueueDepth,
    Run,
    StartCommand,
    UnreadableNote,
    Version,
)
from pollux.model.leader_notes import ClockNote

SOON_MS = 12_000  # what is due within this is due soon
JOBS_MAX = 200  # jobs that are looked at one by one


class JobSnapshot(Struct, frozen=True):
    """One job, as metrics and health need it."""

    id: str
    kind: str  # its group, else its handler
    name: str = ""
    target: str = ""
    is_watched: bool = True  # it should succeed again and again: enabled, and by the clock
    is_cron: bool = False
    planned_ms: int | None = None  # between two successes
    wanted_ms: int = 0  # without a success so far: how long one has been due
    score: float = 0.0  # of its freshness
    last_success_ms: int | None = None
    last_error_ms: int | None = None
    last_error: str = ""
    category: str | None = None  # of that error, where this node met it: transient, permanent, timeout or crash
    failures: int = 0  # in a row
    failing_since_ms: int | None = None
    dead: int = 0
    next_due_ms: int | None = None


class Deployment(Struct, frozen=True):
    """All nodes together, as read from the store at one moment."""

    read_ms: int
    counts: Counts
    lines: tuple[QueueDepth, ...]  # by priority, from 1 on
    nodes: tuple[Node, ...]
    version: int = SCHEDULER_VERSION  # whose figures and nodes these are
    versions: tuple[Version, ...] = ()  # all that are on the store
    elsewhere: tuple[Node, ...] = ()  # nodes that serve another version alone
    overdue_job: str = ""  # due for the longest time, of those that are late by their own schedule if there are any
    overdue_ms: int | None = None  # since then
    late_after_ms: int = 60_000  # a due time of that job that is older is missed
    jobs: tuple[JobSnapshot, ...] = ()  # all of them, if there are at most JOBS_MAX
    stops: tuple[tuple[str, str], ...] = ()  # pauses: what is stopped, and why in words
    drained: tuple[Drained, ...] = ()
    problems: tuple[str, ...] = ()  # what is wrong with the place of the store, each with its cure after the last `; `
    sealed: str = ""  # why no node works on the store, and the cure, if it was moved elsewhere
    unreadable: tuple[UnreadableNote, ...] = ()  # what the leader cannot read
    clocks: tuple[ClockNote, ...] = ()  # the highest times that were planned by
    orphaned: tuple[tuple[str, tuple[str, ...]], ...] = ()  # sources of which no node lives, and their jobs
    starts: tuple[StartCommand, ...] = ()  # how nodes were started, where one is missing
    declaration_conflicts: tuple[
        DeclarationConflict, ...
    ] = ()  # nodes that declare other jobs than the latest text of their source

    @property
    def waiting(self) -> int:
        """Runs that could be claimed now; those that wait for a retry or a later time are `counts.ready`, too."""
        return sum(line.ready for line in self.lines)

    @property
    def others(self) -> tuple[Version, ...]:
        """The other versions on the store that have something to do."""
        return tuple([each for each in self.versions if each.number != self.version and has_work(each.counts)])

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        return (*self.nodes, *self.elsewhere)


def has_work(counts: Counts) -> bool:
    """Whether there is anything that needs a leader."""
    return bool(counts.jobs or counts.held or counts.ready or counts.leased)


class LoopSnapshot(Struct, frozen=True):
    name: str
    is_alive: bool
    turns: int
    errors: int
    errors_in_a_row: int
    silent_ms: float | None  # since the end of its last turn


class Histogram(Struct, frozen=True):
    """Counts up to and including each bound, in milliseconds, and one beyond them all."""

    bounds_ms: tuple[int, ...]
    counts: tuple[int, ...]
    sum_ms: int


class EndCounts(Protocol):
    """How attempts of one job, or of one source, have ended here."""

    name: str
    kind: str
    by_status: dict[str, int]
    by_error: dict[str, int]
    ok: int
    failed: int
    sum_ms: int
    buckets: list[int]


class VerbCalls(Protocol):
    """What one verb of the store has cost."""

    calls: int
    errors: int
    total_us: int
    max_us: int


class BusySeat(Struct, frozen=True):
    """A run that a handler of this node works on."""

    seat: int
    run_id: str
    job_id: str
    kind: str
    started_ms: int
    progress: str = ""


class NodeSnapshot(Struct, frozen=True, kw_only=True):
    """This process."""

    id: str
    started_ms: int
    plans: bool
    runs: bool
    is_draining: bool
    is_paused: bool
    term: int | None
    leader_ttl_ms: int
    seats: int
    busy: int
    stuck: int
    backlog: int
    leases: int
    loops: tuple[LoopSnapshot, ...]
    lag_ms: int  # the longest block of the event loop in the last minute
    load: NodeLoad = NodeLoad()
    busy_seats: tuple[BusySeat, ...]
    file: str = ""  # the config that it reads again when it changes; "": none
    refused: str = ""  # what is wrong with the text of the file, if it is refused
    timers: int | None = None  # these four are the leader's
    due_soon: int | None = None
    late: int | None = None
    held: Mapping[str, int] | None = None


class Counters(Struct, frozen=True, kw_only=True):
    """What this process has counted since it started."""

    scheduled: Mapping[tuple[str, int], int]  # by the kind of schedule and the priority
    skipped: Mapping[str, int]
    enqueued: Sequence[int]  # by priority; the place 0 is empty
    dequeued: Sequence[int]
    by_job: Sequence[EndCounts]
    by_source: Sequence[EndCounts]
    bounds_ms: tuple[int, ...]  # of the durations of both
    dropped: Mapping[str, int]  # by label: what went to `other`
    backs: int
    holds: int
    released: int
    plans: int
    fenced: int
    rebuilds: int
    pruned: int
    settled: int
    discarded: int
    leases_lost: int
    stuck_ever: int
    attempts: int  # elections
    wins: int
    losses: int
    listener_errors: int
    fire_late: Histogram
    start_late: Histogram
    loop_lag: Histogram


class HealthLimits(Struct, frozen=True):
    """Limits beyond which a finding is no longer healthy."""

    queue_depth: int = 50
    staleness_ms: int = 5_000
    wait_ms: int = 60_000  # of what is due, or ready
    lag_ms: int = 1_000
    intervals: int = 3  # planned ones without a success
    feed: int = 10_000
    feed_max: int = 100_000


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything that health and metrics are computed from."""

    now_ms: int
    store: str
    limits: HealthLimits = HealthLimits()
    deployment: Deployment | None  # None: the store did not answer
    trouble: str = ""  # why it did not
    node: NodeSnapshot | None  # None: nothing runs in this process
    dead: tuple[Run, ...] = ()  # the newest dead letters
