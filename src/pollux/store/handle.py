"""Handle on a store: the verbs of the contract over the primitives of a backend.

The handle checks arguments, bounds and counts calls, waits and decodes answers, once for all stores; `backend.py` is
the interface of a backend.

A call without an answer within its deadline raises `StoreTimeout`.  It may have taken effect, so the caller repeats it
with the same ids.  The wait of `claim` and `feed` is added to the deadline.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pollux.clock import Clock, Deadlines, SystemClock
from pollux.errors import StoreMoved, StoreTimeout
from pollux.model import AuditLine, Job, Node, Note, NotePut, Plan, QueueDepth, Run, Term, Version, check_version
from pollux.store.backend import Backend, JoiningBackend, Look, MovedAway
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
    RunsAlike,
    Settlement,
    Store,
)
from pollux.store.decoding import BatchDecoder
from pollux.store.dump_format import read_record
from pollux.store.job_cache import JobDecoder
from pollux.store.limits import (
    check_batch,
    check_first,
    check_page,
    check_plan,
    check_pruning,
    check_settlements,
    checked_job,
    checked_notes,
)
from pollux.store.move_marks import refuse_sealed
from pollux.store.values import ClaimRequest

DEADLINE_MS = 12_000  # longer than the deadlines of the backends (10 s), whose errors give the reason
MIGRATE_MS = 3_600_000  # added to open a store, which may run migrations
VERBS = tuple(name for name, verb in vars(Store).items() if inspect.iscoroutinefunction(verb))
T = TypeVar("T")


class CallStats(Struct):
    """Calls, errors and time of one verb.  The time includes the waits of `claim` and `feed`."""

    calls: int = 0
    errors: int = 0
    total_us: int = 0
    max_us: int = 0

    @property
    def total_ms(self) -> int:
        return self.total_us // 1_000

    @property
    def max_ms(self) -> int:
        return self.max_us // 1_000


class StoreHandle:
    """The store of all loops and interfaces: every call is checked, counted and bounded.

    After `refuse_if_moved` no change is made through it to a store that was moved away: see `move_marks`.
    """

    def __init__(self, backend: Backend, *, clock: Clock | None = None, deadline_ms: int = DEADLINE_MS) -> None:
        self.backend = backend
        self.clock = clock or SystemClock()
        self.deadline_ms = deadline_ms
        self.call_stats = {verb: CallStats() for verb in VERBS}  # shared, as `enqueued`, with twins and versions
        self.enqueued = [0] * 4  # accepted and ready, by priority
        self._moved_url: str | None = None  # without a password; None: changes are not checked
        self._deadlines = Deadlines()

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    @property
    def scheduler_version(self) -> int:
        return self.backend.version

    def refuse_if_moved(self, url: str | None) -> None:
        self._moved_url = url

    def twin(self) -> StoreHandle:
        return self._over(self.backend.twin())

    def of_version(self, number: int) -> StoreHandle:
        return self._over(self.backend.of_version(check_version(number)))

    def _over(self, backend: Backend) -> StoreHandle:
        """A handle that shares the counters of this one."""
        other = StoreHandle(backend, clock=self.clock, deadline_ms=self.deadline_ms)
        other.call_stats, other.enqueued = self.call_stats, self.enqueued
        other._moved_url = self._moved_url
        return other

    async def open(self) -> None:
        await self._call("open", self.backend.open(), MIGRATE_MS)

    async def close(self) -> None:
        await self._call("close", self.backend.close())

    # jobs

    async def put_jobs(
        self, puts: Sequence[JobPut], *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[JobAnswer]:
        check_batch(puts, "jobs")
        checked = [replace(put, job=checked_job(put.job)) for put in puts]
        return cast("list[JobAnswer]", await self._change("put_jobs", checked, audit=audit, now_ms=now_ms))

    async def delete_jobs(
        self, ids: Sequence[str], *, reason: str = "", audit: Audit | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        check_batch(ids, "jobs")
        return cast("list[Answer]", await self._change("delete_jobs", ids, reason, audit=audit, now_ms=now_ms))

    async def get_jobs(self, ids: Sequence[str]) -> list[Job | None]:
        check_batch(ids, "jobs")
        found, decoder = await self._read("get_jobs", ids), self._job_decoder()
        return decoder.answer([decoder.job(found[job_id]) if job_id in found else None for job_id in ids])

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        page = await self._read("list_jobs", where or JobFilter(), after, check_page(limit))
        decoder = self._job_decoder()
        return decoder.answer(JobPage(tuple(decoder.jobs(page.rows)), page.next))

    async def move_jobs(
        self, ids: Sequence[str], to: int, *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        check_batch(ids, "jobs")
        moved = await self._change("move_jobs", ids, check_version(to), audit=audit, now_ms=now_ms)
        return cast("list[Answer]", moved)

    async def due(self, *, after: tuple[int, str] | None = None, before_ms: int, limit: int) -> list[Job]:
        found, decoder = await self._read("due", after, before_ms, limit), self._job_decoder()
        return decoder.answer(decoder.jobs(found))

    # plan

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:
        look = partial(self.backend.feed, limit)
        return await self._call("feed", self._wait(look, _has_items, wait_ms, now_ms), wait_ms)

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None = None) -> Advanced:
        check_plan(plan)
        if plan.notes:
            plan = replace(plan, notes=tuple(checked_notes(plan.notes)))
        return await self._call("advance", self.backend.advance(term, plan, now_ms=now_ms))

    # runs

    async def enqueue(
        self,
        runs: Sequence[Run],
        *,
        notes: Sequence[NotePut] = (),
        ready_max: int = READY_MAX,
        unless_live: bool = False,
        audit: Audit | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        check_batch(runs, "runs")
        call = self.backend.enqueue(
            runs,
            checked_notes(notes) if notes else (),
            ready_max=ready_max,
            unless_live=unless_live,
            audit=audit,
            now_ms=now_ms,
            unless_moved=self._moved_url is not None,
        )
        return self._count(runs, await self._call("enqueue", call))

    async def enqueue_in(
        self, connection: Any, runs: Sequence[Run], *, ready_max: int = READY_MAX, now_ms: int | None = None
    ) -> list[RunAnswer]:
        check_batch(runs, "runs")
        backend = cast("JoiningBackend", self.backend)
        unless_moved = self._moved_url is not None
        call = backend.enqueue_in(connection, runs, ready_max=ready_max, now_ms=now_ms, unless_moved=unless_moved)
        return self._count(runs, await self._call("enqueue", call))

    async def get_runs_in(self, connection: Any, ids: Sequence[str]) -> list[Run | None]:
        check_batch(ids, "runs")
        found = await self._call("get_runs", cast("JoiningBackend", self.backend).get_runs_in(connection, ids))
        return self._runs_by_id(ids, found)

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
        request = ClaimRequest(node, token, min(limit, BATCH_MAX), lease_ms, first, losses_max, feed_max)
        look = partial(self.backend.claim, request)
        return await self._call("claim", self._wait(look, has_answer, wait_ms, now_ms, request), wait_ms)

    async def renew(self, renewals: Sequence[Renewal], *, lease_ms: int, now_ms: int | None = None) -> list[Renewed]:
        check_batch(renewals, "renewals")
        if not renewals:
            return []
        return cast("list[Renewed]", await self._write("renew", renewals, lease_ms, now_ms=now_ms))

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        check_settlements(settlements)
        return await self._call("settle", self.backend.settle(settlements, now_ms=now_ms))

    async def cancel(
        self,
        *,
        run_ids: Sequence[str] = (),
        job_id: str | None = None,
        reason: str = "",
        audit: Audit | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        found = await self._change("cancel", run_ids, job_id, reason, audit=audit, now_ms=now_ms)
        return cast("list[RunAnswer]", found)

    async def revive(
        self, run_ids: Sequence[str], *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        return cast("list[RunAnswer]", await self._change("revive", run_ids, audit=audit, now_ms=now_ms))

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        page = await self._read("list_runs", where or RunFilter(), after, check_page(limit))
        decoder = BatchDecoder("run", self.backend.run)
        runs = [run for row in page.rows if (run := decoder(row, row[0])) is not None]
        return decoder.answer(RunPage(tuple(runs), page.next))

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        check_batch(ids, "runs")
        return self._runs_by_id(ids, await self._read("get_runs", ids))

    async def now(self) -> int:
        return await self._call("now", self.backend.now())

    async def counts(self, *, all_versions: bool = False) -> Counts:
        return cast("Counts", await self._read("counts", all_versions))

    async def lines(self, *, before: str | None = None, now_ms: int | None = None) -> tuple[QueueDepth, ...]:
        return cast("tuple[QueueDepth, ...]", await self._read("lines", before, now_ms=now_ms))

    async def problems(self) -> tuple[str, ...]:
        return await self._call("problems", self.backend.problems())

    async def prune(self, what: Pruning, *, audit: Audit | None = None, now_ms: int | None = None) -> int:
        check_pruning(what, has_audit=audit is not None)
        # Pruning by age is done by the leader, which a seal stops by its term.
        unless_moved = self._moved_url is not None and bool(what.ids or what.version)
        return await self._call(
            "prune", self.backend.prune(what, audit=audit, now_ms=now_ms, unless_moved=unless_moved)
        )

    # notes

    async def put_notes(
        self, puts: Sequence[NotePut], *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        return cast("list[Answer]", await self._change("put_notes", checked_notes(puts), audit=audit, now_ms=now_ms))

    async def notes(self, prefix: str = "", *, now_ms: int | None = None) -> list[Note]:
        found, decoder = await self._read("notes", prefix, now_ms=now_ms), BatchDecoder("note", self.backend.note)
        return decoder.answer([note for key, row in found if (note := decoder(row, key)) is not None])

    # nodes and terms

    async def beat(self, node: Node, *, ttl_ms: int, now_ms: int | None = None) -> None:
        check_version(node.scheduler_version)
        await self._write("beat", node, ttl_ms, now_ms=now_ms)

    async def nodes(self, *, now_ms: int | None = None) -> list[Node]:
        return cast("list[Node]", await self._read("nodes", now_ms=now_ms))

    async def elect(self, node_id: str, *, ttl_ms: int, now_ms: int | None = None) -> Term:
        return cast("Term", await self._write("elect", node_id, ttl_ms, now_ms=now_ms))

    async def resign(self, node_id: str, *, term: int, now_ms: int | None = None) -> None:
        await self._write("resign", node_id, term, now_ms=now_ms)

    async def versions(self, *, now_ms: int | None = None) -> list[Version]:
        return cast("list[Version]", await self._read("versions", now_ms=now_ms))

    # wake-ups and records

    async def wake(self) -> None:
        await self._write("wake")

    async def log(self, lines: Sequence[AuditLine]) -> None:
        check_batch(lines, "lines")
        await self._change("log", lines)

    async def read_log(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        page = await self._read("read_log", after, check_page(limit), newest)
        return LogPage(tuple(page.rows), page.next)

    async def dump(self, *, after: str | None = None, limit: int = PAGE_MAX) -> DumpPage:
        page = await self._read("dump", after, check_page(limit))
        return DumpPage(tuple([(kind, msgspec.to_builtins(record)) for kind, record in page.rows]), page.next)

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        check_batch(records, "records")
        return cast("int", await self._change("load", [read_record(kind, data) for kind, data in records]))

    # calls

    async def _read(self, verb: str, *args: Any, now_ms: int | None = None) -> Any:
        return await self._call(verb, self.backend.read(verb, *args, now_ms=now_ms))

    async def _write(self, verb: str, *args: Any, now_ms: int | None = None) -> Any:
        """Writes of nodes, which a seal stops by their leases and terms."""
        return await self._call(verb, self.backend.write(verb, *args, now_ms=now_ms))

    async def _change(self, verb: str, *args: Any, audit: Audit | None = None, now_ms: int | None = None) -> Any:
        """Writes of people and programs, which are refused if the store was moved."""
        unless_moved = self._moved_url is not None
        call = self.backend.write(verb, *args, audit=audit, now_ms=now_ms, unless_moved=unless_moved)
        return await self._call(verb, call)

    async def _call(self, verb: str, answer: Coroutine[Any, Any, T], wait_ms: int = 0) -> T:
        """Count and bound one call; `answer` is its coroutine, not yet started."""
        stats = self.call_stats[verb]
        stats.calls += 1
        began = self.clock.mono_ms()
        limit_ms = self.deadline_ms + wait_ms
        deadline = self._deadlines.enter(limit_ms / 1000.0)
        try:
            return await answer
        except asyncio.CancelledError as error:
            if not deadline.is_over():
                raise
            stats.errors += 1
            raise _unanswered(verb, limit_ms, deadline.late_s) from error
        except MovedAway:
            stats.errors += 1
            await self._refuse_moved()
        except Exception:
            stats.errors += 1
            raise
        finally:
            self._deadlines.leave(deadline)
            took = int((self.clock.mono_ms() - began) * 1_000)
            stats.total_us += took
            stats.max_us = max(stats.max_us, took)

    async def _refuse_moved(self) -> NoReturn:
        await refuse_sealed(self, self._moved_url or "")
        raise StoreMoved("this store was being moved a moment ago, and no longer is", cure="try again")

    async def _wait(
        self,
        look: Callable[..., Awaitable[Look[T]]],
        is_enough: Callable[[T], bool],
        wait_ms: int,
        now_ms: int | None,
        request: ClaimRequest | None = None,
    ) -> T:
        """Look until the answer is complete, `wait_ms` is over, or a wake-up ends the wait."""
        backend = self.backend
        if wait_ms <= 0 or not backend.capabilities.waits:
            return (await look(now_ms=now_ms)).found
        began = self.clock.mono_ms()
        with backend.listen(request, is_live=now_ms is None) as waiter:
            while True:
                waiter.begin()
                waited_ms = self.clock.mono_ms() - began
                seen = await look(now_ms=None if now_ms is None else now_ms + int(waited_ms))
                if is_enough(seen.found) or waited_ms >= wait_ms or waiter.is_over or self._is_closed():
                    return seen.found
                answer: T | None = await waiter.rest(seen, wait_ms - waited_ms)
                if answer is not None:
                    return answer
                if self._is_closed():
                    return seen.found

    def _is_closed(self) -> bool:
        return not self.backend.is_open

    # answers

    def _job_decoder(self) -> JobDecoder:
        return JobDecoder(self.backend.job)

    def _runs_by_id(self, ids: Sequence[str], found: Mapping[str, Any]) -> list[Run | None]:
        decoder = BatchDecoder("run", self.backend.run)
        return decoder.answer([decoder(found[run_id], run_id) if run_id in found else None for run_id in ids])

    def _count(self, runs: Sequence[Run], answers: list[RunAnswer]) -> list[RunAnswer]:
        """Count accepted ready runs by priority."""
        if isinstance(runs, RunsAlike):
            if not runs.one.gated:
                self.enqueued[runs.one.priority] += [answer.answer for answer in answers].count(Answer.OK)
            return answers
        for run, answer in zip(runs, answers, strict=True):
            if answer.answer is Answer.OK and not run.gated:
                self.enqueued[run.priority] += 1
        return answers


def _has_items(feed: Feed) -> bool:
    return bool(feed.items)


def has_answer(claimed: Claimed) -> bool:
    """Whether the answer ends the wait of a claim."""
    return bool(claimed.runs) or claimed.answer is not Answer.OK


def _unanswered(verb: str, limit_ms: int, late_s: float) -> StoreTimeout:
    what = f"the store did not answer {verb} within {limit_ms} ms"
    if late_s:  # the answer may have arrived in time, while this loop was blocked
        beyond = f"{late_s * 1_000:.0f} ms beyond the {limit_ms} ms that it had"
        what = f"no answer to {verb} was heard in time: the event loop was blocked, {beyond} (`pollux health`)"
    return StoreTimeout(f"{what}; the call may have taken effect: repeat it with the same ids")
