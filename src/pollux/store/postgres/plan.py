"""Verbs of the leader: read the feed, write a plan."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import PREVIOUS_RUN, UNREAD_MAX, Advanced, Answer, Earlier, End, JobUpdate, Overlap, Plan
from pollux.store.postgres.errors import AGAIN
from pollux.store.postgres.rows import columns, put
from pollux.store.postgres.runs import insert, known_runs
from pollux.store.postgres.transaction import PostgresTransaction
from pollux.store.relational.notes import write_notes
from pollux.store.relational.plan import (
    ENOUGH,
    Firings,
    JobFacts,
    LiveRun,
    LiveRuns,
    WaitingRun,
    keys_of,
    let_alone,
    looking_behind,
    note_unread,
)
from pollux.store.relational.rows import ID, Row, memory_json
from pollux.store.relational.runs import ask_to_stop, cancel_ordered, cancel_waiting, key_holders
from pollux.store.relational.wakeup import RUNS


async def feed(tx: PostgresTransaction, limit: int, known: Sequence[int]) -> list[Row]:
    """(now, id, body) of the oldest entries; those that are known come without their body."""
    return await tx.fetch("feed.read", limit, known, tx.given_ms, tx.version)


def only_learns(plan: Plan) -> bool:
    """Nothing fires, no run is touched, and the counts can be believed; no job is remembered twice."""
    does_more = plan.moves_runs or plan.notes or plan.spoilt
    return not does_more and len({update.job_id for update in plan.updates}) == len(plan.updates)


async def learn(tx: PostgresTransaction, term: int, plan: Plan) -> Advanced | None:
    """Such a plan in one statement; None: it conflicted with other writes and was undone."""
    rows = sorted(
        (
            each.job_id,
            each.revision,
            each.next_due_ms,
            each.last_due_ms,
            memory_json(each.memory),
            each.memory.last_end_ms,
        )
        for each in plan.updates
    )
    teaching = sorted((each.job_id, number) for each in plan.updates for number, _ in each.memory.learnt)
    try:
        given = (tx.given_ms, tx.version, term, plan.consumed, *columns(rows, 6), *columns(teaching, 2))
        found = await tx.one("advance.learn", *given)
    except AGAIN:
        return None
    is_ours, now_ms, ready, seats, learnt = found
    if not is_ours:
        return Advanced(Answer.FENCED, now_ms)
    there = set(learnt)
    updates = tuple([Answer.OK if each.job_id in there else Answer.STALE for each in plan.updates])
    return Advanced(Answer.OK, now_ms, (), updates, ready, seats)


async def advance(tx: PostgresTransaction, term: int, plan: Plan, made: Sequence[Row]) -> Advanced:
    """`made` are the rows of the plan's firings."""
    number, holder, now_ms, ready, seats = await tx.one("advance.term", tx.given_ms, tx.version)
    tx.given_ms = now_ms
    if number != term or not holder:
        return Advanced(Answer.FENCED, now_ms)
    facts = await _facts(tx, plan, now_ms)
    updates = tuple([_judged(update, facts) for update in plan.updates])
    if plan.consumed:
        await _consume(tx, plan, plan.kept(updates))
    ends: list[tuple[int, End]] = []
    firings = await _fire(tx, plan, made, facts, ends, now_ms) if plan.firings else ()
    if plan.firings:
        tx.counters.clock_ms = max(now_ms, *[firing.run.visible_ms for firing in plan.firings])
    if plan.earlier:
        await _bring_forward(tx, plan.earlier)
    waiting = await _release_all(tx, plan, now_ms) if plan.releases else ()
    if plan.holds:
        held = {holding.run_id: put(holding.reason) for holding in plan.holds}
        await tx.fetch("advance.hold", list(held), list(held.values()), tx.version)
    if plan.cancels:
        await cancel_ordered(tx, plan.cancels)
        tx.forget_made({order.run_id for order in plan.cancels})
    await _update(tx, [each for each, answer in zip(plan.updates, updates, strict=True) if answer is Answer.OK])
    await write_notes(tx, plan.notes, {})
    tx.add_ends(ends)
    return Advanced(Answer.OK, now_ms, firings, updates, ready + tx.counters.ready, seats, waiting)


async def _consume(tx: PostgresTransaction, plan: Plan, kept: frozenset[int]) -> None:
    """An entry that was inserted by hand was never counted: after it the counts are taken anew."""
    gone = await tx.fetch("advance.consume", [number for number in plan.consumed if number not in kept], tx.version)
    entries, ends = -len(gone), -sum(row[0] for row in gone)
    if plan.spoilt:
        entries, ends = await tx.one("advance.miscounted", tx.version)
    tx.counters.feed += entries
    tx.counters.ends += ends


async def _facts(tx: PostgresTransaction, plan: Plan, now_ms: int) -> dict[str, JobFacts]:
    """Of all jobs that the plan moves, locked until this write ends."""
    ids = {firing.run.job_id for firing in plan.firings} | {update.job_id for update in plan.updates}
    if not ids:
        return {}
    looks = any(firing.overlap is not Overlap.ALLOW for firing in plan.firings)
    rows = await tx.fetch("advance.facts", list(ids), tx.version, looks, plan.known, UNREAD_MAX, now_ms)
    facts = {row[0]: JobFacts(*list(row)[1:5]) for row in rows if row[0] is not None}
    note_unread([row[5] for row in rows if row[0] is None], facts)
    return facts


async def _fire(
    tx: PostgresTransaction,
    plan: Plan,
    made: Sequence[Row],
    facts: dict[str, JobFacts],
    ends: list[tuple[int, End]],
    now_ms: int,
) -> tuple[Answer, ...]:
    known = await known_runs(tx, [row[ID] for row in made])
    keys = await key_holders(tx, keys_of(made))
    read, counted = looking_behind(plan.firings, facts)
    rows = await tx.fetch("advance.live", read, PREVIOUS_RUN, ENOUGH, now_ms) if read else []
    crowds = await tx.fetch("advance.crowds", counted, PREVIOUS_RUN, ENOUGH, now_ms) if counted else []
    live, around = [LiveRun._make(row) for row in rows], {row[0]: LiveRuns(row[1], row[2]) for row in crowds}
    fired = Firings(tx.version, facts, known, keys, live, around, now_ms)
    answers = tuple([fired.fire(firing, row) for firing, row in zip(plan.firings, made, strict=True)])
    numbers: dict[str, int] = {}
    for each in fired.rounds:
        ended = [(numbers.get(run.id, run.seq), *run[1:]) for run, _ in each.ended]
        ends += await cancel_waiting(tx, ended, [reason for _, reason in each.ended])
        tx.forget_made({run.id for run, _ in each.ended})
        await ask_to_stop(tx, [seq for seq, _ in each.asked], [reason for _, reason in each.asked])
        numbers |= await insert(tx, each.made)
    if fired.moved:
        await tx.fetch("advance.move", *columns([(n, *at) for n, at in fired.moved.items()], 6))
    return answers


async def _bring_forward(tx: PostgresTransaction, earlier: Sequence[Earlier]) -> None:
    times = {each.run_id: each.visible_ms for each in earlier}
    if await tx.fetch("advance.earlier", list(times), list(times.values()), tx.version):
        tx.wakeups |= RUNS


async def _release_all(tx: PostgresTransaction, plan: Plan, now_ms: int) -> tuple[str, ...]:
    """Those that are to begin alone come last; answers which of them wait on.

    First the live runs are read, then the unread ends: a run that ends in between is in one of both.
    """
    others = [release.run_id for release in plan.releases if not release.alone]
    alone = [release.run_id for release in plan.releases if release.alone]
    if others:
        await _release(tx, others, now_ms)
    found = await tx.fetch("advance.alone", alone, tx.version, PREVIOUS_RUN, now_ms) if alone else []
    held = [WaitingRun._make(row) for row in found]
    if not held:
        return ()
    looks = True
    unread = await tx.fetch("advance.facts", [], tx.version, looks, plan.known, UNREAD_MAX, now_ms)
    going, staying = let_alone(alone, held, [row[5] for row in unread])
    if going:
        await _release(tx, going, now_ms)
    new = [run.id for run in staying if not run.is_behind]
    if new:
        await tx.fetch("advance.hold", new, [PREVIOUS_RUN] * len(new), tx.version)
    return tuple([run.id for run in staying])


async def _release(tx: PostgresTransaction, ids: Sequence[str], now_ms: int) -> None:
    released = len(await tx.fetch("advance.release", ids, now_ms, tx.version))
    if released:
        tx.counters.held -= released
        tx.counters.ready += released
        tx.wakeups |= RUNS


def _judged(update: JobUpdate, facts: dict[str, JobFacts]) -> Answer:
    there = facts.get(update.job_id)
    return Answer.OK if there is not None and there.revision == update.revision else Answer.STALE


async def _update(tx: PostgresTransaction, updates: Sequence[JobUpdate]) -> None:
    rounds: list[dict[str, Row]] = []  # of a job that comes twice the second is written after the first
    for update in updates:
        if not rounds or update.job_id in rounds[-1]:
            rounds.append({})
        learnt = (memory_json(update.memory), update.memory.last_end_ms)
        rounds[-1][update.job_id] = (update.job_id, update.next_due_ms, update.last_due_ms, *learnt)
    for each in rounds:
        await tx.fetch("advance.update", *columns(list(each.values()), 5))
