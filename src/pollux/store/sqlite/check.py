"""Is what the file holds in order?  Every rule of the schema that SQLite itself cannot keep, looked at row by row.

It reads beside those who work: the file's own check is one read, the counts are compared in one short read, everything
else goes in pages, so that the log can be carried over in between.  What can be repaired without guessing (counts that
can be counted again, indexes that can be built again) is, if asked, under the write lock.
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
from msgspec import Struct

from pollux.model import AuditLine, Ended, chained
from pollux.store.relational import rows
from pollux.store.shelf import JobShelf
from pollux.store.sqlite import records as record_verbs
from pollux.store.sqlite import schema
from pollux.store.sqlite.calls import in_our_words
from pollux.store.sqlite.lock import WriteLock
from pollux.store.sqlite.sql import Statements
from pollux.store.sqlite.transaction import Stats, Transaction

SHOWN_MAX = 5
FOUND_MAX = 1_000  # of one rule: beyond that it is "at least"
PAGE = 1_000
LOCK_S = 10.0
BUSY_MS = 5_000
INDEX_ONLY = re.compile(r"(row \d+ missing from index|wrong # of entries in index) ")
COUNTED = ("held", "ready", "leased", "dead", "feed", "ends", "jobs")

Report = Callable[[str, int, int], None]  # what is looked at, how far, of how many (0: unknown)

_sql = Statements("check")
_tally = Statements("tally")
_RULES = {
    "single": "a table of one row has another number of them",
    "shelves": "a run stands among the live and the finished, or in neither",
    "finished": "a finished run does not say when it ended",
    "leases": "a leased run has no token",
    "orphans": "a run waits for a job that is gone",
    "buried": "a job stands among the deleted, too",
}


class Finding(Struct, frozen=True):
    """One rule that does not hold, with the first few that break it."""

    rule: str
    what: str
    count: int
    shown: tuple[str, ...]
    can_repair: bool = False


class Sizes(NamedTuple):
    """How many there are."""

    runs: int
    jobs: int
    notes: int
    log: int


class Checked(Struct, frozen=True):
    """What was looked at, and what is wrong with it."""

    path: str
    schema: int
    runs: int
    jobs: int
    notes: int
    log: int
    findings: tuple[Finding, ...]


def check(path: Path, report: Report) -> Checked:
    """Look at everything.  Raises if the file is not ours or cannot even be opened."""
    with in_words(), closing(schema.open_reader(path, busy_ms=BUSY_MS)) as connection:
        version = schema.recognise(connection, path)
        tx = Transaction(connection, Stats())
        report("the file", 0, 0)
        findings = _of_file(connection)
        if any(not finding.can_repair for finding in findings):
            return Checked(str(path), version, 0, 0, 0, 0, tuple(findings))  # what a torn page says means nothing
        report("the counts", 0, 0)
        findings += _of_counts(connection, tx)
        findings += [finding for rule in _RULES if (finding := _of_rule(tx, rule)) is not None]
        sizes = sizes_of(tx)
        findings += _of_records(tx, sum(sizes), report)
        findings += _of_feed(tx)
        return Checked(str(path), version, *sizes, tuple(findings))


def repair(path: Path) -> None:
    """Count again and build the indexes again, in one write under the write lock; others wait for it."""
    lock = WriteLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(time.monotonic() + LOCK_S)
        with in_words(), closing(schema.reopen_writer(path, busy_ms=BUSY_MS)) as connection, connection:
            connection.execute("REINDEX")
            recount(Transaction(connection, Stats()))
    finally:
        lock.close()


def recount(tx: Transaction) -> None:
    """Write what is there into the counts; counters that only rise are never set back."""
    counted, highest, told = tx.row(_sql.counted), tx.row(_sql.highest), tx.row(_tally.read)
    assert counted is not None
    assert highest is not None
    assert told is not None
    entries, notes, *rest = told[len(counted) :]
    tx.write(_tally.write, (*counted, max(entries, highest[0]), max(notes, highest[1]), *rest))


def sizes_of(tx: Transaction) -> Sizes:
    row = tx.row(_sql.sizes)
    assert row is not None
    return Sizes(*row)


@contextmanager
def in_words() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise in_our_words(error) from error


def integrity(connection: apsw.Connection) -> list[str]:
    """What SQLite itself finds wrong with the file; nothing if it is sound."""
    try:
        said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    except apsw.CorruptError as error:
        said = [str(error)]
    return [] if said == ["ok"] else said


def _of_file(connection: apsw.Connection) -> list[Finding]:
    said = integrity(connection)
    if not said:
        return []
    is_index = all(INDEX_ONLY.match(line) for line in said)
    what = (
        "an index does not fit its table" if is_index else "the file is damaged; restore a backup, or dump what can be"
    )
    return [Finding("file", what, len(said), tuple(said[:SHOWN_MAX]), can_repair=is_index)]


def _of_counts(connection: apsw.Connection, tx: Transaction) -> list[Finding]:
    """In one read, so that nobody's commit comes between the counts and what they count."""
    with connection:
        told, counted, highest = tx.row(_tally.read), tx.row(_sql.counted), tx.row(_sql.highest)
    assert counted is not None
    assert highest is not None
    if told is None:
        return []  # said by the rule of single rows
    wrong = [
        f"{name}: {said} are told, {found} are there"
        for name, said, found in zip(COUNTED, told, counted, strict=False)
        if said != found
    ]
    numbers = zip(("entries of the feed", "revisions of notes"), told[len(counted) :], highest, strict=False)
    wrong += [f"{name} are numbered to {said}, there is {found}" for name, said, found in numbers if said < found]
    what = "a count differs from what is there"
    return [Finding("counts", what, len(wrong), tuple(wrong[:SHOWN_MAX]), can_repair=True)] if wrong else []


def _of_rule(tx: Transaction, rule: str) -> Finding | None:
    found = [str(row[0]) for row in tx.rows(getattr(_sql, rule), (FOUND_MAX,))]
    return Finding(rule, _RULES[rule], len(found), tuple(found[:SHOWN_MAX])) if found else None


def _of_records(tx: Transaction, total: int, report: Report) -> list[Finding]:
    """Every job, run and note can be read, and every line of the audit log follows from the one before."""
    unread: list[str] = []
    chain = _Chain()
    shelf = JobShelf()
    done, after = 0, None
    while True:
        page = record_verbs.dump(tx, after, PAGE)
        for kind, row in page.rows:
            if kind == "log":
                chain.follow(AuditLine(*row))
            elif (error := _unreadable(kind, row, shelf)) is not None:
                unread.append(f"{kind} {row[0]}: {error}")
        done += len(page.rows)
        report("the records", done, total)
        after = page.next
        if after is None:
            break
    findings = [Finding("records", "a record cannot be read", len(unread), tuple(unread[:SHOWN_MAX]))] if unread else []
    return findings + chain.findings()


def _unreadable(kind: str, row: rows.Row, shelf: JobShelf) -> str | None:
    read: dict[str, Callable[[rows.Row], Any]] = {"job": shelf.job, "run": rows.run, "note": rows.note}
    try:
        if kind in read:
            read[kind](row)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        return str(error)
    return None


def _of_feed(tx: Transaction) -> list[Finding]:
    wrong: list[str] = []
    after = 0
    while page := tx.rows(_sql.feed, (after, PAGE)):
        after = page[-1][0]
        for number, ends, body in page:
            try:
                entry = rows.decode_entry(body)
            except msgspec.DecodeError as error:
                wrong.append(f"{number}: {error}")
                continue
            found = len(entry.ends) if isinstance(entry, Ended) else 0
            if found != ends:
                wrong.append(f"{number}: {ends} ends are told, {found} are in it")
    return (
        [Finding("feed", "an entry of the feed cannot be read", len(wrong), tuple(wrong[:SHOWN_MAX]))] if wrong else []
    )


class _Chain:
    """The audit log: numbered without a gap, each line with the hash over it and all before."""

    def __init__(self) -> None:
        self._seq, self._chain = 0, ""
        self._wrong: list[str] = []

    def follow(self, line: AuditLine) -> None:
        if line.seq != self._seq + 1:
            self._wrong.append(f"line {line.seq} follows line {self._seq}")
        elif chained(line, before=self._chain) != line.chain:
            self._wrong.append(f"line {line.seq} was changed after it was written")
        self._seq, self._chain = line.seq, line.chain

    def findings(self) -> list[Finding]:
        what = "the audit log was changed or cut"
        return [Finding("audit", what, len(self._wrong), tuple(self._wrong[:SHOWN_MAX]))] if self._wrong else []
