"""Marks of a store that is being moved, so that only one end plans.

    FROM   note `move:to`     moving ───▶ moved         kept until the store is unsealed
    TO     note `move:from`   filling ──▶ complete      kept as a record

A sealed store can be read, but no node works on it: nodes claim nothing (`DRAIN`, at both ends), and the term belongs
to a holder that never plans, so that every write of an old leader is fenced.  `Pollux.open` refuses a sealed store,
and so does every verb that changes something: the write itself checks the note `SEAL`, so all changes accepted before
the seal are copied, and none is accepted after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from pollux.errors import Conflict, StoreMoved
from pollux.model import DRAIN, Note, NotePut
from pollux.model.note import MOVE
from pollux.store.contract import Audit, Store
from pollux.store.decoding import decode_or_raise
from pollux.units import DAY_MS, format_moment, shell_word

MARKS = "move:"
MOVED_TO, MOVED_FROM = "move:to", "move:from"
SEAL = "move:seal"  # exists while the store must not be changed
HOLDER = "moved"  # holder of the term of a sealed store
HELD_MS = 36_500 * DAY_MS
FENCE_TRIES = 20  # nodes compete for a free term


class MoveMark(Struct, frozen=True, omit_defaults=True):
    """One end of a move."""

    move: str  # id of the move, the same at both ends
    other: str  # the other end, without a password
    began_ms: int
    ended_ms: int | None = None  # None: the move is under way
    counts: dict[str, int] = {}  # records copied, by kind

    @property
    def is_over(self) -> bool:
        return self.ended_ms is not None


class MoveMarks(NamedTuple):
    """The moves that a store took part in."""

    to: MoveMark | None  # moved to this store
    origin: MoveMark | None  # filled from this store


async def marks_of(store: Store) -> MoveMarks:
    return read_marks(await store.notes(MARKS))


def read_marks(notes: Sequence[Note]) -> MoveMarks:
    found = {note.key: note.value for note in notes}
    return MoveMarks(*(_mark(key, found.get(key)) for key in (MOVED_TO, MOVED_FROM)))


def _mark(key: str, value: Any) -> MoveMark | None:
    return None if value is None else decode_or_raise(partial(msgspec.convert, type=MoveMark), value, f"the note {key}")


def mark_put(key: str, mark: MoveMark) -> NotePut:
    return NotePut(key, msgspec.to_builtins(mark))


def seal_words(marks: MoveMarks, url: str) -> str:
    """Why the store is sealed, and after the first `; ` the cure; empty if it is not sealed."""
    here = shell_word(url)
    if marks.to is not None and marks.to.is_over:
        when = format_moment(marks.to.ended_ms or 0)
        return (
            f"this store was moved to {marks.to.other}, on {when}; use that one, or, if it is no longer in use, return "
            f"to this one: unseal it by `pollux store unseal {here} --force`"
        )
    if marks.to is not None:
        move = f"`pollux store move {here} {shell_word(marks.to.other)}`"
        return (
            f"this store is being moved to {marks.to.other}, since {format_moment(marks.to.began_ms)}; complete the "
            f"move: {move}, or abandon it: unseal this store by `pollux store unseal {here}`"
        )
    if marks.origin is not None and not marks.origin.is_over:
        return f"this store {filled_words(marks.origin, url)}"
    return ""


def filled_words(origin: MoveMark, url: str) -> str:
    """Message for a partly filled store, with both cures: only the other end has the state of the move."""
    here, there = shell_word(url), shell_word(origin.other)
    return (
        f"is being filled from {origin.other}, since {format_moment(origin.began_ms)}; complete the move: "
        f"`pollux store move {there} {here}`, or, if it was abandoned, drop the partial copy: "
        f"`pollux store drop {here}`"
    )


async def refuse_sealed(store: Store, url: str) -> None:
    """Raise `StoreMoved` if the store was moved, or is only partly filled."""
    if words := seal_words(await marks_of(store), url):
        what, _, cure = words.partition("; ")
        raise StoreMoved(what, cure=cure)


async def seal(store: Store, mark: MoveMark) -> None:
    """Seal the store: nodes stop working on it.  Repeating it changes nothing.

    The mark, the drain and the seal are one write.  A leader that reads them before its term is taken resigns by
    itself.
    """
    await store.put_notes([mark_put(MOVED_TO, mark), _drain_put(mark), NotePut(SEAL, value=True)])
    await store.wake()
    for handle in await of_all_versions(store):
        await _take_term(handle)
    await store.wake()


async def seal_for_good(store: Store, mark: MoveMark) -> None:
    """Mark the move as complete: errors of the sealed store name the new one."""
    await store.put_notes([mark_put(MOVED_TO, mark), _drain_put(mark), NotePut(SEAL, value=True)])
    await store.wake()


async def begin_filling(store: Store, origin: MoveMark) -> None:
    """Seal the target until it is complete; the drain gives the reason to commands that list stops."""
    drain = NotePut(DRAIN, {"reason": f"it is being filled from {origin.other}", "by": MOVE, "is_over": False})
    await store.put_notes([mark_put(MOVED_FROM, origin), drain, NotePut(SEAL, value=True)])


def _drain_put(mark: MoveMark) -> NotePut:
    verb = "was moved" if mark.is_over else "is being moved"
    return NotePut(DRAIN, {"reason": f"it {verb} to {mark.other}", "by": MOVE, "is_over": mark.is_over})


async def unseal(store: Store, *, audit: Audit | None = None) -> MoveMark | None:
    """Remove the seal, so that nodes work on the store again; answers the removed mark, if any.

    The mark is the first item of the write that the audit line belongs to.
    """
    mark = (await marks_of(store)).to
    await store.put_notes([NotePut(MOVED_TO), NotePut(DRAIN), NotePut(SEAL)], audit=audit)
    for handle in await of_all_versions(store):
        term = await handle.elect(HOLDER, ttl_ms=1)
        if term.holder == HOLDER:
            await handle.resign(HOLDER, term=term.number)
    await store.wake()
    return mark


async def of_all_versions(store: Store) -> list[Store]:
    """A handle on each existing version, and on the one of this handle."""
    numbers = {version.number for version in await store.versions()} | {store.scheduler_version}
    return [store.of_version(number) for number in sorted(numbers)]


async def _take_term(store: Store) -> None:
    """Take the term for good, with a number above the leader's, which fences the leader."""
    for _ in range(FENCE_TRIES):
        term = await store.elect(HOLDER, ttl_ms=HELD_MS)
        if term.holder == HOLDER:
            return
        record = {"number": term.number + 1, "scheduler_version": store.scheduler_version}
        await store.load([("term", record)])  # a loaded term has no holder
    raise Conflict("other nodes keep taking the term of this store; stop them, then try again")
