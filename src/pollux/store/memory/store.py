"""The handle on a memory store: it checks what comes in, does each verb under one lock, and waits.

Every verb's body is synchronous and short; the lock is never held over an await.  Twins share the state, so another
thread may call at any time; who waits is rung in its own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from pollux.clock import Clock, SystemClock
from pollux.errors import StoreError
from pollux.model import (
    SCHEDULER_VERSION,
    AuditLine,
    Job,
    Node,
    Note,
    NotePut,
    Plan,
    QueueDepth,
    Run,
    Term,
    Version,
    check_version,
)
from pollux.store.clock_jumps import JumpGuard
from pollux.store.contract import (
    BATCH_MAX,
    FEED_MAX,
    LOSSES_MAX,
    PAGE_MAX,
    READY_MAX,
    Advanced,
    Answer,
    Audit,
    Capabilities,
    Claimed,
    Counts,
    DumpPage,
    Feed,
    JobAnswer,
    JobFilter,
    JobPage,
    JobPut,
    LogPage,
    Pruning,
    Renewal,
    Renewed,
    RunAnswer,
    RunFilter,
    RunPage,
    Settlement,
)
from pollux.store.limits import (
    check_batch,
    check_first,
    check_page,
    check_plan,
    check_pruning,
    checked_job,
    checked_notes,
    checked_run,
    checked_runs,
    checked_settlements,
)
from pollux.store.memory import jobs as job_verbs
from pollux.store.memory import leases as lease_verbs
from pollux.store.memory import nodes as node_verbs
from pollux.store.memory import nodes as version_verbs
from pollux.store.memory import notes as note_verbs
from pollux.store.memory import plan as plan_verbs
from pollux.store.memory import records as record_verbs
from pollux.store.memory import runs as run_verbs
from pollux.store.memory.settle import settle
from pollux.store.memory.state import SharedState, VersionState
from pollux.store.memory.wakeup import MemoryWaiter
from pollux.store.values import ClaimRequest

LOOK_AGAIN_MS = 5_000  # a wait looks up at least so often: the clock may have leapt
P = ParamSpec("P")
T = TypeVar("T")


class MemoryOpenState:
    """Open or closed, for a handle and those of other versions that were made from it."""

    def __init__(self) -> None:
        self.is_open = False


class MemoryStore:
    capabilities = Capabilities(name="memory", waits=True, durable=False, shared=False, writes_are_cheap=True)

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        scheduler_version: int = SCHEDULER_VERSION,
        house: SharedState | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._house = house or SharedState()
        self._state = self._house.state(check_version(scheduler_version))
        self._jumps = JumpGuard(self._clock)
        self._door = MemoryOpenState()

    @property
    def scheduler_version(self) -> int:
        return self._state.version

    @property
    def _is_open(self) -> bool:
        return self._door.is_open

    async def open(self) -> None:
        self._door.is_open = True

    async def close(self) -> None:
        self._door.is_open = False
        self._house.bells.wake(handle=self._door)

    def twin(self) -> MemoryStore:
        return MemoryStore(self._clock, scheduler_version=self.scheduler_version, house=self._house)

    def of_version(self, number: int) -> MemoryStore:
        other = MemoryStore(self._clock, scheduler_version=number, house=self._house)
        other._door = self._door
        return other

    # jobs

    async def put_jobs(
        self,
        puts: Sequence[JobPut],
        *,
        audit: Audit[list[JobAnswer]] | None = None,
        now_ms: int | None = None,  # noqa: ARG002  the contract's
    ) -> list[JobAnswer]:
        check_batch(puts, "jobs")
        checked = [replace(put, job=checked_job(put.job)) for put in puts]
        return self._do(record_verbs.recorded, audit, job_verbs.put_jobs, checked)

    async def delete_jobs(
        self,
        ids: Sequence[str],
        *,
        reason: str = "",
        audit: Audit[list[Answer]] | None = None,
        now_ms: int | None = None,
    ) -> list[Answer]:
        check_batch(ids, "jobs")
        return self._do(record_verbs.recorded, audit, job_verbs.delete_jobs, ids, reason, self._now(now_ms))

    async def get_jobs(self, ids: Sequence[str]) -> list[Job | None]:
        check_batch(ids, "jobs")
        return self._do(job_verbs.get_jobs, ids)

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        return self._do(job_verbs.list_jobs, where or JobFilter(), after, check_page(limit))

    async def move_jobs(
        self,
        ids: Sequence[str],
        to: int,
        *,
        audit: Audit[list[Answer]] | None = None,
        now_ms: int | None = None,  # noqa: ARG002  the contract's
    ) -> list[Answer]:
        check_batch(ids, "jobs")
        return self._do(record_verbs.recorded, audit, job_verbs.move_jobs, ids, check_version(to))

    async def due(self, *, after: tuple[int, str] | None = None, before_ms: int, limit: int) -> list[Job]:
        return self._do(job_verbs.due, after, before_ms, limit)

    # plan

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:
        feed = self._do(plan_verbs.feed, limit, self._now(now_ms))
        return feed if feed.items or wait_ms <= 0 else await self._wait_for_entries(limit, wait_ms, now_ms)

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None = None) -> Advanced:
        check_plan(plan)
        for firing in plan.firings:
            if firing.run.payload is not None:
                checked_run(firing.run)
        if plan.notes:
            plan = replace(plan, notes=tuple(checked_notes(plan.notes)))
        return self._do(plan_verbs.advance, term, plan, self._now(now_ms))

    # runs

    async def enqueue(
        self,
        runs: Sequence[Run],
        *,
        notes: Sequence[NotePut] = (),
        ready_max: int = READY_MAX,
        unless_live: bool = False,
        audit: Audit[list[RunAnswer]] | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        asked, notes = checked_runs(runs), checked_notes(notes)
        verb = run_verbs.enqueue
        return self._do(record_verbs.recorded, audit, verb, asked, notes, ready_max, self._now(now_ms), unless_live)

    async def claim(
        self,
        *,
        node: str,
        token: str,
        limit: int,
        lease_ms: int,
        first: int = 1,
        losses_max: int = LOSSES_MAX,
        feed_max: int = FEED_MAX,
        wait_ms: int = 0,
        now_ms: int | None = None,
    ) -> Claimed:
        check_first(first)
        asking = ClaimRequest(node, token, min(limit, BATCH_MAX), lease_ms, first, losses_max, feed_max)
        claimed = await self._claim(asking, now_ms)
        if claimed.runs or wait_ms <= 0 or claimed.answer is not Answer.OK:
            return claimed
        return await self._wait_for_runs(asking, wait_ms, now_ms)

    async def renew(self, renewals: Sequence[Renewal], *, lease_ms: int, now_ms: int | None = None) -> list[Renewed]:
        check_batch(renewals, "renewals")
        return self._do(lease_verbs.renew, renewals, lease_ms, self._now(now_ms))

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        return self._do(settle, checked_settlements(settlements), self._now(now_ms))

    async def cancel(
        self,
        *,
        run_ids: Sequence[str] = (),
        job_id: str | None = None,
        reason: str = "",
        audit: Audit[list[RunAnswer]] | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        return self._do(record_verbs.recorded, audit, run_verbs.cancel, run_ids, job_id, reason, self._now(now_ms))

    async def revive(
        self, run_ids: Sequence[str], *, audit: Audit[list[RunAnswer]] | None = None, now_ms: int | None = None
    ) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        return self._do(record_verbs.recorded, audit, run_verbs.revive, run_ids, self._now(now_ms))

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        return self._do(run_verbs.list_runs, where or RunFilter(), after, check_page(limit))

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        check_batch(ids, "runs")
        return self._do(run_verbs.get_runs, ids)

    async def now(self) -> int:
        return self._clock.now_ms()

    async def counts(self, *, all_versions: bool = False) -> Counts:
        return self._do(run_verbs.counts, all_versions=all_versions)

    async def lines(self, *, before: str | None = None, now_ms: int | None = None) -> tuple[QueueDepth, ...]:
        return self._do(run_verbs.lines, before, self._now(now_ms))

    async def problems(self) -> tuple[str, ...]:
        return self._do(lambda _: ())

    async def prune(self, what: Pruning, *, audit: Audit[int] | None = None) -> int:
        check_pruning(what, is_told=audit is not None)
        return self._do(record_verbs.recorded, audit, record_verbs.prune, what)

    # notes

    async def put_notes(
        self, puts: Sequence[NotePut], *, audit: Audit[list[Answer]] | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        return self._do(record_verbs.recorded, audit, note_verbs.put_notes, checked_notes(puts), self._now(now_ms))

    async def notes(self, prefix: str = "", *, now_ms: int | None = None) -> list[Note]:
        return self._do(note_verbs.notes, prefix, self._now(now_ms))

    # nodes and terms

    async def beat(self, node: Node, *, ttl_ms: int, now_ms: int | None = None) -> None:
        check_version(node.scheduler_version)
        self._do(node_verbs.beat, node, ttl_ms, self._now(now_ms))

    async def nodes(self, *, now_ms: int | None = None) -> list[Node]:
        return self._do(node_verbs.nodes, self._now(now_ms))

    async def leave(self, node_id: str) -> None:
        self._do(node_verbs.leave, node_id)

    async def elect(self, node_id: str, *, ttl_ms: int, now_ms: int | None = None) -> Term:
        return self._do(node_verbs.elect, node_id, ttl_ms, self._now(now_ms))

    async def resign(self, node_id: str, *, term: int, now_ms: int | None = None) -> None:  # noqa: ARG002  the contract's
        self._do(node_verbs.resign, node_id, term)

    # versions

    async def versions(self, *, now_ms: int | None = None) -> list[Version]:
        return self._do(version_verbs.versions, self._now(now_ms))

    async def drop_version(
        self, number: int, *, audit: Audit[Answer] | None = None, now_ms: int | None = None
    ) -> Answer:
        verb = version_verbs.drop_version
        return self._do(record_verbs.recorded, audit, verb, check_version(number), self._now(now_ms))

    # wake-ups

    async def wake(self) -> None:
        self._house.bells.wake()

    # records

    async def log(self, lines: Sequence[AuditLine]) -> None:
        check_batch(lines, "lines")
        self._do(record_verbs.log, lines)

    async def read_log(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        return self._do(record_verbs.read_log, after, check_page(limit), newest=newest)

    async def dump(self, *, after: str | None = None, limit: int = PAGE_MAX) -> DumpPage:
        return self._do(record_verbs.dump, after, check_page(limit))

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        check_batch(records, "records")
        return self._do(record_verbs.load, records)

    # how it is done

    def _now(self, now_ms: int | None, waited_ms: float = 0.0) -> int:
        return self._clock.now_ms() if now_ms is None else now_ms + int(waited_ms)

    def _do(self, verb: Callable[Concatenate[VersionState, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not self._is_open:
            raise StoreError("the memory store is not open; open it first")
        house = self._house
        with house.lock:
            answer = verb(self._state, *args, **kwargs)
            rung, asked = house.rung, house.asked
            if rung:
                house.rung = set()
            if asked:
                house.asked = set()
        for kind, version in rung:
            house.bells.ring(kind, version)
        for owner in asked:
            house.bells.wake(node=owner)
        return answer

    async def _claim(self, asking: ClaimRequest, now_ms: int | None, waited_ms: float = 0.0) -> Claimed:
        at_ms = self._now(now_ms, waited_ms)  # before the guard looks: it then knows of every leap that is in it
        hold_ms = self._jumps.hold_ms(asking.lease_ms) if now_ms is None else 0
        return self._do(lease_verbs.claim, asking, hold_ms, at_ms)

    async def _wait_for_runs(self, asking: ClaimRequest, wait_ms: int, now_ms: int | None) -> Claimed:
        began = self._clock.mono_ms()
        with self._house.bells.waiter("runs", asking.node, self._door, self.scheduler_version) as waiter:
            while True:
                waited_ms = self._clock.mono_ms() - began
                waiter.event.clear()
                claimed = await self._claim(asking, now_ms, waited_ms)
                if claimed.runs or claimed.answer is not Answer.OK or waited_ms >= wait_ms or self._is_over(waiter):
                    return claimed
                nap_ms = wait_ms - waited_ms
                if claimed.look_again_ms is not None:
                    nap_ms = min(nap_ms, claimed.look_again_ms - claimed.now_ms)
                await self._clock.wait(waiter.event, max(1.0, min(nap_ms, LOOK_AGAIN_MS)))
                if not self._is_open:
                    return claimed

    async def _wait_for_entries(self, limit: int, wait_ms: int, now_ms: int | None) -> Feed:
        began = self._clock.mono_ms()
        with self._house.bells.waiter("feed", "", self._door, self.scheduler_version) as waiter:
            while True:
                waited_ms = self._clock.mono_ms() - began
                waiter.event.clear()
                feed = self._do(plan_verbs.feed, limit, self._now(now_ms, waited_ms))
                if feed.items or waited_ms >= wait_ms or self._is_over(waiter):
                    return feed
                await self._clock.wait(waiter.event, max(1.0, wait_ms - waited_ms))
                if not self._is_open:
                    return feed

    def _is_over(self, waiter: MemoryWaiter) -> bool:
        return waiter.is_woken or not self._is_open
