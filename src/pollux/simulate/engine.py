"""Simulation engine: the real core (Timekeeper with its Planner, Dispatcher, Pool, Attempt, Settler, TimeoutWatch,
Pruner) on the memory store; only time, random numbers and handlers are simulated.

Nothing sleeps.  The engine gives each loop its turn when the loop itself would take one, and in between advances time
to the next event:

    a handler ends ─▶ settle ─▶ plan (if it is due, or a run is held) ─▶ claim ─▶ a handler begins
          ▲                                                                             │
          └───────────── time advances to the next end, due time or retry ◀─────────────┘

A turn on the memory store never has to wait, so its coroutine is stepped through at once, without an event loop.  That
makes a day cheap; it is also why nothing depends on how a machine orders its work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol, TypeVar

import msgspec

from pollux.errors import Transient
from pollux.events import Events
from pollux.model import Advanced, Isolate, Job, Node, Plan, Term
from pollux.plan import Planner
from pollux.registry import Context, Registry
from pollux.runtime.attempt import Pool, TimeoutWatch, WorkerState
from pollux.runtime.dispatcher import Dispatcher
from pollux.runtime.handler_threads import HandlerThreads
from pollux.runtime.leader import Leader
from pollux.runtime.loop import Loop, Rest
from pollux.runtime.node import Pruner
from pollux.runtime.options import RuntimeOptions
from pollux.runtime.settler import Settler
from pollux.runtime.timekeeper import Timekeeper
from pollux.simulate.scenario import Scenario
from pollux.store.contract import BATCH_MAX, Answer, Claimed, Feed, JobPut, Settlement
from pollux.store.memory import MemoryStore

NODE = "simulated"
FOR_EVER_MS = 10**12
NEVER_US = 2**62
PRUNE_ROWS = 10_000
BACKLOG_PER_SEAT = 4  # as in `runtime/node.py`
T = TypeVar("T")


class SimulationListener(Protocol):
    """Observer of a simulation, called for everything in the order in which it happens."""

    def begun(self, ctx: Context, now_ms: int, busy: int) -> None: ...
    def worked(self, job_id: str, duration_us: int) -> None: ...
    def planned(self, plan: Plan, advanced: Advanced) -> None: ...
    def settled(self, settlements: Sequence[Settlement], now_ms: int) -> None: ...


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never has to wait."""
    while True:
        try:
            call.send(None)
        except StopIteration as answered:
            answer: T = answered.value
            return answer


class EngineClock:
    """A clock whose time the engine sets."""

    def __init__(self, now_ms: int) -> None:
        self.us = 0
        self._from_ms = now_ms

    def now_ms(self) -> int:
        return self._from_ms + self.us // 1_000

    def mono_ms(self) -> float:
        return self.us / 1_000

    def at_us(self, wall_ms: int) -> int:
        return (wall_ms - self._from_ms) * 1_000

    async def wait(self, event: asyncio.Event, timeout_ms: float | None) -> bool:  # noqa: ARG002  the protocol's
        raise AssertionError("no call waits in a simulation")

    def wait_in_thread(self, flag: threading.Event, seconds: float) -> None:  # noqa: ARG002
        raise AssertionError("there are no threads in a simulation")


class InstantStore(MemoryStore):
    """A memory store whose calls need no event loop: there is nothing to count or to bound."""

    async def _call(self, verb: str, answer: Coroutine[Any, Any, T], wait_ms: int = 0) -> T:  # noqa: ARG002
        return await answer


class EngineStore(InstantStore):
    """A memory store that counts writes and calls the listener; waits return at once."""

    def __init__(self, clock: EngineClock, listener: SimulationListener) -> None:
        super().__init__(clock)
        self._watched, self._state = listener, self.memory.state
        self.look_again_ms: int | None = None
        self.news = 0  # writes after which there may be something to claim

    @property
    def ready(self) -> int:
        return self._state.ready

    @property
    def held(self) -> int:
        return self._state.held

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:  # noqa: ARG002
        return await super().feed(limit=limit, now_ms=now_ms)

    async def claim(self, **asked: Any) -> Claimed:
        claimed = await super().claim(**{**asked, "wait_ms": 0})
        self.look_again_ms = claimed.look_again_ms
        return claimed

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None = None) -> Advanced:
        advanced = await super().advance(term, plan, now_ms=now_ms)
        if advanced.answer is Answer.OK:
            self.news += 1
            self._watched.planned(plan, advanced)
        return advanced

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        answers = await super().settle(settlements, now_ms=now_ms)
        self.news += 1
        self._watched.settled(settlements, self.clock.now_ms())
        return answers


class _AtOnce(Loop):
    """Base of loops that are stepped: no call has to be interrupted."""

    async def interruptible(self, call: Coroutine[Any, Any, T]) -> T | None:
        return await call


class EngineTimekeeper(_AtOnce, Timekeeper):
    pass


class EngineDispatcher(_AtOnce, Dispatcher):
    pass


class SoleLeader(Leader):
    """A leader that never loses its term: there is no other node."""

    def __init__(self, store: EngineStore, clock: EngineClock, events: Events) -> None:
        super().__init__(store, NODE, clock=clock, events=events)
        self.won: Term = at_once(store.elect(NODE, ttl_ms=FOR_EVER_MS))

    @property
    def term(self) -> int | None:
        return self.won.number


class EngineThreads(HandlerThreads):
    """Simulated handler threads: each call begins at once and ends when its time has come."""

    def __init__(self, clock: EngineClock) -> None:
        super().__init__()
        self._clock = clock
        self._count = 0
        self.ends: list[tuple[int, int, Callable[[Any, BaseException | None], None], BaseException | None]] = []

    def submit(self, work: Callable[[], Any], ended: Callable[[Any, BaseException | None], None]) -> None:
        duration_us, error = work()
        self._count += 1
        heappush(self.ends, (self._clock.us + duration_us, self._count, ended, error))

    def end(self) -> None:
        """End every call whose time has come."""
        while self.ends and self.ends[0][0] <= self._clock.us:
            _, _, ended, error = heappop(self.ends)
            ended(None, error)


class SimulationEngine:
    """One node and its store, from `open` on; `play_until` lets time pass."""

    def __init__(self, scenario: Scenario, listener: SimulationListener) -> None:
        self.scenario, self.listener = scenario, listener
        self.clock = clock = EngineClock(scenario.from_ms)
        self.store = store = EngineStore(clock, listener)
        self.events = events = Events()
        self.registry = Registry()
        self.pool = Pool(scenario.seats)
        dice = Random(scenario.seed)  # noqa: S311
        self.worker = worker = WorkerState(self.registry, self.pool, clock=clock, events=events, dice=dice)
        worker.isolates = False
        self.threads = worker.threads = EngineThreads(clock)
        self.settler = worker.settler = Settler(
            store, clock=clock, events=events, backlog_max=BACKLOG_PER_SEAT * scenario.seats
        )
        self.timeouts = worker.timeouts = TimeoutWatch(worker.running, clock=clock, events=events)
        self.dispatcher = EngineDispatcher(store, worker, NODE, options=RuntimeOptions(lease_ms=FOR_EVER_MS))
        at_once(store.open())
        leader = SoleLeader(store, clock, events)
        self.timekeeper = EngineTimekeeper(
            store,
            leader,
            worker.time,
            lambda: Planner(seats=scenario.seats, ready_max=scenario.ready_max),
            clock=clock,
            events=events,
            turn_rest_ms=scenario.turn_rest_ms,
        )
        pruning = RuntimeOptions(unchanged_ms=0, keep_per_job=1)
        self.pruner = Pruner(store, leader, worker.time, clock=clock, events=events, options=pruning, limit=PRUNE_ROWS)
        self._fails = scenario.habit.failing > 0 or any(habit.failing > 0 for habit in scenario.habits.values())
        self._plan_at = self._prune_at = self._rested_at = 0
        self._watch_at: list[int] = []
        self._claim_at = NEVER_US
        self._news_seen = -1

    def open(self, jobs: Sequence[Job]) -> None:
        """Put the jobs, each with a simulated handler, and announce the node."""
        jobs = [msgspec.structs.replace(job, params={}, isolate=Isolate.NEVER) for job in jobs]  # nothing that is real
        for name in {job.handler: None for job in jobs}:
            self.registry.add(name, self._stand_in)
        node = Node(
            id=NODE,
            host=NODE,
            pid=0,
            started_ms=self.clock.now_ms(),
            seats=self.scenario.seats,
            handlers=self.registry.names(),
        )
        at_once(self.store.beat(node, ttl_ms=FOR_EVER_MS))
        for start in range(0, len(jobs), BATCH_MAX):
            at_once(self.store.put_jobs([JobPut(job) for job in jobs[start : start + BATCH_MAX]]))

    def play_until(self, wall_ms: int) -> None:
        """Let everything happen up to and including that instant."""
        end_us, clock = self.clock.at_us(wall_ms), self.clock
        while clock.us <= end_us:
            while self._step():
                pass
            next_us = self._next_us()
            if next_us > end_us:
                clock.us = max(clock.us, end_us)
                return
            clock.us = next_us

    def _step(self) -> bool:
        """Do what can be done at this instant; false if there is nothing more."""
        us, threads, settler = self.clock.us, self.threads, self.settler
        if self._watch_at and self._watch_at[0] <= us:
            heappop(self._watch_at)
            _turn(self.timeouts)
        if threads.ends and threads.ends[0][0] <= us:
            threads.end()
        did = False
        if settler.backlog:
            _turn(settler)
            if self._fails or self.store.held:  # the planner learns of the end now; else it may later
                self._plan_at = min(self._plan_at, max(us, self._rested_at))
            did = True
        if self._plan_at <= us:
            self._plan(us)
            did = True
        return self._claim(us) or did

    def _plan(self, us: int) -> None:
        keeper, plans = self.timekeeper, self.timekeeper.plans
        rest = _turn(keeper)
        self._rested_at = us + round((rest.ms or 0) * 1_000)
        planner = keeper.planner
        assert planner is not None, "the only leader there is does not lose its term"
        if planner.left_over:
            self._plan_at = self._rested_at
            return
        next_ms = planner.next_ms()
        next_us = NEVER_US if next_ms is None else self.clock.at_us(next_ms)
        self._plan_at = max(next_us, self._rested_at if keeper.plans > plans else us + 1_000)

    def _claim(self, us: int) -> bool:
        """Seat what is ready, if there is a seat; return whether a run was seated."""
        store = self.store
        if store.ready == 0 or self.pool.free == 0 or (store.news == self._news_seen and us < self._claim_at):
            return False
        claimed = self.dispatcher.claimed
        _turn(self.dispatcher)
        if self.dispatcher.claimed > claimed:
            return True
        again_ms = store.look_again_ms
        self._news_seen = store.news
        self._claim_at = NEVER_US if again_ms is None else max(self.clock.at_us(again_ms), us + 1_000)
        return False

    def _next_us(self) -> int:
        """Return when something happens next; time advances in grains."""
        us = self.clock.us
        if self._prune_at <= us:
            self._prune_at = us + round((_turn(self.pruner).ms or 0) * 1_000)
        next_us = min(self._plan_at, self._claim_at if self.store.ready and self.pool.free else NEVER_US)
        if self.threads.ends:
            next_us = min(next_us, self.threads.ends[0][0])
        if self._watch_at:
            next_us = min(next_us, self._watch_at[0])
        grain_us = self.scenario.grain_ms * 1_000
        return max(us + 1, -(-next_us // grain_us) * grain_us)

    def _stand_in(self, ctx: Context, **_: Any) -> tuple[int, BaseException | None]:
        """Simulated handler: take its time, and perhaps fail."""
        run, now_ms = ctx.run, self.clock.now_ms()
        self.listener.begun(ctx, now_ms, self.pool.busy)
        duration_us, fails = self.scenario.habit_of(run.job_id).roll(self.scenario.seed, run)
        left_us = (ctx.deadline_ms - now_ms) * 1_000
        error: BaseException | None = Transient("simulated failure") if fails else None
        if duration_us > left_us:  # it is asked to stop at its timeout, and does a moment later
            heappush(self._watch_at, self.clock.us + left_us)
            duration_us, error = left_us + 1_000, TimeoutError("simulated timeout")
        self.listener.worked(run.job_id, duration_us)
        return duration_us, error


def _turn(loop: Loop) -> Rest:
    """Do one turn; an error in it is a defect here, so it is not caught as on a running node."""
    return at_once(loop.turn())
