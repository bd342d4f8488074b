"""Health snapshots: one read of the store and of this node, for metrics and health alike.

A read costs the same number of store calls however many jobs there are, and serves all requests within a second.  If
the store does not answer in time, that is a finding.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from pollux.app.declarations import latest_sets
from pollux.app.process import starts_of
from pollux.errors import PolluxError
from pollux.model import (
    DRAIN,
    LEADER_NOTES,
    STOP,
    Cron,
    Job,
    Node,
    Note,
    Run,
    RunState,
    by_term,
    declaration_conflicts,
    drained_of,
    may_conflict,
    unreadable_notes,
)
from pollux.model.leader_notes import ClockNote, clock_notes
from pollux.observe.health import Health, HealthFinding, judge, of_nodes
from pollux.observe.metrics_table import Readings
from pollux.observe.snapshot import (
    JOBS_MAX,
    SOON_MS,
    BusySeat,
    Counters,
    Deployment,
    HealthLimits,
    Histogram,
    JobSnapshot,
    LoopSnapshot,
    NodeSnapshot,
    Snapshot,
    VerbCalls,
)
from pollux.observe.traces import Traces
from pollux.outcome import freshness
from pollux.plan import orphaned
from pollux.runtime import NodeRuntime
from pollux.runtime.loop import LoopStatus
from pollux.runtime.stats import BOUNDS_MS, LatenessSnapshot, kind_of
from pollux.schedule import late_after_of
from pollux.schedule.due_times import LATE_AFTER_MAX_MS
from pollux.secrets import hide
from pollux.store.contract import FEED_MAX, Counts, RunFilter, Store
from pollux.store.decoding import readable_due, readable_part, readable_stops
from pollux.version import __version__

if TYPE_CHECKING:
    from pollux.app.pollux import Pollux

CACHED_MS = 1_000  # age up to which a read is used again
READ_SECONDS = 5.0
DEAD_MAX = 25
DUE_MAX = 100  # due jobs that are read
LATE_BOUNDS = (1, 4, 6, 8, 10, 12, 14, 16, 19, 22)  # exported bounds of the lateness buckets: 1 ms to 70 minutes


class HealthRead:
    """The answer of the store, or why there is none."""

    __slots__ = ("at", "deployment", "trouble")

    def __init__(self, at: float, deployment: Deployment | None, trouble: str) -> None:
        self.at, self.deployment, self.trouble = at, deployment, trouble


class HealthWatch:
    """Health and metrics of one app."""

    def __init__(self, app: Pollux) -> None:
        self._app = app
        self.runtime: NodeRuntime | None = None  # also while it drains
        self.traces: Traces | None = None
        self.refused: dict[int, int] = {}  # requests that the API refused, by status
        self._last: HealthRead | None = None
        self._reading: asyncio.Task[HealthRead] | None = None

    async def health(self) -> Health:
        read = await self._latest()
        dead: tuple[Run, ...] = ()
        if read.deployment is not None and read.deployment.counts.dead:
            dead = await self._dead_letters()
        return judge(self._snapshot(read, dead))

    async def deployment(self) -> Deployment | None:
        """The latest read of the store: the same object for a second, so that callers can cache what they derive."""
        return (await self._latest()).deployment

    async def readings(self) -> Readings:
        app, read, runtime, traces = self._app, await self._latest(), self.runtime, self.traces
        return Readings(
            prefix=app.options.metrics_prefix,
            version=__version__,
            python=platform.python_version(),
            scheduler_version=app.backend.scheduler_version,
            snapshot=self._snapshot(read),
            age_ms=max(0.0, app.clock.mono_ms() - read.at),
            calls=cast("dict[str, VerbCalls]", app.backend.call_stats),
            counters=None if runtime is None else counters_of(runtime, app.backend.enqueued),
            spans={} if traces is None else traces.export.counts(),
            spans_waiting=None if traces is None else traces.export.waiting,
            refused=dict(self.refused),
        )

    # reading

    async def _latest(self) -> HealthRead:
        """The latest read if it is recent, else a new one that concurrent callers share."""
        last = self._last
        if last is not None and 0 <= self._app.clock.mono_ms() - last.at < CACHED_MS:
            return last
        loop = asyncio.get_running_loop()
        reading = self._reading
        if reading is None or reading.done() or reading.get_loop() is not loop:
            reading = self._reading = loop.create_task(self._read_in_time())
        return await asyncio.shield(reading)

    async def _read_in_time(self) -> HealthRead:
        app, deployment, trouble = self._app, None, ""
        try:
            async with asyncio.timeout(READ_SECONDS):
                deployment = await self._read(app.backend)
        except TimeoutError:
            trouble = f"no answer within {READ_SECONDS:.0f} s"
        except (PolluxError, OSError) as error:
            trouble = hide(str(error))
        self._last = HealthRead(app.clock.mono_ms(), deployment, trouble)
        return self._last

    async def _read(self, store: Store) -> Deployment:
        now_ms = self._now_ms()
        nodes, versions = await store.nodes(), await store.versions()
        nodes, version = by_term(nodes, versions), store.scheduler_version
        counts = next((each.counts for each in versions if each.number == version), None) or await store.counts()
        lines, problems, (stops, _), (notes, _), due, jobs = await asyncio.gather(
            store.lines(),
            store.problems(),
            readable_stops(store.notes(STOP)),
            readable_part(store.notes(LEADER_NOTES)),
            readable_due(store, before_ms=now_ms, limit=DUE_MAX),
            self._jobs(store, counts),
        )
        overdue = most_overdue(due, now_ms)
        serving = tuple(node for node in nodes if node.serves(version))
        drained = [drained_of(note) for note in stops]
        left = orphaned(jobs, serving)
        latest = await latest_sets(store) if may_conflict(serving) else {}
        is_missed = bool(left) or not any(node.plans for node in serving)
        return Deployment(
            read_ms=now_ms,
            counts=counts,
            lines=lines,
            problems=tuple(hide(problem) for problem in problems),
            nodes=serving,
            version=version,
            versions=tuple(versions),
            elsewhere=tuple([node for node in nodes if node not in serving]),
            overdue_job=overdue.id if overdue is not None else "",
            overdue_ms=overdue.next_due_ms if overdue is not None else None,
            late_after_ms=LATE_AFTER_MAX_MS if overdue is None else late_after(overdue),
            jobs=tuple(job_seen(job, now_ms, self._category(job)) for job in jobs),
            stops=tuple(_stop(note) for note, drain in zip(stops, drained, strict=True) if drain is None),
            drained=tuple(
                replace(drain, reason=hide(drain.reason))
                for drain in drained
                if drain is not None and (drain.node is None or any(node.id == drain.node for node in nodes))
            ),
            sealed=await self._app.sealed() if DRAIN in {note.key for note in stops} else "",  # a move sets both
            unreadable=tuple([each for each in unreadable_notes(notes) if each.version == version]),
            clocks=await self._clocks(store, notes, now_ms),
            orphaned=tuple((source, tuple(ids)) for source, ids in left.items()),
            starts=await starts_of(store) if is_missed else (),
            declaration_conflicts=tuple(declaration_conflicts(serving, latest, now_ms=now_ms)),
        )

    async def _clocks(self, store: Store, notes: Iterable[Note], now_ms: int) -> tuple[ClockNote, ...]:
        """Notes on jumps of the store's clock; without a runtime its clock is read before one counts as set back."""
        version = store.scheduler_version
        found = tuple([each for each in clock_notes(notes) if each.version == version])
        if self.runtime is None and any(each.is_behind(now_ms) for each in found):
            true_ms = await store.now()
            return found if any(each.is_behind(true_ms) for each in found) else ()
        return found

    async def _jobs(self, store: Store, counts: Counts) -> list[Job]:
        """All jobs if they are few; else first those that fail on this node, then others that ran on it."""
        runtime, found = self.runtime, list[Job]()
        if counts.jobs > JOBS_MAX and runtime is not None:
            stats = runtime.settler.stats
            ids = dict.fromkeys((*stats.failing, *stats.by_job.names(), *runtime.timekeeper.planned.names))
            known, _ = await readable_part(store.get_jobs(list(ids)[:JOBS_MAX]))
            found = [job for job in known if job is not None]
        if not found:
            page, _ = await readable_part(store.list_jobs(limit=JOBS_MAX))
            found = list(page.jobs)
        version = store.scheduler_version
        return [job for job in found if job.scheduler_version == version]

    def _category(self, job: Job) -> str | None:
        """The kind of a job's last error, known only on the node on which it happened."""
        seen = None if self.runtime is None else self.runtime.settler.stats.by_job.known(job.id)
        at_ms, kind = (None, None) if seen is None or seen.last_failed is None else seen.last_failed
        known_ms = job.memory.last_error_ms
        return kind if at_ms is not None and known_ms is not None and at_ms >= known_ms else None

    async def _dead_letters(self) -> tuple[Run, ...]:
        try:
            async with asyncio.timeout(READ_SECONDS):
                page = await self._app.backend.list_runs(RunFilter(states=(RunState.DEAD,)), limit=DEAD_MAX)
        except (PolluxError, OSError):  # also a TimeoutError: the count is known without them
            return ()
        return page.runs

    def _snapshot(self, read: HealthRead, dead: tuple[Run, ...] = ()) -> Snapshot:
        app, options = self._app, self._app.options
        return Snapshot(
            now_ms=self._now_ms(),
            store=app.backend.capabilities.name,
            limits=HealthLimits(
                queue_depth=options.health_queue_depth,
                staleness_ms=options.health_staleness_ms,
                wait_ms=options.health_wait_ms,
                lag_ms=options.health_loop_lag_ms,
                intervals=options.health_intervals,
                feed=FEED_MAX // 10,
                feed_max=FEED_MAX,
            ),
            deployment=read.deployment,
            trouble=read.trouble,
            node=None if self.runtime is None else self._node_seen(self.runtime),
            dead=dead,
        )

    def _node_seen(self, runtime: NodeRuntime) -> NodeSnapshot:
        reloader = self._app.reloader
        if reloader is None or not reloader.config.path:
            return node_seen(runtime)
        return replace(node_seen(runtime), file=reloader.config.path, refused="; ".join(reloader.refused))

    def _now_ms(self) -> int:
        """The store's clock, as far as this process knows it."""
        runtime = self.runtime
        return self._app.clock.now_ms() if runtime is None else runtime.worker.time.now_ms()


def most_overdue(jobs: Sequence[Job], now_ms: int) -> Job | None:
    """The due job that waits longest, among those that are late by their own schedule if there are any."""
    late = [job for job in jobs if now_ms - (job.next_due_ms or now_ms) > late_after(job)]
    return min(late or jobs, key=lambda job: job.next_due_ms or now_ms, default=None)


def beat_findings(nodes: Sequence[Node], *, lag_ms: int) -> list[HealthFinding]:
    """Findings from the last heartbeats of nodes: `loop` and `handlers`."""
    return [*of_nodes(nodes, lag_ms=lag_ms)]


def late_after(job: Job) -> int:
    """How late a due time may fire without being missed; the maximum if the schedule is invalid."""
    try:
        return late_after_of(job.schedule, job.id, job.next_due_ms or 0)
    except PolluxError:
        return LATE_AFTER_MAX_MS


def job_seen(job: Job, now_ms: int, category: str | None = None) -> JobSnapshot:
    fresh, memory = freshness(job, now_ms), job.memory
    return JobSnapshot(
        id=job.id,
        kind=kind_of(job),
        name=job.name,
        target=job.target,
        is_watched=job.is_recurring and job.enabled and job.declared,
        is_cron=isinstance(job.schedule, Cron),
        planned_ms=fresh.planned_ms,
        wanted_ms=fresh.wanted_ms,
        score=fresh.score,
        last_success_ms=memory.last_success_ms,
        last_error_ms=memory.last_error_ms,
        last_error=memory.last_error,
        category=category,
        failures=memory.failures,
        failing_since_ms=memory.failing_since_ms,
        dead=memory.dead,
        next_due_ms=job.next_due_ms,
    )


def node_seen(runtime: NodeRuntime) -> NodeSnapshot:
    status, planner = runtime.status(), runtime.timekeeper.planner
    looked = planner.look(soon_ms=SOON_MS) if planner is not None and status.term is not None else None
    return NodeSnapshot(
        id=runtime.node_id,
        started_ms=runtime.started_ms,
        plans=runtime.options.plans,
        runs=runtime.options.runs,
        is_draining=status.is_draining,
        is_paused=status.is_paused,
        term=status.term,
        leader_ttl_ms=runtime.options.leader_ttl_ms,
        seats=status.seats if runtime.options.runs else 0,
        busy=status.busy,
        stuck=status.stuck,
        backlog=status.backlog,
        leases=status.leases,
        loops=tuple(_loop(loop) for loop in status.loops),
        lag_ms=runtime.lag.worst.ms,
        load=runtime.load(),
        busy_seats=_busy_seat(runtime),
        timers=looked.timers if looked else None,
        due_soon=looked.due_soon if looked else None,
        late=looked.late if looked else None,
        held=looked.held if looked else None,
    )


def _busy_seat(runtime: NodeRuntime) -> tuple[BusySeat, ...]:
    return tuple(
        BusySeat(
            seat=attempt.seat.number if attempt.seat is not None else 0,
            run_id=attempt.run.id,
            job_id=attempt.run.job_id,
            kind=kind_of(attempt.job),
            started_ms=attempt.started_ms,
            progress=attempt.ctx.last_progress if attempt.ctx is not None else "",
        )
        for attempt in runtime.worker.running
    )


def counters_of(runtime: NodeRuntime, enqueued: list[int]) -> Counters:
    """Counters, copied or by reference: another thread formats them."""
    ends, planned, keeper, leader = (
        runtime.settler.stats,
        runtime.timekeeper.planned,
        runtime.timekeeper,
        runtime.leader,
    )
    return Counters(
        scheduled=dict(planned.fired),
        skipped=dict(planned.skipped),
        enqueued=[fired + accepted for fired, accepted in zip(planned.enqueued, enqueued, strict=True)],
        dequeued=list(runtime.dispatcher.dequeued),
        by_job=ends.by_job.all(),
        by_source=ends.by_source.all(),
        bounds_ms=BOUNDS_MS,
        dropped={"instance": ends.by_job.overflowed, "source_id": ends.by_source.overflowed},
        backs=ends.backs,
        holds=ends.holds,
        released=keeper.released,
        plans=keeper.plans,
        fenced=keeper.fenced,
        rebuilds=keeper.rebuilds,
        pruned=runtime.pruner.pruned,
        settled=runtime.settler.settled,
        discarded=runtime.settler.discarded,
        leases_lost=runtime.worker.leases_lost,
        stuck_ever=runtime.worker.stuck_ever,
        attempts=leader.attempts,
        wins=leader.wins,
        losses=leader.losses,
        listener_errors=runtime.events.listener_errors,
        fire_late=_histogram(keeper.late.seen()),
        start_late=_histogram(runtime.worker.late.seen()),
        loop_lag=_histogram(runtime.lag.late.seen()),
    )


def _histogram(seen: LatenessSnapshot) -> Histogram:
    """Fewer buckets, as exported; bucket n counts what is below 2**n ms."""
    ends = [0, *(n + 1 for n in LATE_BOUNDS), len(seen.buckets)]
    counts = tuple(sum(seen.buckets[start:end]) for start, end in pairwise(ends))
    return Histogram(tuple((1 << n) - 1 for n in LATE_BOUNDS), counts, seen.sum_ms)


def _loop(status: LoopStatus) -> LoopSnapshot:
    return LoopSnapshot(
        name=status.name,
        is_alive=status.is_alive,
        turns=status.turns,
        errors=status.errors,
        errors_in_a_row=status.errors_in_a_row,
        silent_ms=status.turned_ms,
    )


def _stop(note: Note) -> tuple[str, str]:
    value = note.value if isinstance(note.value, dict) else {}
    reason, by = str(value.get("reason") or ""), str(value.get("by") or "")
    return note.key.removeprefix(STOP), hide(f"{reason} (by {by})" if reason and by else reason or by)
