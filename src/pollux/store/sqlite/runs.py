"""Verbs of runs that are written down otherwise here than elsewhere: enqueue, counts, lines, and a part of prune."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import NotePut, QueueDepth
from pollux.store.contract import Answer, Counts, RunAnswer
from pollux.store.limits import counted_max
from pollux.store.relational.notes import add_notes_changed, write_notes
from pollux.store.relational.records import count_dropped
from pollux.store.relational.rows import HELD, ID, JOB, KEY, STATE, VERSION, Row, by_version, made_in
from pollux.store.relational.wakeup import RUNS
from pollux.store.sqlite.transaction import SQL, SqliteCounters, SqliteTransaction, ids_json
from pollux.store.values import PRIORITIES

_NOWHERE = (0, 0, 0)  # the place of a run that is not ready: nothing is ahead of it
_BEHIND_ALL = 2**62  # ms


async def enqueue(
    tx: SqliteTransaction,
    made: Sequence[Row],
    notes: Sequence[NotePut],
    ready_max: int,
    unless_live: bool,  # noqa: FBT001  the verb's
) -> list[RunAnswer]:
    jobs = versions_of(tx, made)
    queues = [tx.counters_of(version) for version in {tx.version, *jobs.values()}]
    if unless_live:
        answers = [_accept_unless_live(tx, row, jobs, ready_max) for row in made]
    elif max(queue.ready + queue.held for queue in queues) + len(made) <= ready_max:
        answers = accept(tx, made, jobs)
    else:
        answers = [_accept_below(tx, row, jobs, ready_max) for row in made]
    tx.add_arrived(arrived(made, answers, jobs))
    if notes and any(answer.answer is Answer.OK for answer in answers):
        written: dict[str, None] = {}
        await write_notes(tx, notes, written)
        await add_notes_changed(tx, written)
    return answers


def arrived(made: Sequence[Row], answers: Sequence[RunAnswer], jobs: dict[str, int]) -> list[tuple[int, str]]:
    """Those that were accepted and held (gated), with their version."""
    at_gate = [(row, answer) for row, answer in zip(made, answers, strict=True) if row[STATE] == HELD]
    return [(jobs[row[JOB]], row[ID]) for row, answer in at_gate if answer.answer is Answer.OK]


def versions_of(tx: SqliteTransaction, made: Sequence[Row]) -> dict[str, int]:
    """Which of their jobs are there, and in which version."""
    return dict(tx.rows(SQL["enqueue.jobs"], (ids_json(list({row[JOB] for row in made})),)))


def _accept_unless_live(tx: SqliteTransaction, row: Row, jobs: dict[str, int], ready_max: int) -> RunAnswer:
    if row[JOB] in jobs and not known_runs(tx, [row[ID]]):
        bounds = overlap_bounds(tx.counters_of(jobs[row[JOB]]), tx.given_ms)
        live = tx.row(SQL["enqueue.overlapping"], (row[JOB], *bounds))
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
    if tx.insert(SQL["enqueue.add"], fitting) == len(made):
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
        added = tx.insert(SQL["enqueue.add"], made)
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
    row = tx.row(SQL["enqueue.last"])
    assert row is not None
    return int(row[0])


def known_runs(tx: SqliteTransaction, ids: Sequence[str]) -> dict[str, int]:
    """The sequence numbers of those that are live or finished."""
    return dict(tx.rows(SQL["enqueue.known"], (ids_json(ids),)))


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
    row = None if key is None else tx.row(SQL["enqueue.holder"], (key,))
    return "" if row is None else row[0]


# counts


async def counts(tx: SqliteTransaction, all_versions: bool = False) -> Counts:  # noqa: FBT001, FBT002  called by position
    row = tx.row(SQL["counters.counts"], (None if all_versions else tx.version,))
    assert row is not None
    return Counts(*row)


async def lines(tx: SqliteTransaction, before: str | None) -> tuple[QueueDepth, ...]:
    place = (max(PRIORITIES) + 1, 0, 0) if before is None else tx.row(SQL["counters.place"], (before,)) or _NOWHERE
    now, most = (tx.given_ms + 1, 0), counted_max(before) + 1
    found = [
        tx.row(SQL["counters.queue"], (tx.version, each, *min(now, _end(each, *place)), most)) for each in PRIORITIES
    ]
    return tuple([QueueDepth(*row) for row in found if row is not None])


def _end(priority: int, placed: int, visible_ms: int, seq: int) -> tuple[int, int]:
    """Up to where a queue is counted for a place: one of higher priority to its end, one of lower not at all."""
    if priority == placed:
        return visible_ms, seq
    return (_BEHIND_ALL, 0) if priority < placed else (-_BEHIND_ALL, 0)


# prune


def excess_runs(tx: SqliteTransaction, keep: int, limit: int) -> list[int]:
    """What jobs have beyond their newest `keep` that failed and as many others.  It walks over all jobs."""
    found: list[int] = []
    for (job_id,) in tx.rows(SQL["prune.beyond"], (keep, limit)):
        for failed in (0, 1):
            found += [row[0] for row in tx.rows(SQL["prune.excess"], (job_id, failed, limit - len(found), keep))]
        if len(found) >= limit:
            break
    return found


async def drop_runs(tx: SqliteTransaction, seqs: Sequence[int]) -> int:
    """Finished runs by their numbers; what left meanwhile is not counted."""
    return count_dropped(tx, tx.rows(SQL["prune.drop"], (ids_json(seqs),)))
