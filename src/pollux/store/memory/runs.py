"""The verbs of waiting runs: enqueue, cancel, revive, and looking at runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import islice

from msgspec.structs import replace

from pollux.model import AT_THE_GATE, Arrived, NotePut, Run
from pollux.store.contract import Answer, Counts, RunAnswer, RunFilter, RunPage
from pollux.store.filters import run_filter, run_place
from pollux.store.memory.notes import tell_notes, write_notes
from pollux.store.memory.state import CANCELLED, DEAD, HELD, READY, State


def enqueue(
    state: State, runs: Sequence[Run], notes: Sequence[NotePut], ready_max: int, now_ms: int
) -> list[RunAnswer]:
    arrived: list[str] = []
    answers = []
    for run in runs:
        if state.ready + state.held >= ready_max and not state.knows(run.id):
            answers.append(RunAnswer(Answer.FULL, run.id))
        else:
            answers.append(accept(state, run, arrived))
    if arrived:
        state.tell(Arrived(tuple(arrived)))
    if any(answer.answer is Answer.OK for answer in answers):
        written: dict[str, None] = {}
        write_notes(state, notes, now_ms, written)
        tell_notes(state, written)
    return answers


def accept(state: State, run: Run, arrived: list[str]) -> RunAnswer:
    """Make a run live, if nothing stands against it; one that is held is noted in `arrived`."""
    if state.knows(run.id):
        return RunAnswer(Answer.ALREADY, run.id)
    if run.job_id not in state.jobs:
        return RunAnswer(Answer.STALE, run.id)
    if run.key is not None and run.key in state.keys:
        return RunAnswer(Answer.CONFLICT, run.id, state.keys[run.key])
    state.admit(run)
    if run.state is HELD:
        arrived.append(run.id)
    return RunAnswer(Answer.OK, run.id)


def cancel(state: State, run_ids: Sequence[str], job_id: str | None, reason: str, now_ms: int) -> list[RunAnswer]:
    if job_id is not None:
        run_ids = [*run_ids, *(run_id for run_id in state.live_of.get(job_id, ()) if run_id not in run_ids)]
    ends, answers = [], []
    for run_id in run_ids:
        run = state.live.get(run_id)
        if run is None:
            past = state.past.get(run_id)
            is_cancelled = past is not None and past.state is CANCELLED
            answers.append(RunAnswer(Answer.ALREADY if is_cancelled else Answer.LOST, run_id))
        elif run_id in state.leased:
            answers.append(RunAnswer(Answer.OK if state.ask_to_stop(run, reason) else Answer.ALREADY, run_id))
        else:
            ends.append(state.cancel_waiting(run, reason, now_ms))
            answers.append(RunAnswer(Answer.OK, run_id))
    state.tell_ends(ends)
    return answers


def revive(state: State, run_ids: Sequence[str], now_ms: int) -> list[RunAnswer]:
    arrived: list[str] = []
    answers = [_revive(state, run_id, now_ms, arrived) for run_id in run_ids]
    if arrived:
        state.tell(Arrived(tuple(arrived)))
    return answers


def _revive(state: State, run_id: str, now_ms: int, arrived: list[str]) -> RunAnswer:
    run = state.past.get(run_id)
    if run is None or run.state is not DEAD:
        return RunAnswer(Answer.LOST, run_id)
    if run.job_id not in state.jobs:
        return RunAnswer(Answer.STALE, run_id)
    if run.key is not None and run.key in state.keys:
        return RunAnswer(Answer.CONFLICT, run_id, state.keys[run.key])
    state.past.remove(run_id)
    state.admit(
        replace(
            run,
            state=HELD if run.gated else READY,
            held_reason=AT_THE_GATE if run.gated else "",
            visible_ms=now_ms,
            attempt=0,
            lease_losses=0,
            crashes=0,
            deaths=1,
            cancel="",
            progress="",
        )
    )
    if run.gated:
        arrived.append(run_id)
    return RunAnswer(Answer.OK, run_id)


def get_runs(state: State, ids: Sequence[str]) -> list[Run | None]:
    return [state.live.get(run_id) or state.past.get(run_id) for run_id in ids]


def list_runs(state: State, where: RunFilter, after: str | None, limit: int) -> RunPage:
    """A cursor is `live:<due>:<id>` or `past:<number>` of the last run of its page."""
    live_after, before = run_place(after)
    rows: list[tuple[str, Run]] = []
    if before is None:
        rows = [(f"live:{run.due_ms}:{run.id}", run) for run in _live(state, where, live_after, limit + 1)]
    if len(rows) <= limit:
        past = state.past.newest_first(job_id=where.job_id, before=before)
        fits = run_filter(where)
        rows += islice(((f"past:{seq}", run) for seq, run in past if fits(run)), limit + 1 - len(rows))
    page = tuple(run for _, run in rows[:limit])
    return RunPage(page, rows[limit - 1][0] if len(rows) > limit else None)


def _live(state: State, where: RunFilter, after: tuple[int, str] | None, at_most: int) -> list[Run]:
    ids = state.live if where.job_id is None else state.live_of.get(where.job_id, ())
    fits = run_filter(where)
    runs: Iterator[Run] = (state.live[run_id] for run_id in ids)
    found = (run for run in runs if (after is None or (run.due_ms, run.id) > after) and fits(run))
    return nsmallest(at_most, found, key=lambda run: (run.due_ms, run.id))


def counts(state: State) -> Counts:
    return Counts(
        held=state.held,
        ready=state.ready,
        leased=len(state.leased),
        dead=state.past.dead,
        feed=len(state.entries),
        ends=state.ends,
        jobs=len(state.jobs),
    )
