"""The verbs of the versions: which there are, and forget one."""

from __future__ import annotations

from pollux.model import SCHEDULER_VERSION, Counts, Version
from pollux.store.postgres.sql import PostgresStatements
from pollux.store.postgres.transaction import JOBS_LOCK, PostgresTransaction
from pollux.store.postgres.wakeup import Pulse
from pollux.store.relational.wakeup import WAKE

_sql = PostgresStatements("versions")


async def ensure(tx: PostgresTransaction, version: int) -> None:
    """It can be counted; whether it is there is another matter."""
    await tx.rows(_sql.ensure, version)


async def pulse(tx: PostgresTransaction) -> Pulse:
    """Another one after every write of anybody's, since each changes a count; and how often all were called back."""
    writers, wakes = await tx.one(_sql.pulse)
    return writers, wakes


async def wake(tx: PostgresTransaction) -> None:
    """Those that listen are rung, the others see it in the counts."""
    await tx.rows(_sql.wake, SCHEDULER_VERSION)
    tx.rings |= WAKE


async def versions(tx: PostgresTransaction) -> list[Version]:
    found = await tx.rows(_sql.all, tx.given_ms)
    return [Version(row[0], Counts(*row[1:8]), row[8], row[9]) for row in found]


async def drop_version(tx: PostgresTransaction, number: int) -> int:
    """Forget a version that nothing uses; 1 if it was there.  The number of its term stays: terms only rise."""
    await tx.lock(JOBS_LOCK)
    is_there, is_led = await tx.row(_sql.stands, number, tx.given_ms) or (False, False)
    if not is_there or is_led or (await tx.one(_sql.left, number))[0]:
        return 0
    await tx.rows(_sql.drop, number)
    return 1
