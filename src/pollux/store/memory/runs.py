"""Verbs of runs: enqueue, cancel, revive, get, list, counts, lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import islice

from msgspec.structs import replace

from pollux.model import AT_THE_GATE, NotePut, QueueDepth, Run
from pollux.store.backend import Page
from pollux.store.contract import Answer, Counts, RunAnswer, RunFilter
from pollux.store.filters import run_filter, run_place
from pollux.store.limits import counted_max
from pollux.store.memory.notes import tell_notes, write_notes
from pollux.store.memory.state import CANCELLED, DEAD, HELD, LEASED, READY, FeedWrites, LinePlace, VersionState
from pollux.store.values import PRIORITIES


def enqueue(
    state: VersionState,
    runs: Sequence[Run],
    notes: Sequence[NotePut],
    ready_max: int,
    now_ms: int,
    unless_live: bool,  # noqa: FBT001  called by position
) -> list[RunAnswer]:
    told = FeedWrites()
    answers = []
    for run in runs:
        home = _home_of(state, run.job_id)
        if home.ready + home.held >= ready_max and not state.knows(run.id):
            answers.append(RunAnswer(Answer.FULL, run.id))
        elif unless_live and (live := _overlapping(state, run, now_ms)):
            answers.append(RunAnswer(Answer.OVERLAPPED, run.id, live.id))
        else:
            answers.append(accept(state, run, told, now_ms))
    state.tell_told(told)
    if any(answer.answer is Answer.OK for answer in answers):
        written: dict[str, None] = {}
        write_notes(state, notes, now_ms, written)
        tell_notes(state, written)
    return answers


def _overlapping(state: VersionState, run: Run, now_ms: int) -> Run | None:
    """A live run of the job that overlaps a run which `accept` would take."""
    if state.knows(run.id) or run.job_id not in state.jobs:
        return None
    return next(state.job_runs.overlapping(run.job_id, now_ms), None)


def _home_of(state: VersionState, job_id: str) -> VersionState:
    """The version of a job; the version of the handle if there is no such job."""
    row = state.jobs.get(job_id)
    return state if row is None else state.of(row.version)


def accept(state: VersionState, run: Run, told: FeedWrites, now_ms: int) -> RunAnswer:
    """Make a run live, unless its id, job or key forbids it; a held run enters the feed."""
    if state.knows(run.id):
        return RunAnswer(Answer.ALREADY, run.id)
    if run.job_id not in state.jobs:
        return RunAnswer(Answer.STALE, run.id)
    if run.key is not None and run.key in state.keys:
        return RunAnswer(Answer.CONFLICT, run.id, state.keys[run.key])
    run = state.admit(run, now_ms)
    if run.state is HELD:
        told.arrive(run)
    return RunAnswer(Answer.OK, run.id)


def cancel(
    state: VersionState, run_ids: Sequence[str], job_id: str | None, reason: str, now_ms: int
) -> list[RunAnswer]:
    if job_id is not None:
        run_ids = [*run_ids, *(run_id for run_id in state.job_runs.of(job_id) if run_id not in run_ids)]
    told, answers = FeedWrites(), []
    for run_id in run_ids:
        run = state.live.get(run_id)
        if run is None:
            finished = state.history.get(run_id)
            is_cancelled = finished is not None and finished.state is CANCELLED
            answers.append(RunAnswer(Answer.ALREADY if is_cancelled else Answer.LOST, run_id))
        elif run.state is LEASED:
            answers.append(RunAnswer(Answer.OK if state.ask_to_stop(run, reason) else Answer.ALREADY, run_id))
        else:
            told.end(run, state.cancel_waiting(run, reason, now_ms))
            answers.append(RunAnswer(Answer.OK, run_id))
    state.tell_told(told)
    return answers


def revive(state: VersionState, run_ids: Sequence[str], now_ms: int) -> list[RunAnswer]:
    told = FeedWrites()
    answers = [_revive(state, run_id, now_ms, told) for run_id in run_ids]
    state.tell_told(told)
    return answers


def _revive(state: VersionState, run_id: str, now_ms: int, told: FeedWrites) -> RunAnswer:
    run = state.history.get(run_id)
    if run is None or run.state is not DEAD:
        return RunAnswer(Answer.LOST, run_id)
    if run.job_id not in state.jobs:
        return RunAnswer(Answer.STALE, run_id)
    if run.key is not None and run.key in state.keys:
        return RunAnswer(Answer.CONFLICT, run_id, state.keys[run.key])
    state.history.remove(run_id)
    revived = state.admit(
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
        ),
        now_ms,
    )
    if run.gated:
        told.arrive(revived)
    return RunAnswer(Answer.OK, run_id)


def get_runs(state: VersionState, ids: Sequence[str]) -> dict[str, tuple[str, Run]]:
    found = ((run_id, state.live.get(run_id) or state.history.get(run_id)) for run_id in ids)
    return {run_id: (run_id, run) for run_id, run in found if run is not None}


def list_runs(state: VersionState, where: RunFilter, after: str | None, limit: int) -> Page:
    """Cursors are `live:<due>:<id>` or `past:<number>` of the last run of a page."""
    live_after, before = run_place(after)
    rows: list[tuple[str, Run]] = []
    if before is None:
        rows = [(f"live:{run.due_ms}:{run.id}", run) for run in _live(state, where, live_after, limit + 1)]
    if len(rows) <= limit:
        finished = state.history.newest_first(job_id=where.job_id, before=before)
        fits = run_filter(where)
        rows += islice(((f"past:{seq}", run) for seq, run in finished if fits(run)), limit + 1 - len(rows))
    return Page([(run.id, run) for _, run in rows[:limit]], rows[limit - 1][0] if len(rows) > limit else None)


def _live(state: VersionState, where: RunFilter, after: tuple[int, str] | None, at_most: int) -> list[Run]:
    ids = state.live if where.job_id is None else state.job_runs.of(where.job_id)
    fits = run_filter(where)
    runs: Iterator[Run] = (state.live[run_id] for run_id in ids)
    found = (run for run in runs if (after is None or (run.due_ms, run.id) > after) and fits(run))
    return nsmallest(at_most, found, key=lambda run: (run.due_ms, run.id))


def counts(state: VersionState, all_versions: bool = False) -> Counts:  # noqa: FBT001, FBT002  called by position
    counted = list(state.house.states.values()) if all_versions else [state]
    return Counts(
        held=sum(each.held for each in counted),
        ready=sum(each.ready for each in counted),
        leased=sum(len(each.leased) for each in counted),
        dead=state.history.dead,
        feed=sum(len(each.entries) for each in counted),
        ends=sum(each.ends for each in counted),
        jobs=sum(each.job_count for each in counted),
    )


def lines(state: VersionState, before: str | None, now_ms: int) -> tuple[QueueDepth, ...]:
    most = counted_max(before) + 1
    return tuple(_line(state, priority, _end(state, priority, before, now_ms), most) for priority in PRIORITIES)


def _line(state: VersionState, priority: int, end: LinePlace | None, most: int) -> QueueDepth:
    return QueueDepth(
        ready=0 if end is None else state.ready_before(priority, end, most), first_ms=state.first_in_line(priority)
    )


def _end(state: VersionState, priority: int, before: str | None, now_ms: int) -> LinePlace | None:
    """The place up to which a queue is counted; None: not at all."""
    now = (now_ms + 1, 0, "")
    if before is None:
        return now
    run = state.live.get(before)
    if run is None or run.state is not READY or priority > run.priority:
        return None
    return now if priority < run.priority else min(now, state.house.states[run.scheduler_version].place_of(run))
