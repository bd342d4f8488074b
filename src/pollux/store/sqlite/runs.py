"""Verbs of waiting runs: enqueue, cancel, revive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pollux.model import AT_THE_GATE, End, NotePut, RunState
from pollux.store.contract import Answer, RunAnswer
from pollux.store.relational.feed_entries import end_unrun
from pollux.store.relational.rows import (
    CANCELLED,
    DEAD,
    HELD,
    ID,
    JOB,
    KEY,
    LEASED,
    READY,
    STATE,
    VERSION,
    Row,
    by_version,
    made_in,
)
from pollux.store.relational.wakeup import ASKED, RUNS
from pollux.store.sqlite.notes import add_notes_changed, write_notes
from pollux.store.sqlite.transaction import SqliteCounters, SqliteStatements, SqliteTransaction, ids_json

_enqueue = SqliteStatements("enqueue")
_cancel = SqliteStatements("cancel")
_revive = SqliteStatements("revive")


def enqueue(
    tx: SqliteTransaction,
    made: Sequence[Row],
    notes: Sequence[NotePut],
    ready_max: int,
    unless_live: bool,  # noqa: FBT001  the verb's
    now_ms: int,
) -> list[RunAnswer]:
    jobs = versions_of(tx, made)
    queues = [tx.counters_of(version) for version in {tx.version, *jobs.values()}]
    if unless_live:
        answers = [_accept_unless_live(tx, row, jobs, ready_max, now_ms) for row in made]
    elif max(queue.ready + queue.held for queue in queues) + len(made) <= ready_max:
        answers = accept(tx, made, jobs)
    else:
        answers = [_accept_below(tx, row, jobs, ready_max) for row in made]
    tx.add_arrived(arrived(made, answers, jobs))
    if notes and any(answer.answer is Answer.OK for answer in answers):
        written: dict[str, None] = {}
        write_notes(tx, notes, now_ms, written)
        add_notes_changed(tx, written)
    return answers


def arrived(made: Sequence[Row], answers: Sequence[RunAnswer], jobs: dict[str, int]) -> list[tuple[int, str]]:
    """Those that were accepted and held (gated), with their version."""
    at_gate = [(row, answer) for row, answer in zip(made, answers, strict=True) if row[STATE] == HELD]
    return [(jobs[row[JOB]], row[ID]) for row, answer in at_gate if answer.answer is Answer.OK]


def versions_of(tx: SqliteTransaction, made: Sequence[Row]) -> dict[str, int]:
    """Which of their jobs are there, and in which version."""
    return dict(tx.rows(_enqueue.jobs, (ids_json(list({row[JOB] for row in made})),)))


def _accept_unless_live(
    tx: SqliteTransaction, row: Row, jobs: dict[str, int], ready_max: int, now_ms: int
) -> RunAnswer:
    if row[JOB] in jobs and not known_runs(tx, [row[ID]]):
        bounds = overlap_bounds(tx.counters_of(jobs[row[JOB]]), now_ms)
        live = tx.row(_enqueue.overlapping, (row[JOB], *bounds))
        if live is not None:
            return RunAnswer(Answer.OVERLAPPED, row[ID], live[0])
    return _accept_below(tx, row, jobs, ready_max)


def overlap_bounds(counters: SqliteCounters, now_ms: int) -> tuple[int, int]:
    """Until when a run must be visible to overlap, and until when it is if it is leased: no later one ever was."""
    return now_ms, max(now_ms, counters.clock_ms)


def _accept_below(tx: SqliteTransaction, row: Row, jobs: dict[str, int], ready_max: int) -> RunAnswer:
    counters = tx.counters_of(jobs.get(row[JOB], tx.version))
    if counters.ready + counters.held >= ready_max and not known_runs(tx, [row[ID]]):
        return RunAnswer(Answer.FULL, row[ID])
    return accept(tx, [row], jobs)[0]


def accept(tx: SqliteTransaction, made: Sequence[Row], jobs: dict[str, int]) -> list[RunAnswer]:
    """Make runs live unless something prevents it, each in the version of its job.

    All are inserted at once, and looked up one by one only if some were left out.
    """
    if len({row[ID] for row in made}) < len(made):  # the first that is accepted counts
        return [accept(tx, [row], jobs)[0] for row in made]
    fitting = [made_in(row, jobs[row[JOB]]) for row in made if row[JOB] in jobs]
    last = _last_seq(tx)
    if tx.insert(_enqueue.add, fitting) == len(made):
        count_made(tx, fitting)
        return [RunAnswer(Answer.OK, row[ID]) for row in made]
    seqs = known_runs(tx, [row[ID] for row in made])
    answers = [_explain(tx, row, jobs, seqs, last) for row in made]
    accepted = {answer.id for answer in answers if answer.answer is Answer.OK}
    count_made(tx, [row for row in fitting if row[ID] in accepted])
    return answers


def insert(tx: SqliteTransaction, made: Sequence[Row]) -> None:
    """Make runs live that are known to be new."""
    if made:
        added = tx.insert(_enqueue.add, made)
        assert added == len(made)
        count_made(tx, made)


def count_made(tx: SqliteTransaction, made: Sequence[Row]) -> None:
    for version, some in by_version((row[VERSION], row) for row in made).items():
        held = sum(row[STATE] == HELD for row in some)
        counters = tx.counters_of(version)
        counters.held += held
        counters.ready += len(some) - held
        if held < len(some):
            tx.wakeups |= RUNS


def _last_seq(tx: SqliteTransaction) -> int:
    row = tx.row(_enqueue.last)
    assert row is not None
    return int(row[0])


def known_runs(tx: SqliteTransaction, ids: Sequence[str]) -> dict[str, int]:
    """The sequence numbers of those that are live or finished."""
    return dict(tx.rows(_enqueue.known, (ids_json(ids),)))


def _explain(tx: SqliteTransaction, row: Row, jobs: dict[str, int], seqs: dict[str, int], last: int) -> RunAnswer:
    """What became of a row; `last` was the highest number before."""
    seq = seqs.get(row[ID])
    if seq is not None:
        return RunAnswer(Answer.OK if seq > last else Answer.ALREADY, row[ID])
    if row[JOB] not in jobs:
        return RunAnswer(Answer.STALE, row[ID])
    return RunAnswer(Answer.CONFLICT, row[ID], key_holder(tx, row[KEY]))


def key_holder(tx: SqliteTransaction, key: str | None) -> str:
    """The live run that has the key; empty if none has."""
    row = None if key is None else tx.row(_enqueue.holder, (key,))
    return "" if row is None else row[0]


# cancel


def cancel(
    tx: SqliteTransaction, run_ids: Sequence[str], job_id: str | None, reason: str, now_ms: int
) -> list[RunAnswer]:
    if job_id is not None:
        of_job = [run_id for _, run_id in sorted(tx.rows(_cancel.of_job, (job_id,)))]
        run_ids = [*run_ids, *(run_id for run_id in of_job if run_id not in set(run_ids))]
    found = {row[2]: row for row in tx.rows(_cancel.found, (ids_json(run_ids),))}
    waiting: list[Row] = []
    answers = []
    for run_id in run_ids:
        answer = Answer.LOST
        if (row := found.get(run_id)) is not None:
            answer = _cancel_one(tx, row, reason, waiting)
            found[run_id] = (row[0], row[1] if row[1] == LEASED else CANCELLED, *row[2:8], "asked")
        answers.append(RunAnswer(answer, run_id))
    tx.add_ends(cancel_waiting(tx, waiting, reason, now_ms))
    return answers


def _cancel_one(tx: SqliteTransaction, row: Row, reason: str, waiting: list[Row]) -> Answer:
    match row[1]:
        case 0 | 1:
            waiting.append(row)
            return Answer.OK
        case 2 if not row[8]:
            ask_to_stop(tx, row[0], reason)
            return Answer.OK
        case 2 | 5:
            return Answer.ALREADY
        case _:
            return Answer.LOST


def ask_to_stop(tx: SqliteTransaction, seq: int, reason: str) -> None:
    """Write the request beside the lease."""
    tx.write(_cancel.ask, (reason or "cancelled", seq))
    tx.wakeups |= ASKED


def cancel_waiting(tx: SqliteTransaction, rows: Iterable[Row], reason: str, now_ms: int) -> list[tuple[int, End]]:
    """Held and ready runs end here.  Rows are (seq, state, id, job_id, due_ms, cause, gated, version, ...)."""
    why = reason or "cancelled"
    rows = list(rows)
    if not rows:
        return []
    tx.write_many(_cancel.finish, [(why, now_ms, row[2]) for row in rows])
    for row in rows:
        counters = tx.counters_of(row[7])
        counters.held -= row[1] == HELD
        counters.ready -= row[1] != HELD
    return [(row[7], end_unrun(row[2:7], RunState.CANCELLED, now_ms, error=why)) for row in rows]


# revive


def revive(tx: SqliteTransaction, run_ids: Sequence[str], now_ms: int) -> list[RunAnswer]:
    found = {row[0]: row for row in tx.rows(_revive.found, (ids_json(run_ids),))}
    gated: list[tuple[int, str]] = []
    answers = []
    for run_id in run_ids:
        row = found.get(run_id)
        answer = RunAnswer(Answer.LOST, run_id) if row is None else _revive_one(tx, row, now_ms, gated)
        if answer.answer is Answer.OK:
            del found[run_id]
        answers.append(answer)
    tx.add_arrived(gated)
    return answers


def _revive_one(tx: SqliteTransaction, row: Row, now_ms: int, at_gate: list[tuple[int, str]]) -> RunAnswer:
    run_id, seq, state, gated, key, version = row
    if state != DEAD:
        return RunAnswer(Answer.LOST, run_id)
    if version is None:
        return RunAnswer(Answer.STALE, run_id)
    if holder := key_holder(tx, key):
        return RunAnswer(Answer.CONFLICT, run_id, holder)
    tx.write(_revive.revive, (HELD if gated else READY, AT_THE_GATE if gated else "", now_ms, version, seq))
    tx.shared.dead -= 1
    if gated:
        tx.counters_of(version).held += 1
        at_gate.append((version, run_id))
    else:
        tx.counters_of(version).ready += 1
        tx.wakeups |= RUNS
    return RunAnswer(Answer.OK, run_id)
