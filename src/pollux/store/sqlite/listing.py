"""Which runs are there?  Pages of runs, live ones by due time, then finished ones, newest first.

A page is read along the one index that fits its filter and holds its order, and merged here where two are needed.
A cursor is `live:<due>:<id>` or `past:<finished>:<seq>` of the last run of its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pollux.errors import InvalidInput
from pollux.model import FINISHED, LIVE, RunState
from pollux.store.contract import Counts, RunFilter
from pollux.store.sqlite.rows import (
    RUN_COLUMNS,
    SHELF_DEAD,
    SHELF_PLAIN,
    SHELF_UNCHANGED,
    STATE_NUMBER,
    Row,
    ids_json,
)
from pollux.store.sqlite.sql import Statements
from pollux.store.sqlite.transaction import Transaction

_get = Statements("get_runs")
_list = Statements("list_runs")
_tally = Statements("tally")

_LIVE_STATES = {STATE_NUMBER[state] for state in LIVE}


class Listed(NamedTuple):
    """Rows of `RUN_COLUMNS`, and the cursor of the next page."""

    rows: list[Row]
    next: str | None


def get_runs(tx: Transaction, ids: Sequence[str]) -> dict[str, Row]:
    return {row[0]: row for row in tx.rows(_get.get, (ids_json(ids),))}


def counts(tx: Transaction) -> Counts:
    row = tx.row(_tally.read)
    assert row is not None
    return Counts(*row[:7])


def list_runs(tx: Transaction, where: RunFilter, after: str | None, limit: int) -> Listed:
    kind, place = place_of(after)
    rows: list[tuple[str, Row]] = []
    if kind == "live" and wants(where, LIVE):
        rows += [(f"live:{row[3]}:{row[1]}", row[1:]) for row in _live(tx, where, place, limit + 1)]
    if len(rows) <= limit and wants(where, FINISHED):
        past = _past(tx, where, place if kind == "past" else None, limit + 1 - len(rows))
        rows += [(f"past:{row[23]}:{row[0]}", row[1:]) for row in past]
    return Listed([row for _, row in rows[:limit]], rows[limit - 1][0] if len(rows) > limit else None)


def place_of(after: str | None) -> tuple[str, tuple[int, Any] | None]:
    if after is None:
        return "live", None
    kind, _, place = after.partition(":")
    number, _, rest = place.partition(":")
    try:
        if kind == "live":
            return kind, (int(number), rest)
        if kind == "past":
            return kind, (int(number), int(rest))
    except ValueError:
        pass
    raise InvalidInput(f"{after!r} is no place in a list of runs", cure="use what the page before answered as next")


def wants(where: RunFilter, states: frozenset[RunState]) -> bool:
    return not where.states or not states.isdisjoint(where.states)


def _live(tx: Transaction, where: RunFilter, after: tuple[int, str] | None, limit: int) -> list[Row]:
    wanted = {STATE_NUMBER[state] for state in where.states} & _LIVE_STATES or _LIVE_STATES
    if where.job_id is not None:
        sql, bindings = _list.live_of_job, [where.job_id]
    elif wanted == {0}:
        sql, bindings = _list.held, []
    elif wanted == {2}:
        sql, bindings = _list.leased, []
    else:
        sql, bindings = _list.live, []
    terms, values = _terms(where)
    if len(wanted) < len(_LIVE_STATES):
        terms.append(f"+state IN ({', '.join(map(str, sorted(wanted)))})")
    if after is not None:
        terms.append("(due_ms, id) > (?, ?)")
        values += after
    return tx.rows(_page(sql, terms, "due_ms, id"), (*bindings, *values, limit))


def _past(tx: Transaction, where: RunFilter, before: tuple[int, int] | None, limit: int) -> list[Row]:
    terms, values = _terms(where)
    finished = [STATE_NUMBER[state] for state in where.states if state in FINISHED]
    if where.states:
        terms.append(f"+state IN ({', '.join(map(str, finished))})")
    if before is not None:
        terms.append("(finished_ms, seq) < (?, ?)")
        values += before
    order = "finished_ms DESC, seq DESC"
    sources: list[tuple[str, Any]] = [(_list.past, shelf) for shelf in shelves_of(where.states)]
    if where.job_id is not None:
        sources = [(_list.past_of_job, where.job_id), (_list.dead_of_job, where.job_id)]
    rows: list[Row] = []
    for source, value in sources:
        rows += tx.rows(_page(source, terms, order), (value, *values, limit))
    rows.sort(key=lambda row: (row[23], row[0]), reverse=True)
    return rows[:limit]


def shelves_of(states: Sequence[RunState]) -> list[int]:
    if not states:
        return [SHELF_PLAIN, SHELF_UNCHANGED, SHELF_DEAD]
    shelves = [SHELF_DEAD] if RunState.DEAD in states else []
    if RunState.DONE in states:
        return [SHELF_PLAIN, SHELF_UNCHANGED, *shelves]
    return [SHELF_PLAIN, *shelves] if RunState.CANCELLED in states else shelves


def _terms(where: RunFilter) -> tuple[list[str], list[Any]]:
    terms: list[str] = []
    values: list[Any] = []
    for term, value in (
        ("grp = ?", where.group),
        ("target = ?", where.target),
        ("failed = ?", where.failed),
        ("finished_ms > ?", where.finished_after_ms),
        ("instr(error, ?)", where.error),
    ):
        if value is not None:
            terms.append(term)
            values.append(value)
    return terms, values


def _page(source: str, terms: Sequence[str], order: str) -> str:
    more = "".join(f" AND {term}" for term in terms)
    return f"SELECT seq, {RUN_COLUMNS} {source}{more} ORDER BY {order} LIMIT ?"
