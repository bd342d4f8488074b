"""Pages of runs: live ones by due time, then finished ones, newest first.

A page is read along the one index that fits its filter and holds its order, and merged here where two are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pollux.model import FINISHED, LIVE, QueueDepth
from pollux.store.backend import Page
from pollux.store.contract import Counts, RunFilter
from pollux.store.limits import counted_max
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
from pollux.store.relational.rows import RUN_COLUMNS, Row
from pollux.store.sqlite.transaction import SqliteStatements, SqliteTransaction, ids_json
from pollux.store.values import PRIORITIES

_get = SqliteStatements("get_runs")
_list = SqliteStatements("list_runs")
_versions = SqliteStatements("versions")
_NOWHERE = (0, 0, 0)  # the place of a run that is not ready: nothing is ahead of it
_BEHIND_ALL = 2**62  # ms


def get_runs(tx: SqliteTransaction, ids: Sequence[str]) -> dict[str, Row]:
    return {row[0]: row for row in tx.rows(_get.get, (ids_json(ids),))}


def counts(tx: SqliteTransaction, all_versions: bool = False) -> Counts:  # noqa: FBT001, FBT002  called by position
    row = tx.row(_versions.counts, (None if all_versions else tx.version,))
    assert row is not None
    return Counts(*row)


def lines(tx: SqliteTransaction, before: str | None, now_ms: int) -> tuple[QueueDepth, ...]:
    place = (max(PRIORITIES) + 1, 0, 0) if before is None else tx.row(_versions.place, (before,)) or _NOWHERE
    now, most = (now_ms + 1, 0), counted_max(before) + 1
    found = [tx.row(_versions.queue, (tx.version, each, *min(now, _end(each, *place)), most)) for each in PRIORITIES]
    return tuple([QueueDepth(*row) for row in found if row is not None])


def _end(priority: int, placed: int, visible_ms: int, seq: int) -> tuple[int, int]:
    """Up to where a queue is counted for a place: one of higher priority to its end, one of lower not at all."""
    if priority == placed:
        return visible_ms, seq
    return (_BEHIND_ALL, 0) if priority < placed else (-_BEHIND_ALL, 0)


def list_runs(tx: SqliteTransaction, where: RunFilter, after: str | None, limit: int) -> Page:
    kind, place = place_of(after)
    live: list[Row] = []
    past: list[Row] = []
    if kind == "live" and wants(where, LIVE):
        live = _live(tx, where, place, limit + 1)
    if len(live) <= limit and wants(where, FINISHED):
        past = _history(tx, where, place if kind == "past" else None, limit + 1 - len(live))
    return listed(live, past, limit)


def _live(tx: SqliteTransaction, where: RunFilter, after: Place | None, limit: int) -> list[Row]:
    wanted = live_states(where)
    if where.job_id is not None:
        sql, bindings = _list.live_of_job, [where.job_id]
    elif wanted == {0}:
        sql, bindings = _list.held, []
    elif wanted == {2}:
        sql, bindings = _list.leased, []
    else:
        sql, bindings = _list.live, []
    terms, values = _terms(where)
    if len(wanted) < len(LIVE_STATES):
        terms.append(f"+state IN ({', '.join(map(str, sorted(wanted)))})")
    if after is not None:
        terms.append("(due_ms, id) > (?, ?)")
        values += after
    return tx.rows(_page(sql, terms, "due_ms, id"), (*bindings, *values, limit))


def _history(tx: SqliteTransaction, where: RunFilter, before: Place | None, limit: int) -> list[Row]:
    terms, values = _terms(where)
    if where.states:
        terms.append(f"+state IN ({', '.join(map(str, finished_states(where)))})")
    if before is not None:
        terms.append("(finished_ms, seq) < (?, ?)")
        values += before
    order = "finished_ms DESC, seq DESC"
    sources: list[tuple[str, Any]] = [
        (_list.history, history_class) for history_class in history_classes_of(where.states)
    ]
    if where.job_id is not None:
        sources = [(_list.history_of_job, where.job_id), (_list.dead_of_job, where.job_id)]
    rows: list[Row] = []
    for source, value in sources:
        rows += tx.rows(_page(source, terms, order), (value, *values, limit))
    return newest(rows, limit)


def _terms(where: RunFilter) -> tuple[list[str], list[Any]]:
    terms: list[str] = []
    values: list[Any] = []
    for term, value in (
        ("grp = ?", where.group),
        ("target = ?", where.target),
        ("failed = ?", where.failed),
        ("+version = ?", where.scheduler_version),
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
