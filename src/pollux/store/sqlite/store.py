"""Backend in one SQLite file: calls to the writer and reader threads, time, waits, and claims that cannot be decoded.

Writing verbs go to the writer, reading ones to a reader.  Rows are decoded in the caller's loop, so that the writer is
free for the next commit.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from pollux.clock import Clock, SystemClock
from pollux.model import SCHEDULER_VERSION, FeedItem, Job, Note, NotePut, Plan, Run, check_version
from pollux.store.backend import Look
from pollux.store.contract import Advanced, Answer, Audit, Capabilities, Claimed, Feed, Pruning, RunAnswer, Settlement
from pollux.store.decoding import HandedBack
from pollux.store.handle import StoreHandle, has_answer
from pollux.store.job_cache import JobCache
from pollux.store.relational import records, rows
from pollux.store.relational.rows import Row
from pollux.store.relational.settle import prepare
from pollux.store.relational.transaction import at_once
from pollux.store.relational.verbs import SHARED_VERBS, Verb, decoded_dump, whole
from pollux.store.relational.wakeup import ASKED, FEED, RUNS, WAKE, Waiter
from pollux.store.sqlite import claim, plan, runs
from pollux.store.sqlite.calls import WriterCall
from pollux.store.sqlite.claim import ClaimedRows
from pollux.store.sqlite.database import Reader, SqliteDatabase
from pollux.store.sqlite.disk_space import BEGINS, GROWS, RECORDS
from pollux.store.sqlite.file_identity import FileIdentity
from pollux.store.sqlite.settle import settle
from pollux.store.sqlite.transaction import SqliteTransaction, WriteStats
from pollux.store.sqlite.wakeup import SqliteListener
from pollux.store.sqlite.writer import Writer
from pollux.store.values import ClaimRequest
from pollux.store.versions import shut

DEADLINE_MS = 10_000
SLACK_MS = 2_000  # of the handle after it: a refusal by the writer gives its reason
LOOK_AGAIN_MS = 5_000  # a wait looks again at least so often
VERSION_MS = 1_000  # and compares `data_version` so often, for wake-ups that were lost
T = TypeVar("T")


async def wake(tx: SqliteTransaction) -> None:
    tx.wakeups |= WAKE


VERBS: dict[str, Verb[Any]] = {
    **SHARED_VERBS,
    **{verb.__name__: verb for verb in (runs.counts, runs.lines, claim.renew, wake)},
}
SLOW = frozenset({"list_jobs", "list_runs", "read_log", "dump"})  # reads that may take long
NEEDS = {"put_jobs": GROWS, "load": GROWS}  # refused first when disk space is short; other writes record what happened


class SqliteOpenState:
    """What is opened and closed, for a handle and those of other versions that were made from it."""

    listener: SqliteListener

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pid = 0


class SqliteBackend:
    capabilities = Capabilities(name="sqlite")

    def __init__(
        self,
        database: SqliteDatabase,
        version: int,
        opened: SqliteOpenState | None = None,
        cache: JobCache | None = None,
    ) -> None:
        self.database, self.version = database, version
        self.opened = opened or SqliteOpenState()
        self.clock = database.clock
        self._jobs, self._handed_back = cache or JobCache(), HandedBack(self.clock)
        self._entries: dict[int, FeedItem] = {}  # of the feed as last read: many stay for some turns

    @property
    def is_open(self) -> bool:
        return self.opened.loop is not None

    async def open(self) -> None:
        if self.is_open:
            return
        loop = asyncio.get_running_loop()
        ready = self.database.join()
        try:
            await asyncio.wrap_future(ready)
        except BaseException:
            self.database.leave()
            raise
        self.opened.listener = SqliteListener(self.database.notifier, loop)
        self.opened.loop, self.opened.pid = loop, os.getpid()

    async def close(self) -> None:
        if not self.is_open:
            return
        self.opened.loop = None
        if os.getpid() == self.opened.pid:
            self.opened.listener.close()
            for ended in self.database.leave():
                await asyncio.wrap_future(ended)

    def twin(self) -> SqliteBackend:
        return SqliteBackend(self.database, self.version)

    def of_version(self, number: int) -> SqliteBackend:
        return SqliteBackend(self.database, number, self.opened, self._jobs)

    # verbs

    async def read(self, verb: str, *args: Any, now_ms: int | None = None) -> Any:
        do, database = VERBS[verb], self.lanes()
        lane = database.slow if verb in SLOW else database.quick
        answer: Any = await self.send(lane, lambda tx: at_once(do(tx, *args)), now_ms=now_ms)
        return decoded_dump(answer, self) if verb == "dump" else answer

    async def write(
        self, verb: str, *args: Any, audit: Audit | None = None, now_ms: int | None = None, unless_moved: bool = False
    ) -> Any:
        need = NEEDS.get(verb, RECORDS)
        return await self._write(now_ms, VERBS[verb], *args, audit=audit, unless_moved=unless_moved, need=need)

    async def feed(self, limit: int, *, now_ms: int | None) -> Look[Feed]:
        known = self._entries
        found = await self.send(self.lanes().quick, lambda tx: at_once(plan.feed(tx, limit, list(known))))
        items = tuple([known[row[0]] if row[1] is None else _feed_item(row) for row in found])
        self._entries = {item.id: item for item in items}
        return Look(Feed(items, self._now(now_ms)))

    async def advance(self, term: int, planned: Plan, *, now_ms: int | None) -> Advanced:
        firings = [rows.checked_made_row(firing.run) for firing in planned.firings]
        advanced = await self._write(now_ms, plan.advance, term, planned, firings, need=BEGINS)
        for number in planned.consumed:  # an entry that was inserted by hand may get the number of a consumed one
            self._entries.pop(number, None)
        return advanced

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
        args = rows.checked_made_rows(made), puts, ready_max, unless_live
        return await self._write(now_ms, runs.enqueue, *args, audit=audit, unless_moved=unless_moved, need=GROWS)

    async def claim(self, request: ClaimRequest, *, now_ms: int | None) -> Look[Claimed]:
        while True:
            call = self.claim_call(request, now_ms)
            self.lanes().writer.put(call)
            claimed, is_all = await self.decode_claim(request, await call.future)
            if claimed.runs or is_all:
                look_again_ms = claimed.look_again_ms
                return Look(claimed, None if look_again_ms is None else look_again_ms - claimed.now_ms)

    def claim_call(self, request: ClaimRequest, now_ms: int | None) -> WriterCall:
        def at(verb: Callable[[SqliteTransaction, ClaimRequest, int], T], tx: SqliteTransaction) -> T:
            # The time was taken before the guard looks: it then knows of every jump that is in it.
            return verb(tx, request, self.database.jumps.hold_ms(request.lease_ms) if now_ms is None else 0)

        return self._call(partial(at, claim.claim), now_ms, look=partial(at, claim.probe), need=BEGINS)

    async def decode_claim(self, request: ClaimRequest, found: ClaimedRows) -> tuple[Claimed, bool]:
        """What was claimed, and whether that is all: runs that cannot be decoded are settled first."""
        hand_back = partial(self._handed_back.settlements, node=request.node, now_ms=found.now_ms)
        claimed, settlements = claim.decode(found, request, self.version, self.job, hand_back)
        if settlements:
            await self._write(found.now_ms, settle, [prepare(each) for each in settlements])
        return claimed, not settlements

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None) -> list[Answer]:
        return await self._write(now_ms, settle, [prepare(settlement) for settlement in settlements])

    async def prune(self, what: Pruning, *, audit: Audit | None, now_ms: int | None, unless_moved: bool) -> int:
        gone = await self._write(now_ms, records.prune, what, audit=audit, unless_moved=unless_moved)
        if what.keep_per_job is not None and gone < what.limit:
            keep, limit = what.keep_per_job, what.limit - gone
            excess = await self.send(self.lanes().slow, lambda tx: runs.excess_runs(tx, keep, limit))
            gone += await self._write(now_ms, runs.drop_runs, excess) if excess else 0
        return gone

    @contextmanager
    def listen(self, request: ClaimRequest | None, *, is_live: bool) -> Iterator[SqliteRest]:
        self.lanes()
        with self.opened.listener.listen(FEED if request is None else RUNS | ASKED) as waiter:
            yield SqliteRest(self, waiter, request if is_live else None)

    async def now(self) -> int:
        return self.clock.now_ms()

    async def problems(self) -> tuple[str, ...]:
        return self.lanes().writer.disk_space.problems()

    # rows

    def job(self, row: Row) -> Job:
        return self._jobs.job(row)

    def run(self, row: Row) -> Run:
        return rows.run(row)

    def note(self, row: Row) -> Note:
        return rows.note(row)

    # calls

    def lanes(self) -> SqliteDatabase:
        """The database, if this process may use it now."""
        opened = self.opened
        if opened.loop is None or os.getpid() != opened.pid:
            raise shut(str(self.database.path), opened.pid, is_open=opened.loop is not None)
        return self.database

    async def send(
        self, lane: Writer | Reader, verb: Callable[[SqliteTransaction], T], *, now_ms: int | None = None
    ) -> T:
        return cast("T", await self._answer(lane, self._call(verb, now_ms)))

    async def _write(
        self,
        now_ms: int | None,
        verb: Verb[T],
        *args: Any,
        audit: Audit | None = None,
        unless_moved: bool = False,
        need: int = RECORDS,
    ) -> T:
        def at(tx: SqliteTransaction) -> T:
            return at_once(whole(tx, verb, args, audit, unless_moved=unless_moved))

        return cast("T", await self._answer(self.lanes().writer, self._call(at, now_ms, need=need)))

    async def _answer(self, lane: Writer | Reader, call: WriterCall) -> Any:
        lane.put(call)
        return await call.future

    def _call(
        self,
        verb: Callable[[SqliteTransaction], object],
        now_ms: int | None,
        *,
        look: Callable[[SqliteTransaction], object] | None = None,
        need: int = RECORDS,
    ) -> WriterCall:
        deadline = time.monotonic() + self.database.deadline_ms / 1000
        look = None if look is None else partial(self._begin, now_ms, look)
        loop = asyncio.get_running_loop()
        return WriterCall(partial(self._begin, now_ms, verb), loop=loop, deadline=deadline, look=look, need=need)

    def _begin(self, now_ms: int | None, verb: Callable[[SqliteTransaction], T], tx: SqliteTransaction) -> T:
        """Calls of several handles share a transaction: each has its version, and the time when it begins."""
        tx.version, tx.given_ms = self.version, self._now(now_ms)
        return verb(tx)

    def _now(self, now_ms: int | None) -> int:
        return self.clock.now_ms() if now_ms is None else now_ms


class SqliteRest:
    """A waiting call.

    One that claims leaves its claim with the writer while it rests: the commit that makes a run ready runs that claim,
    too, and no second commit is needed.
    """

    def __init__(self, backend: SqliteBackend, waiter: Waiter, request: ClaimRequest | None) -> None:
        self._backend, self._waiter, self._request = backend, waiter, request
        self._database = backend.database
        self._generation = 0

    def begin(self) -> None:
        self._waiter.event.clear()
        self._generation = self._database.generations.number

    @property
    def is_over(self) -> bool:
        return bool(self._waiter.heard & (WAKE | ASKED))

    async def rest(self, look: Look[Any], left_ms: float) -> Claimed | None:
        nap_ms = max(1.0, min(left_ms, LOOK_AGAIN_MS, LOOK_AGAIN_MS if look.again_ms is None else look.again_ms))
        if self._request is None:
            await self._nap(nap_ms)
            return None
        call, writer = self._backend.claim_call(self._request, None), self._database.writer
        call.future.add_done_callback(lambda _: self._waiter.event.set())
        writer.park(call)
        try:
            await self._nap(nap_ms)
        finally:
            is_unused = writer.unpark(call)
        if is_unused:
            return None
        claimed, _ = await self._backend.decode_claim(self._request, await call.future)
        return claimed if has_answer(claimed) else None

    async def _nap(self, nap_ms: float) -> None:
        """Until a wake-up, or the nap is over, or another process has committed and its wake-up was lost."""
        backend, database = self._backend, self._database
        backend.opened.listener.watch()
        while nap_ms > 0:
            if await backend.clock.wait(self._waiter.event, min(nap_ms, VERSION_MS)) or not backend.is_open:
                return
            nap_ms -= VERSION_MS
            if nap_ms > 0 and await backend.send(database.quick, database.generations.look) != self._generation:
                return


class SqliteStore(StoreHandle):
    backend: SqliteBackend

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        deadline_ms: int = DEADLINE_MS,
        allow_network: bool = False,
        scheduler_version: int = SCHEDULER_VERSION,
    ) -> None:
        clock = clock or SystemClock()
        place = FileIdentity(Path(path).absolute(), allow_network=allow_network)
        backend = SqliteBackend(SqliteDatabase(place, clock, deadline_ms), check_version(scheduler_version))
        super().__init__(backend, clock=clock, deadline_ms=deadline_ms + SLACK_MS)

    @property
    def stats(self) -> WriteStats:
        """Counts of what this process did with the database so far."""
        return self.backend.database.stats


def _feed_item(row: Row) -> FeedItem:
    return FeedItem(row[0], rows.entry(row[1]))
