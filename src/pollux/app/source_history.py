"""Which sets of jobs a source had: a note for each source and version, with the marks of the sets, the latest last.

A text whose set is among them may take most jobs away; the latest one holds, and may start beside any living node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from pollux.model import SOURCE, LatestDeclaration, Note, NotePut
from pollux.store.contract import Answer, Store
from pollux.store.decoding import as_far

HAD_MAX = 20


class SourceHistory(Struct, frozen=True):
    """The marks that are noted for a source, and the revision of the note; 0: there is none."""

    had: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()  # that may not come back unasked; a living node that has one of them is behind
    revision: int = 0
    at_ms: int = 0  # since when the latest one is; 0: an older release noted it


NONE = SourceHistory()


async def read_histories(store: Store) -> dict[str, SourceHistory]:
    """By source, as far as they can be read."""
    prefix = _key(store, "")
    notes, _ = await as_far(store.notes(prefix))
    return {
        note.key.removeprefix(prefix): SourceHistory(
            _marks(note, "had"), _marks(note, "replaced"), note.revision, _at_ms(note)
        )
        for note in notes
    }


async def latest_sets(store: Store) -> dict[str, LatestDeclaration]:
    """The set of jobs that holds, by source."""
    histories = await read_histories(store)
    return {source: LatestDeclaration(each.had[-1], each.at_ms) for source, each in histories.items() if each.had}


async def note_set(
    store: Store, source: str, mark: str, *, had: tuple[str, ...], replaces: Collection[str] | None
) -> bool:
    """Note that this set is the latest; false if another one was noted since `had` was read.

    `replaces`: it stands in the place of all that the source had, and of these; None: of the latest only.
    """
    there = (await read_histories(store)).get(source, NONE)
    if there.had != had:
        return False
    gone = there.replaced if replaces is None else (*there.replaced, *had, *replaces)
    marks = (*_without(had if replaces is None else (), mark), mark)[-HAD_MAX:]
    replaced = _without(tuple(dict.fromkeys(gone)), mark)[-HAD_MAX:]
    if (marks, replaced) == (had, there.replaced):
        return True
    value = {"had": list(marks), "replaced": list(replaced), "at_ms": await store.now()}
    return await store.put_notes([NotePut(_key(store, source), value, revision=there.revision)]) == [Answer.OK]


def _without(marks: tuple[str, ...], mark: str) -> tuple[str, ...]:
    return tuple(each for each in marks if each != mark)


def _key(store: Store, source: str) -> str:
    return f"{SOURCE}{store.scheduler_version}:{source}"


def _marks(note: Note, name: str) -> tuple[str, ...]:
    marks = note.value.get(name) if isinstance(note.value, Mapping) else None
    return tuple(map(str, marks)) if isinstance(marks, list) else ()


def _at_ms(note: Note) -> int:
    at_ms = note.value.get("at_ms") if isinstance(note.value, Mapping) else None
    return at_ms if isinstance(at_ms, int) else 0
