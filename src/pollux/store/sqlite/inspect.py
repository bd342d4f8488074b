"""Read-only inspection of a database file, for `pollux doctor`.

No writer, no lock, no file that was not there before: a database without a log is read as it is, one with a log
through the shared memory of its users, read-only.  A log without its shared memory cannot be read that way; then
only the files are reported.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import apsw
from msgspec import Struct
from msgspec.structs import replace

from pollux.errors import StoreRefused
from pollux.model import (
    LEADER_NOTES,
    SCHEDULER_VERSION,
    START,
    STOP,
    Counts,
    Job,
    Node,
    Note,
    StartCommand,
    UnreadableNote,
    Version,
    by_term,
    starts_in,
    unreadable_notes,
)
from pollux.model.leader_notes import ClockNote, clock_notes
from pollux.store.contract import JobFilter
from pollux.store.decoding import DUE_PAGE, BatchDecoder, unreadable_stop
from pollux.store.job_cache import JobCache, JobDecoder
from pollux.store.move_marks import MARKS, read_marks, seal_words
from pollux.store.relational import jobs, nodes, notes, rows
from pollux.store.relational.transaction import at_once
from pollux.store.sqlite import runs, schema
from pollux.store.sqlite.transaction import SQL, SqliteTransaction, WriteStats
from pollux.store.values import PRIORITIES

DUE_MAX = 100  # due jobs of a version
JOBS_MAX = 200  # jobs that are looked at one by one
_LOCKS = Path("/proc/locks")
_FILES = ("", "-wal", "-shm", ".lock", ".bell", ".ballast")


class DatabaseReport(Struct, frozen=True):
    """Contents of the database."""

    is_ours: bool  # it has the mark of Pollux, or is empty
    version: int  # migrations it has seen; 0: none
    newest: int  # migrations that this program knows
    counts: Counts | None = None  # this and the following only if the version is the newest
    nodes: tuple[Node, ...] = ()  # by their terms
    versions: tuple[Version, ...] = ()
    clock_ms: int = 0  # the latest time that was written
    waiting: int = 0  # ready runs that can be claimed now
    oldest_ready_ms: int | None = None
    due: tuple[Job, ...] = ()  # the most overdue ones of each version
    seal: str = ""  # why it must not be worked on, if it was moved elsewhere
    stops: tuple[Note, ...] = ()  # pauses and drains
    jobs: tuple[Job, ...] = ()  # the first of them
    aside: tuple[UnreadableNote, ...] = ()  # what the leader cannot read
    starts: tuple[StartCommand, ...] = ()  # how nodes were started
    clocks: tuple[ClockNote, ...] = ()  # the highest times that were planned by


def files_of(path: Path) -> dict[str, os.stat_result]:
    """The files of a database that are there, by the end of their name: "" is the database itself."""
    found = {}
    for end in _FILES:
        try:
            found[end] = path.with_name(path.name + end).stat()
        except OSError:
            continue
    return found


def holders(inode: int) -> list[int]:
    """The processes that hold a lock on the file with that inode, as the kernel lists them, without those that wait."""
    try:
        lines = _LOCKS.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines if " -> " not in line]
    return sorted({int(field[4]) for field in fields if field[5].endswith(f":{inode}")})


def look_inside(path: Path, *, now_ms: int) -> DatabaseReport | None:
    """The contents; None if they cannot be read without touching the file.

    `StoreRefused`: the file is no database, or has the format before the first release.
    """
    files = files_of(path)
    has_log = "-wal" in files
    if has_log and "-shm" not in files:
        return None
    option = "readonly_shm=1" if has_log else "immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        connection = apsw.Connection(f"file:{quote(str(path.absolute()))}?{option}", flags=flags)
        try:
            if connection.pragma("application_id") == schema.APPLICATION_ID:
                schema.refuse_unreleased(connection, path)
            tx = SqliteTransaction(connection, WriteStats())
            tx.given_ms = now_ms
            return _with_jobs(tx, _look(tx, f"sqlite:///{path}"))
        finally:
            connection.close()
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreRefused(f"{path} is damaged or no database ({error}); name another file, or restore it") from error
    except apsw.Error as error:
        raise StoreRefused(f"{path} cannot be read ({error}); look at its rights, or name another file") from error


def _look(tx: SqliteTransaction, url: str) -> DatabaseReport:
    newest = schema.migrations()[-1].number
    application, version = (_one(tx, f"PRAGMA {name}") for name in ("application_id", "user_version"))
    if application == version == 0 and _one(tx, "SELECT count(*) FROM sqlite_schema") == 0:
        return DatabaseReport(is_ours=True, version=0, newest=newest)
    if application != schema.APPLICATION_ID or version != newest:
        return DatabaseReport(is_ours=application == schema.APPLICATION_ID, version=version, newest=newest)
    counters = tx.row(SQL["counters.read"], (SCHEDULER_VERSION,))
    assert counters is not None
    firsts = [row[0] for first in PRIORITIES for row in tx.rows(SQL["inspect.oldest_ready"], (first, tx.given_ms))]
    ready = [visible_ms for visible_ms in firsts if visible_ms is not None]
    found, aside = at_once(nodes.versions(tx)), _notes(tx, LEADER_NOTES)
    return DatabaseReport(
        is_ours=True,
        version=version,
        newest=newest,
        counts=at_once(runs.counts(tx)),
        nodes=tuple(by_term(at_once(nodes.nodes(tx)), found)),
        versions=tuple(found),
        clock_ms=counters[-1],
        oldest_ready_ms=min(ready, default=None),
        waiting=_waiting(tx, found),
        due=tuple(_due(tx, found)),
        seal=seal_words(read_marks(_notes(tx, MARKS)), url),
        stops=tuple(_stops(tx)),
        aside=unreadable_notes(aside),
        starts=starts_in(_notes(tx, START)),
        clocks=clock_notes(aside),
    )


def _due(tx: SqliteTransaction, found: list[Version]) -> list[Job]:
    """As `readable_due` has it: of those that can be read, in each version."""
    firsts: list[Job] = []
    for version in found:
        tx.version, reading = version.number, JobDecoder(JobCache().job)
        due = at_once(jobs.due(tx, None, tx.given_ms, DUE_PAGE))
        firsts += islice((job for row in due if (job := reading.job(row)) is not None), DUE_MAX)
    tx.version = SCHEDULER_VERSION
    return firsts


def _waiting(tx: SqliteTransaction, found: list[Version]) -> int:
    many = 0
    for version in found:
        tx.version = version.number
        many += sum(line.ready for line in at_once(runs.lines(tx, None)))
    tx.version = SCHEDULER_VERSION
    return many


def _stops(tx: SqliteTransaction) -> list[Note]:
    """As `readable_stops` has it: a stop that cannot be decoded is one all the same."""
    reading = BatchDecoder("note", rows.note)
    return [reading(row, key) or unreadable_stop(key) for key, row in at_once(notes.notes(tx, STOP))]


def _notes(tx: SqliteTransaction, prefix: str) -> list[Note]:
    """Those that can be read."""
    reading = BatchDecoder("note", rows.note)
    return [note for key, row in at_once(notes.notes(tx, prefix)) if (note := reading(row, key)) is not None]


def _with_jobs(tx: SqliteTransaction, inside: DatabaseReport) -> DatabaseReport:
    """With the first jobs, however many there are."""
    if inside.counts is None:
        return inside
    page = at_once(jobs.list_jobs(tx, JobFilter(), None, JOBS_MAX))
    return replace(inside, jobs=tuple(JobDecoder(JobCache().job).jobs(page.rows)))


def _one(tx: SqliteTransaction, sql: str) -> int:
    row = tx.row(sql)
    assert row is not None
    return int(row[0])
