"""Runtime of one node: all its loops, wired, started, drained and stopped together.

    plans:  Leader ─▶ Timekeeper, Pruner
    runs:   Dispatcher ─▶ Attempts (Pool, HandlerThreads, TimeoutWatch) ─▶ Settler        Renewer (its own thread)
    both:   Heartbeat

Draining: stop claiming, resign, let handlers finish within the grace while leases are renewed, ask the rest to stop and
hand it back uncharged, flush the settles, leave.  A second call skips the grace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from pollux.clock import Clock, StoreClock
from pollux.errors import InvalidInput
from pollux.events import Events, LoopBlocked
from pollux.model import DRAIN, STEERING, TURN, Declares, Node, NodeLoad, Term
from pollux.plan import Planner
from pollux.registry import Registry
from pollux.runtime.attempt import STOP_MS, Pool, TimeoutWatch, WorkerState, by_run
from pollux.runtime.dispatcher import Dispatcher
from pollux.runtime.handler_threads import guard, unguard
from pollux.runtime.leader import Leader
from pollux.runtime.loop import Loop, LoopStatus, Rest, bounded
from pollux.runtime.loop_lag import LoopBlock, LoopLag, LoopSampler, blocker_of, load_of
from pollux.runtime.options import RuntimeOptions
from pollux.runtime.renewer import OnMain, RelayedEvents, Renewer, RenewerThread
from pollux.runtime.settler import Settler
from pollux.runtime.stats import LatenessSnapshot
from pollux.runtime.timekeeper import Timekeeper
from pollux.secrets import Secrets
from pollux.store.contract import Pruning, Store

# Options that may change while the node runs.
TUNABLE = (
    *("seats", "grace_ms", "long_poll_ms", "min_poll_ms", "batch", "child_memory"),
    *("keep_per_job", "keep_ms", "dead_max", "dead_ms", "log_max"),
    *("health_queue_depth", "health_staleness_ms", "health_wait_ms", "health_loop_lag_ms"),
    "health_intervals",
)
LISTENED = (*STEERING, TURN)
FLUSH_MS = 5_000
CLEAN_UP_MS = 2_000
BACKLOG_PER_SEAT = 4
BEAT_MS = 15_000
BEAT_TTL_MS = 45_000
PRUNE_MS = 60_000
MORE_MS = 100  # pause between two calls: other writers need the store
PRUNE_ROWS = 1_000  # in one call


class NodeStatus(Struct, frozen=True):
    """Snapshot of a node."""

    term: int | None
    seats: int
    busy: int
    stuck: int
    backlog: int  # ends that are not yet recorded
    leases: int
    claimed: int
    leases_lost: int
    fired: int
    is_draining: bool  # it is about to end
    is_paused: bool  # it was asked to claim nothing
    start_late: LatenessSnapshot  # from due to the handler's start
    loops: tuple[LoopStatus, ...]


class TurnResult(Struct, frozen=True):
    """Counts of a planning turn that was requested."""

    fired: int = 0
    released: int = 0
    skipped: int = 0


class Heartbeat(Loop):
    """Store that this node lives and what it can run; the first beat comes before the first claim."""

    def __init__(
        self,
        store: Store,
        describe: Callable[[], Node],
        *,
        clock: Clock,
        events: Events,
        beat_ms: int = BEAT_MS,
        ttl_ms: int = BEAT_TTL_MS,
    ) -> None:
        super().__init__("heartbeat", clock=clock, events=events)
        self.store, self.describe = store, describe
        self.beat_ms, self.ttl_ms = beat_ms, ttl_ms

    async def turn(self) -> Rest:
        await self.store.beat(self.describe(), ttl_ms=self.ttl_ms)
        return Rest(self.beat_ms)


class Pruner(Loop):
    """Delete old history, a bounded number of rows at a time, on the leader's node."""

    def __init__(
        self,
        store: Store,
        leader: Leader,
        time: StoreClock,
        *,
        clock: Clock,
        events: Events,
        options: RuntimeOptions | None = None,
        limit: int = PRUNE_ROWS,
    ) -> None:
        super().__init__("pruner", clock=clock, events=events, rest_max_ms=PRUNE_MS)
        self.store, self.leader, self.time = store, leader, time
        self.options, self.limit = options or RuntimeOptions(), limit
        self.pruned = 0

    async def turn(self) -> Rest:
        if self.leader.term is None:
            return Rest.STANDBY
        options, now_ms = self.options, self.time.now_ms()
        deleted = await self.store.prune(
            Pruning(
                unchanged_before_ms=now_ms - options.unchanged_ms,
                finished_before_ms=now_ms - options.keep_ms,
                keep_per_job=options.keep_per_job,
                once_before_ms=now_ms - options.keep_ms,
                dead_before_ms=now_ms - options.dead_ms,
                dead_max=options.dead_max,
                log_max=options.log_max,
                limit=self.limit,
            )
        )
        self.pruned += deleted
        return Rest(MORE_MS if deleted >= self.limit else PRUNE_MS)


class NodeRuntime:
    """All loops of one node on one store; the caller opens and closes the store."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        options: RuntimeOptions | None = None,
        clock: Clock,
        events: Events,
        dice: Random,
        node_id: str,
        host: str = "",
        version: str = "",
        declares: tuple[Declares, ...] = (),
        secrets: Secrets | None = None,
    ) -> None:
        self.store, self.registry, self.options = store, registry, options or RuntimeOptions()
        self.clock, self.events, self.node_id = clock, events, node_id
        self.host, self.version, self.declares = host or platform.node(), version, declares
        self.started_ms = 0
        self.pool = Pool(self.options.seats)
        self.worker = WorkerState(registry, self.pool, clock=clock, events=events, dice=dice, secrets=secrets)
        self.worker.child_memory, self.worker.crashes_max = self.options.child_memory, self.options.crashes_max
        self.worker.isolates = self.options.isolates
        self._is_announced = self._is_draining = self._skips_grace = False
        self._was_drained = False
        self.on_settings_changed: Callable[[], None] | None = None  # called when a note of `LISTENED` has changed
        self._quiet = asyncio.Event()  # no seat is taken, or draining does not wait for them
        self._drained = asyncio.Event()
        self.beat = Heartbeat(
            store,
            self._describe,
            clock=clock,
            events=events,
            beat_ms=self.options.beat_ms,
            ttl_ms=self.options.beat_ttl_ms,
        )
        self._make_planning_loops()
        self._make_running_loops()
        self.renewer: RenewerThread | Renewer | None = None
        self.lag = LoopLag()
        self.lag.on_blocked, self.worker.on_stuck = self._on_loop_blocked, self.beat.nudge

    def _make_planning_loops(self) -> None:
        options, clock, events, time = self.options, self.clock, self.events, self.worker.time
        self.leader = Leader(
            self.store,
            self.node_id,
            clock=clock,
            events=events,
            ttl_ms=options.leader_ttl_ms,
            renew_ms=options.leader_renew_ms,
        )
        self.timekeeper = Timekeeper(
            self.store,
            self.leader,
            time,
            lambda: Planner(
                seats=self.options.seats,
                ready_max=self.options.ready_max,
                scheduler_version=self.store.scheduler_version,
            ),
            clock=clock,
            events=events,
            turn_rest_ms=options.turn_rest_ms,
            wait_max_ms=options.long_poll_ms,
        )
        self.pruner = Pruner(self.store, self.leader, time, clock=clock, events=events, options=options)
        self.leader.on_change += [self.timekeeper.wake, self.beat.nudge]
        self.leader.on_answer = self._on_term
        self.timekeeper.on_notes = self._on_notes_changed

    def _make_running_loops(self) -> None:
        options, clock, events, worker = self.options, self.clock, self.events, self.worker
        backlog_max = BACKLOG_PER_SEAT * options.seats
        self.settler = worker.settler = Settler(self.store, clock=clock, events=events, backlog_max=backlog_max)
        self.timeouts = worker.timeouts = TimeoutWatch(worker.running, clock=clock, events=events)
        self.dispatcher = Dispatcher(self.store, worker, self.node_id, options=options)
        self.pool.on_free = self.settler.on_room = self.dispatcher.nudge
        self.pool.on_empty = self._quiet.set
        self.dispatcher.on_empty_wait, self.dispatcher.on_settings_changed = self._on_empty_wait, self._on_stops_changed
        self.dispatcher.on_listen_end = self.leader.listening_ended
        self.leader.listening_since = lambda: self.dispatcher.listening_since

    async def start(self) -> None:
        """Beat, then start every loop this node takes part in."""
        if not self._is_announced:
            await self.announce()
        if self.options.runs:
            await self._start_renewer()
        for loop in self._loops():
            loop.start()
        guard(asyncio.get_running_loop())
        if self.options.renews_apart:  # by the real clock
            self.lag.start()

    async def announce(self) -> Node:
        """Write the first beat; refused where the living nodes have another leadership."""
        self.started_ms = self.clock.now_ms()
        node = self._describe()
        await self.store.beat(node, ttl_ms=self.options.beat_ttl_ms)
        try:
            check_key(node, await self.store.nodes())
        except InvalidInput:
            await self.store.beat(node, ttl_ms=0)
            raise
        self._is_announced = True
        return node

    async def drain(self) -> None:
        """Drain and leave; called again, skip the grace.  Every call returns when the drain is over."""
        if self._is_draining:
            self._skip_grace()
            await self._drained.wait()
            return
        self._is_draining = True
        try:
            await self._stop_claiming()
            await self._finish(0 if self._skips_grace else self.options.grace_ms)
            for attempt in sorted(self.worker.running, key=by_run):
                attempt.drain()
            await self._finish(STOP_MS)
            for attempt in sorted(self.worker.running, key=by_run):
                attempt.give_up()
            await self.settler.flush(FLUSH_MS)
            await self._leave()
        finally:
            self._drained.set()

    async def stop(self) -> None:
        """Drain without waiting for running handlers."""
        self._skip_grace()
        await self.drain()

    def vanish(self) -> None:
        """Stop as if the process had died: nothing is settled, resigned or reported.  For tests and simulations."""
        assert not isinstance(self.renewer, RenewerThread), "a thread cannot vanish: use renews_apart=False"
        for loop in (*self._loops(), self.renewer):
            if loop is not None:
                loop.abandon()
        for attempt in sorted(self.worker.running, key=by_run):
            attempt.lose("its node is gone")
        self.worker.threads.stop()
        self.worker.idle_children.stop()
        unguard(asyncio.get_running_loop())

    def _skip_grace(self) -> None:
        self._skips_grace = True
        self._quiet.set()

    async def _stop_claiming(self) -> None:
        """Stop claiming and leading; only seated runs go on."""
        self.pool.drain()
        await asyncio.gather(*(loop.stop() for loop in (self.dispatcher, self.timekeeper, self.pruner, self.leader)))
        await self._best_effort(self.dispatcher.hand_back_unanswered())
        await self._best_effort(self.timekeeper.flush_counts())
        await self._best_effort(self.leader.resign())
        self.beat.nudge()

    async def _finish(self, timeout_ms: float) -> None:
        """Give handlers time to end, as long as there are any."""
        self._quiet.clear()
        if self.pool.busy and timeout_ms > 0:
            await self.clock.wait(self._quiet, timeout_ms)

    async def _leave(self) -> None:
        self.lag.stop()
        unguard(asyncio.get_running_loop())
        await asyncio.gather(*(loop.stop() for loop in (self.settler, self.timeouts, self.beat)))
        if self.renewer is not None:
            await self.renewer.stop()
        self.worker.threads.stop()
        await self._best_effort(self.worker.idle_children.close())
        await self._best_effort(self.registry.close())
        await self._best_effort(self.store.beat(Node(self.node_id), ttl_ms=0))

    @staticmethod
    async def _best_effort(call: Coroutine[Any, Any, None]) -> None:
        """Best-effort clean-up: a store that is down must not delay the shutdown, and all of it expires by itself."""
        with contextlib.suppress(Exception):
            await bounded(call, CLEAN_UP_MS, what="a clean-up")

    # requests and settings

    def trigger(self) -> None:
        """Start a planning turn and a claim now."""
        self.timekeeper.trigger()
        self.dispatcher.wake()

    async def turn_now(self, timeout_ms: int) -> TurnResult | None:
        """Plan now, until nothing is left over or time is up; return the counts.  None: this node does not lead."""
        keeper = self.timekeeper
        if self.leader.term is None or not keeper.is_alive:
            return None
        fired, released, skipped = keeper.fired, keeper.released, keeper.skipped
        self.dispatcher.wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await keeper.turned()
                while keeper.planner is not None and keeper.planner.left_over:
                    await keeper.turned()
        return TurnResult(keeper.fired - fired, keeper.released - released, keeper.skipped - skipped)

    def renew_now(self) -> None:
        """Renew all leases now: the answers contain cancel requests."""
        if self.renewer is not None and self.worker.leases:
            self.renewer.renew_now()

    def reread_stops(self) -> None:
        """Read the stops before the next claim: one has changed."""
        self.dispatcher.reread_stops()

    def retune(self, options: RuntimeOptions) -> None:
        """Apply changed options: the number of seats, the grace, how long to poll and what history is kept.

        The others (leases, terms, beats, what it takes part in) stay as they were until the next start.
        """
        seats = options.seats
        self.options = options = msgspec.structs.replace(
            self.options, **{name: getattr(options, name) for name in TUNABLE}
        )
        self.pruner.options = self.dispatcher.options = options
        self.timekeeper.wait_max_ms, self.worker.child_memory = options.long_poll_ms, options.child_memory
        if seats != self.pool.seats:
            self.pool.resize(seats)
            self.settler.backlog_max = BACKLOG_PER_SEAT * seats
        self.beat.nudge()

    def progress(self) -> dict[str, str]:
        """Return the latest progress of running handlers, by job."""
        latest = ((a.run.job_id, a.ctx.last_progress) for a in self.worker.running if a.ctx is not None)
        return {job_id: words for job_id, words in latest if words}

    def status(self) -> NodeStatus:
        worker, renewer = self.worker, self.renewer.status() if self.renewer is not None else None
        loops = tuple(loop.status() for loop in self._loops())
        return NodeStatus(
            term=self.leader.term,
            seats=self.pool.seats,
            busy=self.pool.busy,
            stuck=worker.stuck,
            backlog=self.settler.backlog,
            leases=len(worker.leases),
            claimed=self.dispatcher.claimed,
            leases_lost=worker.leases_lost,
            fired=self.timekeeper.fired,
            is_draining=self._is_draining,
            is_paused=self.dispatcher.is_drained,
            start_late=worker.late.seen(),
            loops=loops if renewer is None else (*loops, renewer),
        )

    def _loops(self) -> list[Loop]:
        loops: list[Loop] = [self.beat]
        if self.options.plans:
            loops += [self.leader, self.timekeeper, self.pruner]
        if self.options.runs:
            loops += [self.timeouts, self.settler, self.dispatcher]
        return loops

    async def _start_renewer(self) -> None:
        if self.options.renews_apart:
            thread = RenewerThread(self.store, self._make_renewer, self._make_sampler)
            await thread.start()
            self.renewer = thread
        else:
            self.renewer = self._make_renewer(self.store, _at_once)
            self.renewer.start()

    def _make_renewer(self, store: Store, on_main: OnMain) -> Renewer:
        events, lease_ms = RelayedEvents(self.events, on_main), self.options.lease_ms
        leases, clock = self.worker.leases, self.clock
        return Renewer(store, leases, lease_ms=lease_ms, on_main=on_main, clock=clock, events=events)

    def _make_sampler(self, store: Store, on_main: OnMain) -> LoopSampler:
        """Make the sampler of this loop: it runs on another one, and beats in place of this one while it is blocked."""
        running = self.worker.running

        def look(is_frozen: bool) -> str:  # noqa: FBT001  by place
            return blocker_of(self.lag.thread_id, running.copy(), is_frozen=is_frozen)

        return LoopSampler(
            self.lag,
            look,
            lambda: store.beat(self._describe(), ttl_ms=self.options.beat_ttl_ms),
            self._report_block,  # at once, from that thread: this loop may never be free again
            clock=self.clock,
            events=RelayedEvents(self.events, on_main),
        )

    def load(self) -> NodeLoad:
        """Return what slows this node down; callable from any thread."""
        return load_of(self.lag.worst, self.pool, sorted(self.worker.running.copy(), key=by_run))

    def _describe(self) -> Node:
        may_run, term = self.options.runs and not self._is_draining, self.leader.term
        return Node(
            id=self.node_id,
            host=self.host,
            pid=os.getpid(),
            started_ms=self.started_ms,
            seats=self.pool.seats if may_run else 0,
            busy=self.pool.busy,
            handlers=self.registry.names() if self.options.runs else (),
            codes=self.registry.codes() if self.options.runs else (),
            declares=self.declares,
            version=self.version,
            draining=self._is_draining or self.dispatcher.is_drained,
            plans=self.options.plans and not self._is_draining,
            leads=term or 0,
            leads_ms=self.leader.since_ms if term else 0,
            key=self.options.leader_key,
            scheduler_version=self.store.scheduler_version,
            load=self.load(),
        )

    def _on_loop_blocked(self, block: LoopBlock) -> None:
        if block.ms > self.options.health_loop_lag_ms:
            self.beat.nudge()  # so that the store has it, too
            if not self.lag.is_reported:
                self._report_block(block, is_over=True)

    def _report_block(self, block: LoopBlock, *, is_over: bool = False) -> None:
        self.events.emit(LoopBlocked(self.node_id, block.ms, block.by, is_over))

    def _on_term(self, term: Term) -> None:
        self.worker.time.learn(term.now_ms, asked=self.leader.asked_at)

    def _on_stops_changed(self) -> None:
        """A claim reported a changed stop or setting."""
        if self.dispatcher.is_drained != self._was_drained:
            self._was_drained = self.dispatcher.is_drained
            self.beat.nudge()  # other nodes show why nothing is claimed
        if self.on_settings_changed is not None:
            self.on_settings_changed()

    def _on_notes_changed(self, keys: tuple[str, ...]) -> None:
        """The feed reports changed notes to the leader before a claim does, which is late when all seats are taken."""
        if any(key.startswith(DRAIN) for key in keys):
            self.dispatcher.reread_stops()
        if self.on_settings_changed is not None and any(key.startswith(LISTENED) for key in keys):
            self.on_settings_changed()

    def _on_empty_wait(self) -> None:
        """A wait ended without runs: a term may be free, a run may be cancelled."""
        self.leader.hint()
        self.renew_now()


def _at_once(call: Callable[..., Any], *args: Any) -> None:
    call(*args)


def check_key(node: Node, living: Iterable[Node]) -> None:
    """Refuse a node whose leadership name differs from that of the living nodes: a store has one leadership."""
    for other in living:
        if other.key != node.key and other.scheduler_version == node.scheduler_version:
            raise InvalidInput(
                f"node {other.id} on this store {_named(other.key)}, this one {_named(node.key)}",
                where="leader.key",
                cure="name the intended store, or configure one name on all nodes; to change it stop them all first",
            )


def _named(key: str) -> str:
    return f"names the leadership {key!r}" if key else "names no leadership"
