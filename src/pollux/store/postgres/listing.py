"""Pages of runs: live ones by due time, then finished ones, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pollux.model import FINISHED, LIVE, QueueDepth
from pollux.store.backend import Page
from pollux.store.contract import Counts, RunFilter
from pollux.store.limits import counted_max
from pollux.store.postgres.rows import LIVE_COLUMNS, RUN_COLUMNS_OF_R, put
from pollux.store.postgres.sql import PostgresStatements
from pollux.store.postgres.transaction import PostgresTransaction
from pollux.store.relational.listing import (
    LIVE_STATES,
    Place,
    finished_states,
    history_classes_of,
    listed,
    live_states,
    newest,
    place_of,
    wants,
)
from pollux.store.relational.rows import HELD, LEASED, Row

_list = PostgresStatements("list_runs")
_finish = PostgresStatements("finish")


async def get_runs(tx: PostgresTransaction, ids: Sequence[str]) -> dict[str, Row]:
    return {row[0]: row for row in await tx.rows(_list.get, ids)}


async def counts(tx: PostgresTransaction, all_versions: bool) -> Counts:  # noqa: FBT001  called by position
    return Counts(*await tx.one(_finish.counts, None if all_versions else tx.version))


async def lines(tx: PostgresTransaction, before: str | None) -> tuple[QueueDepth, ...]:
    if before is None:
        rows = await tx.rows(_finish.lines, tx.version, tx.given_ms)
    else:
        rows = await tx.rows(_finish.ahead, tx.version, tx.given_ms, before, counted_max(before) + 1)
    return tuple([QueueDepth(*row) for row in rows])


async def list_runs(tx: PostgresTransaction, where: RunFilter, after: str | None, limit: int) -> Page:
    """Both tables as of one moment: a run that ends meanwhile is on one of them, not on both and not on none."""
    async with tx.one_moment():
        return await _list_runs(tx, where, after, limit)


async def _list_runs(tx: PostgresTransaction, where: RunFilter, after: str | None, limit: int) -> Page:
    kind, place = place_of(after)
    live: list[Row] = []
    past: list[Row] = []
    if kind == "live" and wants(where, LIVE):
        live = await _live(tx, where, place, limit + 1)
    if len(live) <= limit and wants(where, FINISHED):
        past = await _history(tx, where, place if kind == "past" else None, limit + 1 - len(live))
    return listed(live, past, limit)


class _Conditions:
    """The filter's terms, with their values numbered on from those of the source."""

    def __init__(self, where: RunFilter, values: list[Any], at: str) -> None:
        self.values = values
        self.terms: list[str] = []
        for term, value in (
            ("r.grp = {}::text", None if where.group is None else put(where.group)),
            ("r.target = {}::text", None if where.target is None else put(where.target)),
            ("r.failed = {}::boolean", where.failed),
            (f"{at}.version = {{}}::smallint", where.scheduler_version),
            ("r.finished_ms > {}::bigint", where.finished_after_ms),
            ("strpos(r.error, {}::text) > 0", None if where.error is None else put(where.error)),
        ):
            if value is not None:
                self.add(term, value)

    def add(self, term: str, *values: Any) -> None:
        places = []
        for value in values:
            self.values.append(value)
            places.append(f"${len(self.values)}")
        self.terms.append(term.format(*places))

    def page(self, columns: str, source: str, order: str, limit: int) -> tuple[str, list[Any]]:
        more = "".join(f" AND {term}" for term in self.terms)
        place = f"${len(self.values) + 1}"
        return f"SELECT r.seq, {columns} {source}{more} ORDER BY {order} LIMIT {place}::int", [*self.values, limit]


async def _live(tx: PostgresTransaction, where: RunFilter, after: Place | None, limit: int) -> list[Row]:
    """By due time along `runs`; the held ones along an index of their own; the leased ones, which are few, sorted."""
    wanted = live_states(where)
    due, order = "r.due_ms", "r.due_ms, r.id"
    if wanted == {HELD}:
        due, order = "q.due_ms", "q.due_ms, r.id"
    elif wanted == {LEASED}:
        order = "r.due_ms + 0, r.id"
    terms = _Conditions(where, [], "q")
    if where.job_id is not None:
        terms.add("r.job_id = {}::text", where.job_id)
    if len(wanted) == 1:
        terms.terms.append(f"q.state = {next(iter(wanted))}")
    elif len(wanted) < len(LIVE_STATES):
        terms.terms.append(f"q.state IN ({', '.join(map(str, sorted(wanted)))})")
    if after is not None:
        terms.add(f"({due}, r.id) > ({{}}::bigint, {{}}::text)", *after)
        terms.add(f"{due} >= {{}}::bigint", after[0])
    sql, values = terms.page(LIVE_COLUMNS, _list.live, order, limit)
    return await tx.rows(sql, *values)


async def _history(tx: PostgresTransaction, where: RunFilter, before: Place | None, limit: int) -> list[Row]:
    sources: list[tuple[str, Any]] = [
        (_list.history, history_class) for history_class in history_classes_of(where.states)
    ]
    if where.job_id is not None:
        sources = [(_list.history_of_job, where.job_id), (_list.dead_of_job, where.job_id)]
    rows: list[Row] = []
    for source, value in sources:
        terms = _Conditions(where, [value], "r")
        if where.states:
            terms.terms.append(f"state IN ({', '.join(map(str, finished_states(where)))})")
        if before is not None:
            terms.add("(finished_ms, seq) < ({}::bigint, {}::bigint)", *before)
        sql, values = terms.page(RUN_COLUMNS_OF_R, source, "finished_ms DESC, seq DESC", limit)
        rows += await tx.rows(sql, *values)
    return newest(rows, limit)
