"""The verbs of the notes: put (by compare-and-set) and read by prefix."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import STEERING, Entry, Note, NotePut, NotesChanged
from pollux.store.contract import Answer
from pollux.store.move_marks import SEAL
from pollux.store.postgres.rows import columns, got, put
from pollux.store.postgres.sql import PostgresStatements
from pollux.store.postgres.transaction import NOTES_LOCK, PostgresTransaction
from pollux.store.relational.rows import Row, encode, is_same_note

_LAST = "\U0010ffff"
_sql = PostgresStatements("put_notes")
_versions = PostgresStatements("versions")


async def put_notes(tx: PostgresTransaction, puts: Sequence[NotePut]) -> list[Answer]:
    if any(each.key == SEAL for each in puts):
        await tx.rows(_sql.lock_seal)
    written: dict[str, None] = {}
    answers = await write_notes(tx, puts, written)
    await tell_notes(tx, written)
    return answers


async def write_notes(tx: PostgresTransaction, puts: Sequence[NotePut], written: dict[str, None]) -> list[Answer]:
    """Write what does not conflict, and gather the keys in `written`."""
    if not puts:
        return []
    await tx.lock(NOTES_LOCK)
    now_ms = await tx.now()
    for row in await tx.rows(_sql.expired, now_ms):
        mark_stop(tx, row[0])
    answers: list[Answer] = []
    for part in _rounds(puts):
        answers += await _put(tx, part, now_ms, written)
    return answers


def _rounds(puts: Sequence[NotePut]) -> list[list[NotePut]]:
    """In order, cut before a key that comes up again: a put must see the one before."""
    rounds: list[list[NotePut]] = []
    seen: set[str] = set()
    for each in puts:
        if not rounds or each.key in seen:
            rounds.append([])
            seen = set()
        rounds[-1].append(each)
        seen.add(each.key)
    return rounds


async def _put(tx: PostgresTransaction, puts: Sequence[NotePut], now_ms: int, written: dict[str, None]) -> list[Answer]:
    found = await tx.rows(_sql.stored, [put(each.key) for each in puts])
    stored = {row[0]: tuple(row)[1:] for row in found if row[2] is None or row[2] > now_ms}
    answers, values, gone = [], [], []
    for each in puts:
        key = put(each.key)
        there = stored.get(key)
        if each.revision is not None and each.revision != (0 if there is None else there[0]):
            answers.append(Answer.CONFLICT)
            continue
        if is_same_note(each, None if there is None else there[1:]):
            answers.append(Answer.ALREADY)
            continue
        answers.append(Answer.OK)
        if each.value is not None:
            values.append((key, encode(each.value), None, each.expires_ms))
        elif there is not None:
            gone.append(key)
        else:
            continue
        mark_stop(tx, each.key)
        written[each.key] = None
    if values:
        await tx.rows(_sql.put, *columns(values, 4))
    if gone:
        await tx.rows(_sql.delete, gone)
    return answers


async def tell_notes(tx: PostgresTransaction, written: dict[str, None]) -> None:
    if written:
        await tell_all(tx, NotesChanged(tuple(written)))


async def tell_all(tx: PostgresTransaction, entry: Entry) -> None:
    """Whoever leads, in every version that is there, and in our own: its leader may be about to come."""
    for row in await tx.rows(_versions.in_use, tx.version):
        tx.tell(row[0], entry)


def mark_stop(tx: PostgresTransaction, key: str) -> None:
    if key.startswith(STEERING):
        tx.shared.stops += 1


async def load_notes(tx: PostgresTransaction, notes: Sequence[Note]) -> list[Note]:
    """As they were dumped, where there are none; later ones get higher revisions."""
    if not notes:
        return []
    await tx.lock(NOTES_LOCK)
    there = {row[0] for row in await tx.rows(_sql.stored, [put(note.key) for note in notes])}
    new = [note for note in notes if put(note.key) not in there]
    values = [(put(note.key), encode(note.value), note.revision or None, note.expires_ms) for note in new]
    if values:
        await tx.rows(_sql.put, *columns(values, 4))
        await tx.rows(_sql.raise_, max(note.revision for note in new))
    for note in new:
        mark_stop(tx, note.key)
    return new


async def notes(tx: PostgresTransaction, prefix: str) -> list[tuple[str, Row]]:
    found = await tx.rows(_sql.read, put(prefix), put(prefix) + _LAST, tx.given_ms)
    return [(got(row[0]), row) for row in found]


async def is_sealed(tx: PostgresTransaction) -> bool:
    """Was the store moved away, or is it being filled?  Until this write ends it cannot be sealed."""
    return bool((await tx.one(_sql.is_sealed))[0])
