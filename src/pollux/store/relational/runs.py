"""Verbs of runs: cancel, revive, get, list.

A page of runs has the live ones by due time, then the finished ones, newest first.  It is read along the one index that
fits its filter and holds its order, and merged here where two are needed.  A cursor is `live:<due>:<id>` or
`past:<finished>:<seq>` of the last run of its page.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from pollux.errors import InvalidInput
from pollux.model import AT_THE_GATE, FINISHED, LIVE, CancelOrder, End, RunState
from pollux.store.backend import Page
from pollux.store.contract import Answer, RunAnswer, RunFilter
from pollux.store.relational.feed_entries import end_unrun
from pollux.store.relational.rows import (
    CANCELLED,
    FINISHED_MS,
    HELD,
    HISTORY_DEAD,
    HISTORY_PLAIN,
    HISTORY_UNCHANGED,
    LEASED,
    READY,
    STATE_NUMBER,
    Row,
)
from pollux.store.relational.transaction import Transaction, TransactionRetry
from pollux.store.relational.wakeup import ASKED, RUNS

LIVE_STATES = frozenset(STATE_NUMBER[state] for state in LIVE)
Place = tuple[int, Any]


async def get_runs(tx: Transaction, ids: Sequence[str]) -> dict[str, Row]:
    return {row[0]: row for row in await tx.fetch("runs.get", list(ids))}


# cancel


async def cancel(tx: Transaction, run_ids: Sequence[str], job_id: str | None, reason: str) -> list[RunAnswer]:
    if job_id is not None:
        of_job = [run_id for _, run_id in sorted([tuple(row) for row in await tx.fetch("cancel.of_job", job_id)])]
        run_ids = [*run_ids, *(run_id for run_id in of_job if run_id not in set(run_ids))]
    found: dict[str, Row] = {row[2]: row for row in await tx.fetch("cancel.found", list(run_ids))}
    missing = [run_id for run_id in run_ids if run_id not in found]
    ended = {row[0]: row[1] for row in await tx.fetch("cancel.ended", missing)} if missing else {}
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
    tx.add_ends(await cancel_waiting(tx, waiting, [reason] * len(waiting)))
    return answers


async def ask_to_stop(tx: Transaction, seqs: Sequence[int], reasons: Sequence[str]) -> None:
    """Write a request beside each lease."""
    if seqs:
        whys = [tx.put(reason or "cancelled") for reason in reasons]
        await tx.write_rows("cancel.ask", [*zip(seqs, whys, strict=True)])
        tx.wakeups |= ASKED


async def cancel_waiting(tx: Transaction, rows: Sequence[Row], reasons: Sequence[str]) -> list[tuple[int, End]]:
    """Runs end here that no node runs.  Rows are (seq, state, id, job_id, due_ms, cause, gated, version, ...)."""
    if not rows:
        return []
    now_ms = await tx.now()
    whys = [reason or "cancelled" for reason in reasons]
    await tx.write_rows("cancel.finish", [(row[0], tx.put(why)) for row, why in zip(rows, whys, strict=True)], now_ms)
    ends: list[tuple[int, End]] = []
    for row, why in zip(rows, whys, strict=True):
        counters = tx.counters_of(row[7])
        counters.held -= row[1] == HELD
        counters.ready -= row[1] == READY
        counters.leased -= row[1] == LEASED
        ends.append((row[7], end_unrun(tuple(row[2:7]), RunState.CANCELLED, now_ms, error=why)))
    return ends


async def cancel_ordered(tx: Transaction, orders: Sequence[CancelOrder]) -> None:
    """As `cancel`, without a feed entry: the leader knows what it did itself.  Other versions are left alone."""
    reasons: dict[str, str] = {}
    for order in orders:
        reasons.setdefault(order.run_id, order.reason)
    found = [row for row in await tx.fetch("cancel.found", list(reasons)) if row[7] == tx.version]
    waiting = [row for row in found if row[1] != LEASED]
    await cancel_waiting(tx, waiting, [reasons[row[2]] for row in waiting])
    asked = [row for row in found if row[1] == LEASED and not row[8]]
    await ask_to_stop(tx, [row[0] for row in asked], [reasons[row[2]] for row in asked])


# revive


async def revive(tx: Transaction, run_ids: Sequence[str]) -> list[RunAnswer]:
    now_ms = await tx.now()
    found: dict[str, Row] = {row[0]: row for row in await tx.fetch("revive.found", list(run_ids))}
    jobs = await versions_of(tx, {row[4] for row in found.values()}) if found else {}
    asked = [found[run_id] for run_id in dict.fromkeys(run_ids) if run_id in found and found[run_id][4] in jobs]
    back: set[str] = set()
    if asked:
        places = [(row[1], jobs[row[4]]) for row in asked]
        back = {row[0] for row in await tx.write_rows("revive.revive", places, AT_THE_GATE, now_ms)}
    keys = [row[3] for row in asked if row[0] not in back and row[3] is not None]
    holders = await key_holders(tx, keys)
    answers = []
    for run_id in run_ids:
        row = found.get(run_id)
        answers.append(_revived(tx, run_id, row, jobs, back, holders))
        if answers[-1].answer is Answer.OK:
            del found[run_id]
    _count_revived(tx, [(jobs[row[4]], row) for row in asked if row[0] in back])
    return answers


async def versions_of(tx: Transaction, job_ids: Iterable[str]) -> dict[str, int]:
    """Which of these jobs are there, and in which version; they stay until this write ends."""
    return {row[0]: row[1] for row in await tx.fetch("enqueue.jobs", [*job_ids])}


async def key_holders(tx: Transaction, keys: Sequence[str]) -> dict[str, str]:
    """The live runs that have these keys, by key."""
    return {row[0]: row[1] for row in await tx.fetch("enqueue.holders", list(keys))} if keys else {}


def _count_revived(tx: Transaction, back: Sequence[tuple[int, Row]]) -> None:
    tx.shared.dead -= len(back)
    for version, (_, _, gated, *_) in back:
        counters = tx.counters_of(version)
        counters.held += gated
        counters.ready += not gated
        tx.wakeups |= 0 if gated else RUNS
    tx.add_arrived([(version, row[0]) for version, row in back if row[2]])


def _revived(
    tx: Transaction,
    run_id: str,
    row: Row | None,
    jobs: Container[str],
    back: Container[str],
    holders: Mapping[str, str],
) -> RunAnswer:
    if row is None:
        return RunAnswer(Answer.LOST, run_id)
    if row[4] not in jobs:
        return RunAnswer(Answer.STALE, run_id)
    if run_id in back:
        return RunAnswer(Answer.OK, run_id)
    if row[3] not in holders:  # it ended just now, and the key is free
        raise TransactionRetry
    return RunAnswer(Answer.CONFLICT, run_id, tx.got(holders[row[3]]))


# list


async def list_runs(tx: Transaction, where: RunFilter, after: str | None, limit: int) -> Page:
    """As of one moment: a run that ends meanwhile is live or finished on it, not both and not neither."""
    kind, place = _place_of(after)
    live: list[Row] = []
    past: list[Row] = []
    async with tx.one_moment():
        if kind == "live" and _wants(where, LIVE):
            live = await _live(tx, where, place, limit + 1)
        if len(live) <= limit and _wants(where, FINISHED):
            past = await _history(tx, where, place if kind == "past" else None, limit + 1 - len(live))
    places = [f"live:{row[3]}:{row[1]}" for row in live] + [f"past:{row[1 + FINISHED_MS]}:{row[0]}" for row in past]
    rows = [tuple(row)[1:] for row in (*live, *past)]
    return Page(rows[:limit], places[limit - 1] if len(rows) > limit else None)


def _place_of(after: str | None) -> tuple[str, Place | None]:
    if after is None:
        return "live", None
    kind, _, place = after.partition(":")
    number, _, rest = place.partition(":")
    try:
        if kind == "live":
            return kind, (_int64(number), rest)
        if kind == "past":
            return kind, (_int64(number), _int64(rest))
    except ValueError:
        pass
    raise InvalidInput(f"{after!r} is no place in a list of runs", cure="use what the page before answered as next")


def _int64(text: str) -> int:
    """A number that a column can hold."""
    number = int(text)
    if abs(number) >= 2**63:
        raise ValueError(text)
    return number


def _wants(where: RunFilter, states: frozenset[RunState]) -> bool:
    return not where.states or not states.isdisjoint(where.states)


class _RunQuery:
    """A source of `runs.sql`, which is a whole statement, with the terms of a filter behind it."""

    def __init__(self, tx: Transaction, source: str, values: Sequence[Any], where: RunFilter) -> None:
        self._tx, self._source = tx, source
        self._values, self._terms = list(values), list[str]()
        for term, value in (
            ("grp = {}", None if where.group is None else tx.put(where.group)),
            ("target = {}", None if where.target is None else tx.put(where.target)),
            ("failed = {}", where.failed),
            (f"{tx.no_index}version = {{}}", where.scheduler_version),
            ("finished_ms > {}", where.finished_after_ms),
            (tx.contains("error"), None if where.error is None else tx.put(where.error)),
        ):
            if value is not None:
                self.add(term, value)

    def add(self, term: str, *values: Any) -> None:
        first = len(self._values) + 1
        self._values += values
        self._terms.append(term.format(*[self._tx.place(first + n) for n in range(len(values))]))

    def add_states(self, states: Sequence[int]) -> None:
        self._terms.append(f"{self._tx.no_index}state IN ({', '.join(map(str, sorted(states)))})")

    async def page(self, order: str, limit: int) -> list[Row]:
        self._values.append(limit)
        terms = f" WHERE {' AND '.join(self._terms)}" if self._terms else ""
        source = self._tx.text(self._source)
        place = self._tx.place(len(self._values))
        sql = f"SELECT * FROM ({source}) AS page{terms} ORDER BY {order} LIMIT {place}"  # noqa: S608  places alone
        return await self._tx.fetch_text(sql, self._values)


async def _live(tx: Transaction, where: RunFilter, after: Place | None, limit: int) -> list[Row]:
    wanted = frozenset(STATE_NUMBER[state] for state in where.states) & LIVE_STATES or LIVE_STATES
    source, values = "runs.live", list[Any]()
    if where.job_id is not None:
        source, values = "runs.live_of_job", [where.job_id]
    elif wanted == {HELD}:
        source = "runs.held"
    elif wanted == {LEASED}:
        source = "runs.leased"
    query = _RunQuery(tx, source, values, where)
    if len(wanted) < len(LIVE_STATES):
        query.add_states([*wanted])
    if after is not None:
        query.add("(due_ms, id) > ({}, {})", *after)
        if source == "runs.held":  # an index may hold the times alone
            query.add("due_ms >= {}", after[0])
    return await query.page("due_ms, id", limit)


async def _history(tx: Transaction, where: RunFilter, before: Place | None, limit: int) -> list[Row]:
    sources: list[tuple[str, Any]] = [("runs.history", each) for each in _history_classes(where.states)]
    if where.job_id is not None:
        sources = [("runs.history_of_job", where.job_id), ("runs.dead_of_job", where.job_id)]
    rows: list[Row] = []
    for source, value in sources:
        query = _RunQuery(tx, source, [value], where)
        if where.states:
            query.add_states([STATE_NUMBER[state] for state in where.states if state in FINISHED])
        if before is not None:
            query.add("(finished_ms, seq) < ({}, {})", *before)
        rows += await query.page("finished_ms DESC, seq DESC", limit)
    rows.sort(key=lambda row: (row[1 + FINISHED_MS], row[0]), reverse=True)
    return rows[:limit]


def _history_classes(states: Sequence[RunState]) -> list[int]:
    if not states:
        return [HISTORY_PLAIN, HISTORY_UNCHANGED, HISTORY_DEAD]
    classes = [HISTORY_DEAD] if RunState.DEAD in states else []
    if RunState.DONE in states:
        return [HISTORY_PLAIN, HISTORY_UNCHANGED, *classes]
    return [HISTORY_PLAIN, *classes] if RunState.CANCELLED in states else classes
