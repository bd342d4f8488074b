"""The verbs of the records: the audit log, dump and load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from pollux.model import LIVE, AuditLine, Job, Note, NotePut, Run, RunState
from pollux.store.contract import Audit
from pollux.store.dump_format import Record, TermRecord, Tombstone, entries_of, next_lines
from pollux.store.relational.records import LAST, RecordPage, RecordRow, dumped, kinds_from, without_lease
from pollux.store.relational.rows import Row, definition_json, history_class_of, job_row, memory_json, run_row
from pollux.store.relational.wakeup import RUNS
from pollux.store.sqlite.notes import set_note, tell_all
from pollux.store.sqlite.sql import SqliteStatements
from pollux.store.sqlite.transaction import SqliteTransaction

_log = SqliteStatements("log")
_dump = SqliteStatements("dump")
_load = SqliteStatements("load")
_put_jobs = SqliteStatements("put_jobs")
_elect = SqliteStatements("elect")
_versions = SqliteStatements("versions")
T = TypeVar("T")


def recorded(tx: SqliteTransaction, audit: Audit[T] | None, answer: T) -> T:
    """The answer to a write, with the lines that tell of it in the log."""
    if audit is not None:
        log(tx, audit(answer))
    return answer


def log(tx: SqliteTransaction, lines: Sequence[AuditLine]) -> None:
    if lines:
        seq, chain = tx.row(_log.last) or (0, "")
        tx.insert(_log.add, [_line_row(line) for line in next_lines(lines, seq, chain)])


def _line_row(line: AuditLine) -> Row:
    return (line.seq, line.at_ms, line.actor, line.action, line.subject, line.detail, line.chain)


def read_log(tx: SqliteTransaction, after: int, limit: int) -> list[Row]:
    return tx.rows(_log.read, (after, limit))


def newest_log(tx: SqliteTransaction, before: int, limit: int) -> list[Row]:
    """The last lines, or the last before a number, newest first."""
    return tx.rows(_log.before, (before or LAST, limit))


def dump(tx: SqliteTransaction, after: str | None, limit: int) -> RecordPage:
    found: list[RecordRow] = []
    for kind, place in kinds_from(after):
        found += _of_kind(tx, kind, place, limit + 1 - len(found))
        if len(found) > limit:
            break
    return dumped(found, limit)


def _of_kind(tx: SqliteTransaction, kind: str, place: str, limit: int) -> list[RecordRow]:
    match kind:
        case "term":
            return [RecordRow(kind, str(row[1]), row) for row in tx.rows(_dump.term, (int(place or 0),))]
        case "job":
            return [RecordRow(kind, row[0], row) for row in tx.rows(_dump.job, (place, limit))]
        case "run":
            return [RecordRow(kind, str(row[0]), row[1:]) for row in tx.rows(_dump.run, (int(place or 0), limit))]
        case "note":
            return [RecordRow(kind, row[0], row) for row in tx.rows(_dump.note, (place, limit))]
        case "log":
            return [RecordRow(kind, str(row[5]), row) for row in tx.rows(_dump.log, (int(place or 0), limit))]
        case _:
            return [RecordRow(kind, str(row[0]), row[1:]) for row in tx.rows(_dump.tomb, (int(place or 0), limit))]


def load(tx: SqliteTransaction, records: Sequence[Record]) -> int:
    new = [loaded for loaded in (_load_one(tx, record) for record in records) if loaded is not None]
    for version, entry in entries_of(new):
        if version is None:
            tell_all(tx, entry)
        else:
            tx.tell(version, entry)
    return len(new)


def _load_one(tx: SqliteTransaction, record: Record) -> Record | None:
    """As it is here now; None if it was there already."""
    match record:
        case Run():
            return _load_run(tx, record)
        case Job():
            is_new = _load_job(tx, record)
        case Note():
            is_new = _load_note(tx, record)
        case AuditLine():
            is_new = _load_line(tx, record)
        case TermRecord():
            is_new = _load_term(tx, record)
        case Tombstone():
            is_new = bool(tx.write(_load.tomb, (record.id, record.revision, record.last_due_ms)))
    return record if is_new else None


def _load_job(tx: SqliteTransaction, job: Job) -> bool:
    leaders = (job.next_due_ms, job.last_due_ms, memory_json(job.memory), job.memory.last_end_ms)
    version = job.scheduler_version
    if not tx.write(_load.job, (*job_row(job, job.revision, definition_json(job)), *leaders, version)):
        return False
    tx.write(_put_jobs.forget_tomb, (job.id,))
    tx.counters_of(version).jobs += 1
    tx.write(_versions.use, (version,))
    return True


def _load_run(tx: SqliteTransaction, run: Run) -> Run | None:
    """A live one goes where its job is."""
    run = without_lease(run)
    is_live = run.state in LIVE
    if is_live and (there := tx.row(_load.version, (run.job_id,))) is not None:
        run = replace(run, scheduler_version=there[0])
    if not tx.write(_load.run, (*run_row(run), None if is_live else history_class_of(run))):
        return None
    counters = tx.counters_of(run.scheduler_version)
    counters.held += run.state is RunState.HELD
    counters.ready += run.state is RunState.READY
    tx.shared.dead += run.state is RunState.DEAD
    if run.state is RunState.READY:
        tx.rings |= RUNS
    return run


def _load_note(tx: SqliteTransaction, note: Note) -> bool:
    if tx.row(_load.has_note, (note.key,)):
        return False
    set_note(tx, NotePut(note.key, note.value, expires_ms=note.expires_ms), note.revision)
    return True


def _load_line(tx: SqliteTransaction, line: AuditLine) -> bool:
    last, _ = tx.row(_log.last) or (0, "")
    if line.seq <= last:
        return False
    return bool(tx.write(_log.add, _line_row(line)))


def _load_term(tx: SqliteTransaction, term: TermRecord) -> bool:
    tx.counters_of(term.scheduler_version)
    row = tx.row(_elect.stands, (term.scheduler_version,))
    assert row is not None
    if term.number <= row[0]:
        return False
    tx.write(_elect.write, (term.number, "", 0, 0, term.scheduler_version))
    return True
