"""Decisions of settle: the new row of a run whose attempt ended, and the feed entry; no statement.

settlement ─▶ prepare ─▶ refused? ─▶ final? ─▶ finish: it leaves the queue
                                        └────▶ hand_back: it waits again, at once, later or at the gate
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pollux.model import (
    AT_THE_GATE,
    Back,
    Cancelled,
    Dead,
    Done,
    End,
    Hold,
    NotePut,
    Outcome,
    RetryAt,
    Run,
    RunState,
    Tried,
    Verdict,
    error_text,
    tried_again,
)
from pollux.store.contract import RESULT_BYTES_MAX, Answer, Settlement
from pollux.store.limits import check_batch, checked_notes, written
from pollux.store.relational.feed_entries import JOB_GONE, end_of, end_unrun
from pollux.store.relational.rows import (
    CANCELLED,
    CAUSES,
    DEAD,
    DONE,
    HELD,
    HISTORY_DEAD,
    HISTORY_PLAIN,
    HISTORY_UNCHANGED,
    LEASED,
    READY,
    STATES,
    Row,
    checked_made_row,
    encode,
    tried_before,
)

FINAL = (Done, Dead, Cancelled)


class PreparedSettlement(NamedTuple):
    """A settlement that was checked: its result and follow-ups are written out, ready for the database."""

    settlement: Settlement
    result: bytes | None
    follow_ups: Sequence[Row]
    notes: Sequence[NotePut]


def prepare(settlement: Settlement, made_row: Callable[[Run], Row] = checked_made_row) -> PreparedSettlement:
    outcome = settlement.outcome
    result = None
    if outcome is not None and outcome.result is not None:
        result = written(outcome.result, RESULT_BYTES_MAX, "the result of run", settlement.run_id)
    if not settlement.follow_ups and not settlement.notes:
        return PreparedSettlement(settlement, result, (), ())
    check_batch(settlement.follow_ups, "runs")
    follow_ups = [made_row(run) for run in settlement.follow_ups]
    return PreparedSettlement(settlement, result, follow_ups, checked_notes(settlement.notes))


class FoundRun(NamedTuple):
    """A run as `settle.sql` finds it."""

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

    @property
    def about(self) -> Row:
        return (self.id, self.job_id, self.due_ms, self.cause, self.gated)


def refused(row: Row | None, token: str) -> Answer:
    """Of (id, seq, token, state, settled).  The token that settled a run stays; one that was taken back has none."""
    if row is None or not token:
        return Answer.LOST
    is_settled = (row[3] != LEASED and row[2] == token) or row[4] == token
    return Answer.ALREADY if is_settled else Answer.LOST


def final(verdict: Verdict, job_id: str, cancel: str, jobs: set[str]) -> Verdict:
    """A run with a cancel request or without its job is cancelled instead of tried again."""
    if isinstance(verdict, FINAL):
        return verdict
    if cancel:
        return Cancelled(cancel)
    return verdict if job_id in jobs else Cancelled(JOB_GONE)


def takes_letters(verdict: Verdict) -> bool:
    """Whether the job's dead letters go with it."""
    return (isinstance(verdict, Done) and verdict.clears) or (isinstance(verdict, Dead) and verdict.sole)


class FinishedRow(NamedTuple):
    """A run that leaves the queue."""

    state: int
    history_class: int
    started_ms: int | None
    finished_ms: int
    failed: bool
    changed: bool | None
    error: str
    result: bytes | None
    cancel: str
    deaths: int


def finish(
    run: FoundRun, verdict: Done | Dead | Cancelled, item: PreparedSettlement, now_ms: int, letters: int = 0
) -> tuple[FinishedRow, End]:
    """`letters`: how many deaths the job's dead letters counted, if they go with it."""
    outcome = item.settlement.outcome
    error = "" if outcome is None else outcome.error
    after, history_class, failed, cancel, deaths = DONE, HISTORY_PLAIN, False, run.cancel, 1
    match verdict:
        case Done():
            failed = verdict.failed
            if not failed and outcome is not None and outcome.changed is False:
                history_class = HISTORY_UNCHANGED
        case Dead():
            after, history_class, failed, error = DEAD, HISTORY_DEAD, True, error or verdict.reason
            deaths += letters
        case Cancelled():
            after, cancel = CANCELLED, verdict.reason or run.cancel or "cancelled"
    started_ms, ended_ms, changed, result = _left(outcome, now_ms, item.result)
    why = cancel if after == CANCELLED else error
    end = end_of(run.about, STATES[after], outcome, now_ms, failed=failed, error=why)
    kept = error_text(error, "" if outcome is None else outcome.traceback)
    return FinishedRow(after, history_class, started_ms, ended_ms, failed, changed, kept, result, cancel, deaths), end


def done(row: Row, item: PreparedSettlement, *, failed: bool, now_ms: int) -> tuple[Row, End]:
    """`finish` without its questions, for the plain end of most runs; rows are those of `FoundRun`."""
    outcome = item.settlement.outcome
    if outcome is None:
        started_ms, ended_ms, duration_ms, changed, fingerprint, error = None, now_ms, 0, None, "", ""
        kept = ""
    else:
        started_ms, ended_ms, changed = outcome.started_ms, outcome.ended_ms, outcome.changed
        fingerprint, error = outcome.fingerprint, outcome.error
        kept = error_text(error, outcome.traceback)
        duration_ms = ended_ms - started_ms if ended_ms > started_ms else 0
    history_class = HISTORY_UNCHANGED if changed is False and not failed else HISTORY_PLAIN
    end = End(
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
    return (DONE, history_class, started_ms, ended_ms, failed, changed, kept, item.result, "", 1), end


class RequeuedRow(NamedTuple):
    """A run that waits again as if nothing had been; with `RetriedRow` its attempt counts."""

    state: int
    reason: str
    visible_ms: int


class RetriedRow(NamedTuple):
    state: int
    reason: str
    visible_ms: int
    started_ms: int | None
    finished_ms: int
    changed: bool | None
    error: str
    result: bytes | None
    tried: bytes


def hand_back(
    run: FoundRun, verdict: Verdict, item: PreparedSettlement, now_ms: int
) -> tuple[RetriedRow | RequeuedRow, End]:
    outcome = item.settlement.outcome
    match verdict:
        case RetryAt():
            after, reason = (HELD, AT_THE_GATE) if run.gated else (READY, "")
            error = "" if outcome is None else outcome.error
            traceback = "" if outcome is None else outcome.traceback
            left = _left(outcome, now_ms, item.result)
            tried = _tried(run, left[0], left[1], error, traceback)
            kept = error_text(error, traceback)
            retry = RetriedRow(after, reason, verdict.at_ms, *left[:3], kept, left[3], tried)
            return retry, end_of(run.about, STATES[after], outcome, now_ms, failed=True, error=error)
        case Back():
            visible_ms = max(now_ms, verdict.at_ms)
            return RequeuedRow(READY, run.held_reason, visible_ms), end_unrun(run.about, RunState.READY, now_ms)
        case Hold():
            return RequeuedRow(HELD, verdict.reason, run.visible_ms), end_unrun(run.about, RunState.HELD, now_ms)
        case _:
            raise AssertionError(verdict)


def _left(
    outcome: Outcome | None, now_ms: int, result: bytes | None
) -> tuple[int | None, int, bool | None, bytes | None]:
    """What an attempt leaves behind: (started_ms, finished_ms, changed, result)."""
    if outcome is None:
        return (None, now_ms, None, None)
    return (outcome.started_ms, outcome.ended_ms, outcome.changed, result)


def _tried(run: FoundRun, started_ms: int | None, ended_ms: int, error: str, traceback: str) -> bytes:
    began_ms = ended_ms if started_ms is None else started_ms
    return encode(tried_again(tried_before(run.tried), Tried(run.fence, began_ms, ended_ms, error, traceback)))
