"""The verbs of the records: the audit log, dump and load."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pollux.model import ALL_VERSIONS, LIVE, AuditLine, Job, Note, Run, RunState
from pollux.store.postgres.jobs import JOB_COLUMNS
from pollux.store.postgres.notes import load_note, tell_all
from pollux.store.postgres.rows import columns, got, job_row, put, run_row
from pollux.store.postgres.sql import Statements
from pollux.store.postgres.transaction import JOBS_LOCK, LOG_LOCK, Transaction
from pollux.store.records import Record, TermRecord, entries_of
from pollux.store.relational.bells import RUNS
from pollux.store.relational.records import LAST, Dumped, Placed, dumped, kinds_from, next_lines, without_lease
from pollux.store.relational.rows import Row, definition_json, encode, memory_json, shelf_of

_sql = Statements("records")
_put_jobs = Statements("put_jobs")
_nodes = Statements("nodes")
_versions = Statements("versions")
_TEXTS = ("actor", "action", "subject", "detail")


async def log(tx: Transaction, lines: Sequence[AuditLine]) -> None:
    await tx.lock(LOG_LOCK)
    seq, chain = await tx.row(_sql.last_line) or (0, "")
    await _add_lines(tx, next_lines(lines, seq, chain))


async def _add_lines(tx: Transaction, lines: Sequence[AuditLine]) -> None:
    rows = [(line.seq, line.at_ms, *[put(getattr(line, name)) for name in _TEXTS], line.chain) for line in lines]
    if rows:
        await tx.rows(_sql.add_lines, *columns(rows, 7))


def line_of(row: Row) -> AuditLine:
    return AuditLine(row[0], got(row[1]), got(row[2]), got(row[3]), got(row[4]), row[5], row[6])


async def read_log(tx: Transaction, after: int, limit: int) -> list[Row]:
    return await tx.rows(_sql.read_log, after, limit)


async def newest_log(tx: Transaction, before: int, limit: int) -> list[Row]:
    """The last lines, or the last before a number, newest first."""
    return await tx.rows(_sql.newest_log, before or LAST, limit)


async def dump(tx: Transaction, after: str | None, limit: int) -> Dumped:
    found: list[Placed] = []
    for kind, place in kinds_from(after):
        found += await _of_kind(tx, kind, place, limit + 1 - len(found))
        if len(found) > limit:
            break
    return dumped(found, limit)


async def _of_kind(tx: Transaction, kind: str, place: str, limit: int) -> list[Placed]:
    match kind:
        case "term":
            return [Placed(kind, str(row[1]), row) for row in await tx.rows(_sql.term, int(place or 0))]
        case "job":
            return [Placed(kind, row[0], row) for row in await tx.rows(_sql.job, place, limit)]
        case "run":
            return [
                Placed(kind, str(row[0]), tuple(row)[1:]) for row in await tx.rows(_sql.run, int(place or 0), limit)
            ]
        case "note":
            return [Placed(kind, got(row[0]), row) for row in await tx.rows(_sql.note, put(place), limit)]
        case _:
            return [Placed(kind, str(row[5]), row) for row in await tx.rows(_sql.read_log, int(place or 0), limit)]


async def load(tx: Transaction, records: Sequence[Record]) -> int:
    await tx.lock(JOBS_LOCK)
    new = [loaded for record in records if (loaded := await _load_one(tx, record)) is not None]
    for version, entry in entries_of(new):
        if version == ALL_VERSIONS:
            await tell_all(tx, entry)
        else:
            tx.tell(version, entry)
    return len(new)


async def _load_one(tx: Transaction, record: Record) -> Record | None:
    """As it is here now; None if it was there already."""
    match record:
        case Run():
            return await _load_run(tx, record)
        case Job():
            is_new = await _load_job(tx, record)
        case Note():
            is_new = await load_note(tx, record.key, encode(record.value), record.revision, record.expires_ms)
        case AuditLine():
            is_new = await _load_line(tx, record)
        case TermRecord():
            is_new = await _load_term(tx, record)
    return record if is_new else None


async def _load_job(tx: Transaction, job: Job) -> bool:
    leaders = (job.next_due_ms, job.last_due_ms, memory_json(job.memory), job.memory.last_end_ms)
    row = (*job_row(job, job.revision, definition_json(job)), *leaders, job.scheduler_version)
    if not await tx.rows(_put_jobs.add, *columns([row], JOB_COLUMNS)):
        return False
    await tx.rows(_put_jobs.forget_tombs, [job.id])
    await tx.rows(_versions.use, job.scheduler_version)
    tx.tally_of(job.scheduler_version).jobs += 1
    return True


async def _load_run(tx: Transaction, run: Run) -> Run | None:
    """A live one goes where its job is."""
    run = without_lease(run)
    if run.state not in LIVE:
        is_new = bool(await tx.rows(_sql.load_past, *run_row(run), shelf_of(run)))
        tx.shared.dead += is_new and run.state is RunState.DEAD
        return run if is_new else None
    made = await tx.row(_sql.load_live, *run_row(run))
    if made is None:
        return None
    run = replace(run, scheduler_version=made[1])
    tally = tx.tally_of(run.scheduler_version)
    tally.held += run.state is RunState.HELD
    tally.ready += run.state is RunState.READY
    tx.rings |= RUNS if run.state is RunState.READY else 0
    return run


async def _load_line(tx: Transaction, line: AuditLine) -> bool:
    await tx.lock(LOG_LOCK)
    last, _ = await tx.row(_sql.last_line) or (0, "")
    if line.seq <= last:
        return False
    await _add_lines(tx, [line])
    return True


async def _load_term(tx: Transaction, term: TermRecord) -> bool:
    stands = await tx.one(_nodes.stands, term.scheduler_version)
    if term.number <= stands[0]:
        return False
    await tx.rows(_nodes.write, term.number, "", 0, 0, term.scheduler_version)
    return True
