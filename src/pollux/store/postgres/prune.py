"""Pruning of finished runs, ended once-jobs and old audit lines, in parts along their indexes."""

from __future__ import annotations

from pollux.store.contract import Pruning
from pollux.store.postgres.jobs import bury
from pollux.store.postgres.sql import PostgresStatements
from pollux.store.postgres.transaction import JOBS_LOCK, PostgresTransaction
from pollux.store.postgres.versions import drop_version
from pollux.store.relational.rows import HISTORY_DEAD, HISTORY_PLAIN, HISTORY_UNCHANGED, Row

_sql = PostgresStatements("prune")


async def look(tx: PostgresTransaction, what: Pruning) -> tuple[bool, str]:
    """Whether anything may go, and who wrote last.  Most of the time there is nothing, and nothing is locked."""
    times = (what.unchanged_before_ms, what.finished_before_ms, what.dead_before_ms, what.once_before_ms)
    found, writers = await tx.one(_sql.any, *times, what.dead_max, what.log_max)
    return bool(found or what.ids or what.version is not None), writers


async def prune(tx: PostgresTransaction, what: Pruning) -> int:
    """All that can be found along an index; `keep_per_job` cannot."""
    if what.version is not None:
        return await drop_version(tx, what.version)
    gone = 0
    if what.ids:
        gone += _count(tx, await tx.rows(_sql.named, what.ids[: what.limit]))
    if what.unchanged_before_ms is not None:
        gone += await _drop_old(tx, HISTORY_UNCHANGED, what.unchanged_before_ms, what.limit - gone)
    if what.finished_before_ms is not None:
        gone += await _drop_old(tx, HISTORY_UNCHANGED, what.finished_before_ms, what.limit - gone)
        gone += await _drop_old(tx, HISTORY_PLAIN, what.finished_before_ms, what.limit - gone)
    if what.once_before_ms is not None and gone < what.limit:
        gone += await _drop_spent(tx, what.once_before_ms, what.limit - gone)
    if what.dead_before_ms is not None:
        gone += await _drop_old(tx, HISTORY_DEAD, what.dead_before_ms, what.limit - gone)
    if what.dead_max is not None and gone < what.limit:
        rows = await tx.rows(_sql.oldest_dead, what.dead_max, what.limit - gone, tx.shared.dead)
        gone += _count(tx, rows)
    if what.log_max is not None and gone < what.limit:
        gone += len(await tx.rows(_sql.log, max(1, what.log_max), what.limit - gone))
    return gone


async def beyond(tx: PostgresTransaction, keep: int, limit: int) -> list[str]:
    """The jobs that have more than so many finished runs.  It walks over all jobs, apart and without locks."""
    return [row[0] for row in await tx.rows(_sql.beyond, keep, limit)]


async def drop_excess(tx: PostgresTransaction, job_ids: list[str], keep: int, limit: int) -> int:
    return _count(tx, await tx.rows(_sql.excess, job_ids, keep, limit))


def _count(tx: PostgresTransaction, rows: list[Row]) -> int:
    tx.shared.dead -= sum(row[0] == HISTORY_DEAD for row in rows)
    return len(rows)


async def _drop_old(tx: PostgresTransaction, history_class: int, before_ms: int, limit: int) -> int:
    return 0 if limit <= 0 else _count(tx, await tx.rows(_sql.old, history_class, before_ms, limit))


async def _drop_spent(tx: PostgresTransaction, before_ms: int, limit: int) -> int:
    """A once-job stays as long as a run of it lives or can be revived.  Declared anew, it does not fire again."""
    await tx.lock(JOBS_LOCK)
    spent = await tx.rows(_sql.spent, before_ms, limit)
    await bury(tx, spent)
    return len(spent)
