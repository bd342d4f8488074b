"""The verb that ends an attempt: all that becomes true with it, or nothing.

Settlements take effect in their order.  What they write is gathered and written together, follow-ups last; it is
written one after the other only where the order can be seen: a follow-up that wants a key which another run of the same
call frees, or dead letters that go.
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
from pollux.store.postgres.notes import tell_notes, write_notes
from pollux.store.postgres.rows import Row, columns, got, made_row, put
from pollux.store.postgres.runs import JOB_GONE, KEY, accept, arrived, look
from pollux.store.postgres.sql import Statements
from pollux.store.postgres.transaction import RUNS, Transaction
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
    decode_tried,
    encode,
)

_sql = Statements("settle")
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
    check_batch(settlement.follow_ups, "runs")
    follow_ups = [made_row(run) for run in settlement.follow_ups]
    return Prepared(settlement, result, follow_ups, checked_notes(settlement.notes))


class Found(NamedTuple):
    id: str
    seq: int
    token: str
    state: int
    settled: str
    job_id: str
    due_ms: int
    cause: int
    gated: bool
    cancel: str
    attempt: int
    visible_ms: int
    held_reason: str
    fence: int
    tried: bytes | None
    key: str | None
    now_ms: int


class _Batch:
    """What one call has to write and to tell."""

    def __init__(self, tx: Transaction, now_ms: int, jobs: set[str], letters: set[str]) -> None:
        self.tx, self.now_ms, self.jobs, self.letters = tx, now_ms, jobs, letters
        self.is_stepwise = False
        self.settled: set[str] = set()
        self.ends: list[End] = []
        self.arrived: list[str] = []
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
            self.arrived += arrived(self.follow_ups, await accept(self.tx, self.follow_ups, facts))
            self.follow_ups = []
        await write_notes(self.tx, self.note_puts, self.notes)
        self.note_puts = []

    def tell(self) -> None:
        self.tx.tell_ends(self.ends)
        if self.arrived:
            self.tx.tell(Arrived(tuple(self.arrived)))
        tell_notes(self.tx, self.notes)


async def settle(tx: Transaction, items: Sequence[Prepared]) -> list[Answer]:
    ids = [item.settlement.run_id for item in items]
    rows = await tx.rows(_sql.found, ids, tx.given_ms)
    found = {row[0]: Found(*row) for row in rows}
    now_ms = rows[0][-1] if rows else 0
    tx.given_ms = now_ms or tx.given_ms
    missing = [run_id for run_id in ids if run_id not in found]
    ended = {row[0]: row for row in await tx.rows(_sql.ended, missing)} if missing else {}
    batch = _Batch(tx, now_ms, await _standing_jobs(tx, items, found), await _with_letters(tx, items, found))
    batch.is_stepwise = _must_step(items, found, batch.letters)
    answers = [await _settle(batch, item, found, ended) for item in items]
    tx.tally.leased -= answers.count(Answer.OK)
    await batch.follow()
    batch.tell()
    return answers


async def _standing_jobs(tx: Transaction, items: Sequence[Prepared], found: dict[str, Found]) -> set[str]:
    """The jobs that are there, of runs that may be tried again; they stay until this write ends."""
    again = {item.settlement.run_id for item in items if not isinstance(item.settlement.verdict, _FINAL)}
    ids = {found[run_id].job_id for run_id in again if run_id in found}
    return {row[0] for row in await tx.rows(_sql.jobs, list(ids))} if ids else set()


async def _with_letters(tx: Transaction, items: Sequence[Prepared], found: dict[str, Found]) -> set[str]:
    """The jobs whose dead letters may go in this call, and that have or may get some."""
    takers = {item.settlement.run_id for item in items if _takes_letters(item.settlement.verdict)}
    ids = {found[run_id].job_id for run_id in takers if run_id in found}
    if not ids:
        return set()
    having = {row[0] for row in await tx.rows(_sql.dead_letters, list(ids))}
    dying = {item.settlement.run_id for item in items if isinstance(item.settlement.verdict, Dead)}
    return having | ({found[run_id].job_id for run_id in dying if run_id in found} & ids)


def _takes_letters(verdict: Verdict) -> bool:
    return (isinstance(verdict, Done) and verdict.clears) or (isinstance(verdict, Dead) and verdict.sole)


def _must_step(items: Sequence[Prepared], found: dict[str, Found], letters: set[str]) -> bool:
    wanted = {row[KEY] for item in items for row in item.follow_ups if row[KEY] is not None}
    has_follow_ups = any(item.follow_ups for item in items)
    freed = {run.key for run in found.values()}
    return has_follow_ups and (bool(letters) or not wanted.isdisjoint(freed))


async def _settle(batch: _Batch, item: Prepared, found: dict[str, Found], ended: dict[str, Row]) -> Answer:
    settlement = item.settlement
    run = found.get(settlement.run_id)
    if run is None or run.state != LEASED or run.token != settlement.token:
        return _refused(run or ended.get(settlement.run_id), settlement.token)
    if settlement.run_id in batch.settled:  # named twice in one call
        return Answer.ALREADY
    batch.settled.add(settlement.run_id)
    verdict = _final(run, settlement.verdict, batch.jobs)
    if isinstance(verdict, _FINAL):
        await _finish(batch, run, verdict, item)
    else:
        _hand_back(batch, run, verdict, item)
    batch.follow_ups += item.follow_ups
    batch.note_puts += item.notes
    if batch.is_stepwise:
        await batch.follow()
    return Answer.OK


def _refused(row: Row | None, token: str) -> Answer:
    """The token that settled a run stays with it; a run that was taken back has none."""
    if row is None or not token:
        return Answer.LOST
    is_settled = (row[3] != LEASED and row[2] == token) or row[4] == token
    return Answer.ALREADY if is_settled else Answer.LOST


def _final(run: Found, verdict: Verdict, jobs: set[str]) -> Verdict:
    """Nothing is tried again that was asked to stop or whose job is gone."""
    if isinstance(verdict, _FINAL):
        return verdict
    if run.cancel:
        return Cancelled(got(run.cancel))
    return verdict if run.job_id in jobs else Cancelled(JOB_GONE)


async def _finish(batch: _Batch, run: Found, verdict: Done | Dead | Cancelled, item: Prepared) -> None:
    outcome = item.settlement.outcome
    error = "" if outcome is None else outcome.error
    after, shelf, failed, cancel, deaths = DONE, SHELF_PLAIN, False, got(run.cancel), 1
    match verdict:
        case Done():
            failed = verdict.failed
            if verdict.clears:
                await _take_letters(batch, run.job_id)
            if not failed and outcome is not None and outcome.changed is False:
                shelf = SHELF_UNCHANGED
        case Dead():
            after, shelf, failed, error = DEAD, SHELF_DEAD, True, error or verdict.reason
            if verdict.sole:
                deaths += await _take_letters(batch, run.job_id)
            batch.tx.tally.dead += 1
        case Cancelled():
            after, cancel = CANCELLED, verdict.reason or cancel or "cancelled"
    started_ms, ended_ms, changed, result, crashed = _left(outcome, batch.now_ms, item.result)
    ends = (run.seq, after, shelf, started_ms, ended_ms, failed, changed, put(error), result, put(cancel), deaths)
    batch.finished.append((*ends, crashed, put(item.settlement.progress[:PROGRESS_CHARS_MAX])))
    why = cancel if after == CANCELLED else error
    batch.ends.append(_end(run, STATES[after], outcome, batch.now_ms, failed=failed, error=why))


def _left(
    outcome: Outcome | None, now_ms: int, result: bytes | None
) -> tuple[int | None, int, bool | None, bytes | None, int]:
    """What an attempt leaves behind: (started_ms, finished_ms, changed, result, crashed)."""
    if outcome is None:
        return (None, now_ms, None, None, 0)
    return (outcome.started_ms, outcome.ended_ms, outcome.changed, result, int(outcome.crashed))


async def _take_letters(batch: _Batch, job_id: str) -> int:
    """Remove the job's dead letters; answers how many they stood for."""
    if job_id not in batch.letters:
        return 0
    await batch.write()
    gone = await batch.tx.rows(_sql.clear_dead_letters, job_id)
    batch.tx.tally.dead -= len(gone)
    return sum(row[0] for row in gone)


def _hand_back(batch: _Batch, run: Found, verdict: Verdict, item: Prepared) -> None:
    outcome, now_ms = item.settlement.outcome, batch.now_ms
    progress = put(item.settlement.progress[:PROGRESS_CHARS_MAX])
    match verdict:
        case RetryAt():
            after, reason = (HELD, AT_THE_GATE) if run.gated else (READY, "")
            error = "" if outcome is None else outcome.error
            started_ms, ended_ms, changed, result, crashed = _left(outcome, now_ms, item.result)
            tried = _tried(run, started_ms, ended_ms, error)
            row = (run.seq, after, reason, verdict.at_ms, started_ms, ended_ms, changed, put(error), result, tried)
            batch.retried.append((*row, crashed, progress))
            batch.ends.append(_end(run, STATES[after], outcome, now_ms, failed=True, error=error))
        case Back():
            after = READY
            batch.handed_back.append((run.seq, READY, run.held_reason, max(now_ms, verdict.at_ms), progress))
            batch.ends.append(_end(run, RunState.READY, None, now_ms))
        case Hold():
            after = HELD
            batch.handed_back.append((run.seq, HELD, put(verdict.reason), run.visible_ms, progress))
            batch.ends.append(_end(run, RunState.HELD, None, now_ms))
        case _:
            raise AssertionError(verdict)
    if after == HELD:
        batch.tx.tally.held += 1
        batch.arrived.append(run.id)
    else:
        batch.tx.tally.ready += 1
        batch.tx.rings |= RUNS


def _tried(run: Found, started_ms: int | None, ended_ms: int, error: str) -> bytes:
    before = () if run.tried is None else decode_tried(run.tried)
    began_ms = ended_ms if started_ms is None else started_ms
    return encode(tried_again(before, Tried(run.fence, began_ms, ended_ms, error)))


def _end(
    run: Found, state: RunState, outcome: Outcome | None, now_ms: int, *, failed: bool = False, error: str = ""
) -> End:
    began_ms, ended_ms, changed, fingerprint = (
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
        max(0, ended_ms - began_ms),
        failed,
        changed,
        fingerprint,
        error,
        run.gated,
        outcome is not None,
    )
