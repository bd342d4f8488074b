"""The verb that ends an attempt: all that becomes true with it, or nothing.

Settlements take effect in their order.  What they write is gathered and written together, follow-ups last; it is
written one after the other only where the order can be seen: a follow-up that wants a key which another run of the same
call frees, or dead letters that go.
"""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import PROGRESS_CHARS_MAX, Dead, End, NotePut, Verdict
from pollux.store.contract import Answer
from pollux.store.postgres.notes import tell_notes, write_notes
from pollux.store.postgres.rows import columns, got, put
from pollux.store.postgres.runs import accept, arrived, look
from pollux.store.postgres.sql import Statements
from pollux.store.postgres.transaction import Transaction
from pollux.store.relational.bells import RUNS
from pollux.store.relational.rows import DEAD, HELD, KEY, LEASED, Row
from pollux.store.relational.settling import (
    FINAL,
    Found,
    Prepared,
    Retry,
    final,
    finish,
    hand_back,
    refused,
    takes_letters,
)

_sql = Statements("settle")
KEY_FREED, VERSION = 15, 16  # behind the columns of `Found`: the key, the version, and the time


class _Batch:
    """What one call has to write and to tell."""

    def __init__(self, tx: Transaction, now_ms: int, jobs: set[str], letters: set[str]) -> None:
        self.tx, self.now_ms, self.jobs, self.letters = tx, now_ms, jobs, letters
        self.is_stepwise = False
        self.settled: set[str] = set()
        self.versions: dict[str, int] = {}  # of the runs that were found
        self.ends: list[tuple[int, End]] = []
        self.arrived: list[tuple[int, str]] = []
        self.notes: dict[str, None] = {}
        self.finished: list[Row] = []
        self.retried: list[Row] = []
        self.handed_back: list[Row] = []
        self.follow_ups: list[Row] = []
        self.note_puts: list[NotePut] = []

    async def write(self) -> None:
        for sql, rows in (
            (_sql.finish, self.finished),
            (_sql.retry, self.retried),
            (_sql.hand_back, self.handed_back),
        ):
            if rows:
                await self.tx.rows(sql, *columns(rows, 0))
                rows.clear()

    async def follow(self) -> None:
        """What comes after the ends."""
        await self.write()
        if self.follow_ups:
            facts = await look(self.tx, self.follow_ups)
            self.arrived += arrived(self.follow_ups, await accept(self.tx, self.follow_ups, facts), facts)
            self.follow_ups = []
        await write_notes(self.tx, self.note_puts, self.notes)
        self.note_puts = []

    async def tell(self) -> None:
        self.tx.tell_ends(self.ends)
        self.tx.tell_arrived(self.arrived)
        await tell_notes(self.tx, self.notes)


async def settle(tx: Transaction, items: Sequence[Prepared]) -> list[Answer]:
    ids = [item.settlement.run_id for item in items]
    rows = await tx.rows(_sql.found, ids, tx.given_ms)
    found = {row[0]: _found(row) for row in rows}
    now_ms = rows[0][-1] if rows else 0
    tx.given_ms = now_ms or tx.given_ms
    missing = [run_id for run_id in ids if run_id not in found]
    ended = {row[0]: row for row in await tx.rows(_sql.ended, missing)} if missing else {}
    batch = _Batch(tx, now_ms, await _standing_jobs(tx, items, found), await _with_letters(tx, items, found))
    batch.versions = {row[0]: row[VERSION] for row in rows}
    batch.is_stepwise = _must_step(items, {row[KEY_FREED] for row in rows}, batch.letters)
    answers = [await _settle(batch, item, found, ended) for item in items]
    await batch.follow()
    await batch.tell()
    return answers


def _found(row: Row) -> Found:
    run = Found._make(row[:KEY_FREED])
    if "\x01" in run.cancel or "\x01" in run.held_reason:
        run = run._replace(cancel=got(run.cancel), held_reason=got(run.held_reason))
    return run


async def _standing_jobs(tx: Transaction, items: Sequence[Prepared], found: dict[str, Found]) -> set[str]:
    """The jobs that are there, of runs that may be tried again; they stay until this write ends."""
    again = {item.settlement.run_id for item in items if not isinstance(item.settlement.verdict, FINAL)}
    ids = {found[run_id].job_id for run_id in again if run_id in found}
    return {row[0] for row in await tx.rows(_sql.jobs, list(ids))} if ids else set()


async def _with_letters(tx: Transaction, items: Sequence[Prepared], found: dict[str, Found]) -> set[str]:
    """The jobs whose dead letters may go in this call, and that have or may get some."""
    takers = {item.settlement.run_id for item in items if takes_letters(item.settlement.verdict)}
    ids = {found[run_id].job_id for run_id in takers if run_id in found}
    if not ids:
        return set()
    having = {row[0] for row in await tx.rows(_sql.dead_letters, list(ids))}
    dying = {item.settlement.run_id for item in items if isinstance(item.settlement.verdict, Dead)}
    return having | ({found[run_id].job_id for run_id in dying if run_id in found} & ids)


def _must_step(items: Sequence[Prepared], freed: set[str | None], letters: set[str]) -> bool:
    wanted = {row[KEY] for item in items for row in item.follow_ups if row[KEY] is not None}
    has_follow_ups = any(item.follow_ups for item in items)
    return has_follow_ups and (bool(letters) or not wanted.isdisjoint(freed))


async def _settle(batch: _Batch, item: Prepared, found: dict[str, Found], ended: dict[str, Row]) -> Answer:
    settlement = item.settlement
    run = found.get(settlement.run_id)
    if run is None or run.state != LEASED or run.token != settlement.token:
        return refused(run or ended.get(settlement.run_id), settlement.token)
    if settlement.run_id in batch.settled:  # named twice in one call
        return Answer.ALREADY
    batch.settled.add(settlement.run_id)
    version = batch.versions[run.id]
    batch.tx.tally_of(version).leased -= 1
    verdict = final(settlement.verdict, run.job_id, run.cancel, batch.jobs)
    if isinstance(verdict, FINAL):
        letters = await _take_letters(batch, run.job_id) if takes_letters(verdict) else 0
        after, end = finish(run, verdict, item, batch.now_ms, letters)
        batch.tx.shared.dead += after.state == DEAD
        row = after._replace(error=put(after.error), cancel=put(after.cancel))
        batch.finished.append((run.seq, *row, *_told(item)))
        batch.ends.append((version, end))
    else:
        _hand_back(batch, run, verdict, item)
    batch.follow_ups += item.follow_ups
    batch.note_puts += item.notes
    if batch.is_stepwise:
        await batch.follow()
    return Answer.OK


async def _take_letters(batch: _Batch, job_id: str) -> int:
    """Remove the job's dead letters; answers how many they stood for."""
    if job_id not in batch.letters:
        return 0
    await batch.write()
    gone = await batch.tx.rows(_sql.clear_dead_letters, job_id)
    batch.tx.shared.dead -= len(gone)
    return sum(row[0] for row in gone)


def _told(item: Prepared) -> Row:
    """What the owner says beside the outcome: whether its process crashed, and how far it came."""
    outcome = item.settlement.outcome
    is_crashed = outcome is not None and outcome.crashed
    return (int(is_crashed), put(item.settlement.progress[:PROGRESS_CHARS_MAX]))


def _hand_back(batch: _Batch, run: Found, verdict: Verdict, item: Prepared) -> None:
    after, end = hand_back(run, verdict, item, batch.now_ms)
    version = batch.versions[run.id]
    batch.ends.append((version, end))
    crashed, progress = _told(item)
    if isinstance(after, Retry):
        row = after._replace(error=put(after.error))
        batch.retried.append((run.seq, *row, crashed, progress))
    else:
        batch.handed_back.append((run.seq, after.state, put(after.reason), after.visible_ms, progress))
    if after.state == HELD:
        batch.tx.tally_of(version).held += 1
        batch.arrived.append((version, run.id))
    else:
        batch.tx.tally_of(version).ready += 1
        batch.tx.rings |= RUNS
