"""Removal of a store: its file is deleted last of those that matter, while no other process can open it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from pollux.errors import Conflict
from pollux.store.sqlite import schema
from pollux.store.sqlite.backup import BUSY_MS, unused
from pollux.store.sqlite.check import store_errors

_FIRST = ("-wal", "-shm", "-journal", "")  # a log that stayed would be taken for that of the next file
_THEN = (".bell", ".ballast", ".lock")


def drop(path: Path) -> int:
    """Remove the database and its files; refused if it is not a store of Pollux, or in use.  Nothing is left."""
    with store_errors():
        with closing(schema.open_reader(path, busy_ms=BUSY_MS)) as connection:
            schema.recognise(connection, path)
        try:
            with unused(path):
                _remove(path, _FIRST)
            _remove(path, _THEN)
        except OSError as error:
            raise Conflict(f"{path} cannot be removed ({error.strerror}); remove it by hand") from error
    return 0


def _remove(path: Path, endings: tuple[str, ...]) -> None:
    for ending in endings:
        path.with_name(path.name + ending).unlink(missing_ok=True)
