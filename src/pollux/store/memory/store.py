"""Backend in the memory of one process: each verb runs under one lock, and waiting calls rest on an event.

Every verb's body is synchronous and short; the lock is never held over an await.  Twins share the state, so another
thread may call at any time; a waiter is woken in its own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pollux.clock import Clock, SystemClock
from pollux.errors import StoreError
from pollux.model import SCHEDULER_VERSION, Job, Note, NotePut, Plan, Run, check_version
from pollux.store.backend import Look, MovedAway
from pollux.store.clock_jumps import JumpGuard
from pollux.store.contract import Advanced, Answer, Audit, Capabilities, Claimed, Feed, Pruning, RunAnswer, Settlement
from pollux.store.handle import StoreHandle
from pollux.store.limits import checked_run, checked_runs, checked_settlements
from pollux.store.memory import jobs, leases, nodes, notes, plan, records, runs
from pollux.store.memory.settle import settle
from pollux.store.memory.state import SharedState, VersionState
from pollux.store.memory.wakeup import MemoryWaiter
from pollux.store.move_marks import SEAL
from pollux.store.values import ClaimRequest

LOOK_AGAIN_MS = 5_000  # longest rest of a waiting claim, because the clock may jump
T = TypeVar("T")

VERBS: dict[str, Callable[..., Any]] = {
    verb.__name__: verb
    for verb in (
        *(jobs.put_jobs, jobs.delete_jobs, jobs.move_jobs, jobs.get_jobs, jobs.list_jobs, jobs.due),
        *(runs.cancel, runs.revive, runs.get_runs, runs.list_runs, runs.counts, runs.lines, leases.renew),
        *(notes.put_notes, notes.notes, nodes.beat, nodes.nodes, nodes.elect, nodes.resign, nodes.versions),
        *(records.log, records.read_log, records.dump, records.load),
    )
}
TIMED = frozenset(  # verbs that take the time as their last argument
    {*("delete_jobs", "cancel", "revive", "lines", "renew", "put_notes", "notes", "beat", "nodes", "elect"), "versions"}
)


class MemoryOpenState:
    """Open state shared by a handle and the handles of other versions made from it."""

    def __init__(self) -> None:
        self.is_open = False


class MemoryBackend:
    capabilities = Capabilities(name="memory", waits=True, durable=False, shared=False, writes_are_cheap=True)

    def __init__(self, clock: Clock, version: int, shared: SharedState, opened: MemoryOpenState | None = None) -> None:
        self.version = version
        self._clock, self._shared = clock, shared
        self.state = shared.state(version)
        self._jumps = JumpGuard(clock)
        self._opened = opened or MemoryOpenState()

    @property
    def is_open(self) -> bool:
        return self._opened.is_open

    async def open(self) -> None:
        self._opened.is_open = True

    async def close(self) -> None:
        self._opened.is_open = False
        self._shared.bells.wake(handle=self._opened)

    def twin(self) -> MemoryBackend:
        return MemoryBackend(self._clock, self.version, self._shared)

    def of_version(self, number: int) -> MemoryBackend:
        return MemoryBackend(self._clock, number, self._shared, self._opened)

    async def read(self, verb: str, *args: Any, now_ms: int | None = None) -> Any:
        return self._do(VERBS[verb], *args, *([self._now(now_ms)] if verb in TIMED else []))

    async def write(
        self, verb: str, *args: Any, audit: Audit | None = None, now_ms: int | None = None, unless_moved: bool = False
    ) -> Any:
        if verb == "wake":
            return self._shared.bells.wake()
        timed = [self._now(now_ms)] if verb in TIMED else []
        return self._do(_recorded, audit, unless_moved, VERBS[verb], *args, *timed)

    async def feed(self, limit: int, *, now_ms: int | None) -> Look[Feed]:
        return Look(self._do(plan.feed, limit, self._now(now_ms)))

    async def advance(self, term: int, planned: Plan, *, now_ms: int | None) -> Advanced:
        for firing in planned.firings:
            if firing.run.payload is not None:
                checked_run(firing.run)
        return self._do(plan.advance, term, planned, self._now(now_ms))

    async def enqueue(
        self,
        made: Sequence[Run],
        puts: Sequence[NotePut],
        *,
        ready_max: int,
        unless_live: bool,
        audit: Audit | None,
        now_ms: int | None,
        unless_moved: bool,
    ) -> list[RunAnswer]:
        asked = checked_runs(made), puts, ready_max, self._now(now_ms), unless_live
        return self._do(_recorded, audit, unless_moved, runs.enqueue, *asked)

    async def claim(self, request: ClaimRequest, *, now_ms: int | None) -> Look[Claimed]:
        at_ms = self._now(now_ms)  # read before the guard, so that the guard has seen every jump in it
        hold_ms = self._jumps.hold_ms(request.lease_ms) if now_ms is None else 0
        claimed: Claimed = self._do(leases.claim, request, hold_ms, at_ms)
        look_again_ms = claimed.look_again_ms
        return Look(claimed, None if look_again_ms is None else look_again_ms - claimed.now_ms)

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None) -> list[Answer]:
        return self._do(settle, checked_settlements(settlements), self._now(now_ms))

    async def prune(self, what: Pruning, *, audit: Audit | None, now_ms: int | None, unless_moved: bool) -> int:
        gone: int = self._do(_recorded, audit, unless_moved, records.prune, what, self._now(now_ms))
        return gone

    @contextmanager
    def listen(self, request: ClaimRequest | None, *, is_live: bool) -> Iterator[MemoryRest]:  # noqa: ARG002
        kind, node = ("feed", "") if request is None else ("runs", request.node)
        with self._shared.bells.waiter(kind, node, self._opened, self.version) as waiter:
            yield MemoryRest(waiter, self._clock, LOOK_AGAIN_MS if request else None)

    async def now(self) -> int:
        return self._clock.now_ms()

    async def problems(self) -> tuple[str, ...]:
        return ()

    def job(self, row: tuple[str, Job]) -> Job:
        return row[1]

    def run(self, row: tuple[str, Run]) -> Run:
        return row[1]

    def note(self, row: Note) -> Note:
        return row

    def _now(self, now_ms: int | None) -> int:
        return self._clock.now_ms() if now_ms is None else now_ms

    def _do(self, verb: Callable[..., T], *args: Any) -> T:
        if not self.is_open:
            raise StoreError("the memory store is not open; open it first")
        shared = self._shared
        with shared.lock:
            answer = verb(self.state, *args)
            rung, asked = shared.rung, shared.asked
            if rung:
                shared.rung = {}
            if asked:
                shared.asked = {}
        for kind, version in rung:
            shared.bells.ring(kind, version)
        for owner in asked:
            shared.bells.wake(node=owner)
        return answer


class MemoryRest:
    """Waiter of one call on a memory store."""

    def __init__(self, waiter: MemoryWaiter, clock: Clock, again_ms: int | None) -> None:
        self._waiter, self._clock, self._again_ms = waiter, clock, again_ms

    def begin(self) -> None:
        self._waiter.event.clear()

    @property
    def is_over(self) -> bool:
        return self._waiter.is_woken

    async def rest(self, look: Look[Any], left_ms: float) -> None:
        naps_ms = [each for each in (left_ms, self._again_ms, look.again_ms) if each is not None]
        await self._clock.wait(self._waiter.event, max(1.0, min(naps_ms)))


class MemoryStore(StoreHandle):
    def __init__(self, clock: Clock | None = None, *, scheduler_version: int = SCHEDULER_VERSION) -> None:
        clock = clock or SystemClock()
        self.memory = MemoryBackend(clock, check_version(scheduler_version), SharedState())
        super().__init__(self.memory, clock=clock)


def _recorded(
    state: VersionState,
    audit: Audit | None,
    unless_moved: bool,  # noqa: FBT001  called by position
    verb: Callable[..., T],
    *args: Any,
) -> T:
    """Run a verb and write its audit lines; raises `MovedAway` on a sealed store."""
    if unless_moved and SEAL in state.notes:
        raise MovedAway
    answer = verb(state, *args)
    if audit is not None:
        records.log(state, audit.of(answer))  # type: ignore[arg-type]
    return answer
