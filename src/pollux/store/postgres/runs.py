"""The verbs of waiting runs: enqueue, cancel, revive."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from pollux.model import AT_THE_GATE, End, NotePut, RunState
from pollux.store.contract import Answer, RunAnswer
from pollux.store.postgres.errors import NOT_PLAINLY
from pollux.store.postgres.notes import tell_notes, write_notes
from pollux.store.postgres.rows import UniformRuns, got, packed, put
from pollux.store.postgres.sql import PostgresStatements
from pollux.store.postgres.transaction import PostgresTransaction, TransactionRetry
from pollux.store.relational.feed_entries import end_unrun
from pollux.store.relational.rows import (
    CANCELLED,
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

NULLABLE = (ID, KEY, KEY + 1)  # places that are sent whole: the key and the payload may be none

_enqueue = PostgresStatements("enqueue")
_cancel = PostgresStatements("cancel")
_revive = PostgresStatements("revive")
_settle = PostgresStatements("settle")


class EnqueueFacts:
    """What stands for or against runs that are to be made: how many wait in each version, which jobs there are and
    in which version, which runs are over.
    """

    def __init__(self, waiting: Iterable[Row], jobs: Iterable[Row], ended: Iterable[str]) -> None:
        self.waiting = {int(version): int(count) for version, count in waiting}
        self.jobs = {job_id: int(version) for job_id, version in jobs}
        self.ended = set(ended)

    def waiting_of(self, row: Row, own: int) -> int:
        """How many wait where this run would."""
        return self.waiting.get(self.jobs.get(row[JOB], own), 0)


async def look(tx: PostgresTransaction, made: Sequence[Row]) -> EnqueueFacts:
    jobs, ids = list({row[JOB] for row in made}), [row[ID] for row in made]
    tx.given_ms, waiting, there, ended = await tx.one(_enqueue.look, jobs, ids, tx.given_ms)
    return EnqueueFacts(waiting, there, ended)


async def enqueue_plainly(tx: PostgresTransaction, made: UniformRuns, ready_max: int) -> bool:
    """All of them, in one statement; False: something stands against one, and nothing has happened."""
    job_id, due_ms, cause, _, _, priority, group, target, gated, _, _, visible_ms, _ = made.row[1:]
    same = (job_id, due_ms, cause, priority, group, target, gated, visible_ms)
    tx.rings |= RUNS
    text = _enqueue.one if len(made.ids) == 1 else _enqueue.plain
    try:
        found = await tx.rows(text, *made.given, *same, ready_max, *tx.bell(()), tx.given_ms)
    except NOT_PLAINLY:
        found = []
    if not found:
        tx.rings = 0
        return False
    tx.counters_of(found[0][0])  # it is that version's bell
    return True


async def enqueue(
    tx: PostgresTransaction,
    made: Sequence[Row],
    notes: Sequence[NotePut],
    ready_max: int,
    unless_live: bool = False,  # noqa: FBT001, FBT002  the verb's
) -> list[RunAnswer]:
    if unless_live:
        await tx.rows(_enqueue.lock_terms)
        await tx.rows(_enqueue.lock_jobs, list({row[JOB] for row in made}))
    facts = await look(tx, made)
    if unless_live:
        answers = [await _accept_unless_live(tx, row, facts, ready_max) for row in made]
    elif max(facts.waiting.values()) + len(made) <= ready_max:
        answers = await accept(tx, made, facts)
    else:
        answers = await _accept_below(tx, made, facts, ready_max)
    tx.tell_arrived(arrived(made, answers, facts))
    if notes and any(answer.answer is Answer.OK for answer in answers):
        written: dict[str, None] = {}
        await write_notes(tx, notes, written)
        await tell_notes(tx, written)
    return answers


def arrived(made: Sequence[Row], answers: Sequence[RunAnswer], facts: EnqueueFacts) -> list[tuple[int, str]]:
    """Those that were accepted and stand at the gate, with their version."""
    pairs = zip(made, answers, strict=True)
    at_gate = (row for row, answer in pairs if row[STATE] == HELD and answer.answer is Answer.OK)
    return [(facts.jobs[row[JOB]], row[ID]) for row in at_gate]


async def _accept_unless_live(tx: PostgresTransaction, row: Row, facts: EnqueueFacts, ready_max: int) -> RunAnswer:
    if row[JOB] in facts.jobs and not await known_runs(tx, [row[ID]]):
        live = await tx.row(_enqueue.overlapping, row[JOB], await tx.now())
        if live is not None:
            return RunAnswer(Answer.OVERLAPPED, row[ID], got(live[0]))
    [answer] = await _accept_below(tx, [row], facts, ready_max)
    return answer


async def _accept_below(
    tx: PostgresTransaction, made: Sequence[Row], facts: EnqueueFacts, ready_max: int
) -> list[RunAnswer]:
    """As many as there is room for, in their order; what is known already needs none."""
    known = facts.ended | {row[0] for row in await tx.rows(_enqueue.known, [row[ID] for row in made])}
    answers: list[RunAnswer] = []
    for row in made:
        if facts.waiting_of(row, tx.version) >= ready_max and row[ID] not in known:
            answers.append(RunAnswer(Answer.FULL, row[ID]))
            continue
        [answer] = await accept(tx, [row], facts)
        answers.append(answer)
        if answer.answer is Answer.OK:
            known.add(row[ID])
            version = facts.jobs[row[JOB]]
            facts.waiting[version] = facts.waiting.get(version, 0) + 1
    return answers


async def accept(tx: PostgresTransaction, made: Sequence[Row], facts: EnqueueFacts) -> list[RunAnswer]:
    """Make runs live where nothing stands against them.  Of an id that comes twice the first accepted one counts."""
    answers: list[RunAnswer] = []
    while len(answers) < len(made):
        part: dict[str, Row] = {}
        for row in made[len(answers) :]:
            if row[ID] in part:
                break
            part[row[ID]] = row
        answers += await _accept(tx, list(part.values()), facts)
    return answers


async def _accept(tx: PostgresTransaction, made: Sequence[Row], facts: EnqueueFacts) -> list[RunAnswer]:
    jobs, over = facts.jobs, facts.ended
    fitting = [made_in(row, jobs[row[JOB]]) for row in made if row[JOB] in jobs and row[ID] not in over]
    added = set(await _add(tx, fitting))
    count_made(tx, [row for row in fitting if row[ID] in added])
    tx.made += added
    if len(added) == len(made):
        return [RunAnswer(Answer.OK, row[ID]) for row in made]
    left = [row for row in made if row[ID] not in added]
    known = facts.ended | {row[0] for row in await tx.rows(_enqueue.known, [row[ID] for row in left])}
    keys = [row[KEY] for row in left if row[KEY] is not None]
    holders = {row[0]: row[1] for row in await tx.rows(_enqueue.holders, keys)} if keys else {}
    return [_explain(row, facts.jobs, added, known, holders) for row in made]


def _explain(row: Row, jobs: Container[str], added: set[str], known: set[str], holders: dict[str, str]) -> RunAnswer:
    if row[ID] in added:
        return RunAnswer(Answer.OK, row[ID])
    if row[ID] in known:
        return RunAnswer(Answer.ALREADY, row[ID])
    if row[JOB] not in jobs:
        return RunAnswer(Answer.STALE, row[ID])
    if row[KEY] not in holders:  # it ended just now, and the key is free
        raise TransactionRetry
    return RunAnswer(Answer.CONFLICT, row[ID], holders[row[KEY]])


async def insert(tx: PostgresTransaction, made: Sequence[Row]) -> dict[str, int]:
    """Make runs live of which the caller knows that they are new; answers their numbers."""
    added = await _add(tx, made)
    if len(added) < len(made):
        raise TransactionRetry
    tx.made += added
    count_made(tx, made)
    return added


async def _add(tx: PostgresTransaction, made: Sequence[Row]) -> dict[str, int]:
    """The numbers of those that are new."""
    rows = await tx.rows(_enqueue.add, *packed(made, NULLABLE), await tx.now()) if made else []
    return {row[0]: row[1] for row in rows}


def count_made(tx: PostgresTransaction, made: Sequence[Row]) -> None:
    for version, some in by_version((row[VERSION], row) for row in made).items():
        held = sum(row[STATE] == HELD for row in some)
        counters = tx.counters_of(version)
        counters.held += held
        counters.ready += len(some) - held
        if held < len(some):
            tx.rings |= RUNS


async def known_runs(tx: PostgresTransaction, ids: Sequence[str]) -> set[str]:
    """Those that are live or finished."""
    return {row[0] for row in await tx.rows(_enqueue.known, ids)}


async def held_keys(tx: PostgresTransaction, keys: Sequence[str]) -> set[str]:
    """Those that a live run has."""
    return {row[0] for row in await tx.rows(_enqueue.holders, keys)} if keys else set()


# cancel


async def cancel(tx: PostgresTransaction, run_ids: Sequence[str], job_id: str | None, reason: str) -> list[RunAnswer]:
    now_ms = await tx.now()
    if job_id is not None:
        of_job = [row[0] for row in await tx.rows(_cancel.of_job, job_id)]
        run_ids = [*run_ids, *(run_id for run_id in of_job if run_id not in set(run_ids))]
    found: dict[str, Row] = {row[2]: row for row in await tx.rows(_cancel.found, run_ids)}
    missing = [run_id for run_id in run_ids if run_id not in found]
    ended = dict([tuple(row) for row in await tx.rows(_cancel.ended, missing)] if missing else [])
    waiting: list[Row] = []
    asked: list[int] = []
    answers = []
    for run_id in run_ids:
        row = found.pop(run_id, None)
        answer = Answer.ALREADY if ended.get(run_id) == CANCELLED else Answer.LOST
        if row is not None:
            answer = Answer.OK
            ended[run_id] = CANCELLED
            if row[1] != LEASED:
                waiting.append(row)
            elif row[8]:
                answer = Answer.ALREADY
            else:
                asked.append(row[0])
        answers.append(RunAnswer(answer, run_id))
    await ask_to_stop(tx, asked, [reason] * len(asked))
    tx.tell_ends(await cancel_waiting(tx, waiting, [reason] * len(waiting), now_ms))
    return answers


async def ask_to_stop(tx: PostgresTransaction, seqs: Sequence[int], reasons: Sequence[str]) -> None:
    """Leave a request beside each lease."""
    if seqs:
        await tx.rows(_cancel.ask, seqs, [put(reason or "cancelled") for reason in reasons])
        tx.rings |= ASKED


async def cancel_waiting(
    tx: PostgresTransaction, rows: Sequence[Row], reasons: Sequence[str], now_ms: int
) -> list[tuple[int, End]]:
    """Runs that nobody runs end here.  Rows are (seq, state, id, job_id, due_ms, cause, gated, version, ...)."""
    if not rows:
        return []
    why = [reason or "cancelled" for reason in reasons]
    await tx.rows(_cancel.finish, [row[0] for row in rows], [put(each) for each in why], now_ms)
    ended = {row[2] for row in rows}
    tx.made = [run_id for run_id in tx.made if run_id not in ended]  # made and ended in one write
    for row in rows:
        counters = tx.counters_of(row[7])
        counters.held -= row[1] == HELD
        counters.ready -= row[1] == READY
        counters.leased -= row[1] == LEASED
    pairs = zip(rows, why, strict=True)
    return [(row[7], end_unrun(tuple(row)[2:7], RunState.CANCELLED, now_ms, error=each)) for row, each in pairs]


# revive


async def revive(tx: PostgresTransaction, run_ids: Sequence[str]) -> list[RunAnswer]:
    now_ms = await tx.now()
    found = {row[0]: row for row in await tx.rows(_revive.found, run_ids)}
    wanted = list({row[4] for row in found.values()})
    jobs = {row[0]: row[1] for row in await tx.rows(_settle.jobs, wanted)} if found else {}
    asked = [found[run_id] for run_id in dict.fromkeys(run_ids) if run_id in found and found[run_id][4] in jobs]
    back: set[str] = set()
    if asked:
        seqs, versions = [row[1] for row in asked], [jobs[row[4]] for row in asked]
        back = {row[0] for row in await tx.rows(_revive.revive, seqs, AT_THE_GATE, now_ms, versions)}
    keys = [row[3] for row in asked if row[0] not in back and row[3] is not None]
    holders = {row[0]: row[1] for row in await tx.rows(_enqueue.holders, keys)} if keys else {}
    answers = []
    for run_id in run_ids:
        row = found.get(run_id)
        answers.append(_revived(run_id, row, jobs, back, holders))
        if answers[-1].answer is Answer.OK:
            del found[run_id]
    _count_revived(tx, [(jobs[row[4]], row) for row in asked if row[0] in back])
    return answers


def _count_revived(tx: PostgresTransaction, back: Sequence[tuple[int, Row]]) -> None:
    tx.shared.dead -= len(back)
    for version, row in back:
        counters = tx.counters_of(version)
        counters.held += row[2]
        counters.ready += not row[2]
        tx.rings |= 0 if row[2] else RUNS
    tx.tell_arrived([(version, row[0]) for version, row in back if row[2]])


def _revived(run_id: str, row: Row | None, jobs: Container[str], back: set[str], holders: dict[str, str]) -> RunAnswer:
    if row is None:
        return RunAnswer(Answer.LOST, run_id)
    if row[4] not in jobs:
        return RunAnswer(Answer.STALE, run_id)
    if run_id in back:
        return RunAnswer(Answer.OK, run_id)
    if row[3] not in holders:
        raise TransactionRetry
    return RunAnswer(Answer.CONFLICT, run_id, got(holders[row[3]]))
