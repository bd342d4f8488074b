"""The verbs of waiting runs: enqueue, cancel, revive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pollux.model import AT_THE_GATE, Arrived, End, NotePut, RunState
from pollux.store.contract import Answer, RunAnswer
from pollux.store.relational.bells import ASKED, RUNS
from pollux.store.relational.ends import end_unrun
from pollux.store.relational.rows import CANCELLED, DEAD, HELD, ID, JOB, KEY, LEASED, READY, STATE, Row
from pollux.store.sqlite.notes import tell_notes, write_notes
from pollux.store.sqlite.sql import Statements, ids_json
from pollux.store.sqlite.transaction import Transaction

_enqueue = Statements("enqueue")
_cancel = Statements("cancel")
_revive = Statements("revive")


def enqueue(
    tx: Transaction, made: Sequence[Row], notes: Sequence[NotePut], ready_max: int, now_ms: int
) -> list[RunAnswer]:
    held = tx.tally.held
    if tx.tally.ready + tx.tally.held + len(made) <= ready_max:
        answers = accept(tx, made)
    else:
        answers = [_accept_below(tx, row, ready_max) for row in made]
    if tx.tally.held > held:
        tx.tell(Arrived(tuple(arrived(made, answers))))
    if notes and any(answer.answer is Answer.OK for answer in answers):
        written: dict[str, None] = {}
        write_notes(tx, notes, now_ms, written)
        tell_notes(tx, written)
    return answers


def arrived(made: Sequence[Row], answers: Sequence[RunAnswer]) -> list[str]:
    """Those that were accepted and stand at the gate."""
    pairs = zip(made, answers, strict=True)
    return [row[ID] for row, answer in pairs if row[STATE] == HELD and answer.answer is Answer.OK]


def _accept_below(tx: Transaction, row: Row, ready_max: int) -> RunAnswer:
    if tx.tally.ready + tx.tally.held >= ready_max and not known_runs(tx, [row[ID]]):
        return RunAnswer(Answer.FULL, row[ID])
    return accept(tx, [row])[0]


def accept(tx: Transaction, made: Sequence[Row]) -> list[RunAnswer]:
    """Make runs live where nothing stands against them.

    All are put in at once, and asked about one by one only if some were left out.
    """
    if len({row[ID] for row in made}) < len(made):  # the first that is accepted counts
        return [accept(tx, [row])[0] for row in made]
    jobs = {row[JOB] for row in made}
    there = {row[0] for row in tx.rows(_enqueue.jobs, (ids_json(list(jobs)),))}
    fitting = made if len(there) == len(jobs) else [row for row in made if row[JOB] in there]
    last = _last_seq(tx)
    if tx.insert(_enqueue.add, fitting) == len(made):
        count_made(tx, made)
        return [RunAnswer(Answer.OK, row[ID]) for row in made]
    seqs = known_runs(tx, [row[ID] for row in made])
    answers = [_explain(tx, row, there, seqs, last) for row in made]
    count_made(tx, [row for row, answer in zip(made, answers, strict=True) if answer.answer is Answer.OK])
    return answers


def insert(tx: Transaction, made: Sequence[Row]) -> None:
    """Make runs live of which the caller knows that they are new."""
    if made:
        added = tx.insert(_enqueue.add, made)
        assert added == len(made)
        count_made(tx, made)


def count_made(tx: Transaction, made: Sequence[Row]) -> None:
    held = sum(row[STATE] == HELD for row in made)
    tx.tally.held += held
    tx.tally.ready += len(made) - held
    if held < len(made):
        tx.rings |= RUNS


def _last_seq(tx: Transaction) -> int:
    row = tx.row(_enqueue.last)
    assert row is not None
    return int(row[0])


def known_runs(tx: Transaction, ids: Sequence[str]) -> dict[str, int]:
    """The sequence numbers of those that are live or finished."""
    return dict(tx.rows(_enqueue.known, (ids_json(ids),)))


def _explain(tx: Transaction, row: Row, jobs: set[str], seqs: dict[str, int], last: int) -> RunAnswer:
    """What became of a row; `last` was the highest number before."""
    seq = seqs.get(row[ID])
    if seq is not None:
        return RunAnswer(Answer.OK if seq > last else Answer.ALREADY, row[ID])
    if row[JOB] not in jobs:
        return RunAnswer(Answer.STALE, row[ID])
    return RunAnswer(Answer.CONFLICT, row[ID], key_holder(tx, row[KEY]))


def key_holder(tx: Transaction, key: str | None) -> str:
    """The live run that has the key; empty if none has."""
    row = None if key is None else tx.row(_enqueue.holder, (key,))
    return "" if row is None else row[0]


# cancel


def cancel(tx: Transaction, run_ids: Sequence[str], job_id: str | None, reason: str, now_ms: int) -> list[RunAnswer]:
    if job_id is not None:
        of_job = [row[0] for row in tx.rows(_cancel.of_job, (job_id,))]
        run_ids = [*run_ids, *(run_id for run_id in of_job if run_id not in set(run_ids))]
    found = {row[2]: row for row in tx.rows(_cancel.found, (ids_json(run_ids),))}
    waiting: list[Row] = []
    answers = []
    for run_id in run_ids:
        answer = Answer.LOST
        if (row := found.get(run_id)) is not None:
            answer = _cancel_one(tx, row, reason, waiting)
            found[run_id] = (row[0], row[1] if row[1] == LEASED else CANCELLED, *row[2:7], "asked")
        answers.append(RunAnswer(answer, run_id))
    tx.tell_ends(cancel_waiting(tx, waiting, reason, now_ms))
    return answers


def _cancel_one(tx: Transaction, row: Row, reason: str, waiting: list[Row]) -> Answer:
    match row[1]:
        case 0 | 1:
            waiting.append(row)
            return Answer.OK
        case 2 if not row[7]:
            ask_to_stop(tx, row[0], reason)
            return Answer.OK
        case 2 | 5:
            return Answer.ALREADY
        case _:
            return Answer.LOST


def ask_to_stop(tx: Transaction, seq: int, reason: str) -> None:
    """Leave a request beside the lease."""
    tx.write(_cancel.ask, (reason or "cancelled", seq))
    tx.rings |= ASKED


def cancel_waiting(tx: Transaction, rows: Iterable[Row], reason: str, now_ms: int) -> list[End]:
    """Held and ready runs end here.  Rows are (seq, state, id, job_id, due_ms, cause, gated, ...)."""
    why = reason or "cancelled"
    rows = list(rows)
    if not rows:
        return []
    tx.write_many(_cancel.finish, [(why, now_ms, row[0]) for row in rows])
    held = sum(row[1] == HELD for row in rows)
    tx.tally.held -= held
    tx.tally.ready -= len(rows) - held
    return [end_unrun(row[2:7], RunState.CANCELLED, now_ms, error=why) for row in rows]


# revive


def revive(tx: Transaction, run_ids: Sequence[str], now_ms: int) -> list[RunAnswer]:
    found = {row[0]: row for row in tx.rows(_revive.found, (ids_json(run_ids),))}
    gated: list[str] = []
    answers = []
    for run_id in run_ids:
        row = found.get(run_id)
        answer = RunAnswer(Answer.LOST, run_id) if row is None else _revive_one(tx, row, now_ms, gated)
        if answer.answer is Answer.OK:
            del found[run_id]
        answers.append(answer)
    if gated:
        tx.tell(Arrived(tuple(gated)))
    return answers


def _revive_one(tx: Transaction, row: Row, now_ms: int, at_gate: list[str]) -> RunAnswer:
    run_id, seq, state, gated, key, has_job = row
    if state != DEAD:
        return RunAnswer(Answer.LOST, run_id)
    if not has_job:
        return RunAnswer(Answer.STALE, run_id)
    if holder := key_holder(tx, key):
        return RunAnswer(Answer.CONFLICT, run_id, holder)
    tx.write(_revive.revive, (HELD if gated else READY, AT_THE_GATE if gated else "", now_ms, seq))
    tx.tally.dead -= 1
    if gated:
        tx.tally.held += 1
        at_gate.append(run_id)
    else:
        tx.tally.ready += 1
        tx.rings |= RUNS
    return RunAnswer(Answer.OK, run_id)
