"""Verbs of delivery: claim (which also takes back lost leases) and renew.

A claim looks, and takes what comes first in the same statement; then, if it may have more, one statement a priority,
each a write of its own.  Rows that others hold at that moment are passed over; it waits for them only if nothing else
is left, so that "none" means none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import NamedTuple, TypeVar

import asyncpg
from asyncpg import UniqueViolationError

from pollux.clock import Clock
from pollux.model import PROGRESS_CHARS_MAX, Job, Run
from pollux.store.clock_jumps import JumpGuard
from pollux.store.contract import Answer, Claimed, Renewal, Renewed, Settlement
from pollux.store.decoding import UNREADABLE, HandedBack, LeasedRow
from pollux.store.job_cache import JobCache
from pollux.store.postgres.database import PostgresDatabase, Verb, WakeWaiters
from pollux.store.postgres.rows import COLUMNS, columns, got, leased_run, put
from pollux.store.postgres.rows import run as run_of
from pollux.store.postgres.settle import SettleCache, settle
from pollux.store.postgres.transaction import PostgresTransaction
from pollux.store.relational.claim import CLAIMS_MAX, LOST_MAX, HandBack, decode_claim, first_of, lose
from pollux.store.relational.feed_entries import JOB_GONE
from pollux.store.relational.rows import DEAD, LEASED, Row
from pollux.store.relational.runs import cancel_waiting
from pollux.store.relational.settle import prepare
from pollux.store.relational.wakeup import RUNS
from pollux.store.values import ClaimRequest

SEQ, JOB, VERSION, DEFINITION, VISIBLE, FENCE = 0, 2, 4, 6, 11, 12  # places in a row of `take`; JOB is None in a job's
ENDLESS = 2**62
_PLACE = itemgetter(VISIBLE, SEQ)


class ClaimAnswer(NamedTuple):
    now_ms: int
    visible_ms: tuple[int | None, ...]
    ends_ms: int | None
    parts: int  # of an earlier claim with the same token
    ends: int
    stops: int
    clock_ms: int

    def first_ms(self, hold_until_ms: int | None) -> int | None:
        """The earliest visible time or lease end; leases not before they may be taken back."""
        return first_of(self.visible_ms, self.ends_ms, hold_until_ms)

    def ready(self, request: ClaimRequest) -> list[int]:
        """The priorities that have something, in the order in which they are asked."""
        return [each for each in request.order if (at := self.visible_ms[each - 1]) is not None and at <= self.now_ms]


async def again(tx: PostgresTransaction, cache: JobCache, token: str, seen: ClaimAnswer) -> Claimed | None:
    """What the same claim got before, as far as its leases are live."""
    by_id: dict[str, Row] = {}
    for row in await tx.fetch("claim.again", token, seen.now_ms):
        by_id.pop(row[0], None)  # each once, as last taken: the same token may have lost it and taken it again
        by_id[row[0]] = tuple(row)
    jobs: dict[str, Job] = {}
    runs: list[Run] = []
    for row in by_id.values():
        with suppress(*UNREADABLE):  # left until its lease ends
            if row[COLUMNS] is not None:
                jobs[row[COLUMNS]] = cache.job(row[COLUMNS:])
            runs.append(run_of(row[:COLUMNS]))
    return Claimed(Answer.OK, tuple(runs), jobs, seen.stops, None, seen.now_ms) if runs else None


class ClaimedParts(NamedTuple):
    found_rows: list[Row]  # of `FoundRun`, for the settlement of each
    runs: list[Run]
    jobs: dict[str, Job]
    orphans: list[int]  # runs without a job, by their numbers
    settlements: list[Settlement]  # of runs that cannot be decoded, or whose job cannot be


class ClaimStep(NamedTuple):
    """One statement of a claim: the priorities in order, and how many runs of the first that has any."""

    order: Sequence[int]
    limit: int
    part: int = 1
    feed_max: int = ENDLESS  # ends of runs that may be unread
    is_sure: bool = False  # the conditions were checked before


async def take(
    tx: PostgresTransaction, cache: JobCache, request: ClaimRequest, step: ClaimStep, handed_back: HandedBack
) -> tuple[ClaimAnswer, ClaimedParts | None]:
    """What the look found, and what was leased; None: something else comes first, or nothing is visible."""
    about = (request.token, tx.given_ms, tx.version, step.order, step.feed_max, step.limit)
    args = (*about, put(request.node), request.lease_ms, step.is_sure, step.part)
    try:
        *found, last = await tx.fetch("claim.take", *args)
    except UniqueViolationError:
        await tx.step_over()  # unless the same claim was under way
        raise
    now_ms, high, normal, low, ends_ms, parts, ends, stops, clock_ms, chosen = last[-1]
    seen = ClaimAnswer(now_ms, (high, normal, low), ends_ms, parts, ends, stops, clock_ms)
    if chosen is None:
        return seen, None
    hand_back = partial(handed_back.settlements, node=request.node, now_ms=now_ms)
    return seen, await _taken(tx, found, cache, request, now_ms + request.lease_ms, hand_back)


async def _taken(
    tx: PostgresTransaction,
    found: Sequence[Row],
    cache: JobCache,
    request: ClaimRequest,
    until_ms: int,
    hand_back: HandBack,
) -> ClaimedParts:
    """Runs that were delivered before are read whole."""
    rows = sorted([row for row in found if row[JOB] is not None], key=_PLACE)
    job_rows = {row[1]: _job_row(row) for row in found if row[JOB] is None}
    orphans = [row[SEQ] for row in rows if row[JOB] not in job_rows]
    again = [row[SEQ] for row in rows if row[FENCE] > 1]
    whole = {row[SEQ]: row[1:] for row in await tx.fetch("claim.whole", again)} if again else {}

    def delivered(row: Row) -> Run:
        if row[FENCE] == 1:
            return leased_run(row, request.token, request.node, until_ms, tx.version)
        return run_of(whole[row[SEQ]])

    leased = [
        (LeasedRow(row[1], f"{request.token}:{row[FENCE]}", row[JOB], row[FENCE]), row)
        for row in rows
        if row[JOB] in job_rows and (row[FENCE] == 1 or row[SEQ] in whole)
    ]
    runs, jobs, settlements = decode_claim(leased, delivered, job_rows, cache.job, hand_back)
    settled = {each.run_id for each in settlements}
    found_rows = [_found_row(row, each.token, tx.version) for each, row in leased if each.run_id not in settled]
    return ClaimedParts(found_rows, runs, jobs, orphans, settlements)


def _job_row(row: Row) -> Row:
    revision, job_id, _, next_due_ms, *_, last_due_ms, _, memory, _ = row
    return (job_id, revision, next_due_ms, last_due_ms, memory, row[DEFINITION], row[VERSION])


def _found_row(row: Row, token: str, version: int) -> Row:
    """In the order of `FoundRun`, as far as it is sure; then its version."""
    return (row[1], row[0], token, LEASED, "", row[2], row[3], row[4], row[10], version)


async def forget(tx: PostgresTransaction) -> None:
    await tx.fetch("claim.forget", CLAIMS_MAX)


async def wait_for(tx: PostgresTransaction, priority: int, now_ms: int) -> None:
    await tx.fetch("claim.await", priority, now_ms, tx.version)


async def sweep_orphans(tx: PostgresTransaction, seqs: Sequence[int], token: str) -> None:
    """Cancel what was just leased and has no job any more."""
    orphans = [row for row in await tx.fetch("claim.ours", seqs, token) if not row[8]]
    tx.add_ends(await cancel_waiting(tx, orphans, [JOB_GONE] * len(orphans)))


async def clock_came_back(tx: PostgresTransaction, now_ms: int, clock_ms: int) -> None:
    """The clock came back.  All leases are walked only then."""
    await tx.fetch("claim.cut", now_ms, tx.version)
    await tx.fetch("claim.show", now_ms, clock_ms, tx.version)
    await tx.fetch("claim.show_leased", now_ms, clock_ms, tx.version)
    await tx.fetch("claim.came_back", now_ms, tx.version)


async def take_back(tx: PostgresTransaction, losses_max: int, now_ms: int) -> int:
    """End the leases that ran out; answers how many.  The token is cleared: its owner settles too late."""
    back: list[Row] = []
    over: list[Row] = []
    lost = await tx.fetch("claim.lost", now_ms, LOST_MAX, tx.version)
    losses = [lose(_whole(row), losses_max, now_ms) for row in lost]
    for loss in losses:
        if loss.history_class is None:
            back.append((loss.seq, loss.losses, loss.tried))
        else:
            is_dead = loss.state == DEAD
            tx.shared.dead += is_dead
            after = (loss.seq, loss.losses, loss.state, loss.history_class, put(loss.cancel), loss.error, is_dead)
            over.append(after)
    if back:
        await tx.fetch("claim.take_back", *columns(back, 3))
        tx.wakeups |= RUNS
    if over:
        await tx.fetch("claim.end", *columns(over, 7), now_ms)
    tx.counters.leased -= len(losses)
    tx.counters.ready += len(back)
    tx.add_ends([(tx.version, loss.end) for loss in losses])
    return len(losses)


def _whole(row: Row) -> Row:
    """A row of `lost` with its texts as they were."""
    return (*row[:6], got(row[6]), *row[7:10], got(row[10]), *row[11:])


async def renew(tx: PostgresTransaction, renewals: Sequence[Renewal], lease_ms: int) -> list[Renewed]:
    asked: dict[tuple[str, str], str] = {}
    for renewal in renewals:
        progress = put(renewal.progress[:PROGRESS_CHARS_MAX])
        asked[renewal.run_id, renewal.token] = progress or asked.get((renewal.run_id, renewal.token), "")
    ids, tokens = [key[0] for key in asked], [key[1] for key in asked]
    found = await tx.fetch("renew.renew", ids, tokens, list(asked.values()), lease_ms, tx.given_ms)
    standing = {(row[0], row[1]): got(row[2]) for row in found}
    keys = [(renewal.run_id, renewal.token) for renewal in renewals]
    return [Renewed(Answer.OK, standing[key]) if key in standing else Renewed(Answer.LOST) for key in keys]


LOOKS_MAX = 50
FORGET_EVERY = 64
T = TypeVar("T")


class _ServerTime:
    """The server's clock and ours at its last answer: what the guard against clock jumps compares."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms, self._mono_ms = 0, clock.mono_ms()

    def see(self, wall_ms: int) -> None:
        self._wall_ms, self._mono_ms = wall_ms, self._clock.mono_ms()

    def now_ms(self) -> int:
        return self._wall_ms

    def mono_ms(self) -> float:
        return self._mono_ms


class Claimer:
    """The claims of one handle, in one version, while it is open."""

    def __init__(
        self,
        database: PostgresDatabase,
        version: int,
        cache: JobCache,
        settle_cache: SettleCache,
        clock: Clock,
        wake_waiters: WakeWaiters,
    ) -> None:
        self.database, self._version, self._settle_cache = database, version, settle_cache
        self._cache, self._clock, self._wake = cache, clock, wake_waiters
        self._seen, self._handed_back = _ServerTime(clock), HandedBack(clock)
        self._jumps: JumpGuard | None = None
        self._claims = 0

    async def claim(self, request: ClaimRequest, now_ms: int | None) -> Claimed:
        first = ClaimStep(request.order if request.limit > 0 else (), max(0, request.limit), feed_max=request.feed_max)
        for nth in range(LOOKS_MAX):
            step = first._replace(feed_max=ENDLESS) if nth else first
            try:
                seen, taken = await self._step(request, step, now_ms)
            except asyncpg.UniqueViolationError:  # the same claim was under way: its runs are ours
                continue
            hold_ms = self._hold_ms(seen.now_ms, request.lease_ms) if now_ms is None else 0
            if seen.parts:
                same = await self._read(partial(again, cache=self._cache, token=request.token, seen=seen))
                if same is not None:
                    return same
            if nth == 0 and seen.ends > request.feed_max:  # not for the ends that this call itself has written
                return Claimed(Answer.FULL, (), {}, seen.stops, None, seen.now_ms)
            if taken is None and await self._repair_leases(seen, request.losses_max, hold_ms):
                now_ms = seen.now_ms
                continue
            if not seen.ready(request) or request.limit <= 0:
                break
            claimed = await self._take(request, seen, taken)
            if claimed is not None:
                return claimed
            await self._wait_for_others(request, seen)
        first_ms = seen.first_ms(seen.now_ms + hold_ms if hold_ms else None)
        return Claimed(Answer.OK, (), {}, seen.stops, first_ms, seen.now_ms)

    def _hold_ms(self, now_ms: int, lease_ms: int) -> int:
        """For how long no lease may be taken back, because the server's clock jumped."""
        self._seen.see(now_ms)
        if self._jumps is None:
            self._jumps = JumpGuard(self._seen)
        return self._jumps.hold_ms(lease_ms)

    async def _repair_leases(self, seen: ClaimAnswer, losses_max: int, hold_ms: int) -> bool:
        """End leases that ran out, and cut those of a clock that came back; true if there were any."""
        if seen.clock_ms > seen.now_ms:
            await self._write(lambda tx: clock_came_back(tx, seen.now_ms, seen.clock_ms), seen.now_ms)
            return True
        if hold_ms or seen.ends_ms is None or seen.ends_ms > seen.now_ms:
            return False
        taken = await self._write(lambda tx: take_back(tx, losses_max, seen.now_ms), seen.now_ms)
        return taken > 0

    async def _take(self, request: ClaimRequest, seen: ClaimAnswer, taken: ClaimedParts | None) -> Claimed | None:
        """All that is ready, priority by priority; of the first one it may have been taken with the look."""
        runs: list[Run] = []
        jobs: dict[str, Job] = {}
        part = seen.parts
        for priority in seen.ready(request):
            if len(runs) == request.limit:
                break
            part += 1
            if taken is None:
                step = ClaimStep((priority,), request.limit - len(runs), part, is_sure=True)
                try:
                    _, taken = await self._step(request, step, seen.now_ms)
                except asyncpg.UniqueViolationError:
                    return None
            if taken is not None:
                await self._clear(request, seen, taken)
                self._settle_cache.add(taken.found_rows)
                runs += taken.runs
                jobs.update(taken.jobs)
            taken = None
        if not runs:
            return None
        self._claims += 1
        if self._claims % FORGET_EVERY == 0:
            await self._read(forget)
        return Claimed(Answer.OK, tuple(runs), jobs, seen.stops, None, seen.now_ms)

    async def _clear(self, request: ClaimRequest, seen: ClaimAnswer, taken: ClaimedParts) -> None:
        """End runs that cannot be run; hand those back that another node may be able to run."""
        if taken.orphans:
            sweep = partial(sweep_orphans, seqs=taken.orphans, token=request.token)
            await self._write(sweep, seen.now_ms)
        if taken.settlements:
            items = [prepare(each) for each in taken.settlements]
            await self._write(partial(settle, items=items), seen.now_ms)

    async def _step(
        self, request: ClaimRequest, step: ClaimStep, now_ms: int | None
    ) -> tuple[ClaimAnswer, ClaimedParts | None]:
        verb = partial(take, cache=self._cache, request=request, step=step, handed_back=self._handed_back)
        return await self._read(verb, now_ms)

    async def _read(self, verb: Verb[T], now_ms: int | None = None) -> T:
        return await self.database.read(verb, self._version, now_ms)

    async def _write(self, verb: Verb[T], now_ms: int) -> T:
        return await self.database.write(verb, self._version, now_ms, self._wake)

    async def _wait_for_others(self, request: ClaimRequest, seen: ClaimAnswer) -> None:
        priority = seen.ready(request)[0]
        await self._read(lambda tx: wait_for(tx, priority, seen.now_ms))
