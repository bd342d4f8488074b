"""The verbs of delivery: claim (which also takes back what was lost) and renew.

A claim looks, and takes what comes first in the same statement; then, if it may have more, one statement a priority,
each a write of its own.  What others hold at that moment is passed over; only if nothing is left but that does it wait
for them, so that "none" means none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from typing import NamedTuple

from asyncpg import UniqueViolationError

from pollux.model import PROGRESS_CHARS_MAX, End, Job, Run, RunState
from pollux.store.aside import Leased
from pollux.store.asking import Asking
from pollux.store.contract import Answer, Claimed, Renewal, Renewed
from pollux.store.legible import UNREADABLE
from pollux.store.postgres.rows import COLUMNS, columns, got, leased_run, put
from pollux.store.postgres.rows import run as run_of
from pollux.store.postgres.runs import cancel_waiting
from pollux.store.postgres.sql import Statements
from pollux.store.postgres.transaction import Transaction
from pollux.store.relational.bells import RUNS
from pollux.store.relational.ends import JOB_GONE, end_unrun
from pollux.store.relational.leases import CLAIMS_MAX, LOST_MAX, first_of, lose
from pollux.store.relational.rows import DEAD, LEASED, SHELF_DEAD, Row
from pollux.store.shelf import JobShelf

_claim = Statements("claim")
_renew = Statements("renew")
SEQ, JOB, VERSION, DEFINITION, VISIBLE, FENCE = 0, 2, 4, 6, 11, 12  # places in a row of `take`; JOB is None in a job's
ENDLESS = 2**62
_PLACE = itemgetter(VISIBLE, SEQ)


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
        return first_of(self.visible_ms, self.ends_ms, hold_until_ms)

    def ready(self, asking: Asking) -> list[int]:
        """The priorities that have something, in the order in which they are asked."""
        return [each for each in asking.order if (at := self.visible_ms[each - 1]) is not None and at <= self.now_ms]


async def again(tx: Transaction, shelf: JobShelf, token: str, seen: Look) -> Claimed | None:
    """What the same claim got before, as far as its leases still stand."""
    by_id: dict[str, Row] = {}
    for row in await tx.rows(_claim.again, token, seen.now_ms):
        by_id.pop(row[0], None)  # each once, as last taken: the same token may have lost it and taken it again
        by_id[row[0]] = tuple(row)
    jobs: dict[str, Job] = {}
    runs: list[Run] = []
    for row in by_id.values():
        with suppress(*UNREADABLE):  # one like that is left until its lease ends, and then seen to
            if row[COLUMNS] is not None:
                jobs[row[COLUMNS]] = shelf.job(row[COLUMNS:])
            runs.append(run_of(row[:COLUMNS]))
    return Claimed(Answer.OK, tuple(runs), jobs, seen.stops, None, seen.now_ms) if runs else None


class Taken(NamedTuple):
    grants: list[Row]  # what a settlement must know of each
    runs: list[Run]
    jobs: dict[str, Job]
    orphans: list[int]  # runs without a job, by their numbers
    broken: dict[int, str]  # runs that cannot be read, and why
    aside: list[Leased]  # runs whose job cannot be read
    reasons: dict[str, str]  # why, by job


class Step(NamedTuple):
    """What is asked of the server at once: which priorities, in order, and how many runs of the first that has any."""

    order: Sequence[int]
    limit: int
    part: int = 1
    feed_max: int = ENDLESS  # ends of runs that may be unread
    is_sure: bool = False  # what stands against it was looked at before


async def take(tx: Transaction, shelf: JobShelf, asking: Asking, step: Step) -> tuple[Look, Taken | None]:
    """What was seen, and what was leased; None: something else comes first, or nothing is visible."""
    about = (asking.token, tx.given_ms, tx.version, step.order, step.feed_max, step.limit)
    args = (*about, put(asking.node), asking.lease_ms, step.is_sure, step.part)
    try:
        *found, last = await tx.rows(_claim.take, *args)
    except UniqueViolationError:
        await tx.step_over()  # unless the same claim was under way
        raise
    now_ms, high, normal, low, ends_ms, parts, ends, stops, clock_ms, chosen = last[-1]
    seen = Look(now_ms, (high, normal, low), ends_ms, parts, ends, stops, clock_ms)
    return seen, None if chosen is None else await _taken(tx, found, shelf, asking, now_ms)


async def _taken(tx: Transaction, found: Sequence[Row], shelf: JobShelf, asking: Asking, now_ms: int) -> Taken:
    rows: list[Row] = []
    jobs: dict[str, Job] = {}
    reasons: dict[str, str] = {}
    for row in found:
        if row[JOB] is not None:
            rows.append(row)
        else:
            revision, job_id, _, next_due_ms, *_, last_due_ms, _, memory, _ = row
            written = (job_id, revision, next_due_ms, last_due_ms, memory, row[DEFINITION], row[VERSION])
            try:
                jobs[job_id] = shelf.job(written)
            except UNREADABLE as error:
                reasons[job_id] = str(error)
    rows.sort(key=_PLACE)
    orphans = [row[SEQ] for row in rows if row[JOB] not in jobs and row[JOB] not in reasons]
    met = [row for row in rows if row[JOB] in reasons] if reasons else []
    aside = [Leased(row[1], f"{asking.token}:{row[FENCE]}", row[JOB], row[FENCE]) for row in met]
    if orphans or aside:
        rows = [row for row in rows if row[JOB] in jobs]
    broken: dict[int, str] = {}
    runs = await _delivered(tx, rows, asking, now_ms + asking.lease_ms, broken)
    grants = [_grant(row, asking.token, tx.version) for row in rows]
    return Taken(grants, runs, jobs, orphans, broken, aside, reasons)


async def _delivered(
    tx: Transaction, rows: Sequence[Row], asking: Asking, until_ms: int, broken: dict[int, str]
) -> list[Run]:
    """Those that were delivered before come with all that is known of them; what cannot be read goes to `broken`."""
    again = [row[SEQ] for row in rows if row[FENCE] > 1]
    whole = {row[SEQ]: row[1:] for row in await tx.rows(_claim.whole, again)} if again else {}
    runs: list[Run] = []
    for row in rows:
        try:
            if row[FENCE] == 1:
                runs.append(leased_run(row, asking.token, asking.node, until_ms, tx.version))
            elif row[SEQ] in whole:
                runs.append(run_of(whole[row[SEQ]]))
        except UNREADABLE as error:
            broken[row[SEQ]] = f"it cannot be read ({error})"
    return runs


def _grant(row: Row, token: str, version: int) -> Row:
    """In the order of `Found`, as far as it is sure; then its version."""
    return (row[1], row[0], f"{token}:{row[FENCE]}", LEASED, "", row[2], row[3], row[4], row[10], version)


async def forget(tx: Transaction) -> None:
    await tx.rows(_claim.forget, CLAIMS_MAX)


async def wait_for(tx: Transaction, priority: int, now_ms: int) -> None:
    await tx.rows(getattr(_claim, "await"), priority, now_ms, tx.version)


async def sweep(tx: Transaction, seqs: Sequence[int], token: str, now_ms: int) -> None:
    """Cancel what was just leased and has no job any more."""
    orphans = [row for row in await tx.rows(_claim.ours, seqs, token) if not row[8]]
    tx.tell_ends(await cancel_waiting(tx, orphans, [JOB_GONE] * len(orphans), now_ms))


async def bury_broken(tx: Transaction, broken: dict[int, str], token: str, now_ms: int) -> None:
    """What was just leased and cannot be read is dead, and says why: nothing of it stands in the way of the others."""
    ours = await tx.rows(_claim.ours, list(broken), token)
    if not ours:
        return
    await tx.rows(_claim.clear, [row[SEQ] for row in ours])
    over = [(row[SEQ], 0, DEAD, SHELF_DEAD, "", broken[row[SEQ]], True) for row in ours]
    await tx.rows(_claim.end, *columns(over, 7), now_ms)
    tx.shared.dead += len(ours)
    ends: list[tuple[int, End]] = []
    for row in ours:
        tx.tally_of(row[7]).leased -= 1
        ends.append((row[7], end_unrun(row[2:7], RunState.DEAD, now_ms, failed=True, error=broken[row[SEQ]])))
    tx.tell_ends(ends)


async def come_back(tx: Transaction, now_ms: int, clock_ms: int) -> None:
    """The clock came back.  All leases are walked only then."""
    await tx.rows(_claim.cut, now_ms, tx.version)
    await tx.rows(_claim.show, now_ms, clock_ms, tx.version)
    await tx.rows(_claim.show_leased, now_ms, clock_ms, tx.version)
    await tx.rows(_claim.came_back, now_ms, tx.version)


async def take_back(tx: Transaction, losses_max: int, now_ms: int) -> int:
    """End the leases that ran out; answers how many.  The token goes: whoever held it comes too late."""
    back: list[Row] = []
    over: list[Row] = []
    lost = await tx.rows(_claim.lost, now_ms, LOST_MAX, tx.version)
    losses = [lose(_whole(row), losses_max, now_ms) for row in lost]
    for loss in losses:
        if loss.shelf is None:
            back.append((loss.seq, loss.losses, loss.tried))
        else:
            is_dead = loss.state == DEAD
            tx.shared.dead += is_dead
            after = (loss.seq, loss.losses, loss.state, loss.shelf, put(loss.cancel), loss.error, is_dead)
            over.append(after)
    if back:
        await tx.rows(_claim.take_back, *columns(back, 3))
        tx.rings |= RUNS
    if over:
        await tx.rows(_claim.end, *columns(over, 7), now_ms)
    tx.tally.leased -= len(losses)
    tx.tally.ready += len(back)
    tx.tell_ends([(tx.version, loss.end) for loss in losses])
    return len(losses)


def _whole(row: Row) -> Row:
    """A row of `lost` with its texts as they were."""
    return (*row[:6], got(row[6]), *row[7:10], got(row[10]), *row[11:])


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
