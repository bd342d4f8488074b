"""Verb `settle`: ends an attempt, with its follow-ups and notes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pollux.model import (
    AT_THE_GATE,
    PROGRESS_CHARS_MAX,
    Back,
    Cancelled,
    Cause,
    Dead,
    Done,
    End,
    Hold,
    Outcome,
    RetryAt,
    Run,
    RunState,
    Tried,
    Verdict,
    tried_again,
)
from pollux.store.contract import Answer, Settlement
from pollux.store.memory.notes import tell_notes, write_notes
from pollux.store.memory.runs import accept
from pollux.store.memory.state import CANCELLED, DEAD, DONE, HELD, JOB_GONE, LEASED, READY, FeedWrites, VersionState


def settle(state: VersionState, settlements: Sequence[Settlement], now_ms: int) -> list[Answer]:
    told = FeedWrites()
    notes: dict[str, None] = {}
    answers = [_settle(state, settlement, told, notes, now_ms) for settlement in settlements]
    state.tell_told(told)
    tell_notes(state, notes)
    return answers


def _settle(
    state: VersionState, settlement: Settlement, told: FeedWrites, notes: dict[str, None], now_ms: int
) -> Answer:
    run = state.live.get(settlement.run_id)
    if run is None or run.state is not LEASED or run.token != settlement.token:
        return _refused(state, run or state.history.get(settlement.run_id), settlement.token)
    if settlement.progress:
        run = replace(run, progress=settlement.progress[:PROGRESS_CHARS_MAX])
    verdict = _final(state, run, settlement.verdict)
    if isinstance(verdict, Done | Dead | Cancelled):
        told.end(run, _finish(state, run, verdict, settlement.outcome, now_ms))
    else:
        told.end(run, _hand_back(state, run, verdict, settlement.outcome, now_ms))
        if state.live[run.id].state is HELD:
            told.arrive(run)
    for follow_up in settlement.follow_ups:
        accept(state, follow_up, told, now_ms)
    write_notes(state, settlement.notes, now_ms, notes)
    return Answer.OK


def _refused(state: VersionState, run: Run | None, token: str) -> Answer:
    """Answer.ALREADY if the token settled this run before, else LOST; a reclaimed run has no token."""
    if run is None or not token:
        return Answer.LOST
    is_settled = (run.state is not LEASED and run.token == token) or state.settled.get(run.id) == token
    return Answer.ALREADY if is_settled else Answer.LOST


def _final(state: VersionState, run: Run, verdict: Verdict) -> Verdict:
    """The verdict; a run with a cancel request or without a job is cancelled instead of tried again."""
    if isinstance(verdict, Done | Dead | Cancelled):
        return verdict
    if run.cancel:
        return Cancelled(run.cancel)
    return verdict if run.job_id in state.jobs else Cancelled(JOB_GONE)


def _finish(
    state: VersionState, run: Run, verdict: Done | Dead | Cancelled, outcome: Outcome | None, now_ms: int
) -> End:
    error = "" if outcome is None else outcome.error
    after, failed, cancel, deaths = DONE, False, run.cancel, 1
    match verdict:
        case Done():
            failed = verdict.failed
            if verdict.clears:
                _take_dead_letters(state, run.job_id)
        case Dead():
            after, failed, error = DEAD, True, error or verdict.reason
            if verdict.sole:
                deaths += _take_dead_letters(state, run.job_id)
        case Cancelled():
            after, cancel = CANCELLED, verdict.reason or run.cancel or "cancelled"
    state.finish(_after(run, after, outcome, now_ms, failed=failed, error=error, cancel=cancel, deaths=deaths))
    return _end(run, after, outcome, now_ms, failed=failed, error=cancel if after is CANCELLED else error)


def _take_dead_letters(state: VersionState, job_id: str) -> int:
    """Turn the dead letters of the job's schedule into ordinary failed runs; answers the sum of their `deaths`."""
    letters = [letter for letter in state.history.dead_letters(job_id) if letter.cause is Cause.SCHEDULE]
    for letter in letters:
        state.history.end_dead_letter(letter.id)
    return sum(letter.deaths for letter in letters)


def _hand_back(
    state: VersionState, run: Run, verdict: RetryAt | Back | Hold, outcome: Outcome | None, now_ms: int
) -> End:
    free = replace(run, owner="", lease_until_ms=0)
    state.settled[run.id] = run.token
    match verdict:
        case RetryAt():
            after = HELD if run.gated else READY
            error = "" if outcome is None else outcome.error
            tried = _after(free, after, outcome, now_ms, failed=True, error=error, cancel="", deaths=run.deaths)
            reason = AT_THE_GATE if run.gated else ""
            state.put_back(
                replace(
                    tried,
                    attempt=run.attempt + 1,
                    visible_ms=verdict.at_ms,
                    held_reason=reason,
                    tried=_tried(run, outcome, error, now_ms),
                ),
                now_ms,
            )
            return _end(run, after, outcome, now_ms, failed=True, error=error)
        case Back():
            state.put_back(replace(free, state=READY, visible_ms=max(now_ms, verdict.at_ms)), now_ms)
            return _end(run, READY, None, now_ms)
        case Hold():
            state.put_back(replace(free, state=HELD, held_reason=verdict.reason), now_ms)
            return _end(run, HELD, None, now_ms)


def _tried(run: Run, outcome: Outcome | None, error: str, now_ms: int) -> tuple[Tried, ...]:
    began_ms, ended_ms = (now_ms, now_ms) if outcome is None else (outcome.started_ms, outcome.ended_ms)
    traceback = "" if outcome is None else outcome.traceback
    return tried_again(run.tried, Tried(run.fence, began_ms, ended_ms, error, traceback))


def _after(
    run: Run,
    state: RunState,
    outcome: Outcome | None,
    now_ms: int,
    *,
    failed: bool,
    error: str,
    cancel: str,
    deaths: int,
) -> Run:
    """The run with the outcome of this attempt."""
    return replace(
        run,
        state=state,
        owner="",
        lease_until_ms=0,
        cancel=cancel,
        started_ms=None if outcome is None else outcome.started_ms,
        finished_ms=now_ms if outcome is None else outcome.ended_ms,
        failed=failed,
        changed=None if outcome is None else outcome.changed,
        error=error,
        traceback="" if outcome is None else outcome.traceback,
        result=None if outcome is None else outcome.result,
        deaths=deaths,
        crashes=run.crashes + (outcome is not None and outcome.crashed),
    )


def _end(
    run: Run, state: RunState, outcome: Outcome | None, now_ms: int, *, failed: bool = False, error: str = ""
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
        run.cause,
        run.due_ms,
        ended_ms,
        max(0, ended_ms - started_ms),
        failed,
        changed,
        fingerprint,
        error,
        run.gated,
        outcome is not None,
    )
