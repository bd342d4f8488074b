"""Verbs of notes: put (by compare-and-set) and read by prefix."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush

from msgspec.json import encode

from pollux.model import STEERING, Note, NotePut, NotesChanged
from pollux.store.contract import Answer
from pollux.store.memory.state import VersionState


def put_notes(state: VersionState, puts: Sequence[NotePut], now_ms: int) -> list[Answer]:
    written: dict[str, None] = {}
    answers = write_notes(state, puts, now_ms, written)
    tell_notes(state, written)
    return answers


def write_notes(state: VersionState, puts: Sequence[NotePut], now_ms: int, written: dict[str, None]) -> list[Answer]:
    """Write the notes that do not conflict, and add their keys to `written`."""
    if not puts:
        return []
    _drop_expired(state, now_ms)
    return [_put_note(state, put, now_ms, written) for put in puts]


def tell_notes(state: VersionState, written: dict[str, None]) -> None:
    """Write a `NotesChanged` entry to the feed of every version."""
    if written:
        state.tell_all(NotesChanged(tuple(written)))


def _put_note(state: VersionState, put: NotePut, now_ms: int, written: dict[str, None]) -> Answer:
    stored = live_note(state, put.key, now_ms)
    if put.revision is not None and put.revision != (0 if stored is None else stored.revision):
        return Answer.CONFLICT
    if put.revision is None and _is_same(put, stored):
        return Answer.ALREADY
    if put.value is not None:
        set_note(state, put)
    elif stored is not None:
        drop_note(state, put.key)
    else:
        return Answer.OK
    written[put.key] = None
    return Answer.OK


def _is_same(put: NotePut, stored: Note | None) -> bool:
    """Compares the encoded values: 1 and true differ."""
    if put.value is None or stored is None:
        return put.value is None and stored is None
    return put.expires_ms == stored.expires_ms and encode(put.value) == encode(stored.value)


def live_note(state: VersionState, key: str, now_ms: int) -> Note | None:
    note = state.notes.get(key)
    return None if note is None or _is_over(note, now_ms) else note


def set_note(state: VersionState, put: NotePut, revision: int = 0) -> None:
    """Write a note.  All notes share one revision counter, so that a recreated note never has its old revision."""
    state.house.note_revision = max(state.house.note_revision + 1, revision)
    if put.key not in state.notes:
        state.house.note_keys = None
    state.notes[put.key] = Note(put.key, put.value, revision or state.house.note_revision, put.expires_ms)
    if put.expires_ms is not None:
        heappush(state.expiring, (put.expires_ms, put.key))
    _mark_stop(state, put.key)


def drop_note(state: VersionState, key: str) -> None:
    del state.notes[key]
    state.house.note_keys = None
    _mark_stop(state, key)


def _mark_stop(state: VersionState, key: str) -> None:
    if key.startswith(STEERING):
        state.house.stops_revision += 1


def _drop_expired(state: VersionState, now_ms: int) -> None:
    while state.expiring and state.expiring[0][0] <= now_ms:
        _, key = heappop(state.expiring)
        note = state.notes.get(key)
        if note is not None and _is_over(note, now_ms):
            drop_note(state, key)


def _is_over(note: Note, now_ms: int) -> bool:
    return note.expires_ms is not None and note.expires_ms <= now_ms


def notes(state: VersionState, prefix: str, now_ms: int) -> list[tuple[str, Note]]:
    if state.house.note_keys is None:
        state.house.note_keys = sorted(state.notes)
    found = []
    for place in range(bisect_left(state.house.note_keys, prefix), len(state.house.note_keys)):
        key = state.house.note_keys[place]
        if not key.startswith(prefix):
            break
        if not _is_over(state.notes[key], now_ms):
            found.append((key, state.notes[key]))
    return found
