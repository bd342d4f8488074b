"""The verb that ends an attempt: all that becomes true with it, or nothing.

Settlements take effect in their order.  What they write to their runs is gathered and written together; it is
written at once where the next step must see it (follow-ups may take the key that this run just freed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pollux.model import (
    AT_THE_GATE,
    PROGRESS_CHARS_MAX,
    Arrived,
    Back,
    Cancelled,
    Dead,
    Done,
    End,
    Hold,
    NotePut,
    Outcome,
    RetryAt,
    RunState,
    Tried,
    Verdict,
    tried_again,
)
from pollux.store.contract import RESULT_BYTES_MAX, Answer, Settlement
from pollux.store.limits import check_batch, checked_notes, written
from pollux.store.sqlite.bell import RUNS
from pollux.store.sqlite.notes import tell_notes, write_notes
from pollux.store.sqlite.rows import (
    CANCELLED,
    CAUSES,
    DEAD,
    DONE,
    HELD,
    LEASED,
    READY,
    SHELF_DEAD,
    SHELF_PLAIN,
    SHELF_UNCHANGED,
    STATES,
    Row,
    checked_made_row,
    decode_tried,
    encode,
    ids_json,
)
from pollux.store.sqlite.runs import JOB_GONE, accept, arrived
from pollux.store.sqlite.sql import Statements
from pollux.store.sqlite.transaction import Transaction

_sql = Statements("settle")
_renew = Statements("renew")
_FINAL = (Done, Dead, Cancelled)


class Prepared(NamedTuple):
    """A settlement that was checked: its result and follow-ups are written out, ready for the database."""

    settlement: Settlement
    result: bytes | None
    follow_ups: Sequence[Row]
    notes: Sequence[NotePut]


def prepare(settlement: Settlement) -> Prepared:
    outcome = settlement.outcome
    result = None
    if outcome is not None and outcome.result is not None:
        result = written(outcome.result, RESULT_BYTES_MAX, "the result of run", settlement.run_id)
    if not settlement.follow_ups and not settlement.notes:
        return Prepared(settlement, result, (), ())
    check_batch(settlement.follow_ups, "runs")
    follow_ups = [checked_made_row(run) for run in settlement.follow_ups]
    return Prepared(settlement, result, follow_ups, checked_notes(settlement.notes))


class _Found(NamedTuple):
    id: str
    seq: int
    token: str
    state: int
    settled: str
    job_id: str
    due_ms: int
    cause: int
    gated: int
    cancel: str
    attempt: int
    visible_ms: int
    held_reason: str
    fence: int
    tried: bytes | None


class _Batch:
    """What one call has to write and to tell."""

    def __init__(self, tx: Transaction, now_ms: int) -> None:
        self.tx, self.now_ms = tx, now_ms
        self.settled: set[str] = set()
        self.ends: list[End] = []
        self.arrived: list[str] = []
        self.notes: dict[str, None] = {}
        self.finished: list[Row] = []
        self.retried: list[Row] = []
        self.handed_back: list[Row] = []
        self.progress: list[Row] = []
        self.crashed: list[Row] = []

    def write(self) -> None:
        for sql, rows in (
            (_sql.finish, self.finished),
            (_sql.retry, self.retried),
            (_sql.hand_back, self.handed_back),
            (_renew.progress, self.progress),
            (_sql.crash, self.crashed),
        ):
            if rows:
                self.tx.write_many(sql, rows)
                rows.clear()

    def tell(self) -> None:
        self.tx.tell_ends(self.ends)
        if self.arrived:
            self.tx.tell(Arrived(tuple(self.arrived)))
        tell_notes(self.tx, self.notes)


def settle(tx: Transaction, items: Sequence[Prepared], now_ms: int) -> list[Answer]:
    rows = tx.rows(_sql.found, (ids_json([item.settlement.run_id for item in items]),))
    found = {row[0]: row for row in rows}
    jobs = _standing_jobs(tx, items, found)
    batch = _Batch(tx, now_ms)
    answers = [_settle(batch, item, found, jobs) for item in items]
    tx.tally.leased -= answers.count(Answer.OK)
    batch.write()
    batch.tell()
    return answers


def _settle(batch: _Batch, item: Prepared, found: dict[str, Row], jobs: set[str]) -> Answer:
    settlement = item.settlement
    row = found.get(settlement.run_id)
    if row is None or row[3] != LEASED or row[2] != settlement.token:
        return _refused(row, settlement.token)
    if settlement.run_id in batch.settled:  # named twice in one call
        return Answer.ALREADY
    batch.settled.add(settlement.run_id)
    if settlement.progress:
        batch.progress.append((settlement.progress[:PROGRESS_CHARS_MAX], row[1]))
    verdict = settlement.verdict
    if type(verdict) is Done and not verdict.clears and not row[9]:
        _done(batch, row, item, failed=verdict.failed)
    else:
        run = _Found._make(row)
        verdict = _final(run, verdict, jobs)
        if isinstance(verdict, _FINAL):
            _finish(batch, run, verdict, item)
        else:
            _hand_back(batch, run, verdict, item)
    if item.follow_ups or item.notes:
        _follow(batch, item)
    return Answer.OK


def _done(batch: _Batch, row: Row, item: Prepared, *, failed: bool) -> None:
    """The plain end of most runs: `_finish` without its questions."""
    outcome = item.settlement.outcome
    if outcome is None:
        started_ms, ended_ms, changed, fingerprint, error = None, batch.now_ms, None, "", ""
    else:
        started_ms, ended_ms, changed = outcome.started_ms, outcome.ended_ms, outcome.changed
        fingerprint, error = outcome.fingerprint, outcome.error
        if outcome.crashed:
            batch.crashed.append((row[1],))
    shelf = SHELF_UNCHANGED if changed is False and not failed else SHELF_PLAIN
    batch.finished.append((DONE, shelf, started_ms, ended_ms, failed, changed, error, item.result, "", 1, row[1]))
    duration_ms = 0 if started_ms is None or started_ms > ended_ms else ended_ms - started_ms
    batch.ends.append(
        End(
            row[0],
            row[5],
            RunState.DONE,
            CAUSES[row[7]],
            row[6],
            ended_ms,
            duration_ms,
            failed,
            changed,
            fingerprint,
            error,
            row[8] == 1,
            outcome is not None,
        )
    )


def _standing_jobs(tx: Transaction, items: Sequence[Prepared], found: dict[str, Row]) -> set[str]:
    """The jobs that are there, of runs that may be tried again."""
    again = {item.settlement.run_id for item in items if not isinstance(item.settlement.verdict, _FINAL)}
    if not again:
        return set()
    ids = {found[run_id][5] for run_id in again if run_id in found}
    return {row[0] for row in tx.rows(_sql.jobs, (ids_json(list(ids)),))}


def _refused(row: Row | None, token: str) -> Answer:
    """The token that settled a run stays with it; a run that was taken back has none."""
    if row is None or not token:
        return Answer.LOST
    is_settled = (row[3] != LEASED and row[2] == token) or row[4] == token
    return Answer.ALREADY if is_settled else Answer.LOST


def _final(run: _Found, verdict: Verdict, jobs: set[str]) -> Verdict:
    """Nothing is tried again that was asked to stop or whose job is gone."""
    if isinstance(verdict, _FINAL):
        return verdict
    if run.cancel:
        return Cancelled(run.cancel)
    return verdict if run.job_id in jobs else Cancelled(JOB_GONE)


def _finish(batch: _Batch, run: _Found, verdict: Done | Dead | Cancelled, item: Prepared) -> None:
    outcome = item.settlement.outcome
    error = "" if outcome is None else outcome.error
    after, shelf, failed, cancel, deaths = DONE, SHELF_PLAIN, False, run.cancel, 1
    match verdict:
        case Done():
            failed = verdict.failed
            if verdict.clears:
                _take_dead_letters(batch, run.job_id)
            if not failed and outcome is not None and outcome.changed is False:
                shelf = SHELF_UNCHANGED
        case Dead():
            after, shelf, failed, error = DEAD, SHELF_DEAD, True, error or verdict.reason
            if verdict.sole:
                deaths += _take_dead_letters(batch, run.job_id)
            batch.tx.tally.dead += 1
        case Cancelled():
            after, cancel = CANCELLED, verdict.reason or run.cancel or "cancelled"
    left = _left(outcome, batch.now_ms, item.result)
    batch.crashed += [(run.seq,)] if outcome is not None and outcome.crashed else []
    batch.finished.append((after, shelf, *left[:2], failed, left[2], error, left[3], cancel, deaths, run.seq))
    why = cancel if after == CANCELLED else error
    batch.ends.append(_end(run, STATES[after], outcome, batch.now_ms, failed=failed, error=why))


def _left(outcome: Outcome | None, now_ms: int, result: bytes | None) -> Row:
    """What an attempt leaves behind: (started_ms, finished_ms, changed, result)."""
    if outcome is None:
        return (None, now_ms, None, None)
    return (outcome.started_ms, outcome.ended_ms, outcome.changed, result)


def _take_dead_letters(batch: _Batch, job_id: str) -> int:
    """Remove the job's dead letters; answers how many they stood for."""
    batch.write()
    row = batch.tx.row(_sql.dead_letters, (job_id,))
    assert row is not None
    count, deaths = row
    if count:
        batch.tx.write(_sql.clear_dead_letters, (job_id,))
        batch.tx.tally.dead -= count
    return int(deaths)


def _hand_back(batch: _Batch, run: _Found, verdict: Verdict, item: Prepared) -> None:
    outcome, now_ms, token = item.settlement.outcome, batch.now_ms, item.settlement.token
    match verdict:
        case RetryAt():
            after, reason = (HELD, AT_THE_GATE) if run.gated else (READY, "")
            error = "" if outcome is None else outcome.error
            started_ms, finished_ms, changed, result = _left(outcome, now_ms, item.result)
            tried = _tried(run, started_ms, finished_ms, error)
            batch.crashed += [(run.seq,)] if outcome is not None and outcome.crashed else []
            batch.retried.append(
                (after, reason, verdict.at_ms, token, started_ms, finished_ms, changed, error, result, tried, run.seq)
            )
            batch.ends.append(_end(run, STATES[after], outcome, now_ms, failed=True, error=error))
        case Back():
            after = READY
            batch.handed_back.append((READY, run.held_reason, max(now_ms, verdict.at_ms), token, run.seq))
            batch.ends.append(_end(run, RunState.READY, None, now_ms))
        case Hold():
            after = HELD
            batch.handed_back.append((HELD, verdict.reason, run.visible_ms, token, run.seq))
            batch.ends.append(_end(run, RunState.HELD, None, now_ms))
        case _:
            raise AssertionError(verdict)
    if after == HELD:
        batch.tx.tally.held += 1
        batch.arrived.append(run.id)
    else:
        batch.tx.tally.ready += 1
        batch.tx.rings |= RUNS


def _tried(run: _Found, started_ms: int | None, ended_ms: int, error: str) -> bytes:
    before = () if run.tried is None else decode_tried(run.tried)
    began_ms = ended_ms if started_ms is None else started_ms
    return encode(tried_again(before, Tried(run.fence, began_ms, ended_ms, error)))


def _follow(batch: _Batch, item: Prepared) -> None:
    batch.write()
    if item.follow_ups:
        batch.arrived += arrived(item.follow_ups, accept(batch.tx, item.follow_ups))
    write_notes(batch.tx, item.notes, batch.now_ms, batch.notes)


def _end(
    run: _Found,
    state: RunState,
    outcome: Outcome | None,
    now_ms: int,
    *,
    failed: bool = False,
    error: str = "",
) -> End:
    started_ms, ended_ms, changed, fingerprint = (
        (now_ms, now_ms, None, "")
        if outcome is None
        else (outcome.started_ms, outcome.ended_ms, outcome.changed, outcome.fingerprint)
    )
    return End(
        run.id,
        run.job_id,
        state,
        CAUSES[run.cause],
        run.due_ms,
        ended_ms,
        max(0, ended_ms - started_ms),
        failed,
        changed,
        fingerprint,
        error,
        bool(run.gated),
        outcome is not None,
    )
