"""Verbs of the notes: put (by compare-and-set) and read by prefix."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import STEERING, Entry, Note, NotePut, NotesChanged
from pollux.store.contract import Answer
from pollux.store.move_marks import SEAL
from pollux.store.relational.rows import Row, encode, is_same_note
from pollux.store.relational.transaction import NOTES_LOCK, SEAL_LOCK, Transaction

_LAST = "\U0010ffff"


async def put_notes(tx: Transaction, puts: Sequence[NotePut]) -> list[Answer]:
    if any(each.key == SEAL for each in puts):
        await tx.lock(SEAL_LOCK)
    written: dict[str, None] = {}
    answers = await write_notes(tx, puts, written)
    await add_notes_changed(tx, written)
    return answers


async def write_notes(tx: Transaction, puts: Sequence[NotePut], written: dict[str, None]) -> list[Answer]:
    """Write what does not conflict, and gather the keys in `written`."""
    if not puts:
        return []
    await tx.lock(NOTES_LOCK)
    now_ms = await tx.now()
    for row in await tx.fetch("notes.expired", now_ms):
        _mark_stop(tx, row[0])
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


async def _put(tx: Transaction, puts: Sequence[NotePut], now_ms: int, written: dict[str, None]) -> list[Answer]:
    found = await tx.fetch("notes.stored", [tx.put(each.key) for each in puts])
    stored = {row[0]: tuple(row)[1:] for row in found if row[2] is None or row[2] > now_ms}
    answers: list[Answer] = []
    values: list[Row] = []
    gone: list[str] = []
    for each in puts:
        key = tx.put(each.key)
        there = stored.get(key)
        if each.revision is not None and each.revision != (0 if there is None else there[0]):
            answers.append(Answer.CONFLICT)
            continue
        if is_same_note(each, None if there is None else there[1:]):
            answers.append(Answer.ALREADY)
            continue
        answers.append(Answer.OK)
        if each.value is not None:
            values.append((key, encode(each.value), tx.next_revision(), each.expires_ms))
        elif there is not None:
            gone.append(key)
        else:
            continue
        _mark_stop(tx, each.key)
        written[each.key] = None
    await tx.write_rows("notes.put", values)
    if gone:
        await tx.fetch("notes.delete", gone)
    return answers


async def add_notes_changed(tx: Transaction, written: dict[str, None]) -> None:
    if written:
        await add_to_all(tx, NotesChanged(tuple(written)))


async def add_to_all(tx: Transaction, entry: Entry) -> None:
    """To the feeds of all versions that are there, and of this one: its leader may be about to start."""
    there = {row[0] for row in await tx.fetch("versions.in_use")}
    for version in sorted(there | {tx.version}):
        tx.add_entry(version, entry)


def _mark_stop(tx: Transaction, key: str) -> None:
    if key.startswith(STEERING):
        tx.shared.stops += 1


async def load_notes(tx: Transaction, notes: Sequence[Note]) -> list[Note]:
    """As they were dumped, where there are none; later ones get higher revisions."""
    if not notes:
        return []
    await tx.lock(NOTES_LOCK)
    there = {row[0] for row in await tx.fetch("notes.stored", [tx.put(note.key) for note in notes])}
    new = [note for note in notes if tx.put(note.key) not in there]
    values = [
        (tx.put(note.key), encode(note.value), note.revision or tx.next_revision(), note.expires_ms) for note in new
    ]
    await tx.write_rows("notes.put", values)
    if new:
        await tx.pass_revision(max(note.revision for note in new))
    for note in new:
        _mark_stop(tx, note.key)
    return new


async def notes(tx: Transaction, prefix: str) -> list[tuple[str, Row]]:
    first = tx.put(prefix)
    found = await tx.fetch("notes.read", first, first + _LAST, tx.given_ms)
    return [(tx.got(row[0]), row) for row in found]


async def is_sealed(tx: Transaction) -> bool:
    """Was the store moved away, or is it being filled?  Until this write ends it cannot be sealed."""
    row = await tx.fetch_one("notes.is_sealed")
    return row is not None and bool(row[0])
