"""The verbs of the versions: which there are, and forget one."""

from __future__ import annotations

from pollux.model import Counts, Version
from pollux.store.contract import Answer
from pollux.store.sqlite.sql import SqliteStatements
from pollux.store.sqlite.transaction import SqliteTransaction, feed_numbers

_sql = SqliteStatements("versions")


def versions(tx: SqliteTransaction, now_ms: int) -> list[Version]:
    found = tx.rows(_sql.all, (now_ms,))
    return [Version(row[0], Counts(*row[1:8]), row[8], row[9]) for row in found]


def drop_version(tx: SqliteTransaction, number: int, now_ms: int) -> Answer:
    """The number of its term stays: terms only rise."""
    is_there, is_led = tx.row(_sql.stands, (number, now_ms)) or (0, 0)
    if not is_there:
        return Answer.LOST
    counters = tx.counters_of(number)
    if is_led or counters.jobs or counters.held or counters.ready or counters.leased:
        return Answer.CONFLICT
    tx.write(_sql.unread, feed_numbers(number))
    tx.write(_sql.drop, (number,))
    counters.feed = counters.ends = 0
    return Answer.OK
