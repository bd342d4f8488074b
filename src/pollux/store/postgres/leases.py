"""The verbs of delivery: claim (which also takes back what was lost) and renew.

A claim looks once; if there is something it takes it, one statement a priority, each a write of its own.  What others
hold at that moment is passed over; only if nothing is left but that does it wait for them, so that "none" means none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pollux.model import PROGRESS_CHARS_MAX, End, Job, Run, RunState, lease_lost, tried_again
from pollux.store.contract import Answer, Claimed, Renewal, Renewed
from pollux.store.limits import PRIORITIES
from pollux.store.postgres.rows import COLUMNS, JobShelf, Row, columns, got, put
from pollux.store.postgres.rows import run as run_of
from pollux.store.postgres.runs import JOB_GONE, cancel_waiting
from pollux.store.postgres.sql import Statements
from pollux.store.postgres.transaction import RUNS, Transaction
from pollux.store.sqlite.leases import CLAIMS_MAX, LOST_MAX, Asking
from pollux.store.sqlite.rows import CANCELLED, DEAD, SHELF_DEAD, SHELF_PLAIN, decode_tried, encode
from pollux.store.sqlite.runs import end_unrun

_claim = Statements("claim")
_renew = Statements("renew")
RUN = slice(1, 1 + COLUMNS)  # of a row of `lease`: the run, its place, the job, the orphans
JOB = slice(2 + COLUMNS, 8 + COLUMNS)


class Look(NamedTuple):
    now_ms: int
    visible_ms: tuple[int | None, ...]
    ends_ms: int | None
    parts: int  # of an earlier claim with the same token
    ends: int
    stops: int
    clock_ms: int

    def first_ms(self, hold_until_ms: int | None) -> int | None:
        """The earliest visible time or lease end; leases not before they may be taken back."""
        times = [at for at in self.visible_ms if at is not None]
        if self.ends_ms is not None:
            times.append(self.ends_ms if hold_until_ms is None else max(self.ends_ms, hold_until_ms))
        return min(times, default=None)

    def ready(self, first: int) -> list[int]:
        """The priorities that have something, in the order in which they are asked."""
        order = (*PRIORITIES[first - 1 :], *PRIORITIES[: first - 1])
        return [each for each in order if (at := self.visible_ms[each - 1]) is not None and at <= self.now_ms]


async def look(tx: Transaction, token: str) -> Look:
    row = await tx.one(_claim.look, token, tx.given_ms)
    return Look(row[0], (row[1], row[2], row[3]), row[4], *list(row)[5:])


async def again(tx: Transaction, shelf: JobShelf, token: str, seen: Look) -> Claimed | None:
    """What the same claim got before, as far as its leases still stand."""
    found = [tuple(row) for row in await tx.rows(_claim.again, token, seen.now_ms)]
    if not found:
        return None
    jobs = {row[COLUMNS]: shelf.job(row[COLUMNS:]) for row in found if row[COLUMNS] is not None}
    runs = tuple([run_of(row[:COLUMNS]) for row in found])
    return Claimed(Answer.OK, runs, jobs, seen.stops, None, seen.now_ms)


class Taken(NamedTuple):
    runs: list[Run]
    jobs: dict[str, Job]
    orphans: int


async def lease(
    tx: Transaction, shelf: JobShelf, asking: Asking, priority: int, limit: int, part: int, now_ms: int
) -> Taken:
    args = (priority, now_ms, limit, asking.token, put(asking.node), asking.lease_ms, part)
    found = await tx.rows(_claim.lease, *args)
    orphans = found[0][-1]
    if found[0][0] is None:
        return Taken([], {}, orphans)
    rows = [tuple(row) for row in found]
    jobs = {row[JOB][0]: shelf.job(row[JOB]) for row in rows if row[JOB][0] is not None}
    return Taken([run_of(row[RUN]) for row in rows], jobs, orphans)


async def forget(tx: Transaction) -> None:
    await tx.rows(_claim.forget, CLAIMS_MAX)


async def wait_for(tx: Transaction, priority: int, now_ms: int) -> None:
    await tx.rows(getattr(_claim, "await"), priority, now_ms)


async def sweep(tx: Transaction, priority: int, now_ms: int) -> None:
    """Cancel what is ready and has no job any more."""
    orphans = await tx.rows(_claim.orphans, priority, now_ms)
    tx.tell_ends(await cancel_waiting(tx, orphans, [JOB_GONE] * len(orphans), now_ms))


async def come_back(tx: Transaction, now_ms: int, clock_ms: int) -> None:
    """The clock came back.  All leases are walked only then."""
    await tx.rows(_claim.cut, now_ms)
    await tx.rows(_claim.show, now_ms, clock_ms)
    await tx.rows(_claim.came_back, now_ms)


async def take_back(tx: Transaction, losses_max: int, now_ms: int) -> int:
    """End the leases that ran out; answers how many.  The token goes: whoever held it comes too late."""
    back: list[Row] = []
    over: list[Row] = []
    lost = await tx.rows(_claim.lost, now_ms, LOST_MAX)
    ends = [_lose(tx, tuple(row), losses_max, now_ms, back, over) for row in lost]
    if back:
        await tx.rows(_claim.take_back, *columns(back, 3))
        tx.rings |= RUNS
    if over:
        await tx.rows(_claim.end, *columns(over, 7), now_ms)
    tx.tally.leased -= len(ends)
    tx.tally.ready += len(back)
    tx.tell_ends(ends)
    return len(ends)


def _lose(tx: Transaction, row: Row, losses_max: int, now_ms: int, back: list[Row], over: list[Row]) -> End:
    seq, *about, cancel, losses, until_ms, fence, owner, tried, has_job = row
    losses += 1
    why = got(cancel) or ("" if has_job else JOB_GONE)
    if why:
        over.append((seq, losses, CANCELLED, SHELF_PLAIN, put(why), "", False))
        return end_unrun(tuple(about), RunState.CANCELLED, now_ms, error=why)
    if losses >= losses_max:
        error = f"its lease was lost {losses} times: its workers died or stalled"
        over.append((seq, losses, DEAD, SHELF_DEAD, "", error, True))
        tx.tally.dead += 1
        return end_unrun(tuple(about), RunState.DEAD, now_ms, failed=True, error=error)
    before = () if tried is None else decode_tried(tried)
    back.append((seq, losses, encode(tried_again(before, lease_lost(fence, got(owner), until_ms)))))
    return end_unrun(tuple(about), RunState.READY, now_ms)


async def renew(tx: Transaction, renewals: Sequence[Renewal], lease_ms: int) -> list[Renewed]:
    asked: dict[tuple[str, str], str] = {}
    for renewal in renewals:
        told = put(renewal.progress[:PROGRESS_CHARS_MAX])
        asked[renewal.run_id, renewal.token] = told or asked.get((renewal.run_id, renewal.token), "")
    ids, tokens = [key[0] for key in asked], [key[1] for key in asked]
    found = await tx.rows(_renew.renew, ids, tokens, list(asked.values()), lease_ms, tx.given_ms)
    standing = {(row[0], row[1]): got(row[2]) for row in found}
    keys = [(renewal.run_id, renewal.token) for renewal in renewals]
    return [Renewed(Answer.OK, standing[key]) if key in standing else Renewed(Answer.LOST) for key in keys]
