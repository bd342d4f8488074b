"""Marks of a store that is being moved, so that only one end plans.

    FROM   note `move:to`     moving ───▶ moved         it stays until the store is put into use again
    TO     note `move:from`   arriving ─▶ arrived       it stays as a record

A sealed store can be read, but is not worked on: nodes claim nothing (`DRAIN`, at both ends), and the term belongs
to a holder that never plans, so that whatever an old leader writes is fenced.  `Pollux.open` refuses it in words,
and so does every verb that would change something: it looks for the note `SEAL` in the write itself, so what was
accepted before the seal is carried, and nothing is accepted after it.
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
from pollux.store.contract import Store
from pollux.store.decoding import decode_or_raise
from pollux.units import DAY_MS, format_moment, shell_word

MARKS = "move:"
MOVED_TO, MOVED_FROM = "move:to", "move:from"
SEAL = "move:seal"  # is there as long as the store must not be changed
HOLDER = "moved"  # of the term of a sealed store
HELD_MS = 36_500 * DAY_MS
FENCE_TRIES = 20  # others may take a free term, too


class MoveMark(Struct, frozen=True, omit_defaults=True):
    """One end of a move."""

    move: str  # its id, the same at both ends
    other: str  # the other end, without a password
    began_ms: int
    ended_ms: int | None = None  # None: it is under way
    counts: dict[str, int] = {}  # what was carried, by kind

    @property
    def is_over(self) -> bool:
        return self.ended_ms is not None


class MoveMarks(NamedTuple):
    """What moves a store has taken part in."""

    to: MoveMark | None  # it went there
    origin: MoveMark | None  # it came from there


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
    """Why nobody may work on this store, and the cure; nothing if everybody may."""
    here = shell_word(url)
    if marks.to is not None and marks.to.is_over:
        when = format_moment(marks.to.ended_ms or 0)
        return (
            f"this store was moved to {marks.to.other}, on {when}; use that one, or take this one into use again, "
            f"if nobody uses that: unseal it by `pollux store unseal {here} --force`"
        )
    if marks.to is not None:
        move = f"`pollux store move {here} {shell_word(marks.to.other)}`"
        return (
            f"this store is being moved to {marks.to.other}, since {format_moment(marks.to.began_ms)}; complete that: "
            f"{move}, or give it up: unseal it by `pollux store unseal {here}`"
        )
    if marks.origin is not None and not marks.origin.is_over:
        return f"this store {filled_words(marks.origin, url)}"
    return ""


def filled_words(origin: MoveMark, url: str) -> str:
    """Of a store that holds a part of a move, with both ways out: whether it goes on only the other end knows."""
    here, there = shell_word(url), shell_word(origin.other)
    return (
        f"is being filled from {origin.other}, since {format_moment(origin.began_ms)}; complete that: "
        f"`pollux store move {there} {here}`, or, if it was given up there, throw away what came: "
        f"`pollux store drop {here}`"
    )


async def refuse_sealed(store: Store, url: str) -> None:
    """Raise `StoreMoved` if the store was moved away, or is not yet whole."""
    if words := seal_words(await marks_of(store), url):
        what, _, cure = words.partition("; ")
        raise StoreMoved(what, cure=cure)


async def seal(store: Store, mark: MoveMark) -> None:
    """Nobody works on the store from here on.  Doing it again changes nothing.

    What says so and what stops the workers are one write; a leader that hears of it before its term is taken from it
    steps aside by itself.
    """
    await store.put_notes([mark_put(MOVED_TO, mark), _drain_put(mark), NotePut(SEAL, value=True)])
    await store.wake()
    for handle in await of_all_versions(store):
        await _take_term(handle)
    await store.wake()


async def seal_for_good(store: Store, mark: MoveMark) -> None:
    """The move is over: whoever looks is told where to go."""
    await store.put_notes([mark_put(MOVED_TO, mark), _drain_put(mark), NotePut(SEAL, value=True)])
    await store.wake()


async def begin_filling(store: Store, origin: MoveMark) -> None:
    """Nobody works on the store before it is whole; whoever looks at what stops it sees the drain, and asks why."""
    drain = NotePut(DRAIN, {"reason": f"it is being filled from {origin.other}", "by": MOVE, "is_over": False})
    await store.put_notes([mark_put(MOVED_FROM, origin), drain, NotePut(SEAL, value=True)])


def _drain_put(mark: MoveMark) -> NotePut:
    words = "was moved" if mark.is_over else "is moved"
    return NotePut(DRAIN, {"reason": f"it {words} to {mark.other}", "by": MOVE, "is_over": mark.is_over})


async def unseal(store: Store) -> MoveMark | None:
    """Everybody may work on the store again; answers the mark that stood, if there was one."""
    mark = (await marks_of(store)).to
    await store.put_notes([NotePut(MOVED_TO), NotePut(DRAIN), NotePut(SEAL)])
    for handle in await of_all_versions(store):
        term = await handle.elect(HOLDER, ttl_ms=1)
        if term.holder == HOLDER:
            await handle.resign(HOLDER, term=term.number)
    await store.wake()
    return mark


async def of_all_versions(store: Store) -> list[Store]:
    """A handle on each version that is there, and on the one of this handle."""
    numbers = {version.number for version in await store.versions()} | {store.scheduler_version}
    return [store.of_version(number) for number in sorted(numbers)]


async def _take_term(store: Store) -> None:
    """The term is ours for good: a higher one than the leader's, who is fenced from then on."""
    for _ in range(FENCE_TRIES):
        term = await store.elect(HOLDER, ttl_ms=HELD_MS)
        if term.holder == HOLDER:
            return
        record = {"number": term.number + 1, "scheduler_version": store.scheduler_version}
        await store.load([("term", record)])  # a loaded term is nobody's
    raise Conflict("other nodes take the term of this store again and again; stop them, then try again")
