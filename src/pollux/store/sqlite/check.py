"""Consistency check of a SQLite file: every rule of the schema that SQLite itself cannot enforce, row by row.

It runs while other processes work: the file's own check is one read, the counts are compared in one short read,
everything else goes in pages, so that checkpoints can run in between.  What can be repaired without guessing
(counts that can be counted again, indexes that can be built again) is repaired on request, under the write lock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from pollux.model import SCHEDULER_VERSION, AuditLine, Note
from pollux.store.check_report import (
    ENTRIES_ASIDE,
    FOUND_MAX,
    NOTED,
    SHOWN_MAX,
    AuditChainCheck,
    CheckFinding,
    CheckReport,
    Report,
    check_ends,
    finding,
    noted_findings,
)
from pollux.store.job_cache import JobCache
from pollux.store.relational import rows
from pollux.store.sqlite import records as record_verbs
from pollux.store.sqlite import schema
from pollux.store.sqlite.errors import as_store_error
from pollux.store.sqlite.lock import WriteLock
from pollux.store.sqlite.transaction import SqliteStatements, SqliteTransaction, WriteStats, feed_numbers

PAGE = 1_000
LOCK_S = 10.0
BUSY_MS = 5_000
INDEX_ONLY = re.compile(r"(row \d+ missing from index|wrong # of entries in index) ")
COUNTED = ("held", "ready", "leased", "dead", "feed", "ends", "jobs")

_sql = SqliteStatements("check")
_counters = SqliteStatements("counters")
_RULES = {
    "single": "a table of one row has another number of them",
    "states": "a run stands among the live and the finished, or in neither",
    "finished": "a finished run does not say when it ended",
    "leases": "a leased run has no token",
    "orphans": "a run waits for a job that is gone",
    "buried": "a job stands among the deleted, too",
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
        findings += [finding for rule in _RULES if (finding := _of_rule(tx, rule)) is not None]
        sizes = sizes_of(tx)
        findings += _of_records(tx, sum(sizes), report)
        findings += _of_feed(tx)
        return CheckReport(str(path), version, *sizes, tuple(findings))


def repair(path: Path) -> None:
    """Count again and build the indexes again, in one write under the write lock; others wait for it."""
    lock = WriteLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(time.monotonic() + LOCK_S)
        with store_errors(), closing(schema.reopen_writer(path, busy_ms=BUSY_MS)) as connection, connection:
            connection.execute("REINDEX")
            tx = SqliteTransaction(connection, WriteStats())
            tx.write(_sql.forget, (ENTRIES_ASIDE,))
            recount(tx)
    finally:
        lock.close()


def recount(tx: SqliteTransaction) -> None:
    """Write what is there into the counts; counters that only rise are never set back."""
    for version in _versions_of(tx):
        tx.counters_of(version)  # it has a row by now
        counted, highest, stored = _counted(tx, version), tx.row(_sql.highest), tx.row(_counters.read, (version,))
        assert highest is not None
        assert stored is not None
        entries, notes, *rest = stored[len(counted) :]
        if version == SCHEDULER_VERSION:
            entries, notes = max(entries, highest[0]), max(notes, highest[1])
        tx.write(_counters.write, (*counted, entries, notes, *rest, version))


def _versions_of(tx: SqliteTransaction) -> list[int]:
    return [row[0] for row in tx.rows(_sql.versions)]


def _counted(tx: SqliteTransaction, version: int) -> rows.Row:
    row = tx.row(_sql.counted, (version, *feed_numbers(version)))
    assert row is not None
    return row


def sizes_of(tx: SqliteTransaction) -> FileSizes:
    row = tx.row(_sql.sizes)
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
        stored, highest = tx.row(_counters.read, (SCHEDULER_VERSION,)), tx.row(_sql.highest)
    assert highest is not None
    if stored is None:
        return []  # reported by the rule of single rows
    numbers = zip(("entries of the feed", "revisions of notes"), stored[len(COUNTED) :], highest, strict=False)
    wrong += [f"{name} are numbered to {number}, there is {found}" for name, number, found in numbers if number < found]
    return finding("counts", "a count differs from what is there", wrong, can_repair=True)


def _miscounted(tx: SqliteTransaction, version: int) -> list[str]:
    stored = tx.row(_counters.read, (version,)) or (0,) * len(COUNTED)
    where = "" if version == SCHEDULER_VERSION else f" in version {version}"
    return [
        f"{name}{where}: {number} are told, {found} are there"
        for name, number, found in zip(COUNTED, stored, _counted(tx, version), strict=False)
        if number != found
    ]


def _of_rule(tx: SqliteTransaction, rule: str) -> CheckFinding | None:
    found = [str(row[0]) for row in tx.rows(getattr(_sql, rule), (FOUND_MAX,))]
    return CheckFinding(rule, _RULES[rule], len(found), tuple(found[:SHOWN_MAX])) if found else None


def _of_records(tx: SqliteTransaction, total: int, report: Report) -> list[CheckFinding]:
    """Every job, run and note can be read, and every line of the audit log follows from the one before."""
    unread, noted = list[str](), list[Note]()
    chain = AuditChainCheck()
    cache = JobCache()
    done, after = 0, None
    while True:
        page = record_verbs.dump(tx, after, PAGE)
        for kind, row in page.rows:
            if kind == "log":
                chain.follow(AuditLine(*row))
            elif (error := _unreadable(kind, row, cache)) is not None:
                unread.append(f"{kind} {row[0]}: {error}")
            elif kind == "note" and row[0].startswith(NOTED):
                noted.append(rows.note(row))
        done += len(page.rows)
        report("the records", done, total)
        after = page.next
        if after is None:
            break
    return finding("records", "a record cannot be read", unread) + noted_findings(noted) + chain.findings()


def _unreadable(kind: str, row: rows.Row, cache: JobCache) -> str | None:
    read: dict[str, Callable[[rows.Row], Any]] = {"job": cache.job, "run": rows.run, "note": rows.note}
    try:
        if kind in read:
            read[kind](row)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        return str(error)
    return None


def _of_feed(tx: SqliteTransaction) -> list[CheckFinding]:
    wrong: list[str] = []
    after = 0
    while page := tx.rows(_sql.feed, (after, PAGE)):
        after = page[-1][0]
        for number, ends, body in page:
            try:
                check_ends(rows.decode_entry(body), ends)
            except (msgspec.DecodeError, ValueError) as error:
                wrong.append(f"{number}: {error}")
    return finding("feed", "an entry of the feed cannot be read", wrong)
