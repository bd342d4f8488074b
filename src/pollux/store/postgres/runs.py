"""Verbs of runs that are written down otherwise here than elsewhere: enqueue, counts, lines, and a part of prune."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from pollux.model import NotePut, QueueDepth
from pollux.store.contract import Answer, Counts, Pruning, RunAnswer
from pollux.store.limits import counted_max
from pollux.store.postgres.errors import NOT_PLAINLY
from pollux.store.postgres.rows import UniformRuns, got, packed
from pollux.store.postgres.transaction import PostgresTransaction
from pollux.store.relational.notes import add_notes_changed, write_notes
from pollux.store.relational.records import count_dropped
from pollux.store.relational.rows import HELD, ID, JOB, KEY, STATE, VERSION, Row, by_version, made_in
from pollux.store.relational.runs import key_holders
from pollux.store.relational.transaction import TransactionRetry
from pollux.store.relational.wakeup import RUNS

NULLABLE = (ID, KEY, KEY + 1)  # places that are sent whole: the key and the payload may be none


class EnqueueFacts:
    """Facts that decide whether runs are made: how many wait in each version, which jobs there are and
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
    tx.given_ms, waiting, there, ended = await tx.one("enqueue.look", jobs, ids, tx.given_ms)
    return EnqueueFacts(waiting, there, ended)


async def enqueue_plainly(tx: PostgresTransaction, made: UniformRuns, ready_max: int) -> bool:
    """Make all of them in one statement; False: not all can be made, and none was."""
    job_id, due_ms, cause, _, _, priority, group, target, gated, _, _, visible_ms, _ = made.row[1:]
    same = (job_id, due_ms, cause, priority, group, target, gated, visible_ms)
    tx.wakeups |= RUNS
    text = "enqueue.one" if len(made.ids) == 1 else "enqueue.plain"
    try:
        found = await tx.fetch(text, *made.given, *same, ready_max, *tx.notification(()), tx.given_ms)
    except NOT_PLAINLY:
        found = []
    if not found:
        tx.wakeups = 0
        return False
    tx.counters_of(found[0][0])  # whose waiters are woken
    return True


async def enqueue(
    tx: PostgresTransaction,
    made: Sequence[Row],
    notes: Sequence[NotePut],
    ready_max: int,
    unless_live: bool = False,  # noqa: FBT001, FBT002  the verb's
) -> list[RunAnswer]:
    if unless_live:
        await tx.fetch("enqueue.lock_terms")
        await tx.fetch("enqueue.lock_jobs", list({row[JOB] for row in made}))
    facts = await look(tx, made)
    if unless_live:
        answers = [await _accept_unless_live(tx, row, facts, ready_max) for row in made]
    elif max(facts.waiting.values()) + len(made) <= ready_max:
        answers = await accept(tx, made, facts)
    else:
        answers = await _accept_below(tx, made, facts, ready_max)
    tx.add_arrived(arrived(made, answers, facts))
    if notes and any(answer.answer is Answer.OK for answer in answers):
        written: dict[str, None] = {}
        await write_notes(tx, notes, written)
        await add_notes_changed(tx, written)
    return answers


def arrived(made: Sequence[Row], answers: Sequence[RunAnswer], facts: EnqueueFacts) -> list[tuple[int, str]]:
    """Those that were accepted and held (gated), with their version."""
    pairs = zip(made, answers, strict=True)
    at_gate = (row for row, answer in pairs if row[STATE] == HELD and answer.answer is Answer.OK)
    return [(facts.jobs[row[JOB]], row[ID]) for row in at_gate]


async def _accept_unless_live(tx: PostgresTransaction, row: Row, facts: EnqueueFacts, ready_max: int) -> RunAnswer:
    if row[JOB] in facts.jobs and not await known_runs(tx, [row[ID]]):
        live = await tx.fetch_one("enqueue.overlapping", row[JOB], await tx.now())
        if live is not None:
            return RunAnswer(Answer.OVERLAPPED, row[ID], got(live[0]))
    [answer] = await _accept_below(tx, [row], facts, ready_max)
    return answer


async def _accept_below(
    tx: PostgresTransaction, made: Sequence[Row], facts: EnqueueFacts, ready_max: int
) -> list[RunAnswer]:
    """As many as there is room for, in their order; what is known already needs none."""
    known = facts.ended | {row[0] for row in await tx.fetch("enqueue.known", [row[ID] for row in made])}
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
    """Make runs live unless something prevents it.  Of an id that comes twice the first accepted one counts."""
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
    known = facts.ended | {row[0] for row in await tx.fetch("enqueue.known", [row[ID] for row in left])}
    keys = [row[KEY] for row in left if row[KEY] is not None]
    holders = await key_holders(tx, keys)
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
    rows = await tx.fetch("enqueue.add", *packed(made, NULLABLE), await tx.now()) if made else []
    return {row[0]: row[1] for row in rows}


def count_made(tx: PostgresTransaction, made: Sequence[Row]) -> None:
    for version, some in by_version((row[VERSION], row) for row in made).items():
        held = sum(row[STATE] == HELD for row in some)
        counters = tx.counters_of(version)
        counters.held += held
        counters.ready += len(some) - held
        if held < len(some):
            tx.wakeups |= RUNS


async def known_runs(tx: PostgresTransaction, ids: Sequence[str]) -> set[str]:
    """Those that are live or finished."""
    return {row[0] for row in await tx.fetch("enqueue.known", ids)}


# counts


async def counts(tx: PostgresTransaction, all_versions: bool) -> Counts:  # noqa: FBT001  called by position
    return Counts(*await tx.one("counters.counts", None if all_versions else tx.version))


async def lines(tx: PostgresTransaction, before: str | None) -> tuple[QueueDepth, ...]:
    if before is None:
        rows = await tx.fetch("counters.lines", tx.version, tx.given_ms)
    else:
        rows = await tx.fetch("counters.ahead", tx.version, tx.given_ms, before, counted_max(before) + 1)
    return tuple([QueueDepth(*row) for row in rows])


# prune


async def prunable(tx: PostgresTransaction, what: Pruning) -> tuple[bool, str]:
    """Whether there is anything to prune, and the last writers.  Mostly there is nothing, and nothing is locked."""
    times = (what.unchanged_before_ms, what.finished_before_ms, what.dead_before_ms, what.once_before_ms)
    found, writers = await tx.one("prune.any", *times, what.dead_max, what.log_max)
    return bool(found or what.ids or what.version is not None), writers


async def excess_jobs(tx: PostgresTransaction, keep: int, limit: int) -> list[str]:
    """The jobs that have more than so many finished runs.  It walks over all jobs, apart and without locks."""
    return [row[0] for row in await tx.fetch("prune.beyond", keep, limit)]


async def drop_excess(tx: PostgresTransaction, job_ids: list[str], keep: int, limit: int) -> int:
    return count_dropped(tx, await tx.fetch("prune.excess", job_ids, keep, limit))
