"""Backup of a store into another file, and restore: a copy of one moment, made while other processes work.

    backup:   one read of the whole file, in parts ─▶ FILE.part ─▶ verified ─▶ synced ─▶ renamed
    restore:  FILE ─▶ a copy beside the store ─▶ verified, leases void ─▶ synced ─▶ store not in use ─▶ renamed

The read lasts until the copy is complete, so it is of one moment; it blocks no writer, but the log cannot restart
meanwhile.  A restored store has no record of what ran when it was copied: leases are void, as after a load.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw
from msgspec import Struct

from pollux.errors import Conflict, StoreBusy, StoreRefused
from pollux.store.sqlite import schema
from pollux.store.sqlite.check import FileSizes, integrity, recount, sizes_of, store_errors
from pollux.store.sqlite.file_identity import FileIdentity, lock_holders
from pollux.store.sqlite.lock import open_private
from pollux.store.sqlite.transaction import SQL, SqliteTransaction, WriteStats

STEP_PAGES = 2_000
BUSY_MS = 5_000
Report = Callable[[int, int], None]  # pages copied, of how many


class BackupReport(Struct, frozen=True):
    """What is in the copy."""

    path: str
    bytes: int
    runs: int
    jobs: int
    notes: int
    log: int
    voided: int = 0  # leases that were given back


def backup(path: Path, target: Path, report: Report, *, force: bool = False) -> BackupReport:
    """Copy the store at `path` as it is now; the file appears when it is complete and was looked over."""
    _refuse_existing(target, force=force)
    if target.exists() and target.samefile(path):
        raise Conflict(f"{target} is the store itself; name another file")
    with store_errors(), _appearing(target) as partial:
        with closing(schema.open_reader(path, busy_ms=BUSY_MS)) as source, source:
            schema.recognise(source, path)
            expected = _sizes(source)  # the read begins here, and is the one that is copied
            _copy(source, partial, report)
        found = _look_over(partial, target)
        if found != expected:
            raise StoreRefused(
                f"{target} came out with {found} records instead of {expected}; nothing was kept; try again"
            )
        return BackupReport(str(target), partial.stat().st_size, *found)


def restore(file: Path, path: Path, report: Report, *, force: bool = False) -> BackupReport:
    """Put a copy in the place of the store at `path`, which no process may use."""
    if not file.is_file():
        raise Conflict(f"there is no file {file}; name a file that `pollux store backup` made")
    if path.exists() and path.samefile(file):
        raise Conflict(f"{file} is the store itself; name a file that `pollux store backup` made")
    _refuse_existing(path, force=force)
    FileIdentity(path).refuse_unsafe()
    fresh = path.with_name(path.name + ".restored")
    with store_errors(), _gone_if_broken(fresh):
        with closing(_opened(file, apsw.SQLITE_OPEN_READONLY)) as source, source:
            if schema.recognise(source, file) == 0:
                raise StoreRefused(f"{file} is empty; name a file that `pollux store backup` made")
            _sizes(source)
            _copy(source, fresh, report)
        found = _look_over(fresh, file)
        voided = _void_leases(fresh)
        size = fresh.stat().st_size
        with unused(path):
            for ending in ("-wal", "-shm"):  # a log of the old file would be taken for the new one's
                path.with_name(path.name + ending).unlink(missing_ok=True)
            _put(fresh, path)
    return BackupReport(str(path), size, *found, voided)


def _refuse_existing(target: Path, *, force: bool) -> None:
    if target.is_dir():
        raise Conflict(f"{target} is a directory; name a file inside it")
    if target.exists() and not force:
        raise Conflict(f"{target} is there already; name another, or add --force to replace it")


def _copy(source: apsw.Connection, target: Path, report: Report) -> None:
    target.unlink(missing_ok=True)
    os.close(open_private(target))
    with closing(_opened(target, apsw.SQLITE_OPEN_READWRITE)) as copy:
        with copy.backup("main", source, "main") as copying:
            while not copying.done:
                copying.step(STEP_PAGES)
                report(copying.page_count - copying.remaining, copying.page_count)
        copy.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file, that can be carried anywhere


def _look_over(file: Path, named: Path) -> FileSizes:
    """How many records of each kind there are; refused if the file is not sound."""
    with closing(_opened(file, apsw.SQLITE_OPEN_READONLY)) as connection:
        if faults := integrity(connection):
            raise StoreRefused(f"{named} is damaged ({faults[0]}); nothing was changed; use another backup")
        return _sizes(connection)


def _void_leases(file: Path) -> int:
    with closing(_opened(file, apsw.SQLITE_OPEN_READWRITE)) as connection:
        tx = SqliteTransaction(connection, WriteStats())
        with connection:
            voided = tx.write(SQL["restore.void"])
            for statement in (SQL["restore.expire"], SQL["restore.nodes"], SQL["restore.term"]):
                tx.write(statement)
            recount(tx)
    return voided


def _sizes(connection: apsw.Connection) -> FileSizes:
    return sizes_of(SqliteTransaction(connection, WriteStats()))


def _opened(file: Path, mode: int) -> apsw.Connection:
    return schema.connect(file, mode, busy_ms=BUSY_MS)


@contextmanager
def unused(path: Path) -> Iterator[None]:
    """No other process has the file open, and none can open it until the block ends."""
    if not path.exists():
        yield
        return
    if holders := lock_holders(path):
        raise StoreBusy(_in_use(path, f"process {' and '.join(map(str, holders))}"))
    with closing(_opened(path, apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_timeout(0)
        try:
            with suppress(apsw.NotADBError, apsw.CorruptError):  # what is to be replaced may be broken
                connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
                connection.execute("PRAGMA journal_mode = DELETE").fetchall()
                connection.execute("BEGIN EXCLUSIVE")
        except apsw.BusyError as error:
            raise StoreBusy(_in_use(path, "another process")) from error
        yield


def _in_use(path: Path, who: str) -> str:
    return f"busy: {who} uses {path}; nothing was changed; stop every process on this store first"


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A file that takes its name only when it is complete and on disk."""
    partial = target.with_name(target.name + ".part")
    with _gone_if_broken(partial):
        yield partial
        _put(partial, target)


@contextmanager
def _gone_if_broken(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Conflict(f"{file} cannot be written ({error.strerror}); name another place") from error
    finally:
        for left in (file, file.with_name(file.name + "-journal")):
            left.unlink(missing_ok=True)


def _put(file: Path, target: Path) -> None:
    for each in (file, None):
        if each is None:
            file.replace(target)
        fd = os.open(each or target.parent, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
