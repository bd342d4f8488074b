"""The verbs of the records: the audit log, dump and load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from pollux.model import LIVE, AuditLine, Job, Note, Run, RunState
from pollux.store.backend import Page
from pollux.store.dump_format import Record, TermRecord, Tombstone, entries_of, next_lines
from pollux.store.postgres.notes import load_notes, tell_all
from pollux.store.postgres.rows import COLUMNS, JOB_COLUMNS, columns, got, job_row, put, run_row
from pollux.store.postgres.sql import PostgresStatements
from pollux.store.postgres.transaction import JOBS_LOCK, LOG_LOCK, PostgresTransaction
from pollux.store.relational.records import LAST, RecordRow, dumped, kinds_from, log_page, without_lease
from pollux.store.relational.rows import Row, by_version, definition_json, history_class_of, memory_json
from pollux.store.relational.wakeup import RUNS

_sql = PostgresStatements("records")
_put_jobs = PostgresStatements("put_jobs")
_nodes = PostgresStatements("nodes")
_versions = PostgresStatements("versions")
T = TypeVar("T")
_TEXTS = ("actor", "action", "subject", "detail")


async def log(tx: PostgresTransaction, lines: Sequence[AuditLine]) -> None:
    if lines:
        await tx.lock(LOG_LOCK)
        seq, chain = await tx.row(_sql.last_line) or (0, "")
        await _add_lines(tx, next_lines(lines, seq, chain))


async def _add_lines(tx: PostgresTransaction, lines: Sequence[AuditLine]) -> None:
    rows = [
        (line.seq, line.at_ms, *[put(getattr(line, name)) for name in _TEXTS], line.count, line.chain) for line in lines
    ]
    if rows:
        await tx.rows(_sql.add_lines, *columns(rows, 8))


def line_of(row: Row) -> AuditLine:
    return AuditLine(row[0], got(row[1]), got(row[2]), got(row[3]), got(row[4]), *row[5:])


async def read_log(tx: PostgresTransaction, after: int, limit: int, newest: bool) -> Page:  # noqa: FBT001
    rows = await tx.rows(_sql.newest_log, after or LAST, limit + 1) if newest else await _lines(tx, after, limit + 1)
    return log_page([line_of(row) for row in rows], limit, newest=newest)


async def _lines(tx: PostgresTransaction, after: int, limit: int) -> list[Row]:
    return await tx.rows(_sql.read_log, after, limit)


async def dump(tx: PostgresTransaction, after: str | None, limit: int) -> Page:
    found: list[RecordRow] = []
    for kind, place in kinds_from(after):
        found += await _of_kind(tx, kind, place, limit + 1 - len(found))
        if len(found) > limit:
            break
    return dumped(found, limit)


async def _of_kind(tx: PostgresTransaction, kind: str, place: str, limit: int) -> list[RecordRow]:
    match kind:
        case "term":
            return [RecordRow(kind, str(row[1]), row) for row in await tx.rows(_sql.term, int(place or 0))]
        case "job":
            return [RecordRow(kind, row[0], row) for row in await tx.rows(_sql.job, place, limit)]
        case "run":
            return [
                RecordRow(kind, str(row[0]), tuple(row)[1:]) for row in await tx.rows(_sql.run, int(place or 0), limit)
            ]
        case "note":
            return [RecordRow(kind, got(row[0]), row) for row in await tx.rows(_sql.note, put(place), limit)]
        case "log":
            return [RecordRow(kind, str(row[6]), row) for row in await tx.rows(_sql.read_log, int(place or 0), limit)]
        case _:
            found = await tx.rows(_sql.tomb, int(place or 0), limit)
            return [RecordRow(kind, str(row[0]), tuple(row)[1:]) for row in found]


async def load(tx: PostgresTransaction, records: Sequence[Record]) -> int:
    """Kind by kind, each kind together; of a record that comes twice the first counts."""
    await tx.lock(JOBS_LOCK)
    new: list[Record] = [
        *await _load_jobs(tx, _first({each.id: each for each in reversed(records) if isinstance(each, Job)})),
        *await _load_runs(tx, _first({each.id: each for each in reversed(records) if isinstance(each, Run)})),
        *await load_notes(tx, _first({each.key: each for each in reversed(records) if isinstance(each, Note)})),
        *await _load_lines(tx, [each for each in records if isinstance(each, AuditLine)]),
        *await _load_terms(tx, [each for each in records if isinstance(each, TermRecord)]),
        *await _load_tombs(tx, _first({each.id: each for each in reversed(records) if isinstance(each, Tombstone)})),
    ]
    for version, entry in entries_of(new):
        if version is None:
            await tell_all(tx, entry)
        else:
            tx.tell(version, entry)
    return len(new)


def _first(found: dict[str, T]) -> list[T]:
    return list(reversed(found.values()))


async def _load_jobs(tx: PostgresTransaction, jobs: Sequence[Job]) -> list[Job]:
    rows = [
        (
            *job_row(job, job.revision, definition_json(job)),
            job.next_due_ms,
            job.last_due_ms,
            memory_json(job.memory),
            job.memory.last_end_ms,
            job.scheduler_version,
        )
        for job in jobs
    ]
    added = {row[0] for row in await tx.rows(_put_jobs.add, *columns(rows, JOB_COLUMNS))} if rows else set()
    new = [job for job in jobs if job.id in added]
    if new:
        await tx.rows(_put_jobs.forget_tombs, list(added))
    for version, some in by_version((job.scheduler_version, job) for job in new).items():
        await tx.rows(_versions.use, version)
        tx.counters_of(version).jobs += len(some)
    return new


async def _load_runs(tx: PostgresTransaction, runs: Sequence[Run]) -> list[Run]:
    free = [without_lease(run) for run in runs]
    rows = [(*run_row(run), None if run.state in LIVE else history_class_of(run)) for run in free]
    found = await tx.rows(_sql.load_runs, *columns(rows, COLUMNS + 1)) if rows else []
    added: dict[str, int] = dict([tuple(row) for row in found])
    new = [replace(run, scheduler_version=added[run.id]) for run in free if run.id in added]
    for run in new:
        counters = tx.counters_of(run.scheduler_version)
        counters.held += run.state is RunState.HELD
        counters.ready += run.state is RunState.READY
        tx.shared.dead += run.state is RunState.DEAD
        tx.rings |= RUNS if run.state is RunState.READY else 0
    return new


async def _load_lines(tx: PostgresTransaction, lines: Sequence[AuditLine]) -> list[AuditLine]:
    """Those behind the last that stands."""
    if not lines:
        return []
    await tx.lock(LOG_LOCK)
    last, _ = await tx.row(_sql.last_line) or (0, "")
    new: list[AuditLine] = []
    for line in lines:
        if line.seq > last:
            last = line.seq
            new.append(line)
    await _add_lines(tx, new)
    return new


async def _load_terms(tx: PostgresTransaction, terms: Sequence[TermRecord]) -> list[TermRecord]:
    new: list[TermRecord] = []
    for term in terms:  # one a version
        stands = await tx.one(_nodes.stands, term.scheduler_version)
        if term.number > stands[0]:
            await tx.rows(_nodes.write, term.number, "", 0, 0, term.scheduler_version)
            new.append(term)
    return new


async def _load_tombs(tx: PostgresTransaction, tombs: Sequence[Tombstone]) -> list[Tombstone]:
    rows = [(tomb.id, tomb.revision, tomb.last_due_ms) for tomb in tombs]
    added = {row[0] for row in await tx.rows(_sql.load_tombs, *columns(rows, 3))} if rows else set()
    return [tomb for tomb in tombs if tomb.id in added]
