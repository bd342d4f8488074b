"""Backend on a PostgreSQL server: verbs in transactions, time, waits, and what is open with a handle.

Time is the server's: a verb that needs it asks for it inside its own statements, so that all machines go by one clock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg

from pollux.clock import Clock, SystemClock
from pollux.errors import InvalidInput
from pollux.model import SCHEDULER_VERSION, FeedItem, Job, Node, Note, NotePut, Plan, Run, Term, check_version
from pollux.store.backend import Look
from pollux.store.contract import Advanced, Answer, Audit, Capabilities, Claimed, Feed, Pruning, RunAnswer, Settlement
from pollux.store.handle import StoreHandle
from pollux.store.job_cache import JobCache
from pollux.store.postgres import claim, plan, rows, runs
from pollux.store.postgres.address import PostgresAddress, read_address
from pollux.store.postgres.claim import Claimer
from pollux.store.postgres.database import PostgresDatabase
from pollux.store.postgres.settle import SettleCache, settle, settle_plainly
from pollux.store.postgres.transaction import PostgresTransaction
from pollux.store.postgres.wakeup import PostgresListener, PostgresRest, Pulse
from pollux.store.relational import nodes, records
from pollux.store.relational.rows import Row, encode, entry
from pollux.store.relational.runs import get_runs
from pollux.store.relational.settle import prepare
from pollux.store.relational.verbs import SHARED_VERBS, Verb, decoded_dump, whole
from pollux.store.relational.wakeup import ASKED, FEED, RUNS, WAKE
from pollux.store.server_clock import ServerClock
from pollux.store.values import ClaimRequest
from pollux.store.versions import shut

DEADLINE_MS = 10_000
SLACK_MS = 2_000  # of the handle after it: a refusal by the server gives its reason
TWIN_POOL = 2
GATHER_PIECE = 10_000  # counts of users' transactions that one statement gathers
GATHER_PIECES = 20  # at one beat
T = TypeVar("T")


async def wake(tx: PostgresTransaction) -> None:
    """Handles that listen are notified, the others see it in the counts."""
    await tx.fetch("versions.wake", SCHEDULER_VERSION)
    tx.wakeups |= WAKE


VERBS: dict[str, Verb[Any]] = {**SHARED_VERBS, "counts": runs.counts, "lines": runs.lines, "wake": wake}


class PostgresOpenState:
    """What is opened and closed, for a handle and those of other versions that were made from it."""

    database: PostgresDatabase
    listener: PostgresListener

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pid = 0
        self.counted: set[int] = set()  # the versions that have their counts
        self.claimed = SettleCache()
        self.no_excess: tuple[int, str] | None = None  # no job had more finished runs when these wrote last
        self.last_beat: Node | None = None  # the node that beat last, unless it left


class PostgresBackend:
    def __init__(
        self,
        address: PostgresAddress,
        clock: Clock,
        version: int,
        *,
        deadline_ms: int,
        pool: int,
        opened: PostgresOpenState | None = None,
        cache: JobCache | None = None,
    ) -> None:
        self.address, self.clock, self.version = address, clock, version
        self.capabilities = Capabilities(name="postgres", joins=True, rings=address.listen)
        self.opened = opened or PostgresOpenState()
        self._deadline_ms, self._pool = deadline_ms, pool
        self._jobs = cache or JobCache()
        self._entries: dict[int, FeedItem] = {}  # of the feed as last read: many stay for some turns
        self._claimer: Claimer | None = None
        self._server_clock = ServerClock(clock, self._server_now)

    @property
    def is_open(self) -> bool:
        return self.opened.loop is not None

    async def open(self) -> None:
        if self.is_open:
            return
        opened, sender = self.opened, uuid4().hex
        database = PostgresDatabase(self.address, self._deadline_ms, sender, self._pool)
        try:
            await database.open()
        except BaseException:
            await database.close()
            raise
        opened.database, opened.counted = database, {SCHEDULER_VERSION}
        opened.listener = PostgresListener(sender, self.clock)
        if self.address.listen:
            opened.listener.listen_by(database.connect, database.space.channel)
        else:
            opened.listener.poll_by(partial(database.read, _pulse, SCHEDULER_VERSION))
        opened.loop, opened.pid = asyncio.get_running_loop(), os.getpid()

    async def close(self) -> None:
        if not self.is_open:
            return
        self.opened.loop = None
        if os.getpid() == self.opened.pid:
            await self.opened.listener.close()
            await self.opened.database.close()

    def twin(self) -> PostgresBackend:
        return PostgresBackend(self.address, self.clock, self.version, deadline_ms=self._deadline_ms, pool=TWIN_POOL)

    def of_version(self, number: int) -> PostgresBackend:
        options: Any = {"deadline_ms": self._deadline_ms, "pool": self._pool}
        return PostgresBackend(self.address, self.clock, number, **options, opened=self.opened, cache=self._jobs)

    # verbs

    async def read(self, verb: str, *args: Any, now_ms: int | None = None) -> Any:
        answer = await self._read(now_ms, VERBS[verb], *args)
        return decoded_dump(answer, self) if verb == "dump" else answer

    async def write(
        self, verb: str, *args: Any, audit: Audit | None = None, now_ms: int | None = None, unless_moved: bool = False
    ) -> Any:
        match verb:
            case "beat":
                return await self._beat(*args, now_ms=now_ms)
            case "elect":
                return await self._elect(*args, now_ms=now_ms)
            case "renew":
                return await self._read(now_ms, claim.renew, *args)
        return await self._write(now_ms, VERBS[verb], *args, audit=audit, unless_moved=unless_moved)

    async def _beat(self, node: Node, ttl_ms: int, *, now_ms: int | None) -> None:
        """Nearly every beat is that of a node that does the same as before, in one statement."""
        known, self.opened.last_beat = self.opened.last_beat, None
        does_as_before = ttl_ms > 0 and known is not None and known.id == node.id and known.does_as(node)
        has_counts = await self._read(now_ms, _beat_again, node, ttl_ms) if does_as_before else None
        if has_counts is None:
            await self._write(now_ms, nodes.beat, node, ttl_ms)
        self.opened.last_beat = node if ttl_ms else None
        if has_counts is not False:
            await self._gather_counts()

    async def _gather_counts(self) -> None:
        """Add the counts that users' transactions left to those of the slots, piece by piece, so that they stay few."""
        for _ in range(GATHER_PIECES):
            if await self._write(None, _gather) < GATHER_PIECE:
                break

    async def _elect(self, node_id: str, ttl_ms: int, *, now_ms: int | None) -> Term:
        """In nearly every election the holder renews its term, or that of another one lasts: one statement.

        It answers the pulse, too: a standby asks so often that no other question for it is needed.
        """
        row = await self._read(now_ms, _hold_term, node_id, ttl_ms)
        if row is None:
            return await self._write(now_ms, nodes.elect, node_id, ttl_ms)
        self.opened.listener.take_pulse((row[4], row[5]))
        return Term(*row[:4])

    async def feed(self, limit: int, *, now_ms: int | None) -> Look[Feed]:
        known = self._entries
        found = await self._read(now_ms, plan.feed, limit, list(known))
        entries = [row for row in found if row[1] is not None]
        items = tuple([known[row[1]] if row[2] is None else FeedItem(row[1], entry(row[2])) for row in entries])
        self._entries = {item.id: item for item in items}
        return Look(Feed(items, found[0][0]))

    async def advance(self, term: int, planned: Plan, *, now_ms: int | None) -> Advanced:
        if plan.only_learns(planned):
            await self._count_in(self.version)
            if (learnt := await self._read(now_ms, plan.learn, term, planned)) is not None:
                return learnt
        firings = [rows.made_row(firing.run) for firing in planned.firings]
        return await self._write(now_ms, plan.advance, term, planned, firings)

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
        alike = rows.alike(made) if made and not (puts or unless_live) and audit is None else None
        if alike is not None:
            plainly = partial(runs.enqueue_plainly, made=alike, ready_max=ready_max)
            if await self.database.read(plainly, self.version, now_ms, self.opened.listener.wake_waiters):
                return [RunAnswer(Answer.OK, run_id) for run_id in alike.ids]
        args = [rows.made_row(run) for run in made], puts, ready_max, unless_live
        return await self._write(now_ms, runs.enqueue, *args, audit=audit, unless_moved=unless_moved)

    async def enqueue_in(
        self, connection: Any, made: Sequence[Run], *, ready_max: int, now_ms: int | None, unless_moved: bool
    ) -> list[RunAnswer]:
        """As `enqueue`, inside the transaction of an asyncpg connection: there when it commits, and only then."""
        _check_transaction(connection, "enqueue")
        args = [rows.made_row(run) for run in made], (), ready_max, False
        verb = partial(whole, verb=runs.enqueue, args=args, audit=None, unless_moved=unless_moved)
        return await self.database.join(connection, verb, self.version, now_ms)

    async def get_runs_in(self, connection: Any, ids: Sequence[str]) -> dict[str, Row]:
        _check_transaction(connection, "get_runs")
        return await self.database.join(connection, partial(get_runs, ids=ids), self.version, None)

    async def claim(self, request: ClaimRequest, *, now_ms: int | None) -> Look[Claimed]:
        await self._count_in(self.version)
        database, opened = self.database, self.opened
        if self._claimer is None or self._claimer.database is not database:  # the handle was opened again
            wake_waiters = opened.listener.wake_waiters
            self._claimer = Claimer(database, self.version, self._jobs, opened.claimed, self.clock, wake_waiters)
        claimed = await self._claimer.claim(request, now_ms)
        look_again_ms = claimed.look_again_ms
        return Look(claimed, None if look_again_ms is None else look_again_ms - claimed.now_ms)

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None) -> list[Answer]:
        items = [prepare(settlement, rows.made_row) for settlement in settlements]
        if plain := self.opened.claimed.take(items):
            plainly = partial(settle_plainly, items=items, rows=plain)
            if await self.database.read(plainly, self.version, now_ms, self.opened.listener.wake_waiters):
                return [Answer.OK] * len(items)
        return await self._write(now_ms, settle, items)

    async def prune(self, what: Pruning, *, audit: Audit | None, now_ms: int | None, unless_moved: bool) -> int:
        has_any, writers = await self._read(None, runs.prunable, what)
        gone = 0
        if has_any:
            gone = await self._write(now_ms, records.prune, what, audit=audit, unless_moved=unless_moved)
        keep, opened = what.keep_per_job, self.opened
        if keep is not None and gone < what.limit and (keep, writers) != opened.no_excess:
            found = await self._read(None, runs.excess_jobs, keep, what.limit - gone)
            if found:
                gone += await self._write(None, runs.drop_excess, found, keep, what.limit - gone)
            else:
                opened.no_excess = keep, writers  # nothing can be beyond before the next write
        return gone

    @contextmanager
    def listen(self, request: ClaimRequest | None, *, is_live: bool) -> Iterator[PostgresRest]:  # noqa: ARG002
        self.database  # noqa: B018  refused if it is closed
        listener = self.opened.listener
        with listener.listen(FEED if request is None else RUNS | ASKED, self.version) as waiter:
            yield PostgresRest(listener, waiter)

    async def now(self) -> int:
        return await self._server_clock.now_ms()

    async def _server_now(self) -> int:
        return await self._read(None, PostgresTransaction.now)

    async def problems(self) -> tuple[str, ...]:
        return ()  # a server that has no room, or only reads, refuses each write with the reason

    # rows

    def job(self, row: Row) -> Job:
        return self._jobs.job(tuple(row))

    def run(self, row: Row) -> Run:
        return rows.run(row)

    def note(self, row: Row) -> Note:
        return rows.note(row)

    # calls

    @property
    def database(self) -> PostgresDatabase:
        """The connections, if this process may use them now."""
        opened = self.opened
        if opened.loop is None or os.getpid() != opened.pid:
            raise shut(f"on {self.address.where}", opened.pid, is_open=opened.loop is not None)
        return opened.database

    async def _count_in(self, version: int) -> None:
        """Before the first write in a version: it gets its counts."""
        database = self.database
        if version not in self.opened.counted:
            await database.read(lambda tx: tx.fetch("versions.ensure", version), version)
            self.opened.counted.add(version)

    async def _write(
        self, now_ms: int | None, verb: Verb[T], *args: Any, audit: Audit | None = None, unless_moved: bool = False
    ) -> T:
        await self._count_in(self.version)
        call = partial(whole, verb=verb, args=args, audit=audit, unless_moved=unless_moved)
        return await self.database.write(call, self.version, now_ms, self.opened.listener.wake_waiters)

    async def _read(self, now_ms: int | None, verb: Verb[T], *args: Any) -> T:
        return await self.database.read(lambda tx: verb(tx, *args), self.version, now_ms)


async def _beat_again(tx: PostgresTransaction, node: Node, ttl_ms: int) -> bool | None:
    """Whether there are counts to gather; None: the node was not there any more."""
    body = encode(node)
    row = await tx.fetch_one("nodes.again", node.id, node.seats, ttl_ms, body, tx.given_ms, node.scheduler_version)
    return None if row is None else bool(row[0])


async def _gather(tx: PostgresTransaction) -> int:
    return int((await tx.one("counters.gather", GATHER_PIECE))[0])


async def _hold_term(tx: PostgresTransaction, node_id: str, ttl_ms: int) -> Row | None:
    return await tx.fetch_one("nodes.go_on", tx.given_ms, ttl_ms, node_id, tx.version)


async def _pulse(tx: PostgresTransaction) -> Pulse:
    """Another one after every write, since each changes a count; and how often all waits were called back."""
    writers, wakes = await tx.one("versions.pulse")
    return writers, wakes


class PostgresStore(StoreHandle):
    backend: PostgresBackend

    def __init__(
        self,
        url: str | PostgresAddress,
        *,
        clock: Clock | None = None,
        deadline_ms: int = DEADLINE_MS,
        pool: int | None = None,
        scheduler_version: int = SCHEDULER_VERSION,
    ) -> None:
        clock = clock or SystemClock()
        address = url if isinstance(url, PostgresAddress) else read_address(url)
        options: Any = {"deadline_ms": deadline_ms, "pool": pool or address.pool}
        backend = PostgresBackend(address, clock, check_version(scheduler_version), **options)
        super().__init__(backend, clock=clock, deadline_ms=deadline_ms + SLACK_MS)

    @property
    def statements(self) -> int:
        """How many this handle has sent so far."""
        return self.backend.opened.database.space.statements


def _check_transaction(connection: Any, verb: str) -> None:
    if not isinstance(connection, asyncpg.Connection) or not connection.is_in_transaction():
        raise InvalidInput(
            f"{verb} needs an asyncpg connection that is inside a transaction",
            where="connection",
            cure="call it inside `async with connection.transaction():`",
        )
