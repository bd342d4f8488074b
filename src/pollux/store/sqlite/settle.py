"""Verb that ends an attempt: all that becomes true with it, or nothing.

Settlements take effect in their order.  What they write to their runs is gathered and written together; it is
written at once where the next step must see it (follow-ups may take the key that this run just freed).
"""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import PROGRESS_CHARS_MAX, Done, End, Ended, Verdict
from pollux.store.contract import Answer
from pollux.store.relational.notes import add_notes_changed, write_notes
from pollux.store.relational.rows import DEAD, HELD, LEASED, Row, by_version
from pollux.store.relational.settle import (
    FINAL,
    FoundRun,
    PreparedSettlement,
    RetriedRow,
    done,
    final,
    finish,
    hand_back,
    refused,
    takes_letters,
)
from pollux.store.relational.transaction import at_once
from pollux.store.relational.wakeup import RUNS
from pollux.store.sqlite.runs import accept, arrived, versions_of
from pollux.store.sqlite.transaction import SQL, SqliteTransaction, ids_json

VERSION = 15  # behind the columns of `FoundRun`


class _SqliteSettle:
    """Rows and feed entries that one call writes."""

    def __init__(self, tx: SqliteTransaction) -> None:
        self.tx, self.now_ms = tx, tx.given_ms
        self.settled: set[str] = set()
        self.ends: list[tuple[int, End]] = []
        self.arrived: list[tuple[int, str]] = []
        self.notes: dict[str, None] = {}
        self.finished: list[Row] = []
        self.retried: list[Row] = []
        self.handed_back: list[Row] = []
        self.progress: list[Row] = []
        self.crashed: list[Row] = []

    def write(self) -> None:
        for sql, rows in (
            (SQL["settle.finish"], self.finished),
            (SQL["settle.retry"], self.retried),
            (SQL["settle.hand_back"], self.handed_back),
            (SQL["renew.progress"], self.progress),
            (SQL["settle.crash"], self.crashed),
        ):
            if rows:
                self.tx.write_many(sql, rows)
                rows.clear()

    def finish(self, after: Row, end: End, row: Row, item: PreparedSettlement) -> None:
        self.finished.append((*after, row[1]))
        self.ends.append((row[VERSION], end))
        self.note_crash(row[1], item)

    def note_crash(self, seq: int, item: PreparedSettlement) -> None:
        outcome = item.settlement.outcome
        if outcome is not None and outcome.crashed:
            self.crashed.append((seq,))

    def add_entries(self) -> None:
        for version, some in by_version(self.ends).items():
            self.tx.counters_of(version).leased -= len(some)
            self.tx.add_entry(version, Ended(tuple(some)))
        self.tx.add_arrived(self.arrived)
        at_once(add_notes_changed(self.tx, self.notes))


async def settle(tx: SqliteTransaction, items: Sequence[PreparedSettlement]) -> list[Answer]:
    rows = tx.rows(SQL["settle.found"], (ids_json([item.settlement.run_id for item in items]),))
    found = {row[0]: row for row in rows}
    jobs = _existing_jobs(tx, items, found)
    batch = _SqliteSettle(tx)
    answers = [_settle(batch, item, found, jobs) for item in items]
    batch.write()
    batch.add_entries()
    return answers


def _settle(batch: _SqliteSettle, item: PreparedSettlement, found: dict[str, Row], jobs: set[str]) -> Answer:
    settlement = item.settlement
    row = found.get(settlement.run_id)
    if row is None or row[3] != LEASED or row[2] != settlement.token:
        return refused(row, settlement.token)
    if settlement.run_id in batch.settled:  # named twice in one call
        return Answer.ALREADY
    batch.settled.add(settlement.run_id)
    if settlement.progress:
        batch.progress.append((settlement.progress[:PROGRESS_CHARS_MAX], row[1]))
    verdict = settlement.verdict
    if type(verdict) is Done and not verdict.clears and not row[9]:
        after, end = done(row, item, failed=verdict.failed, now_ms=batch.now_ms)
        batch.finish(after, end, row, item)
    else:
        _settle_slowly(batch, row, item, jobs)
    if item.follow_ups or item.notes:
        _follow(batch, item)
    return Answer.OK


def _settle_slowly(batch: _SqliteSettle, row: Row, item: PreparedSettlement, jobs: set[str]) -> None:
    """General path: apply every settlement rule to the stored row."""
    run = FoundRun._make(row[:VERSION])
    verdict = final(item.settlement.verdict, run.job_id, run.cancel, jobs)
    if isinstance(verdict, FINAL):
        letters = _take_dead_letters(batch, run.job_id) if takes_letters(verdict) else 0
        after, end = finish(run, verdict, item, batch.now_ms, letters)
        batch.tx.shared.dead += after.state == DEAD
        batch.finish(after, end, row, item)
    else:
        _hand_back(batch, run, row[VERSION], verdict, item)


def _existing_jobs(tx: SqliteTransaction, items: Sequence[PreparedSettlement], found: dict[str, Row]) -> set[str]:
    """The jobs that exist, of runs that may be tried again."""
    again = {item.settlement.run_id for item in items if not isinstance(item.settlement.verdict, FINAL)}
    if not again:
        return set()
    ids = {found[run_id][5] for run_id in again if run_id in found}
    return {row[0] for row in tx.rows(SQL["settle.jobs"], (ids_json(list(ids)),))}


def _take_dead_letters(batch: _SqliteSettle, job_id: str) -> int:
    """Turn the job's dead letters into history; answers how many deaths they counted."""
    batch.write()
    row = batch.tx.row(SQL["settle.dead_letters"], (job_id,))
    assert row is not None
    count, deaths = row
    if count:
        batch.tx.write(SQL["settle.clear_dead_letters"], (job_id,))
        batch.tx.shared.dead -= count
    return int(deaths)


def _hand_back(batch: _SqliteSettle, run: FoundRun, version: int, verdict: Verdict, item: PreparedSettlement) -> None:
    after, end = hand_back(run, verdict, item, batch.now_ms)
    batch.ends.append((version, end))
    row = (*after[:3], item.settlement.token, *after[3:], run.seq)
    if isinstance(after, RetriedRow):
        batch.retried.append(row)
        batch.note_crash(run.seq, item)
    else:
        batch.handed_back.append(row)
    if after.state == HELD:
        batch.tx.counters_of(version).held += 1
        batch.arrived.append((version, run.id))
    else:
        batch.tx.counters_of(version).ready += 1
        batch.tx.wakeups |= RUNS


def _follow(batch: _SqliteSettle, item: PreparedSettlement) -> None:
    batch.write()
    if item.follow_ups:
        jobs = versions_of(batch.tx, item.follow_ups)
        batch.arrived += arrived(item.follow_ups, accept(batch.tx, item.follow_ups, jobs), jobs)
    at_once(write_notes(batch.tx, item.notes, batch.notes))
