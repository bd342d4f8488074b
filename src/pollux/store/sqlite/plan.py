"""Verbs of the leader: read the feed, write a plan."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import PREVIOUS_RUN, UNREAD_MAX, Advanced, Answer, Earlier, End, JobUpdate, Plan
from pollux.store.relational.nodes import is_current
from pollux.store.relational.notes import write_notes
from pollux.store.relational.plan import (
    ENOUGH,
    Firings,
    JobAdvance,
    JobFacts,
    LiveRun,
    LiveRuns,
    WaitingRun,
    jobs_that_look,
    keys_of,
    latest,
    let_alone,
    looking_behind,
    note_unread,
)
from pollux.store.relational.rows import Row, memory_json
from pollux.store.relational.runs import ask_to_stop, cancel_ordered, cancel_waiting
from pollux.store.relational.wakeup import RUNS
from pollux.store.sqlite.runs import insert, key_holder, known_runs, overlap_bounds
from pollux.store.sqlite.transaction import SQL, SqliteTransaction, feed_numbers, ids_json


async def feed(tx: SqliteTransaction, limit: int, known: Sequence[int]) -> list[Row]:
    """The oldest entries; those that are known come without their body."""
    return tx.rows(SQL["feed.read"], (limit, ids_json(known), *feed_numbers(tx.version)))


async def advance(tx: SqliteTransaction, term: int, plan: Plan, made: Sequence[Row]) -> Advanced:
    """`made` are the rows of the plan's firings."""
    now_ms = tx.given_ms
    if not await is_current(tx, term):
        return Advanced(Answer.FENCED, now_ms)
    ends: list[tuple[int, End]] = []
    firings = await _fire(tx, plan, made, ends, now_ms) if plan.firings else ()
    if plan.firings:
        tx.counters.clock_ms = max(tx.counters.clock_ms, now_ms, *[firing.run.visible_ms for firing in plan.firings])
    if plan.earlier:
        _bring_forward(tx, plan.earlier)
    waiting = _release_all(tx, plan, now_ms) if plan.releases else ()
    if plan.holds:
        tx.write_many(SQL["advance.hold"], [(holding.reason, holding.run_id, tx.version) for holding in plan.holds])
    if plan.cancels:
        await cancel_ordered(tx, plan.cancels)
    updates = _update(tx, plan.updates, now_ms) if plan.updates else ()
    if plan.consumed:
        _consume(tx, plan, plan.kept(updates))
    await write_notes(tx, plan.notes, {})
    tx.add_ends(ends)
    return Advanced(Answer.OK, now_ms, firings, updates, tx.counters.ready, _seats(tx), waiting)


def _seats(tx: SqliteTransaction) -> int:
    """Of the living nodes that serve this version."""
    [row] = tx.rows(SQL["nodes.seats"], (tx.given_ms, tx.version))
    return int(row[0])


def _consume(tx: SqliteTransaction, plan: Plan, kept: frozenset[int]) -> None:
    """Delete entries.  One that was inserted by hand was never counted: a count that may be wrong is taken anew.

    One that is too low would hide unread ends from the firings.
    """
    numbers, counters = feed_numbers(tx.version), tx.counters
    gone = tx.rows(
        SQL["advance.consume"], (ids_json([number for number in plan.consumed if number not in kept]), *numbers)
    )
    counters.feed -= len(gone)
    counters.ends -= sum(row[0] for row in gone)
    if plan.spoilt or counters.feed < 0 or counters.ends < 0:
        counters.feed, counters.ends = tx.rows(SQL["advance.left"], numbers)[0]


async def _fire(
    tx: SqliteTransaction, plan: Plan, made: Sequence[Row], ends: list[tuple[int, End]], now_ms: int
) -> tuple[Answer, ...]:
    firings = plan.firings
    bounds = overlap_bounds(tx.counters, now_ms)
    ids = ids_json(list({firing.run.job_id for firing in firings}))
    facts = {row[0]: JobFacts(*row[1:]) for row in tx.rows(SQL["advance.facts"], (ids, tx.version, *bounds))}
    if tx.counters.ends and jobs_that_look(firings, facts):
        note_unread(_unread(tx, plan.known), facts)
    known = known_runs(tx, [firing.run.id for firing in firings])
    keys = [key for key in keys_of(made) if key_holder(tx, key)]
    read, counted = looking_behind(firings, facts)
    how = (PREVIOUS_RUN, ENOUGH, *bounds)
    live = [LiveRun._make(row) for job_id in read for row in tx.rows(SQL["advance.live"], (job_id, *how))]
    crowds = {
        job_id: LiveRuns._make(row) for job_id in counted for row in tx.rows(SQL["advance.crowd"], (job_id, *how))
    }
    fired = Firings(tx.version, facts, known, keys, live, crowds, now_ms)
    answers = tuple([fired.fire(firing, row) for firing, row in zip(firings, made, strict=True)])
    for each in fired.rounds:
        new = [run.id for run, _ in each.ended if not run.seq]
        made_now = known_runs(tx, new) if new else {}
        ended = [(run.seq or made_now[run.id], *run[1:]) for run, _ in each.ended]
        ends += await cancel_waiting(tx, ended, [reason for _, reason in each.ended])
        await ask_to_stop(tx, [seq for seq, _ in each.asked], [reason for _, reason in each.asked])
        insert(tx, each.made)
    _move(tx, fired.moved)
    return answers


def _unread(tx: SqliteTransaction, known: Sequence[int]) -> list[bytes]:
    """The ends that came after the plan had read the feed; first without the texts, of which there may be many."""
    if not tx.counters.ends:
        return []
    found = latest(tx.rows(SQL["advance.unread"], (UNREAD_MAX, ids_json(known), *feed_numbers(tx.version))))
    return [row[0] for row in tx.rows(SQL["advance.bodies"], (ids_json(found),))] if found else []


def _move(tx: SqliteTransaction, moved: dict[int, JobAdvance]) -> None:
    plain = [(at.last_due_ms, at.next_due_ms, n) for n, at in moved.items() if not at.has_memory]
    taught = [(*at[:2], *at[3:], n) for n, at in moved.items() if at.has_memory]
    for sql, rows in ((SQL["advance.move"], plain), (SQL["advance.skip"], taught)):
        if rows:
            tx.write_many(sql, rows)


def _bring_forward(tx: SqliteTransaction, earlier: Sequence[Earlier]) -> None:
    if tx.write_many(SQL["advance.earlier"], [(each.visible_ms, each.run_id, tx.version) for each in earlier]):
        tx.wakeups |= RUNS


def _release_all(tx: SqliteTransaction, plan: Plan, now_ms: int) -> tuple[str, ...]:
    """Those that are to begin alone come last; answers which of them wait on."""
    _release(tx, [release.run_id for release in plan.releases if not release.alone], now_ms)
    alone = [release.run_id for release in plan.releases if release.alone]
    if not alone:
        return ()
    asked = (ids_json(alone), tx.version, PREVIOUS_RUN, *overlap_bounds(tx.counters, now_ms))
    held = [WaitingRun._make(row) for row in tx.rows(SQL["advance.alone"], asked)]
    going, staying = let_alone(alone, held, _unread(tx, plan.known) if held else ())
    _release(tx, going, now_ms)
    new = [run.id for run in staying if not run.is_behind]
    tx.write_many(SQL["advance.hold"], [(PREVIOUS_RUN, run_id, tx.version) for run_id in new])
    return tuple([run.id for run in staying])


def _release(tx: SqliteTransaction, ids: Sequence[str], now_ms: int) -> None:
    released = tx.write_many(SQL["advance.release"], [(now_ms, run_id, tx.version) for run_id in ids])
    if released:
        tx.counters.held -= released
        tx.counters.ready += released
        tx.wakeups |= RUNS


def _update(tx: SqliteTransaction, updates: Sequence[JobUpdate], now_ms: int) -> tuple[Answer, ...]:
    rows = [
        (
            update.next_due_ms,
            update.last_due_ms,
            memory_json(update.memory),
            update.memory.last_end_ms,
            update.job_id,
            update.revision,
            tx.version,
        )
        for update in updates
    ]
    if tx.write_many(SQL["advance.update"], rows) == len(rows):
        return (Answer.OK,) * len(rows)
    ids = ids_json(list({update.job_id for update in updates}))
    found = tx.rows(SQL["advance.facts"], (ids, tx.version, *overlap_bounds(tx.counters, now_ms)))
    revisions = {row[0]: row[2] for row in found}
    return tuple(Answer.OK if revisions.get(update.job_id) == update.revision else Answer.STALE for update in updates)
