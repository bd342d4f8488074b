"""Connections to a database file, recognition of foreign files, and numbered migrations.

The application id in the file's header marks a file of Pollux, the user version counts the migrations that were applied
to it.  All missing migrations run in one transaction under the write lock: a process that dies within it leaves the
file as it was, and the next one begins again.  A foreign or newer file, and one of the format before the first release,
is refused before anything is written to it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from pollux.errors import StoreFull, StoreRefused
from pollux.store.relational.sql import Migration, migrations_of
from pollux.store.sqlite.failpoint import failpoint
from pollux.store.sqlite.file_identity import FileIdentity
from pollux.store.sqlite.lock import WriteLock, open_private

APPLICATION_ID = 0x504F4C58  # "POLX"
SQLITE_MIN = (3, 51, 3)  # older ones can corrupt a database that two connections checkpoint at once
MAGIC = b"SQLite format 3\0"
STATEMENTS_CACHED = 256
CACHE_KB = {"write": 65_536, "read": 16_384}
JOURNAL_BYTES_MAX = 64 * 1024 * 1024


def migrations() -> list[Migration]:
    """All of them, in order."""
    return migrations_of(__package__)


def open_writer(path: Path, lock: WriteLock, *, deadline: float, busy_ms: int) -> apsw.Connection:
    """The only connection that writes, on a database of Pollux that is up to date."""
    connection = connect(path, apsw.SQLITE_OPEN_READWRITE, busy_ms=busy_ms)
    try:
        lock.acquire(deadline)
        try:
            version = recognise(connection, path)
            _set_up(connection)
            _migrate(connection, version)
        finally:
            lock.release()
    except BaseException:
        connection.close()
        raise
    return connection


def reopen_writer(path: Path, *, busy_ms: int) -> apsw.Connection:
    """The same once more, while the write lock is held; nothing is made where nothing is."""
    connection = connect(path, apsw.SQLITE_OPEN_READWRITE, busy_ms=busy_ms)
    try:
        _set_up(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: apsw.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    _tune(connection, CACHE_KB["write"])
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_BYTES_MAX}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # the writer does it, after it has answered


def open_reader(path: Path, *, busy_ms: int) -> apsw.Connection:
    connection = connect(path, apsw.SQLITE_OPEN_READONLY, busy_ms=busy_ms)
    _tune(connection, CACHE_KB["read"])
    return connection


def prepare_file(place: FileIdentity) -> None:
    """Make the file (and its folder) if there is none; refuse what cannot be a database of Pollux."""
    path = place.path
    found = tuple(int(part) for part in apsw.sqlite_lib_version().split(".")[:3])
    if found < SQLITE_MIN:
        raise StoreRefused(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a database that several connections use; "
            f"install an apsw with SQLite {'.'.join(map(str, SQLITE_MIN))} or newer"
        )
    with file_errors(path):
        place.refuse_unsafe()
        _make_folder(path.parent)
        os.close(open_private(path))
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    if head and head != MAGIC:
        raise StoreRefused(f"{path} is not a SQLite database; nothing was changed; name another file, or move it away")


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Errors of the system about the file or one beside it, as refusals with the cure."""
    try:
        yield
    except IsADirectoryError as error:
        raise StoreRefused(f"{path} is a directory; name a file inside it, such as {path / 'pollux.db'}") from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise no_room(path) from error
        raise StoreRefused(_unusable(path, error)) from error
    except apsw.FullError as error:
        raise no_room(path) from error
    except (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError) as error:
        raise StoreRefused(f"{path} cannot be opened ({error}); {_RIGHTS}") from error


def no_room(path: Path) -> StoreFull:
    return StoreFull(f"the disk under {path} is full, it cannot even be opened; make room")


_RIGHTS = "run as the user who owns it, or give that user the right to read and write it and its folder"


def _make_folder(folder: Path) -> None:
    """Where there is none: for its owner only, whatever the umask.  A whole missing path is rather a typing error."""
    if folder.exists():
        return
    if not folder.parent.exists():
        raise StoreRefused(
            f"there is no folder {folder.parent}; nothing was made; make it, or mend the path of the store"
        )
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)


def _unusable(path: Path, error: OSError) -> str:
    match error.errno:
        case errno.EROFS:
            cure = "its file system is mounted read-only; mount it for writing, or name a file elsewhere"
        case errno.EACCES | errno.EPERM:
            cure = _RIGHTS
        case _:
            cure = "name another file"
    where = f": {error.filename}" if error.filename and str(error.filename) != str(path) else ""
    return f"{path} cannot be opened ({error.strerror}{where}); {cure}"


def connect(path: Path, mode: int, *, busy_ms: int) -> apsw.Connection:
    try:
        connection = apsw.Connection(str(path), flags=mode, statementcachesize=STATEMENTS_CACHED)
        connection.set_busy_timeout(busy_ms)
        # Plans never depend on bound values: otherwise statements over partial indexes are compiled anew at each call.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.execute("PRAGMA trusted_schema = OFF")
    except apsw.Error as error:
        raise StoreRefused(f"{path} cannot be opened ({error}); look at its rights, or name another file") from error
    return connection


def _tune(connection: apsw.Connection, cache_kb: int) -> None:
    connection.execute(f"PRAGMA cache_size = -{cache_kb}; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0")


def recognise(connection: apsw.Connection, path: Path) -> int:
    """The number of migrations that were applied; refuses a file that is neither Pollux's nor empty."""
    try:
        application = connection.pragma("application_id")
        version = connection.pragma("user_version")
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreRefused(f"{path} is damaged or no database ({error}); name another file, or restore it") from error
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != APPLICATION_ID:
        raise StoreRefused(f"{path} belongs to another program; nothing was changed; name another file")
    assert isinstance(version, int)
    refuse_unreleased(connection, path)
    newest = migrations()[-1].number
    if version > newest:
        raise StoreRefused(
            f"{path} was written by a newer Pollux (its schema is {version}, this one knows {newest}); "
            "nothing was changed; upgrade Pollux"
        )
    return version


def refuse_unreleased(connection: apsw.Connection, path: Path) -> None:
    """Refuse the format before the first release: its tables have other names, and no migration leads here."""
    if connection.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'tally'").get:
        raise StoreRefused(
            f"{path} has the format of a Pollux before its first release, which this one cannot read; nothing was "
            "changed; dump it with the Pollux that wrote it (`pollux store dump`) and load the dump into a new file"
        )


def _migrate(connection: apsw.Connection, version: int) -> None:
    missing = [migration for migration in migrations() if migration.number > version]
    if not missing:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for migration in missing:
            for statement in migration.statements:
                failpoint()
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {missing[-1].number}")
        failpoint()
        connection.execute("COMMIT")
        failpoint()
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
