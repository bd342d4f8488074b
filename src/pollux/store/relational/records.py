"""Verbs of the records: prune, the audit log, dump and load.

The kinds of a dump have an order that can be loaded: jobs before their runs.  A cursor is `<kind> <place>` of the last
record of its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from pollux.model import LIVE, AuditLine, Job, Note, Run, RunState
from pollux.store.backend import Page
from pollux.store.contract import Pruning
from pollux.store.dump_format import COUNTED, Record, TermRecord, Tombstone, dump_place, entries_of, next_lines
from pollux.store.relational.jobs import bury
from pollux.store.relational.nodes import drop_version, raise_term
from pollux.store.relational.notes import add_to_all, load_notes
from pollux.store.relational.rows import (
    HISTORY_DEAD,
    HISTORY_PLAIN,
    HISTORY_UNCHANGED,
    JOB_TEXTS,
    RUN_TEXTS,
    Row,
    by_version,
    definition_json,
    history_class_of,
    job_row,
    memory_json,
    run_row,
)
from pollux.store.relational.transaction import JOBS_LOCK, LOG_LOCK, Transaction
from pollux.store.relational.wakeup import RUNS

LAST = 2**63 - 1  # no line has a higher number
KINDS = ("term", "job", "run", "note", "log", "tomb")
LINE_TEXTS = (1, 2, 3, 4)
T = TypeVar("T")


# prune


async def prune(tx: Transaction, what: Pruning) -> int:
    """All that can be found along an index; `keep_per_job` cannot."""
    if what.version is not None:
        return await drop_version(tx, what.version)
    gone = 0
    if what.ids:
        gone += count_dropped(tx, await tx.fetch("prune.named", [*what.ids[: what.limit]]))
    if what.unchanged_before_ms is not None:
        gone += await _drop_old(tx, HISTORY_UNCHANGED, what.unchanged_before_ms, what.limit - gone)
    if what.finished_before_ms is not None:
        gone += await _drop_old(tx, HISTORY_UNCHANGED, what.finished_before_ms, what.limit - gone)
        gone += await _drop_old(tx, HISTORY_PLAIN, what.finished_before_ms, what.limit - gone)
    if what.once_before_ms is not None and gone < what.limit:
        gone += await _drop_spent(tx, what.once_before_ms, what.limit - gone)
    if what.dead_before_ms is not None:
        gone += await _drop_old(tx, HISTORY_DEAD, what.dead_before_ms, what.limit - gone)
    if what.dead_max is not None and (excess := min(what.limit - gone, await tx.dead() - what.dead_max)) > 0:
        gone += count_dropped(tx, await tx.fetch("prune.oldest_dead", excess))
    if what.log_max is not None and gone < what.limit:
        gone += len(await tx.fetch("prune.log", max(1, what.log_max), what.limit - gone))
    return gone


def count_dropped(tx: Transaction, rows: Sequence[Row]) -> int:
    """Finished runs that were deleted, of which rows have the history class."""
    tx.shared.dead -= sum(row[0] == HISTORY_DEAD for row in rows)
    return len(rows)


async def _drop_old(tx: Transaction, history_class: int, before_ms: int, limit: int) -> int:
    if limit <= 0:
        return 0
    return count_dropped(tx, await tx.fetch("prune.old", history_class, before_ms, limit))


async def _drop_spent(tx: Transaction, before_ms: int, limit: int) -> int:
    """A once-job stays as long as a run of it lives or can be revived.  Declared anew, it does not fire again."""
    await tx.lock(JOBS_LOCK)
    spent = await tx.fetch("prune.spent", before_ms, limit)
    await bury(tx, spent)
    return len(spent)


# the audit log


async def log(tx: Transaction, lines: Sequence[AuditLine]) -> None:
    if lines:
        seq, chain = await _last_line(tx)
        await _add_lines(tx, next_lines(lines, seq, chain))


async def _last_line(tx: Transaction) -> Row:
    await tx.lock(LOG_LOCK)
    return await tx.fetch_one("records.last_line") or (0, "")


async def _add_lines(tx: Transaction, lines: Sequence[AuditLine]) -> None:
    rows = [
        (line.at_ms, line.actor, line.action, line.subject, line.detail, line.count, line.seq, line.chain)
        for line in lines
    ]
    await tx.write_rows("records.add_line", [tx.put_at(row, LINE_TEXTS) for row in rows])


def line_of(tx: Transaction, row: Row) -> AuditLine:
    actor, action, subject, detail = [tx.got(text) for text in row[1:5]]
    return AuditLine(row[0], actor, action, subject, detail, *row[5:])


async def read_log(tx: Transaction, after: int, limit: int, newest: bool) -> Page:  # noqa: FBT001  called by position
    name, place = ("records.lines_before", after or LAST) if newest else ("records.lines", after)
    found = await tx.fetch(name, place, limit + 1)
    lines = [line_of(tx, row) for row in found[:limit]]
    return Page(lines[::-1] if newest else lines, lines[-1].seq if len(found) > limit else None)


# dump


class RecordRow(NamedTuple):
    kind: str
    place: str
    record: Any


async def dump(tx: Transaction, after: str | None, limit: int) -> Page:
    """A page of (kind, record); of jobs, runs and notes their rows."""
    kind, place = dump_place(after, KINDS)
    found: list[RecordRow] = []
    for each in KINDS[KINDS.index(kind) if kind else 0 :]:
        found += await _of_kind(tx, each, place if each == kind else "", limit + 1 - len(found))
        if len(found) > limit:
            break
    cursor = f"{found[limit - 1].kind} {found[limit - 1].place}" if len(found) > limit else None
    return Page([(each.kind, each.record) for each in found[:limit]], cursor)


async def _of_kind(tx: Transaction, kind: str, place: str, limit: int) -> list[RecordRow]:
    """Rows of a dump begin with their place."""
    after = int(place or 0) if kind in COUNTED else tx.put(place)
    rows = [tuple(row) for row in await tx.fetch(f"dump.{kind}", after, limit)]
    places = [str(row[0]) if kind in COUNTED else tx.got(row[0]) for row in rows]
    return [RecordRow(kind, each, _record(tx, kind, row[1:])) for each, row in zip(places, rows, strict=True)]


def _record(tx: Transaction, kind: str, row: Row) -> Any:
    match kind:
        case "term":
            return TermRecord(*row)
        case "tomb":
            return Tombstone(*row)
        case "log":
            return line_of(tx, row)
        case _:
            return row


# load


async def load(tx: Transaction, records: Sequence[Record]) -> int:
    """Kind by kind, each kind together; of a record that comes twice the first counts."""
    await tx.lock(JOBS_LOCK)
    new: list[Record] = [
        *await _load_jobs(tx, _first({each.id: each for each in reversed(records) if isinstance(each, Job)})),
        *await _load_runs(tx, _first({each.id: each for each in reversed(records) if isinstance(each, Run)})),
        *await load_notes(tx, _first({each.key: each for each in reversed(records) if isinstance(each, Note)})),
        *await _load_lines(tx, [each for each in records if isinstance(each, AuditLine)]),
        *[
            each
            for each in records
            if isinstance(each, TermRecord) and await raise_term(tx, each.number, each.scheduler_version)
        ],
        *await _load_tombs(tx, _first({each.id: each for each in reversed(records) if isinstance(each, Tombstone)})),
    ]
    for version, entry in entries_of(new):
        if version is None:
            await add_to_all(tx, entry)
        else:
            tx.add_entry(version, entry)
    return len(new)


def _first(found: dict[str, T]) -> list[T]:
    return list(reversed(found.values()))


async def _load_jobs(tx: Transaction, jobs: Sequence[Job]) -> list[Job]:
    rows = [
        (
            *tx.put_at(job_row(job, job.revision, definition_json(job)), JOB_TEXTS),
            job.next_due_ms,
            job.last_due_ms,
            memory_json(job.memory),
            job.memory.last_end_ms,
            job.scheduler_version,
        )
        for job in jobs
    ]
    added = {row[0] for row in await tx.write_rows("put_jobs.add", rows)}
    new = [job for job in jobs if job.id in added]
    if new:
        await tx.fetch("put_jobs.forget_tombs", list(added))
    for version, some in by_version((job.scheduler_version, job) for job in new).items():
        await tx.use(version)
        tx.counters_of(version).jobs += len(some)
    return new


async def _load_runs(tx: Transaction, runs: Sequence[Run]) -> list[Run]:
    """A live run is loaded into the version of its job."""
    for version in {run.scheduler_version for run in runs}:
        await tx.ensure(version)
    free = [_without_lease(run) for run in runs]
    rows = [(*tx.put_at(run_row(run), RUN_TEXTS), None if run.state in LIVE else history_class_of(run)) for run in free]
    added = {row[0]: row[1] for row in await tx.write_rows("records.load_run", rows)}
    new = [replace(run, scheduler_version=added[run.id]) for run in free if run.id in added]
    for run in new:
        counters = tx.counters_of(run.scheduler_version)
        counters.held += run.state is RunState.HELD
        counters.ready += run.state is RunState.READY
        tx.shared.dead += run.state is RunState.DEAD
        tx.wakeups |= RUNS if run.state is RunState.READY else 0
    return new


def _without_lease(run: Run) -> Run:
    if run.state is not RunState.LEASED:
        return run
    return replace(run, state=RunState.READY, token="", owner="", lease_until_ms=0)


async def _load_lines(tx: Transaction, lines: Sequence[AuditLine]) -> list[AuditLine]:
    """Those behind the last that is there."""
    if not lines:
        return []
    last, _ = await _last_line(tx)
    new: list[AuditLine] = []
    for line in lines:
        if line.seq > last:
            last = line.seq
            new.append(line)
    await _add_lines(tx, new)
    return new


async def _load_tombs(tx: Transaction, tombs: Sequence[Tombstone]) -> list[Tombstone]:
    rows = [(tomb.id, tomb.revision, tomb.last_due_ms) for tomb in tombs]
    added = {row[0] for row in await tx.write_rows("records.load_tomb", rows)}
    return [tomb for tomb in tombs if tomb.id in added]
