"""Verbs of the records: prune, the audit log, dump and load."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pollux.model import LIVE, AuditLine, Job, Note, NotePut, Run, RunState
from pollux.store.backend import Page
from pollux.store.contract import Pruning
from pollux.store.dump_format import Record, TermRecord, Tombstone, entries_of, next_lines
from pollux.store.relational.records import LAST, RecordRow, dumped, kinds_from, log_page, without_lease
from pollux.store.relational.rows import (
    HISTORY_DEAD,
    HISTORY_PLAIN,
    HISTORY_UNCHANGED,
    Row,
    definition_json,
    history_class_of,
    job_row,
    memory_json,
    run_row,
)
from pollux.store.relational.wakeup import RUNS
from pollux.store.sqlite.jobs import bury
from pollux.store.sqlite.nodes import drop_version
from pollux.store.sqlite.notes import add_to_all, set_note
from pollux.store.sqlite.transaction import SqliteStatements, SqliteTransaction, ids_json

_log = SqliteStatements("log")
_dump = SqliteStatements("dump")
_load = SqliteStatements("load")
_put_jobs = SqliteStatements("put_jobs")
_elect = SqliteStatements("elect")
_prune = SqliteStatements("prune")
_versions = SqliteStatements("versions")


def excess_runs(tx: SqliteTransaction, keep: int, limit: int) -> list[Row]:
    """What jobs have beyond their newest `keep` that failed and as many others.  It walks over all jobs."""
    rows: list[Row] = []
    for (job_id,) in tx.rows(_prune.beyond, (keep, limit)):
        for failed in (0, 1):
            rows += tx.rows(_prune.excess, (job_id, failed, limit - len(rows), keep))
        if len(rows) >= limit:
            break
    return rows


def drop_runs(tx: SqliteTransaction, rows: list[Row]) -> int:
    """Rows are (seq, history_class) of finished runs; what left meanwhile is not counted."""
    gone = [row for row in rows if tx.write(_prune.drop, (row[0],))]
    tx.shared.dead -= sum(row[1] == HISTORY_DEAD for row in gone)
    return len(gone)


def prune(tx: SqliteTransaction, what: Pruning, now_ms: int) -> int:
    """All that can be found along an index; `keep_per_job` cannot."""
    if what.version is not None:
        return drop_version(tx, what.version, now_ms)
    gone = 0
    if what.ids:
        gone += drop_runs(tx, tx.rows(_prune.named, (ids_json(what.ids[: what.limit]),)))
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
        gone += drop_runs(tx, tx.rows(_prune.oldest_dead, (excess,)))
    if what.log_max is not None and gone < what.limit:
        gone += tx.write(_prune.log, (max(1, what.log_max), what.limit - gone))
    return gone


def _drop_old(tx: SqliteTransaction, history_class: int, before_ms: int, limit: int) -> int:
    return 0 if limit <= 0 else drop_runs(tx, tx.rows(_prune.old, (history_class, before_ms, limit)))


def _drop_spent(tx: SqliteTransaction, before_ms: int, limit: int) -> int:
    """A once-job stays as long as a run of it lives or can be revived.  Declared anew, it does not fire again."""
    spent = tx.rows(_prune.spent, (before_ms, limit))
    bury(tx, spent)
    return len(spent)


def log(tx: SqliteTransaction, lines: Sequence[AuditLine]) -> None:
    if lines:
        seq, chain = tx.row(_log.last) or (0, "")
        tx.insert(_log.add, [_line_row(line) for line in next_lines(lines, seq, chain)])


def _line_row(line: AuditLine) -> Row:
    return (line.seq, line.at_ms, line.actor, line.action, line.subject, line.detail, line.count, line.chain)


def read_log(tx: SqliteTransaction, after: int, limit: int, newest: bool) -> Page:  # noqa: FBT001  called by position
    rows = tx.rows(_log.before, (after or LAST, limit + 1)) if newest else tx.rows(_log.read, (after, limit + 1))
    return log_page([AuditLine(*row) for row in rows], limit, newest=newest)


def dump(tx: SqliteTransaction, after: str | None, limit: int) -> Page:
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
            return [RecordRow(kind, str(row[6]), row) for row in tx.rows(_dump.log, (int(place or 0), limit))]
        case _:
            return [RecordRow(kind, str(row[0]), row[1:]) for row in tx.rows(_dump.tomb, (int(place or 0), limit))]


def load(tx: SqliteTransaction, records: Sequence[Record]) -> int:
    new = [loaded for loaded in (_load_one(tx, record) for record in records) if loaded is not None]
    for version, entry in entries_of(new):
        if version is None:
            add_to_all(tx, entry)
        else:
            tx.add_entry(version, entry)
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
    """A live run is loaded into the version of its job."""
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
        tx.wakeups |= RUNS
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
    row = tx.row(_elect.current, (term.scheduler_version,))
    assert row is not None
    if term.number <= row[0]:
        return False
    tx.write(_elect.write, (term.number, "", 0, 0, term.scheduler_version))
    return True
