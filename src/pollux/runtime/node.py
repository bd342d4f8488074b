"""Who works in this process?  The crew: all loops of a node, wired, started, drained and stopped together.

    plans:  Leader ─▶ Timekeeper, Pruner
    runs:   Dispatcher ─▶ Attempts (Pool, HandlerThreads, TimeoutWatch) ─▶ Settler        Renewer (its own thread)
    both:   Heartbeat

Draining: stop claiming, resign, let handlers finish within the grace while leases are renewed, ask the rest to stop and
hand it back uncharged, flush the settles, leave.  A second call does not wait for the grace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from pollux.clock import Clock
from pollux.errors import InvalidInput
from pollux.events import Events, LoopHeld
from pollux.model import DRAIN, STEERING, TURN, Declares, Node, NodeLoad, Term
from pollux.plan import Planner
from pollux.registry import Registry
from pollux.runtime.attempt import DEAF_MS, WorkerState
from pollux.runtime.dispatcher import ClaimOptions, Dispatcher
from pollux.runtime.fork_guard import guard, unguard
from pollux.runtime.heartbeat import Heartbeat, check_key
from pollux.runtime.leader import Leader
from pollux.runtime.loop import Loop, LoopStatus, bounded
from pollux.runtime.loop_lag import LoopHold, LoopLag, LoopSampler, holder_of, load_of
from pollux.runtime.options import RuntimeOptions
from pollux.runtime.pool import Pool
from pollux.runtime.pruner import PruneOptions, Pruner
from pollux.runtime.renewer import RelayedEvents, Renewer, RenewerThread, Tell
from pollux.runtime.settler import Settler
from pollux.runtime.stats import LatenessSnapshot
from pollux.runtime.timekeeper import Timekeeper
from pollux.runtime.timeouts import TimeoutWatch, by_run
from pollux.secrets import Secrets
from pollux.store.contract import Store

# What may change while it runs.
TUNABLE = (
    *("seats", "grace_ms", "long_poll_ms", "min_poll_ms", "batch", "child_memory"),
    *("keep_per_job", "keep_ms", "dead_max", "dead_ms", "log_max"),
    *("health_queue_depth", "health_staleness_ms", "health_wait_ms", "health_loop_lag_ms"),
    "health_intervals",
)
LISTENED = (*STEERING, TURN)
FLUSH_MS = 5_000
FAREWELL_MS = 2_000
BACKLOG_PER_SEAT = 4
ON_ITS_WAY_MS = 5  # from the answer of the store to a seat: some rounds of the loop


class NodeStatus(Struct, frozen=True):
    """A node at one look."""

    node_id: str
    term: int | None
    leader: str  # who leads, as far as this node has heard
    seats: int
    busy: int
    stuck: int
    backlog: int  # ends that are not yet recorded
    leases: int
    claimed: int
    settled: int
    discarded: int
    leases_lost: int
    fired: int
    skipped: int
    pruned: int
    is_draining: bool  # it is about to end
    is_paused: bool  # it was asked to claim nothing
    fire_late: LatenessSnapshot  # from due to written
    start_late: LatenessSnapshot  # from due to the handler's start
    loops: tuple[LoopStatus, ...]


class TurnResult(Struct, frozen=True):
    """What came of a turn that somebody asked for."""

    fired: int = 0
    released: int = 0
    skipped: int = 0


class NodeRuntime:
    """All loops of one node on one store, which is open already and stays open."""

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
        self.kit = WorkerState(registry, self.pool, clock=clock, events=events, dice=dice, secrets=secrets)
        self.kit.child_memory, self.kit.crashes_max = self.options.child_memory, self.options.crashes_max
        self.kit.isolates = self.options.isolates
        self._is_announced = self._is_draining = self._is_hurried = False
        self._was_drained = False
        self.on_steered: Callable[[], None] | None = None  # a note of `LISTENED` has changed, as far as we heard
        self._quiet = asyncio.Event()  # nobody sits, or nobody is to be waited for
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
        self.lag.on_held, self.kit.on_stuck = self._was_held, self.beat.nudge

    def _make_planning_loops(self) -> None:
        options, clock, events, time = self.options, self.clock, self.events, self.kit.time
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
        pruning = _pruning(options)
        self.pruner = Pruner(self.store, self.leader, time, clock=clock, events=events, options=pruning)
        self.leader.on_change += [self.timekeeper.wake, self.beat.nudge]
        self.leader.on_answer = self._hear_term
        self.timekeeper.on_notes = self._heard_notes

    def _make_running_loops(self) -> None:
        options, clock, events, kit = self.options, self.clock, self.events, self.kit
        backlog_max = BACKLOG_PER_SEAT * options.seats
        self.settler = kit.settler = Settler(self.store, clock=clock, events=events, backlog_max=backlog_max)
        self.watchman = kit.watchman = TimeoutWatch(kit.running, clock=clock, events=events)
        self.dispatcher = Dispatcher(self.store, kit, self.node_id, options=_claiming(options))
        self.pool.on_free = self.settler.on_room = self.dispatcher.nudge
        self.pool.on_empty = self._quiet.set
        self.dispatcher.on_bell, self.dispatcher.on_steered = self._heard_bell, self._heard_steering
        self.dispatcher.on_deaf = self.leader.unheard
        self.leader.hears_since = lambda: self.dispatcher.listens_since

    # life

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
        """Say that this node is there, before it does anything; refused where another leadership stands."""
        self.started_ms = self.clock.now_ms()
        node = self._describe()
        await self.store.beat(node, ttl_ms=self.options.beat_ttl_ms)
        try:
            check_key(node, await self.store.nodes())
        except InvalidInput:
            await self.store.leave(self.node_id)
            raise
        self._is_announced = True
        return node

    async def drain(self) -> None:
        """Leave in good order; called again, leave at once.  Whoever calls waits until it is done."""
        if self._is_draining:
            self._hurry()
            await self._drained.wait()
            return
        self._is_draining = True
        try:
            await self._stop_taking()
            await self._finish(0 if self._is_hurried else self.options.grace_ms)
            for attempt in sorted(self.kit.running, key=by_run):
                attempt.drain()
            await self._finish(DEAF_MS)
            for attempt in sorted(self.kit.running, key=by_run):
                attempt.give_up()
            await self.settler.flush(FLUSH_MS)
            await self._leave()
        finally:
            self._drained.set()

    async def stop(self, *, hard: bool = True) -> None:
        """Drain; `hard`: without waiting for handlers that are at work."""
        if hard:
            self._hurry()
        await self.drain()

    def vanish(self) -> None:
        """Be gone as if the process had died: nothing is settled, resigned or said.  For stories and simulations."""
        assert not isinstance(self.renewer, RenewerThread), "a thread cannot vanish: use renews_apart=False"
        for loop in (*self._loops(), self.renewer):
            if loop is not None:
                loop.abandon()
        for attempt in sorted(self.kit.running, key=by_run):
            attempt.lose("its node is gone")
        self.kit.hands.stop()
        self.kit.idle_children.stop()
        unguard(asyncio.get_running_loop())

    def _hurry(self) -> None:
        self._is_hurried = True
        self._quiet.set()

    async def _stop_taking(self) -> None:
        """Claim nothing, lead nobody: from here on only what is seated goes on."""
        self.pool.drain()
        await asyncio.gather(*(loop.stop() for loop in (self.dispatcher, self.timekeeper, self.pruner, self.leader)))
        await self._try(self.dispatcher.hand_back_unanswered())
        await self._try(self.timekeeper.farewell())
        await self._try(self.leader.resign())
        self.beat.nudge()

    async def _finish(self, patience_ms: float) -> None:
        """Give handlers time to end, as long as there are any."""
        self._quiet.clear()
        if self.pool.busy and patience_ms > 0:
            await self.clock.wait(self._quiet, patience_ms)

    async def _leave(self) -> None:
        self.lag.stop()
        unguard(asyncio.get_running_loop())
        await asyncio.gather(*(loop.stop() for loop in (self.settler, self.watchman, self.beat)))
        if self.renewer is not None:
            await self.renewer.stop()
        self.kit.hands.stop()
        await self._try(self.kit.idle_children.close())
        await self._try(self.registry.close())
        await self._try(self.store.leave(self.node_id))

    @staticmethod
    async def _try(farewell: Coroutine[Any, Any, None]) -> None:
        """Courtesies to the others: a store that is down must not keep us from leaving; all of it ends by itself."""
        with contextlib.suppress(Exception):
            await bounded(farewell, FAREWELL_MS, what="a farewell")

    # asking and steering

    def trigger(self) -> None:
        """A planning turn and a claim now."""
        self.timekeeper.trigger()
        self.dispatcher.wake()

    async def turn_now(self, patience_ms: int) -> TurnResult | None:
        """Plan now, until nothing is left over or patience ends: what came of it.  None: we do not lead."""
        keeper = self.timekeeper
        if self.leader.term is None or not keeper.is_alive:
            return None
        fired, released, skipped = keeper.fired, keeper.released, keeper.skipped
        self.dispatcher.wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_ms / 1000):
                await keeper.turned()
                while keeper.planner is not None and keeper.planner.left_over:
                    await keeper.turned()
        return TurnResult(keeper.fired - fired, keeper.released - released, keeper.skipped - skipped)

    def look(self) -> None:
        """Ask for cancel requests now, not at the next renewal."""
        if self.renewer is not None and self.kit.leases:
            self.renewer.look()

    def heed(self) -> None:
        """A stop has changed: look before the next claim."""
        self.dispatcher.heed()

    def retune(self, options: RuntimeOptions) -> None:
        """Go on with other options: the number of seats, the grace, how long to poll and what history is kept.

        The others (leases, terms, beats, what it takes part in) stay as they were until the next start.
        """
        seats = options.seats
        self.options = options = msgspec.structs.replace(
            self.options, **{name: getattr(options, name) for name in TUNABLE}
        )
        self.pruner.options, self.dispatcher.options = _pruning(options), _claiming(options)
        self.timekeeper.wait_max_ms, self.kit.child_memory = options.long_poll_ms, options.child_memory
        if seats != self.pool.seats:
            self.pool.resize(seats)
            self.settler.backlog_max = BACKLOG_PER_SEAT * seats
        self.beat.nudge()

    def progress(self) -> dict[str, str]:
        """What running handlers said last, by job."""
        said = ((a.run.job_id, a.ctx.last_progress) for a in self.kit.running if a.ctx is not None)
        return {job_id: words for job_id, words in said if words}

    @property
    def is_pressed(self) -> bool:
        """Is a run due, or on its way to a seat?  Whoever shares the loop with us and can wait lets it go first."""
        keeper = self.timekeeper
        return keeper.is_pressed or self.clock.mono_ms() - keeper.fired_at < ON_ITS_WAY_MS

    def status(self) -> NodeStatus:
        kit, renewer = self.kit, self.renewer.status() if self.renewer is not None else None
        loops = tuple(loop.status() for loop in self._loops())
        return NodeStatus(
            node_id=self.node_id,
            term=self.leader.term,
            leader=self.leader.seen.holder if self.leader.seen is not None else "",
            seats=self.pool.seats,
            busy=self.pool.busy,
            stuck=kit.stuck,
            backlog=self.settler.backlog,
            leases=len(kit.leases),
            claimed=self.dispatcher.claimed,
            settled=self.settler.settled,
            discarded=self.settler.discarded,
            leases_lost=kit.leases_lost,
            fired=self.timekeeper.fired,
            skipped=self.timekeeper.skipped,
            pruned=self.pruner.pruned,
            is_draining=self._is_draining,
            is_paused=self.dispatcher.is_drained,
            fire_late=self.timekeeper.late.seen(),
            start_late=kit.late.seen(),
            loops=loops if renewer is None else (*loops, renewer),
        )

    # wiring

    def _loops(self) -> list[Loop]:
        loops: list[Loop] = [self.beat]
        if self.options.plans:
            loops += [self.leader, self.timekeeper, self.pruner]
        if self.options.runs:
            loops += [self.watchman, self.settler, self.dispatcher]
        return loops

    async def _start_renewer(self) -> None:
        kit, lease_ms, clock = self.kit, self.options.lease_ms, self.clock
        if self.options.renews_apart:

            def make(store: Store, tell: Tell) -> Renewer:
                events = RelayedEvents(self.events, tell)
                return Renewer(store, kit.leases, lease_ms=lease_ms, tell=tell, clock=clock, events=events)

            thread = RenewerThread(self.store, make, self._make_sampler)
            await thread.start()
            self.renewer = thread
        else:
            renewer = Renewer(self.store, kit.leases, lease_ms=lease_ms, tell=_at_once, clock=clock, events=self.events)
            renewer.start()
            self.renewer = renewer

    def _make_sampler(self, store: Store, tell: Tell) -> LoopSampler:
        """It looks at this loop from another one, and beats in its place while it is held."""
        running = self.kit.running

        def look(is_frozen: bool) -> str:  # noqa: FBT001  by place
            return holder_of(self.lag.thread_id, running.copy(), is_frozen=is_frozen)

        return LoopSampler(
            self.lag,
            look,
            lambda: store.beat(self._describe(), ttl_ms=self.options.beat_ttl_ms),
            self._say_held,  # at once, from that thread: this one may never be free again
            clock=self.clock,
            events=RelayedEvents(self.events, tell),
        )

    def load(self) -> NodeLoad:
        """What holds this node up; from any thread."""
        return load_of(self.lag.worst, self.pool, sorted(self.kit.running.copy(), key=by_run))

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

    def _was_held(self, hold: LoopHold) -> None:
        if hold.ms > self.options.health_loop_lag_ms:
            self.beat.nudge()  # whoever asks the store is told, too
            if not self.lag.is_said:
                self._say_held(hold, is_over=True)

    def _say_held(self, hold: LoopHold, *, is_over: bool = False) -> None:
        self.events.emit(LoopHeld(self.node_id, hold.ms, hold.by, is_over))

    def _hear_term(self, term: Term) -> None:
        self.kit.time.learn(term.now_ms, asked=self.leader.asked_at)

    def _heard_steering(self) -> None:
        """A claim told that a stop or a setting has changed."""
        if self.dispatcher.is_drained != self._was_drained:
            self._was_drained = self.dispatcher.is_drained
            self.beat.nudge()  # others may ask why nothing is claimed
        if self.on_steered is not None:
            self.on_steered()

    def _heard_notes(self, keys: tuple[str, ...]) -> None:
        """The feed told the leader: it need not wait for a claim, which comes late when all seats are taken."""
        if any(key.startswith(DRAIN) for key in keys):
            self.dispatcher.heed()
        if self.on_steered is not None and any(key.startswith(LISTENED) for key in keys):
            self.on_steered()

    def _heard_bell(self) -> None:
        """A wait ended, and there was nothing to claim: a term may be free, a run may be cancelled."""
        self.leader.hint()
        self.look()


def _claiming(options: RuntimeOptions) -> ClaimOptions:
    return ClaimOptions(
        lease_ms=options.lease_ms,
        long_poll_ms=options.long_poll_ms,
        min_poll_ms=options.min_poll_ms,
        batch=options.batch,
        losses_max=options.losses_max,
        feed_max=options.feed_max,
    )


def _pruning(options: RuntimeOptions) -> PruneOptions:
    return PruneOptions(
        unchanged_ms=options.unchanged_ms,
        keep_ms=options.keep_ms,
        keep_per_job=options.keep_per_job,
        dead_max=options.dead_max,
        dead_ms=options.dead_ms,
        log_max=options.log_max,
    )


def _at_once(call: Callable[..., Any], *args: Any) -> None:
    call(*args)
