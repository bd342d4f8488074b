"""The handle on a SQLite store: it checks what comes in, sends each verb to its thread, and waits.

Writing verbs go to the writer, reading ones to a reader; what comes back are rows, and they become values here, in the
caller's loop, so that the writer is free for the next commit.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import replace

from pollux.clock import Clock, SystemClock
from pollux.errors import InvalidInput, StoreError, StoreTimeout
from pollux.model import (
    ALL_VERSIONS,
    SCHEDULER_VERSION,
    AuditLine,
    FeedItem,
    Job,
    Node,
    Note,
    NotePut,
    Plan,
    Run,
    Term,
    Version,
    check_version,
)
from pollux.patience import Deadlines
from pollux.store.contract import (
    BATCH_MAX,
    FEED_MAX,
    LOSSES_MAX,
    PAGE_MAX,
    READY_MAX,
    Advanced,
    Answer,
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
from pollux.store.limits import PRIORITIES, check_batch, check_page, check_plan, checked_job, checked_notes
from pollux.store.parts import Turns, handle_version, one_version
from pollux.store.records import TermRecord, read_record
from pollux.store.relational import rows
from pollux.store.relational.bells import ASKED, FEED, RUNS, WAKE, Waiter
from pollux.store.relational.leases import Asking
from pollux.store.relational.settling import prepare
from pollux.store.shelf import JobShelf
from pollux.store.sqlite import jobs as job_verbs
from pollux.store.sqlite import leases as lease_verbs
from pollux.store.sqlite import listing as listing_verbs
from pollux.store.sqlite import nodes as node_verbs
from pollux.store.sqlite import notes as note_verbs
from pollux.store.sqlite import plan as plan_verbs
from pollux.store.sqlite import prune as prune_verbs
from pollux.store.sqlite import records as record_verbs
from pollux.store.sqlite import runs as run_verbs
from pollux.store.sqlite import versions as version_verbs
from pollux.store.sqlite.bell import Ear
from pollux.store.sqlite.calls import Call
from pollux.store.sqlite.database import Database
from pollux.store.sqlite.leases import Taken
from pollux.store.sqlite.place import Place
from pollux.store.sqlite.room import BEGINS, GROWS, RECORDS
from pollux.store.sqlite.settle import settle
from pollux.store.sqlite.transaction import Stats, Transaction

DEADLINE_MS = 10_000
LOOK_AGAIN_MS = 5_000  # a wait looks up at least so often
VERSION_MS = 1_000  # and asks so often whether anybody committed, for bells that were lost
SLACK_MS = 1_000  # after the deadline: a refusal says more than silence
# What is refused first when room is short; all other verbs record what happened.
NEEDS: dict[Callable[..., Any], int] = {
    job_verbs.put_jobs: GROWS,
    run_verbs.enqueue: GROWS,
    record_verbs.load: GROWS,
    plan_verbs.advance: BEGINS,
}
T = TypeVar("T")
Looked = tuple[T, bool, int | None]  # what was seen, whether it is enough, and in how many ms there may be more
Look = Callable[[Transaction], object]
Rests = Callable[[Waiter, float, int], Awaitable[T | None]]


class Lane(Protocol):
    def put(self, call: Call) -> None: ...


class Door:
    """What is opened and closed, for a handle and those of other versions that were made from it."""

    ear: Ear

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pid = 0


class SqliteStore:
    capabilities = Capabilities(name="sqlite")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        deadline_ms: int = DEADLINE_MS,
        allow_network: bool = False,
        database: Database | None = None,
        scheduler_version: int = SCHEDULER_VERSION,
    ) -> None:
        self._version = handle_version(scheduler_version)
        self._clock = clock or SystemClock()
        place = Place(Path(path).absolute(), allow_network=allow_network)
        self._database = database or Database(place, self._clock, deadline_ms)
        self._deadline_ms = deadline_ms
        self._deadlines = Deadlines()
        self._jobs = JobShelf()
        self._entries: dict[int, FeedItem] = {}  # of the feed as last read: many stay for some turns
        self._door = Door()
        self._turns = Turns()

    @property
    def scheduler_version(self) -> int:
        return self._version

    @property
    def stats(self) -> Stats:
        """What this process did with the database so far."""
        return self._database.stats

    async def open(self) -> None:
        if self._door.loop is not None:
            return
        loop = asyncio.get_running_loop()
        ready = self._database.join()
        try:
            await asyncio.wrap_future(ready)
        except BaseException:
            self._database.leave()
            raise
        self._door.ear = Ear(self._database.bell, loop)
        self._door.loop, self._door.pid = loop, os.getpid()

    async def close(self) -> None:
        if self._door.loop is None:
            return
        self._door.loop = None
        if os.getpid() == self._door.pid:
            self._door.ear.close()
            for ended in self._database.leave():
                await asyncio.wrap_future(ended)

    def twin(self) -> SqliteStore:
        options: Any = {"clock": self._clock, "deadline_ms": self._deadline_ms, "database": self._database}
        return SqliteStore(self._database.path, **options, scheduler_version=self._version)

    def of_version(self, number: int) -> SqliteStore:
        options: Any = {"clock": self._clock, "deadline_ms": self._deadline_ms, "database": self._database}
        other = SqliteStore(self._database.path, **options, scheduler_version=number)
        other._door, other._jobs, other._deadlines = self._door, self._jobs, self._deadlines
        return other

    # jobs

    async def put_jobs(self, puts: Sequence[JobPut], *, now_ms: int | None = None) -> list[JobAnswer]:  # noqa: ARG002  the contract's
        check_batch(puts, "jobs")
        one_version(self._version, "put_jobs")
        return await self._write(job_verbs.put_jobs, [replace(put, job=checked_job(put.job)) for put in puts])

    async def delete_jobs(self, ids: Sequence[str], *, reason: str = "", now_ms: int | None = None) -> list[Answer]:
        check_batch(ids, "jobs")
        return await self._write_at(now_ms, job_verbs.delete_jobs, ids, reason)

    async def get_jobs(self, ids: Sequence[str]) -> list[Job | None]:
        check_batch(ids, "jobs")
        found = await self._read(job_verbs.get_jobs, ids)
        return [self._jobs.job(found[job_id]) if job_id in found else None for job_id in ids]

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        limit = check_page(limit)
        found = await self._list(job_verbs.list_jobs, where or JobFilter(), after, limit + 1)
        jobs = tuple([self._jobs.job(row) for row in found[:limit]])
        return JobPage(jobs, jobs[-1].id if len(found) > limit else None)

    async def move_jobs(self, ids: Sequence[str], to: int, *, now_ms: int | None = None) -> list[Answer]:  # noqa: ARG002  the contract's
        check_batch(ids, "jobs")
        return await self._write(job_verbs.move_jobs, ids, check_version(to))

    async def due(self, *, after: tuple[int, str] | None = None, before_ms: int, limit: int) -> list[Job]:
        one_version(self._version, "due")
        found = await self._read(job_verbs.due, after, before_ms, limit)
        return [self._jobs.job(row) for row in found]

    # plan

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:
        one_version(self._version, "feed")

        async def look(waited_ms: float) -> Looked[Feed]:
            known = self._entries
            found = await self._read(plan_verbs.feed, limit, list(known))
            items = tuple([known[row[0]] if row[1] is None else _feed_item(row) for row in found])
            self._entries = {item.id: item for item in items}
            return Feed(items, self._now(now_ms, waited_ms)), bool(items), None

        return await self._wait(FEED, look, wait_ms)

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None = None) -> Advanced:
        one_version(self._version, "advance")
        check_plan(plan)
        firings = [rows.checked_made_row(firing.run) for firing in plan.firings]
        if plan.notes:
            plan = replace(plan, notes=tuple(checked_notes(plan.notes)))
        return await self._write_at(now_ms, plan_verbs.advance, term, plan, firings)

    # runs

    async def enqueue(
        self,
        runs: Sequence[Run],
        *,
        notes: Sequence[NotePut] = (),
        ready_max: int = READY_MAX,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        check_batch(runs, "runs")
        made = [rows.checked_made_row(run) for run in runs]
        return await self._write_at(now_ms, run_verbs.enqueue, made, checked_notes(notes), ready_max)

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
        if first not in PRIORITIES:
            raise InvalidInput(f"there is no priority {first}", cure="begin with 1, 2 or 3")
        asking = Asking(node, token, min(limit, BATCH_MAX), lease_ms, first, losses_max, feed_max)

        async def look(waited_ms: float) -> Looked[Claimed]:
            claimed = await self._take(asking, now_ms, waited_ms)
            left_ms = None if claimed.look_again_ms is None else claimed.look_again_ms - claimed.now_ms
            return claimed, _is_enough(claimed), left_ms

        is_simple = now_ms is None and self._version != ALL_VERSIONS
        rest = partial(self._stand_by, asking) if is_simple else self._rest
        return await self._wait(RUNS | ASKED, look, wait_ms, rest)

    async def renew(self, renewals: Sequence[Renewal], *, lease_ms: int, now_ms: int | None = None) -> list[Renewed]:
        check_batch(renewals, "renewals")
        return await self._write_at(now_ms, lease_verbs.renew, renewals, lease_ms)

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        check_batch(settlements, "settlements")
        return await self._write_at(now_ms, settle, [prepare(settlement) for settlement in settlements])

    async def cancel(
        self,
        *,
        run_ids: Sequence[str] = (),
        job_id: str | None = None,
        reason: str = "",
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        return await self._write_at(now_ms, run_verbs.cancel, run_ids, job_id, reason)

    async def revive(self, run_ids: Sequence[str], *, now_ms: int | None = None) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        return await self._write_at(now_ms, run_verbs.revive, run_ids)

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        listed = await self._list(listing_verbs.list_runs, where or RunFilter(), after, check_page(limit))
        return RunPage(tuple([rows.run(row) for row in listed.rows]), listed.next)

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        check_batch(ids, "runs")
        found = await self._read(listing_verbs.get_runs, ids)
        return [rows.run(found[run_id]) if run_id in found else None for run_id in ids]

    async def counts(self) -> Counts:
        return await self._read(listing_verbs.counts)

    async def prune(self, what: Pruning) -> int:
        check_batch(what.ids, "runs")
        gone = await self._write(prune_verbs.prune, what)
        if what.keep_per_job is not None and gone < what.limit:
            excess = await self._list(prune_verbs.beyond, what.keep_per_job, what.limit - gone)
            gone += await self._write(prune_verbs.drop, excess) if excess else 0
        return gone

    # notes

    async def put_notes(self, puts: Sequence[NotePut], *, now_ms: int | None = None) -> list[Answer]:
        return await self._write_at(now_ms, note_verbs.put_notes, checked_notes(puts))

    async def notes(self, prefix: str = "", *, now_ms: int | None = None) -> list[Note]:
        found = await self._read(note_verbs.notes, prefix, self._now(now_ms))
        return [rows.note(row) for row in found]

    # nodes and terms

    async def beat(self, node: Node, *, ttl_ms: int, now_ms: int | None = None) -> None:
        await self._write_at(now_ms, node_verbs.beat, node, ttl_ms)

    async def nodes(self, *, now_ms: int | None = None) -> list[Node]:
        return [rows.node(row) for row in await self._read(node_verbs.nodes, self._now(now_ms))]

    async def leave(self, node_id: str) -> None:
        await self._write(node_verbs.leave, node_id)

    async def elect(self, node_id: str, *, ttl_ms: int, now_ms: int | None = None) -> Term:
        one_version(self._version, "elect")
        return await self._write_at(now_ms, node_verbs.elect, node_id, ttl_ms)

    async def resign(self, node_id: str, *, term: int, now_ms: int | None = None) -> None:  # noqa: ARG002  the contract's
        one_version(self._version, "resign")
        await self._write(node_verbs.resign, node_id, term)

    # versions

    async def versions(self, *, now_ms: int | None = None) -> list[Version]:
        return await self._read(version_verbs.versions, self._now(now_ms))

    async def drop_version(self, number: int, *, now_ms: int | None = None) -> Answer:
        return await self._write_at(now_ms, version_verbs.drop_version, check_version(number))

    # wake-ups

    async def wake(self) -> None:
        await self._write(_wake)

    # records

    async def log(self, lines: Sequence[AuditLine]) -> None:
        check_batch(lines, "lines")
        await self._write(record_verbs.log, lines)

    async def read_log(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        limit = check_page(limit)
        if newest:
            back = [AuditLine(*row) for row in await self._list(record_verbs.newest_log, after, limit + 1)]
            return LogPage(tuple(reversed(back[:limit])), back[limit - 1].seq if len(back) > limit else None)
        lines = [AuditLine(*row) for row in await self._list(record_verbs.read_log, after, limit + 1)]
        return LogPage(tuple(lines[:limit]), lines[limit - 1].seq if len(lines) > limit else None)

    async def dump(self, *, after: str | None = None, limit: int = PAGE_MAX) -> DumpPage:
        dumped = await self._list(record_verbs.dump, after, check_page(limit))
        return DumpPage(tuple([(kind, self._record(kind, row)) for kind, row in dumped.rows]), dumped.next)

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        check_batch(records, "records")
        return await self._write(record_verbs.load, [read_record(kind, data) for kind, data in records])

    # how it is done

    def _now(self, now_ms: int | None, waited_ms: float = 0.0) -> int:
        return self._clock.now_ms() if now_ms is None else now_ms + int(waited_ms)

    async def _write(self, verb: Callable[..., T], *args: object) -> T:
        return await self._send(self._lanes().writer, lambda tx: verb(tx, *args), need=NEEDS.get(verb, RECORDS))

    async def _write_at(self, now_ms: int | None, verb: Callable[..., T], *args: object) -> T:
        """With the time as last argument: the store's own is taken when the write begins, not when it is asked for."""
        return await self._send(
            self._lanes().writer, lambda tx: verb(tx, *args, self._now(now_ms)), need=NEEDS.get(verb, RECORDS)
        )

    async def _read(self, verb: Callable[..., T], *args: object) -> T:
        return await self._send(self._lanes().quick, lambda tx: verb(tx, *args))

    async def _list(self, verb: Callable[..., T], *args: object) -> T:
        """What may take long."""
        return await self._send(self._lanes().slow, lambda tx: verb(tx, *args))

    def _lanes(self) -> Database:
        door = self._door
        if door.loop is None:
            raise StoreError(f"the store {self._database.path} is not open; open it first")
        if os.getpid() != door.pid:
            raise StoreError(
                f"the store {self._database.path} was opened by process {door.pid} and cannot be used in its child "
                f"{os.getpid()}; open another one after the fork"
            )
        return self._database

    async def _send(self, lane: Lane, verb: Callable[[Transaction], T], *, need: int = RECORDS) -> T:
        call = self._call(verb, need=need)
        lane.put(call)
        return cast("T", await self._answer_to(call))

    def _call(self, verb: Look, *, look: Look | None = None, need: int = RECORDS, version: int | None = None) -> Call:
        loop, own = asyncio.get_running_loop(), self._version if version is None else version
        verb, look = partial(_in_version, own, verb), None if look is None else partial(_in_version, own, look)
        return Call(verb, loop=loop, deadline=time.monotonic() + self._deadline_ms / 1000, look=look, need=need)

    async def _answer_to(self, call: Call) -> Any:
        patience = self._deadlines.enter((self._deadline_ms + SLACK_MS) / 1000)
        try:
            return await call.future
        except asyncio.CancelledError as error:
            if not patience.is_over():
                raise
            raise StoreTimeout(
                f"the store {self._database.path} gave no answer within {self._deadline_ms} ms: the call may have "
                "taken effect; repeat it with the same ids"
            ) from error
        finally:
            self._deadlines.leave(patience)

    async def _take(self, asking: Asking, now_ms: int | None, waited_ms: float) -> Claimed:
        if self._version != ALL_VERSIONS:
            return await self._take_from(self._version, asking, now_ms, waited_ms)

        async def one(version: int, token: str, limit: int) -> Claimed:
            return await self._take_from(version, replace(asking, token=token, limit=limit), now_ms, waited_ms)

        there = await self._read(version_verbs.there)
        claimed = await self._turns.claim(there, asking.token, asking.limit, one)
        return claimed or Claimed(Answer.OK, (), {}, 0, None, self._now(now_ms, waited_ms))

    async def _take_from(self, version: int, asking: Asking, now_ms: int | None, waited_ms: float) -> Claimed:
        call = self._claim(asking, now_ms, waited_ms, version=version)
        self._lanes().writer.put(call)
        return self._claimed(asking, await self._answer_to(call), version)

    def _claim(
        self, asking: Asking, now_ms: int | None = None, waited_ms: float = 0.0, *, version: int | None = None
    ) -> Call:
        def at(verb: Callable[[Transaction, Asking, int, int], T], tx: Transaction) -> T:
            at_ms = self._now(now_ms, waited_ms)  # before the guard looks: it then knows of every leap that is in it
            hold_ms = self._database.jumps.hold_ms(asking.lease_ms) if now_ms is None else 0
            return verb(tx, asking, hold_ms, at_ms)

        look = partial(at, lease_verbs.look)
        return self._call(partial(at, lease_verbs.claim), look=look, need=BEGINS, version=version)

    def _claimed(self, asking: Asking, taken: Taken, version: int) -> Claimed:
        until_ms, whole = taken.now_ms + asking.lease_ms, taken.whole
        runs = tuple(
            [
                rows.run(whole[row[0]][1:])
                if row[0] in whole
                else rows.leased_run(row, asking.token, asking.node, until_ms, version)
                for row in taken.runs
            ]
        )
        jobs = {job_id: self._jobs.job(row) for job_id, row in taken.jobs.items()}
        return Claimed(taken.answer, runs, jobs, taken.stops, taken.look_again_ms, taken.now_ms)

    async def _wait(
        self, kinds: int, look: Callable[[float], Awaitable[Looked[T]]], wait_ms: int, rest: Rests[T] | None = None
    ) -> T:
        """Look until something is found, the time is over, or somebody asks us to come back."""
        if wait_ms <= 0:
            return (await look(0.0))[0]
        rest = rest or self._rest
        began = self._clock.mono_ms()
        self._lanes()
        with self._door.ear.listen(kinds) as waiter:
            while True:
                waiter.event.clear()
                generation = self._database.generations.number
                waited_ms = self._clock.mono_ms() - began
                found, is_enough, left_ms = await look(waited_ms)
                is_over = waited_ms >= wait_ms or waiter.heard & (WAKE | ASKED) or self._door.loop is None
                if is_enough or is_over:
                    return found
                nap_ms = min(wait_ms - waited_ms, LOOK_AGAIN_MS, LOOK_AGAIN_MS if left_ms is None else left_ms)
                brought = await rest(waiter, max(1.0, nap_ms), generation)
                if brought is not None:
                    return brought
                if self._door.loop is None:
                    return found

    async def _rest(self, waiter: Waiter, nap_ms: float, generation: int) -> None:
        """Until the bell, or the nap is over, or somebody has committed and the bell was lost."""
        self._door.ear.prick()
        while nap_ms > 0:
            if await self._clock.wait(waiter.event, min(nap_ms, VERSION_MS)) or self._door.loop is None:
                return
            nap_ms -= VERSION_MS
            if nap_ms > 0 and await self._read(self._database.generations.look) != generation:
                return

    async def _stand_by(self, asking: Asking, waiter: Waiter, nap_ms: float, generation: int) -> Claimed | None:
        """Rest, and let the writer claim for us in the very commit that makes a run ready: no second one is needed."""
        call, writer = self._claim(asking), self._database.writer
        call.future.add_done_callback(lambda _: waiter.event.set())
        writer.stand(call)
        try:
            await self._rest(waiter, nap_ms, generation)
        finally:
            is_free = writer.stand_down(call)
        if is_free:
            return None
        claimed = self._claimed(asking, await self._answer_to(call), self._version)
        return claimed if _is_enough(claimed) else None

    def _record(self, kind: str, row: rows.Row) -> Any:
        match kind:
            case "term":
                return msgspec.to_builtins(TermRecord(*row))
            case "job":
                return msgspec.to_builtins(self._jobs.job(row))
            case "run":
                return msgspec.to_builtins(rows.run(row))
            case "note":
                return msgspec.to_builtins(rows.note(row))
            case _:
                return msgspec.to_builtins(AuditLine(*row))


def _feed_item(row: rows.Row) -> FeedItem:
    return FeedItem(row[0], rows.decode_entry(row[1]))


def _is_enough(claimed: Claimed) -> bool:
    return bool(claimed.runs) or claimed.answer is not Answer.OK


def _wake(tx: Transaction) -> None:
    tx.rings |= WAKE


def _in_version(version: int, verb: Look, tx: Transaction) -> object:
    """Calls of several handles share a transaction: each says whose it is."""
    tx.version = version
    return verb(tx)
