"""Which runs are there?  Pages of runs, live ones by due time, then finished ones, newest first.

A cursor is `live:<due>:<id>` or `past:<finished>:<seq>` of the last run of its page, as in SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pollux.model import FINISHED, LIVE
from pollux.store.contract import Counts, RunFilter
from pollux.store.postgres.rows import RUN_COLUMNS_OF_R, Row, put
from pollux.store.postgres.sql import Statements
from pollux.store.postgres.transaction import Transaction
from pollux.store.sqlite.listing import place_of, shelves_of, wants
from pollux.store.sqlite.rows import STATE_NUMBER

_list = Statements("list_runs")
_finish = Statements("finish")
_LIVE_STATES = {STATE_NUMBER[state] for state in LIVE}


class Listed(NamedTuple):
    rows: list[Row]
    next: str | None


async def get_runs(tx: Transaction, ids: Sequence[str]) -> dict[str, Row]:
    return {row[0]: row for row in await tx.rows(_list.get, ids)}


async def counts(tx: Transaction) -> Counts:
    return Counts(*await tx.one(_finish.counts))


async def list_runs(tx: Transaction, where: RunFilter, after: str | None, limit: int) -> Listed:
    """Both tables as of one moment: a run that ends meanwhile is on one of them, not on both and not on none."""
    async with tx.one_moment():
        return await _list_runs(tx, where, after, limit)


async def _list_runs(tx: Transaction, where: RunFilter, after: str | None, limit: int) -> Listed:
    kind, place = place_of(after)
    rows: list[tuple[str, Row]] = []
    if kind == "live" and wants(where, LIVE):
        found = await _live(tx, where, place, limit + 1)
        rows += [(f"live:{row[3]}:{row[1]}", tuple(row)[1:]) for row in found]
    if len(rows) <= limit and wants(where, FINISHED):
        past = await _past(tx, where, place if kind == "past" else None, limit + 1 - len(rows))
        rows += [(f"past:{row[23]}:{row[0]}", tuple(row)[1:]) for row in past]
    return Listed([row for _, row in rows[:limit]], rows[limit - 1][0] if len(rows) > limit else None)


class _Terms:
    """The filter's terms, with their values numbered on from those of the source."""

    def __init__(self, where: RunFilter, values: list[Any]) -> None:
        self.values = values
        self.terms: list[str] = []
        for term, value in (
            ("grp = {}::text", None if where.group is None else put(where.group)),
            ("target = {}::text", None if where.target is None else put(where.target)),
            ("failed = {}::boolean", where.failed),
            ("finished_ms > {}::bigint", where.finished_after_ms),
            ("strpos(error, {}::text) > 0", None if where.error is None else put(where.error)),
        ):
            if value is not None:
                self.add(term, value)

    def add(self, term: str, *values: Any) -> None:
        places = []
        for value in values:
            self.values.append(value)
            places.append(f"${len(self.values)}")
        self.terms.append(term.format(*places))

    def page(self, source: str, order: str, limit: int) -> tuple[str, list[Any]]:
        more = "".join(f" AND {term}" for term in self.terms)
        place = f"${len(self.values) + 1}"
        return f"SELECT r.seq, {RUN_COLUMNS_OF_R} {source}{more} ORDER BY {order} LIMIT {place}::int", [
            *self.values,
            limit,
        ]


async def _live(tx: Transaction, where: RunFilter, after: tuple[int, Any] | None, limit: int) -> list[Row]:
    wanted = {STATE_NUMBER[state] for state in where.states} & _LIVE_STATES or _LIVE_STATES
    terms = _Terms(where, [])
    if where.job_id is not None:
        terms.add("job_id = {}::text", where.job_id)
    if len(wanted) == 1:
        terms.terms.append(f"state = {next(iter(wanted))}")
    elif len(wanted) < len(_LIVE_STATES):
        terms.terms.append(f"state IN ({', '.join(map(str, sorted(wanted)))})")
    if after is not None:
        terms.add("(due_ms, id) > ({}::bigint, {}::text)", *after)
    sql, values = terms.page(_list.live, "due_ms, id", limit)
    return await tx.rows(sql, *values)


async def _past(tx: Transaction, where: RunFilter, before: tuple[int, Any] | None, limit: int) -> list[Row]:
    sources: list[tuple[str, Any]] = [(_list.past, shelf) for shelf in shelves_of(where.states)]
    if where.job_id is not None:
        sources = [(_list.past_of_job, where.job_id), (_list.dead_of_job, where.job_id)]
    rows: list[Row] = []
    for source, value in sources:
        terms = _Terms(where, [value])
        if where.states:
            finished = [STATE_NUMBER[state] for state in where.states if state in FINISHED]
            terms.terms.append(f"state IN ({', '.join(map(str, finished))})")
        if before is not None:
            terms.add("(finished_ms, seq) < ({}::bigint, {}::bigint)", *before)
        sql, values = terms.page(source, "finished_ms DESC, seq DESC", limit)
        rows += await tx.rows(sql, *values)
    rows.sort(key=lambda row: (row[23], row[0]), reverse=True)
    return rows[:limit]
