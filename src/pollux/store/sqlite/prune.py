"""Pruning of finished runs, ended once-jobs and old audit lines, in parts along their indexes."""

from __future__ import annotations

from pollux.store.contract import Pruning
from pollux.store.relational.rows import HISTORY_DEAD, HISTORY_PLAIN, HISTORY_UNCHANGED, Row
from pollux.store.sqlite.jobs import bury
from pollux.store.sqlite.sql import SqliteStatements, ids_json
from pollux.store.sqlite.transaction import SqliteTransaction

_sql = SqliteStatements("prune")


def beyond(tx: SqliteTransaction, keep: int, limit: int) -> list[Row]:
    """What jobs have beyond their newest `keep` that failed and as many others.  It walks over all jobs."""
    rows: list[Row] = []
    for (job_id,) in tx.rows(_sql.beyond, (keep, limit)):
        for failed in (0, 1):
            rows += tx.rows(_sql.excess, (job_id, failed, limit - len(rows), keep))
        if len(rows) >= limit:
            break
    return rows


def drop(tx: SqliteTransaction, rows: list[Row]) -> int:
    """Rows are (seq, history_class) of finished runs; what left meanwhile is not counted."""
    gone = [row for row in rows if tx.write(_sql.drop, (row[0],))]
    tx.shared.dead -= sum(row[1] == HISTORY_DEAD for row in gone)
    return len(gone)


def prune(tx: SqliteTransaction, what: Pruning) -> int:
    """All that can be found along an index; `keep_per_job` cannot."""
    gone = 0
    if what.ids:
        gone += drop(tx, tx.rows(_sql.named, (ids_json(what.ids[: what.limit]),)))
    if what.unchanged_before_ms is not None:
        gone += _drop_old(tx, HISTORY_UNCHANGED, what.unchanged_before_ms, what.limit - gone)
    if what.finished_before_ms is not None:
        gone += _drop_old(tx, HISTORY_UNCHANGED, what.finished_before_ms, what.limit - gone)
        gone += _drop_old(tx, HISTORY_PLAIN, what.finished_before_ms, what.limit - gone)
    if what.once_before_ms is not None and gone < what.limit:
        gone += _drop_spent(tx, what.once_before_ms, what.limit - gone)
    if what.dead_before_ms is not None:
        gone += _drop_old(tx, HISTORY_DEAD, what.dead_before_ms, what.limit - gone)
    if what.dead_max is not None and (excess := min(what.limit - gone, tx.shared.dead - what.dead_max)) > 0:
        gone += drop(tx, tx.rows(_sql.oldest_dead, (excess,)))
    if what.log_max is not None and gone < what.limit:
        gone += tx.write(_sql.log, (max(1, what.log_max), what.limit - gone))
    return gone


def _drop_old(tx: SqliteTransaction, history_class: int, before_ms: int, limit: int) -> int:
    return 0 if limit <= 0 else drop(tx, tx.rows(_sql.old, (history_class, before_ms, limit)))


def _drop_spent(tx: SqliteTransaction, before_ms: int, limit: int) -> int:
    """A once-job stays as long as a run of it lives or can be revived.  Declared anew, it does not fire again."""
    spent = tx.rows(_sql.spent, (before_ms, limit))
    bury(tx, spent)
    return len(spent)
