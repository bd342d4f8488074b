"""Verbs of the notes: put (by compare-and-set) and read by prefix."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import STEERING, Entry, NotePut, NotesChanged
from pollux.store.contract import Answer
from pollux.store.move_marks import SEAL
from pollux.store.relational.rows import Row, encode, is_same_note
from pollux.store.sqlite.transaction import SqliteStatements, SqliteTransaction

_LAST = "\U0010ffff"
_put = SqliteStatements("put_notes")
_read = SqliteStatements("notes")
_versions = SqliteStatements("versions")


def put_notes(tx: SqliteTransaction, puts: Sequence[NotePut], now_ms: int) -> list[Answer]:
    written: dict[str, None] = {}
    answers = write_notes(tx, puts, now_ms, written)
    add_notes_changed(tx, written)
    return answers


def write_notes(tx: SqliteTransaction, puts: Sequence[NotePut], now_ms: int, written: dict[str, None]) -> list[Answer]:
    """Write what does not conflict, and gather the keys in `written`."""
    if not puts:
        return []
    _drop_expired(tx, now_ms)
    return [_put_note(tx, put, now_ms, written) for put in puts]


def add_notes_changed(tx: SqliteTransaction, written: dict[str, None]) -> None:
    if written:
        add_to_all(tx, NotesChanged(tuple(written)))


def add_to_all(tx: SqliteTransaction, entry: Entry) -> None:
    """To the feeds of all versions that are there, and of this one: its leader may be about to start."""
    there = {row[0] for row in tx.rows(_versions.in_use, (tx.version,))}
    for version in sorted(there | {tx.version}):
        tx.add_entry(version, entry)


def _put_note(tx: SqliteTransaction, put: NotePut, now_ms: int, written: dict[str, None]) -> Answer:
    row = tx.row(_put.stored, (put.key,))
    is_live = row is not None and (row[1] is None or row[1] > now_ms)
    if put.revision is not None and put.revision != (row[0] if row is not None and is_live else 0):
        return Answer.CONFLICT
    if is_same_note(put, row[1:] if row is not None and is_live else None):
        return Answer.ALREADY
    if put.value is not None:
        set_note(tx, put)
    elif is_live:
        tx.write(_put.delete, (put.key,))
        _mark_stop(tx, put.key)
    else:
        return Answer.OK
    written[put.key] = None
    return Answer.OK


def set_note(tx: SqliteTransaction, put: NotePut, revision: int = 0) -> None:
    """Write it; revisions come from one count, so that a note made anew is never taken for the old one."""
    counters = tx.shared
    counters.notes = max(counters.notes + 1, revision)
    tx.write(_put.put, (put.key, encode(put.value), revision or counters.notes, put.expires_ms))
    _mark_stop(tx, put.key)


def _drop_expired(tx: SqliteTransaction, now_ms: int) -> None:
    for (key,) in tx.rows(_put.expired, (now_ms,)):
        tx.write(_put.delete, (key,))
        _mark_stop(tx, key)


def _mark_stop(tx: SqliteTransaction, key: str) -> None:
    if key.startswith(STEERING):
        tx.shared.stops += 1


def notes(tx: SqliteTransaction, prefix: str, now_ms: int) -> list[tuple[str, Row]]:
    return [(row[0], row) for row in tx.rows(_read.read, (prefix, prefix + _LAST, now_ms))]


def is_sealed(tx: SqliteTransaction) -> bool:
    """Was the store moved away, or is it being filled?"""
    return tx.row(_put.stored, (SEAL,)) is not None
