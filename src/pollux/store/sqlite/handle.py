"""Handle on a SQLite store: calls to the writer and reader threads, time, waits, and claims that cannot be decoded.

A claimed run that cannot be decoded ends dead; one whose job cannot be decoded goes back, for a node that can.  The
dead letter keeps the record unchanged: `pollux store check` names it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from pollux.clock import Clock, Deadlines, SystemClock
from pollux.errors import StoreTimeout
from pollux.model import SCHEDULER_VERSION, Dead, FeedItem, Job, Run, check_version
from pollux.store.contract import Answer, Audit, Claimed, Settlement
from pollux.store.decoding import UNREADABLE, HandedBack, LeasedRow
from pollux.store.job_cache import JobCache
from pollux.store.relational import rows
from pollux.store.relational.rows import Row
from pollux.store.relational.settle import prepare
from pollux.store.relational.wakeup import ASKED, WAKE, Waiter
from pollux.store.sqlite import jobs as job_verbs
from pollux.store.sqlite import leases as lease_verbs
from pollux.store.sqlite import plan as plan_verbs
from pollux.store.sqlite import records as record_verbs
from pollux.store.sqlite import runs as run_verbs
from pollux.store.sqlite.calls import WriterCall
from pollux.store.sqlite.database import SqliteDatabase
from pollux.store.sqlite.disk_space import BEGINS, GROWS, RECORDS
from pollux.store.sqlite.file_identity import FileIdentity
from pollux.store.sqlite.leases import ID, JOB, SEQ, ClaimedRows
from pollux.store.sqlite.settle import settle
from pollux.store.sqlite.transaction import SqliteTransaction, WriteStats
from pollux.store.sqlite.wakeup import SqliteListener
from pollux.store.values import ClaimRequest
from pollux.store.versions import shut

FENCE, TOKEN = 17, 18  # their places in a whole row


class UnreadableClaims(NamedTuple):
    runs: list[Run]
    jobs: dict[str, Job]
    dead: list[Settlement]
    aside: list[LeasedRow]
    reasons: dict[str, str]  # why, by job


def legible_part(taken: ClaimedRows, run_of: Callable[[Row], Run], shelf: JobCache, token: str) -> UnreadableClaims:
    part = UnreadableClaims([], {}, [], [], {})
    for job_id, job in taken.jobs.items():
        try:
            part.jobs[job_id] = shelf.job(job)
        except UNREADABLE as error:
            part.reasons[job_id] = str(error)
    for row in taken.runs:
        whole = taken.whole.get(row[SEQ])
        fence, own = (1, f"{token}:1") if whole is None else whole[FENCE : TOKEN + 1]
        if row[JOB] in part.reasons:
            part.aside.append(LeasedRow(row[ID], own, row[JOB], fence))
            continue
        try:
            part.runs.append(run_of(row))
        except UNREADABLE as error:
            part.dead.append(Settlement(row[ID], own, Dead(f"it cannot be read ({error})")))
    return part


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
Look = Callable[[SqliteTransaction], object]
Rests = Callable[[Waiter, float, int], Awaitable[T | None]]


class Lane(Protocol):
    def put(self, call: WriterCall) -> None: ...


class SqliteOpenState:
    """What is opened and closed, for a handle and those of other versions that were made from it."""

    ear: SqliteListener

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pid = 0


class SqliteHandle:
    """One handle, of one version."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        deadline_ms: int = DEADLINE_MS,
        allow_network: bool = False,
        database: SqliteDatabase | None = None,
        scheduler_version: int = SCHEDULER_VERSION,
    ) -> None:
        self._version = check_version(scheduler_version)
        self._clock = clock or SystemClock()
        place = FileIdentity(Path(path).absolute(), allow_network=allow_network)
        self._database = database or SqliteDatabase(place, self._clock, deadline_ms)
        self._deadline_ms = deadline_ms
        self._deadlines = Deadlines()
        self._jobs, self._aside = JobCache(), HandedBack(self._clock)
        self._entries: dict[int, FeedItem] = {}  # of the feed as last read: many stay for some turns
        self._door = SqliteOpenState()

    @property
    def stats(self) -> WriteStats:
        """What this process did with the database so far."""
        return self._database.stats

    def _now(self, now_ms: int | None, waited_ms: float = 0.0) -> int:
        return self._clock.now_ms() if now_ms is None else now_ms + int(waited_ms)

    async def _write(self, verb: Callable[..., T], *args: object, audit: Audit[T] | None = None) -> T:
        def whole(tx: SqliteTransaction) -> T:
            return record_verbs.recorded(tx, audit, verb(tx, *args))

        return await self._send(self._lanes().writer, whole, need=NEEDS.get(verb, RECORDS))

    async def _write_at(
        self, now_ms: int | None, verb: Callable[..., T], *args: object, audit: Audit[T] | None = None
    ) -> T:
        """With the time as last argument: the store's own is taken when the write begins, not when it is asked for."""

        def whole(tx: SqliteTransaction) -> T:
            return record_verbs.recorded(tx, audit, verb(tx, *args, self._now(now_ms)))

        return await self._send(self._lanes().writer, whole, need=NEEDS.get(verb, RECORDS))

    async def _read(self, verb: Callable[..., T], *args: object) -> T:
        return await self._send(self._lanes().quick, lambda tx: verb(tx, *args))

    async def _list(self, verb: Callable[..., T], *args: object) -> T:
        """What may take long."""
        return await self._send(self._lanes().slow, lambda tx: verb(tx, *args))

    def _lanes(self) -> SqliteDatabase:
        door = self._door
        if door.loop is None or os.getpid() != door.pid:
            raise shut(str(self._database.path), door.pid, is_open=door.loop is not None)
        return self._database

    async def _send(self, lane: Lane, verb: Callable[[SqliteTransaction], T], *, need: int = RECORDS) -> T:
        call = self._call(verb, need=need)
        lane.put(call)
        return cast("T", await self._answer_to(call))

    def _call(self, verb: Look, *, look: Look | None = None, need: int = RECORDS) -> WriterCall:
        loop, own = asyncio.get_running_loop(), self._version
        verb, look = partial(_in_version, own, verb), None if look is None else partial(_in_version, own, look)
        return WriterCall(verb, loop=loop, deadline=time.monotonic() + self._deadline_ms / 1000, look=look, need=need)

    async def _answer_to(self, call: WriterCall) -> Any:
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

    async def _take(self, asking: ClaimRequest, now_ms: int | None, waited_ms: float) -> Claimed:
        while True:
            call = self._claim(asking, now_ms, waited_ms)
            self._lanes().writer.put(call)
            claimed, is_all = await self._claimed(asking, await self._answer_to(call))
            if claimed.runs or is_all:
                return claimed

    def _claim(self, asking: ClaimRequest, now_ms: int | None = None, waited_ms: float = 0.0) -> WriterCall:
        def at(verb: Callable[[SqliteTransaction, ClaimRequest, int, int], T], tx: SqliteTransaction) -> T:
            at_ms = self._now(now_ms, waited_ms)  # before the guard looks: it then knows of every leap that is in it
            hold_ms = self._database.jumps.hold_ms(asking.lease_ms) if now_ms is None else 0
            return verb(tx, asking, hold_ms, at_ms)

        look = partial(at, lease_verbs.look)
        return self._call(partial(at, lease_verbs.claim), look=look, need=BEGINS)

    async def _claimed(self, asking: ClaimRequest, taken: ClaimedRows) -> tuple[Claimed, bool]:
        """What was taken, and whether that is all; what cannot be read stands in nobody's way."""
        until_ms, whole = taken.now_ms + asking.lease_ms, taken.whole

        def run_of(row: rows.Row) -> Run:
            if row[0] in whole:
                return rows.run(whole[row[0]][1:])
            return rows.leased_run(row, asking.token, asking.node, until_ms, self._version)

        def claimed(runs: Sequence[Run], jobs: dict[str, Job]) -> Claimed:
            return Claimed(taken.answer, tuple(runs), jobs, taken.stops, taken.look_again_ms, taken.now_ms)

        try:
            jobs = {job_id: self._jobs.job(row) for job_id, row in taken.jobs.items()}
            return claimed([run_of(row) for row in taken.runs], jobs), True
        except UNREADABLE:
            part = legible_part(taken, run_of, self._jobs, asking.token)
        back = self._aside.settlements(part.aside, part.reasons, asking.node, taken.now_ms)
        await self._write_at(taken.now_ms, settle, [prepare(each) for each in [*part.dead, *back]])
        return claimed(part.runs, part.jobs), False

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

    async def _stand_by(self, asking: ClaimRequest, waiter: Waiter, nap_ms: float, generation: int) -> Claimed | None:
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
        claimed, _ = await self._claimed(asking, await self._answer_to(call))
        return claimed if is_enough(claimed) else None


def is_enough(claimed: Claimed) -> bool:
    return bool(claimed.runs) or claimed.answer is not Answer.OK


def _in_version(version: int, verb: Look, tx: SqliteTransaction) -> object:
    """Calls of several handles share a transaction: each says whose it is."""
    tx.version = version
    return verb(tx)
