"""Deadline and counters of every call to a store, as one wrapper.

A call that does not answer within its deadline raises `StoreTimeout`: it may have taken effect all the same, so it is
repeated with the same ids.  What waits inside the store (`claim`, `feed`) has its wait on top of the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct

from pollux.clock import Clock, Deadlines
from pollux.errors import StoreTimeout
from pollux.model import AuditLine, Job, Node, Note, NotePut, Plan, QueueDepth, Run, Term, Version
from pollux.store.contract import (
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
    Joins,
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
from pollux.store.move_marks import MoveGuard

DEADLINE_MS = 12_000  # later than the stores' own (10 s): their refusal says why, our silence only that
MIGRATE_MS = 3_600_000  # more to open a store, which may bring what an earlier release wrote up to date
T = TypeVar("T")
VERBS = (
    *("open", "close", "put_jobs", "delete_jobs", "get_jobs", "list_jobs", "due", "feed", "advance", "enqueue"),
    *("claim", "renew", "settle", "cancel", "revive", "list_runs", "get_runs", "counts", "lines", "prune", "put_notes"),
    "problems",
    *("notes", "beat", "nodes", "leave", "elect", "resign", "wake", "log", "read_log", "dump", "load"),
    *("move_jobs", "versions", "drop_version", "now"),
)
CHANGES = frozenset(  # what people and programs ask for; nodes do their part by other verbs, which stops and terms end
    {
        *("put_jobs", "delete_jobs", "move_jobs", "enqueue", "cancel", "revive", "put_notes", "log", "load"),
        "drop_version",
    }
)


class Wrapped:
    """A store in front of a store: every verb goes through `call`, which a subclass gives a meaning."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.capabilities: Capabilities = store.capabilities

    async def call(self, verb: str, answer: Coroutine[Any, Any, T], wait_ms: int = 0) -> T:  # noqa: ARG002
        """Let one call through; `answer` is the call itself, not yet begun."""
        return await answer

    def accepted(self, runs: Sequence[Run], answers: list[RunAnswer]) -> list[RunAnswer]:  # noqa: ARG002
        """Runs were offered, and so they were answered."""
        return answers

    @property
    def scheduler_version(self) -> int:
        return self.store.scheduler_version

    def of_version(self, number: int) -> Store:
        raise NotImplementedError

    def twin(self) -> Store:
        raise NotImplementedError

    async def open(self) -> None:
        await self.call("open", self.store.open())

    async def close(self) -> None:
        await self.call("close", self.store.close())

    # jobs

    async def put_jobs(
        self, puts: Sequence[JobPut], *, audit: Audit[list[JobAnswer]] | None = None, now_ms: int | None = None
    ) -> list[JobAnswer]:
        return await self.call("put_jobs", self.store.put_jobs(puts, audit=audit, now_ms=now_ms))

    async def delete_jobs(
        self,
        ids: Sequence[str],
        *,
        reason: str = "",
        audit: Audit[list[Answer]] | None = None,
        now_ms: int | None = None,
    ) -> list[Answer]:
        return await self.call("delete_jobs", self.store.delete_jobs(ids, reason=reason, audit=audit, now_ms=now_ms))

    async def get_jobs(self, ids: Sequence[str]) -> list[Job | None]:
        return await self.call("get_jobs", self.store.get_jobs(ids))

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        return await self.call("list_jobs", self.store.list_jobs(where, after=after, limit=limit))

    async def move_jobs(
        self, ids: Sequence[str], to: int, *, audit: Audit[list[Answer]] | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        return await self.call("move_jobs", self.store.move_jobs(ids, to, audit=audit, now_ms=now_ms))

    async def due(self, *, after: tuple[int, str] | None = None, before_ms: int, limit: int) -> list[Job]:
        return await self.call("due", self.store.due(after=after, before_ms=before_ms, limit=limit))

    # plan

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:
        return await self.call("feed", self.store.feed(limit=limit, wait_ms=wait_ms, now_ms=now_ms), wait_ms)

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None = None) -> Advanced:
        return await self.call("advance", self.store.advance(term, plan, now_ms=now_ms))

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
        call = self.store.enqueue(
            runs, notes=notes, ready_max=ready_max, unless_live=unless_live, audit=audit, now_ms=now_ms
        )
        return self.accepted(runs, await self.call("enqueue", call))

    async def enqueue_in(
        self, connection: Any, runs: Sequence[Run], *, ready_max: int = READY_MAX, now_ms: int | None = None
    ) -> list[RunAnswer]:
        call = cast("Joins", self.store).enqueue_in(connection, runs, ready_max=ready_max, now_ms=now_ms)
        return self.accepted(runs, await self.call("enqueue", call))

    async def get_runs_in(self, connection: Any, ids: Sequence[str]) -> list[Run | None]:
        return await self.call("get_runs", cast("Joins", self.store).get_runs_in(connection, ids))

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
        call = self.store.claim(
            node=node,
            token=token,
            limit=limit,
            lease_ms=lease_ms,
            first=first,
            losses_max=losses_max,
            feed_max=feed_max,
            wait_ms=wait_ms,
            now_ms=now_ms,
        )
        return await self.call("claim", call, wait_ms)

    async def renew(self, renewals: Sequence[Renewal], *, lease_ms: int, now_ms: int | None = None) -> list[Renewed]:
        return await self.call("renew", self.store.renew(renewals, lease_ms=lease_ms, now_ms=now_ms))

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        return await self.call("settle", self.store.settle(settlements, now_ms=now_ms))

    async def cancel(
        self,
        *,
        run_ids: Sequence[str] = (),
        job_id: str | None = None,
        reason: str = "",
        audit: Audit[list[RunAnswer]] | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        call = self.store.cancel(run_ids=run_ids, job_id=job_id, reason=reason, audit=audit, now_ms=now_ms)
        return await self.call("cancel", call)

    async def revive(
        self, run_ids: Sequence[str], *, audit: Audit[list[RunAnswer]] | None = None, now_ms: int | None = None
    ) -> list[RunAnswer]:
        return await self.call("revive", self.store.revive(run_ids, audit=audit, now_ms=now_ms))

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        return await self.call("list_runs", self.store.list_runs(where, after=after, limit=limit))

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        return await self.call("get_runs", self.store.get_runs(ids))

    async def now(self) -> int:
        return await self.call("now", self.store.now())

    async def counts(self, *, all_versions: bool = False) -> Counts:
        return await self.call("counts", self.store.counts(all_versions=all_versions))

    async def lines(self, *, before: str | None = None, now_ms: int | None = None) -> tuple[QueueDepth, ...]:
        return await self.call("lines", self.store.lines(before=before, now_ms=now_ms))

    async def problems(self) -> tuple[str, ...]:
        return await self.call("problems", self.store.problems())

    async def prune(self, what: Pruning, *, audit: Audit[int] | None = None) -> int:
        return await self.call("prune", self.store.prune(what, audit=audit))

    # notes

    async def put_notes(
        self, puts: Sequence[NotePut], *, audit: Audit[list[Answer]] | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        return await self.call("put_notes", self.store.put_notes(puts, audit=audit, now_ms=now_ms))

    async def notes(self, prefix: str = "", *, now_ms: int | None = None) -> list[Note]:
        return await self.call("notes", self.store.notes(prefix, now_ms=now_ms))

    # nodes and terms

    async def beat(self, node: Node, *, ttl_ms: int, now_ms: int | None = None) -> None:
        await self.call("beat", self.store.beat(node, ttl_ms=ttl_ms, now_ms=now_ms))

    async def nodes(self, *, now_ms: int | None = None) -> list[Node]:
        return await self.call("nodes", self.store.nodes(now_ms=now_ms))

    async def leave(self, node_id: str) -> None:
        await self.call("leave", self.store.leave(node_id))

    async def elect(self, node_id: str, *, ttl_ms: int, now_ms: int | None = None) -> Term:
        return await self.call("elect", self.store.elect(node_id, ttl_ms=ttl_ms, now_ms=now_ms))

    async def resign(self, node_id: str, *, term: int, now_ms: int | None = None) -> None:
        await self.call("resign", self.store.resign(node_id, term=term, now_ms=now_ms))

    # versions

    async def versions(self, *, now_ms: int | None = None) -> list[Version]:
        return await self.call("versions", self.store.versions(now_ms=now_ms))

    async def drop_version(
        self, number: int, *, audit: Audit[Answer] | None = None, now_ms: int | None = None
    ) -> Answer:
        return await self.call("drop_version", self.store.drop_version(number, audit=audit, now_ms=now_ms))

    # wake-ups and records

    async def wake(self) -> None:
        await self.call("wake", self.store.wake())

    async def log(self, lines: Sequence[AuditLine]) -> None:
        await self.call("log", self.store.log(lines))

    async def read_log(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        return await self.call("read_log", self.store.read_log(after=after, limit=limit, newest=newest))

    async def dump(self, *, after: str | None = None, limit: int = PAGE_MAX) -> DumpPage:
        return await self.call("dump", self.store.dump(after=after, limit=limit))

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        return await self.call("load", self.store.load(records))


class CallStats(Struct):
    """What one verb has cost so far.  Waits inside `claim` and `feed` are part of their time."""

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


class Guarded(Wrapped):
    """The store as all loops see it: each call counted and bounded, and nothing changed in one that was moved away."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        deadline_ms: int = DEADLINE_MS,
        counted: Guarded | None = None,
        seal: MoveGuard | None = None,
    ) -> None:
        super().__init__(store)
        self._clock, self._seal = clock, seal
        self.deadline_ms = deadline_ms
        self._deadlines = Deadlines()
        self.calls: dict[str, CallStats] = counted.calls if counted else {verb: CallStats() for verb in VERBS}
        self.enqueued: list[int] = counted.enqueued if counted else [0] * 4  # accepted and ready, by priority

    def twin(self) -> Guarded:
        """The twin's calls are counted here, too."""
        return self._around(self.store.twin())

    def of_version(self, number: int) -> Guarded:
        return self._around(self.store.of_version(number))

    def _around(self, store: Store) -> Guarded:
        return Guarded(store, clock=self._clock, deadline_ms=self.deadline_ms, counted=self, seal=self._seal)

    def accepted(self, runs: Sequence[Run], answers: list[RunAnswer]) -> list[RunAnswer]:
        if isinstance(runs, RunsAlike):
            if not runs.one.gated:
                self.enqueued[runs.one.priority] += [answer.answer for answer in answers].count(Answer.OK)
            return answers
        for run, answer in zip(runs, answers, strict=True):
            if answer.answer is Answer.OK and not run.gated:
                self.enqueued[run.priority] += 1
        return answers

    async def open(self) -> None:
        await self.call("open", self.store.open(), MIGRATE_MS)

    async def prune(self, what: Pruning, *, audit: Audit[int] | None = None) -> int:
        """Somebody takes these away; what only got old is the leader's to sweep, and that ends with its term."""
        if what.ids and self._seal is not None:
            await self.call("notes", self._seal.refuse(self.store, self._clock.mono_ms()))
        return await super().prune(what, audit=audit)

    async def call(self, verb: str, answer: Coroutine[Any, Any, T], wait_ms: int = 0) -> T:
        stats = self.calls[verb]
        stats.calls += 1
        began = self._clock.mono_ms()
        patience = self._deadlines.enter((self.deadline_ms + wait_ms) / 1000.0)
        try:
            if self._seal is not None and verb in CHANGES:
                await self._seal.refuse(self.store, began)
            return await answer
        except asyncio.CancelledError as error:
            if not patience.is_over():
                raise
            stats.errors += 1
            raise _unanswered(verb, self.deadline_ms + wait_ms, patience.held_s) from error
        except Exception:
            stats.errors += 1
            raise
        finally:
            answer.close()  # it has not begun if it was refused
            self._deadlines.leave(patience)
            took = int((self._clock.mono_ms() - began) * 1_000)
            stats.total_us += took
            stats.max_us = max(stats.max_us, took)


def _unanswered(verb: str, limit_ms: int, held_s: float) -> StoreTimeout:
    what = f"the store did not answer {verb} within {limit_ms} ms"
    if held_s:  # it may have answered in time, and nobody listened
        beyond = f"{held_s * 1_000:.0f} ms beyond the {limit_ms} ms that it had"
        what = f"no answer to {verb} was heard in time: the event loop was held, {beyond} (`pollux health`)"
    return StoreTimeout(f"{what}; the call may have taken effect: repeat it with the same ids")
