"""The verbs of the records: the audit log, dump and load.

A dump goes through the kinds in an order that can be loaded: jobs stand before their runs.  Its cursor is
`<kind> <place>` of the last record of its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from pollux.model import (
    LIVE,
    AuditLine,
    Job,
    Note,
    NotePut,
    Run,
    RunState,
    chained,
)
from pollux.store.records import Record, dump_place, entries_of
from pollux.store.sqlite.bell import RUNS
from pollux.store.sqlite.notes import set_note
from pollux.store.sqlite.rows import (
    DEAD,
    HELD,
    READY,
    STATE_NUMBER,
    Row,
    definition_json,
    job_row,
    memory_json,
    run_row,
    shelf_of,
)
from pollux.store.sqlite.sql import Statements
from pollux.store.sqlite.transaction import Transaction

LAST = 2**63 - 1  # no line has a higher number
KINDS = ("term", "job", "run", "note", "log")

_log = Statements("log")
_dump = Statements("dump")
_load = Statements("load")
_put_jobs = Statements("put_jobs")
_elect = Statements("elect")


class Dumped(NamedTuple):
    """Raw rows by kind, and the cursor of the next page."""

    rows: list[tuple[str, Row]]
    next: str | None


def log(tx: Transaction, lines: Sequence[AuditLine]) -> None:
    seq, chain = tx.row(_log.last) or (0, "")
    rows = []
    for line in lines:
        seq += 1
        chain = chained(replace(line, seq=seq, chain=""), before=chain)
        rows.append((seq, line.at_ms, line.actor, line.action, line.subject, line.detail, chain))
    if rows:
        tx.write_many(_log.add, rows)


def read_log(tx: Transaction, after: int, limit: int) -> list[Row]:
    return tx.rows(_log.read, (after, limit))


def newest_log(tx: Transaction, before: int, limit: int) -> list[Row]:
    """The last lines, or the last before a number, newest first."""
    return tx.rows(_log.before, (before or LAST, limit))


def dump(tx: Transaction, after: str | None, limit: int) -> Dumped:
    kind, place = dump_place(after, KINDS)
    rows: list[tuple[str, str, Row]] = []
    for each in KINDS[KINDS.index(kind) if kind else 0 :]:
        rows += _of_kind(tx, each, place if each == kind else "", limit + 1 - len(rows))
        if len(rows) > limit:
            at = rows[limit - 1]
            return Dumped([(row[0], row[2]) for row in rows[:limit]], f"{at[0]} {at[1]}")
    return Dumped([(row[0], row[2]) for row in rows], None)


def _of_kind(tx: Transaction, kind: str, place: str, limit: int) -> list[tuple[str, str, Row]]:
    """Rows with their kind and place."""
    match kind:
        case "term":
            return [] if place else [(kind, "1", row) for row in tx.rows(_elect.stands)]
        case "job":
            return [(kind, row[0], row) for row in tx.rows(_dump.job, (place, limit))]
        case "run":
            return [(kind, str(row[0]), row[1:]) for row in tx.rows(_dump.run, (int(place or 0), limit))]
        case "note":
            return [(kind, row[0], row) for row in tx.rows(_dump.note, (place, limit))]
        case _:
            return [(kind, str(row[5]), row) for row in tx.rows(_dump.log, (int(place or 0), limit))]


def load(tx: Transaction, records: Sequence[Record]) -> int:
    new = [record for record in records if _load_one(tx, record)]
    for entry in entries_of(new):
        tx.tell(entry)
    return len(new)


def _load_one(tx: Transaction, record: Record) -> bool:
    match record:
        case Job():
            return _load_job(tx, record)
        case Run():
            return _load_run(tx, record)
        case Note():
            return _load_note(tx, record)
        case AuditLine():
            return _load_line(tx, record)
        case _:
            return _load_term(tx, record)


def _load_job(tx: Transaction, job: Job) -> bool:
    leaders = (job.next_due_ms, job.last_due_ms, memory_json(job.memory), job.memory.last_end_ms)
    if not tx.write(_load.job, (*job_row(job, job.revision, definition_json(job)), *leaders)):
        return False
    tx.write(_put_jobs.forget_tomb, (job.id,))
    tx.tally.jobs += 1
    return True


def _load_run(tx: Transaction, run: Run) -> bool:
    if run.state is RunState.LEASED:
        run = replace(run, state=RunState.READY, token="", owner="", lease_until_ms=0)
    is_live = run.state in LIVE
    if not tx.write(_load.run, (*run_row(run), None if is_live else shelf_of(run))):
        return False
    tx.tally.held += STATE_NUMBER[run.state] == HELD
    tx.tally.ready += STATE_NUMBER[run.state] == READY
    tx.tally.dead += STATE_NUMBER[run.state] == DEAD
    if run.state is RunState.READY:
        tx.rings |= RUNS
    return True


def _load_note(tx: Transaction, note: Note) -> bool:
    if tx.row(_load.has_note, (note.key,)):
        return False
    set_note(tx, NotePut(note.key, note.value, expires_ms=note.expires_ms), note.revision)
    return True


def _load_line(tx: Transaction, line: AuditLine) -> bool:
    last, _ = tx.row(_log.last) or (0, "")
    if line.seq <= last:
        return False
    row = (line.seq, line.at_ms, line.actor, line.action, line.subject, line.detail, line.chain)
    return bool(tx.write(_log.add, row))


def _load_term(tx: Transaction, number: int) -> bool:
    row = tx.row(_elect.stands)
    assert row is not None
    if number <= row[0]:
        return False
    tx.write(_elect.write, (number, "", 0, 0))
    return True
