"""Consistency check of a SQLite file: every rule of the schema that SQLite itself cannot enforce, row by row.

It runs while other processes work: the file's own check is one read, the counts are compared in one short read,
everything else goes in pages, so that checkpoints can run in between.  What can be repaired without guessing
(counts that can be counted again, indexes that can be built again) is repaired on request, under the write lock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

from pollux.model import SCHEDULER_VERSION
from pollux.store.check_report import ENTRIES_ASIDE, SHOWN_MAX, CheckFinding, CheckReport, Report, finding
from pollux.store.relational import rows
from pollux.store.relational.check import check_feed, check_records, check_rules
from pollux.store.relational.transaction import at_once
from pollux.store.sqlite import schema
from pollux.store.sqlite.errors import as_store_error
from pollux.store.sqlite.lock import WriteLock
from pollux.store.sqlite.transaction import SQL, SqliteTransaction, WriteStats, feed_numbers

LOCK_S = 10.0
BUSY_MS = 5_000
INDEX_ONLY = re.compile(r"(row \d+ missing from index|wrong # of entries in index) ")
COUNTED = ("held", "ready", "leased", "dead", "feed", "ends", "jobs")

_RULES = {
    "single": "a table of one row has another number of them",
    "states": "a run is both live and finished, or neither",
    "finished": "a finished run has no time of its end",
    "leases": "a leased run has no token",
    "orphans": "a run waits for a job that was deleted",
    "buried": "a job is among the deleted ones, too",
    "elsewhere": "a run waits or runs in another version than its job is in",
}


class FileSizes(NamedTuple):
    """How many there are."""

    runs: int
    jobs: int
    notes: int
    log: int


def check(path: Path, report: Report) -> CheckReport:
    """Check everything.  Raises if the file is not a store of Pollux or cannot be opened."""
    with store_errors(), closing(schema.open_reader(path, busy_ms=BUSY_MS)) as connection:
        version = schema.recognise(connection, path)
        tx = SqliteTransaction(connection, WriteStats())
        report("the file", 0, 0)
        findings = _of_file(connection)
        if any(not finding.can_repair for finding in findings):
            return CheckReport(str(path), version, 0, 0, 0, 0, tuple(findings))  # a torn page means nothing
        report("the counts", 0, 0)
        findings += _of_counts(connection, tx)
        findings += at_once(check_rules(tx, _RULES))
        sizes = sizes_of(tx)
        findings += at_once(check_records(tx, rows.run, rows.note, sum(sizes), report))
        findings += at_once(check_feed(tx))
        return CheckReport(str(path), version, *sizes, tuple(findings))


def repair(path: Path) -> None:
    """Count again and build the indexes again, in one write under the write lock; others wait for it."""
    lock = WriteLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(time.monotonic() + LOCK_S)
        with store_errors(), closing(schema.reopen_writer(path, busy_ms=BUSY_MS)) as connection, connection:
            connection.execute("REINDEX")
            tx = SqliteTransaction(connection, WriteStats())
            tx.write(SQL["check.forget"], (ENTRIES_ASIDE,))
            recount(tx)
    finally:
        lock.close()


def recount(tx: SqliteTransaction) -> None:
    """Write what is there into the counts; counters that only rise are never set back."""
    for version in _versions_of(tx):
        tx.counters_of(version)  # it has a row by now
        counted, highest, stored = (
            _counted(tx, version),
            tx.row(SQL["check.highest"]),
            tx.row(SQL["counters.read"], (version,)),
        )
        assert highest is not None
        assert stored is not None
        entries, notes, *rest = stored[len(counted) :]
        if version == SCHEDULER_VERSION:
            entries, notes = max(entries, highest[0]), max(notes, highest[1])
        tx.write(SQL["counters.write"], (*counted, entries, notes, *rest, version))


def _versions_of(tx: SqliteTransaction) -> list[int]:
    return [row[0] for row in tx.rows(SQL["check.versions"])]


def _counted(tx: SqliteTransaction, version: int) -> rows.Row:
    row = tx.row(SQL["check.counted"], (version, *feed_numbers(version)))
    assert row is not None
    return row


def sizes_of(tx: SqliteTransaction) -> FileSizes:
    row = tx.row(SQL["check.sizes"])
    assert row is not None
    return FileSizes(*row)


@contextmanager
def store_errors() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise as_store_error(error) from error


def integrity(connection: apsw.Connection) -> list[str]:
    """What SQLite itself finds wrong with the file; nothing if it is sound."""
    try:
        faults = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    except apsw.CorruptError as error:
        faults = [str(error)]
    return [] if faults == ["ok"] else faults


def _of_file(connection: apsw.Connection) -> list[CheckFinding]:
    faults = integrity(connection)
    if not faults:
        return []
    is_index = all(INDEX_ONLY.match(line) for line in faults)
    what = (
        "an index does not fit its table" if is_index else "the file is damaged; restore a backup, or dump what can be"
    )
    return [CheckFinding("file", what, len(faults), tuple(faults[:SHOWN_MAX]), can_repair=is_index)]


def _of_counts(connection: apsw.Connection, tx: SqliteTransaction) -> list[CheckFinding]:
    """In one read, so that no commit comes between the counts and what they count."""
    with connection:
        wrong = [line for version in _versions_of(tx) for line in _miscounted(tx, version)]
        stored, highest = tx.row(SQL["counters.read"], (SCHEDULER_VERSION,)), tx.row(SQL["check.highest"])
    assert highest is not None
    if stored is None:
        return []  # reported by the rule of single rows
    numbers = zip(("entries of the feed", "revisions of notes"), stored[len(COUNTED) :], highest, strict=False)
    wrong += [f"{name} are numbered to {number}, there is {found}" for name, number, found in numbers if number < found]
    return finding("counts", "a count differs from what is there", wrong, can_repair=True)


def _miscounted(tx: SqliteTransaction, version: int) -> list[str]:
    stored = tx.row(SQL["counters.read"], (version,)) or (0,) * len(COUNTED)
    where = "" if version == SCHEDULER_VERSION else f" in version {version}"
    return [
        f"{name}{where}: {number} are counted, {found} are there"
        for name, number, found in zip(COUNTED, stored, _counted(tx, version), strict=False)
        if number != found
    ]
