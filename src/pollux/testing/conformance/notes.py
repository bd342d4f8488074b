"""Notes: small values that all nodes share, with revisions."""

from __future__ import annotations

import asyncio

from pollux.model import Note, NotePut, NotesChanged
from pollux.store.contract import Answer, Store
from pollux.testing.conformance.builders import entries, forget_feed
from pollux.testing.conformance.contract import Contract


async def the_note(store: Store, key: str, now_ms: int) -> Note:
    [note] = [note for note in await store.notes(key, now_ms=now_ms) if note.key == key]
    return note


class NoteContract(Contract):
    async def test_a_note_is_there_as_it_was_written(self, store: Store, t0: int) -> None:
        value = {"state": "open", "n": [1, None, 2.5]}

        assert await store.put_notes([NotePut("breaker:h", value)], now_ms=t0) == [Answer.OK]

        note = await the_note(store, "breaker:h", t0)
        assert (note.key, note.value, note.expires_ms) == ("breaker:h", value, None)
        assert note.revision > 0

    async def test_a_value_may_be_false(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("a", False), NotePut("b", 0), NotePut("c", "")], now_ms=t0)

        assert [note.value for note in await store.notes(now_ms=t0)] == [False, 0, ""]

    async def test_notes_are_listed_by_key_from_a_prefix(self, store: Store, t0: int) -> None:
        keys = ["stop:job:b", "stop:all", "stop", "stopp", "a", "stop:job:a", "z"]
        await store.put_notes([NotePut(key, 1) for key in keys], now_ms=t0)

        assert [note.key for note in await store.notes("stop:", now_ms=t0)] == ["stop:all", "stop:job:a", "stop:job:b"]
        assert [note.key for note in await store.notes(now_ms=t0)] == sorted(keys)
        assert await store.notes("stop:x", now_ms=t0) == []

    async def test_a_prefix_is_taken_literally(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("a%b", 1), NotePut("a_b", 2), NotePut("axb", 3), NotePut("A%", 4)], now_ms=t0)

        assert [note.key for note in await store.notes("a%", now_ms=t0)] == ["a%b"]
        assert [note.key for note in await store.notes("a_", now_ms=t0)] == ["a_b"]

    async def test_every_write_changes_the_revision(self, store: Store, t0: int) -> None:
        revisions = []
        for value in (1, 2, 1):
            await store.put_notes([NotePut("n", value)], now_ms=t0)
            revisions.append((await the_note(store, "n", t0)).revision)

        assert revisions == sorted(set(revisions))

    async def test_what_is_there_already_is_not_written_again(self, store: Store, t0: int) -> None:
        puts = [NotePut("n", {"a": 1}), NotePut("m", 1, expires_ms=t0 + 9), NotePut("gone")]
        await store.put_notes(puts, now_ms=t0)
        before = await store.notes(now_ms=t0)
        await forget_feed(store)

        assert await store.put_notes(puts, now_ms=t0) == [Answer.ALREADY] * 3

        assert await store.notes(now_ms=t0) == before
        assert await entries(store, NotesChanged) == []

    async def test_another_value_or_end_is_another_note(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("n", 1), NotePut("m", 1, expires_ms=t0 + 9)], now_ms=t0)
        puts = [NotePut("n", 1, expires_ms=t0 + 9), NotePut("n", True, expires_ms=t0 + 9), NotePut("m", 1)]

        assert await store.put_notes(puts, now_ms=t0) == [Answer.OK] * 3
        assert [(note.value, note.expires_ms) for note in await store.notes(now_ms=t0)] == [(1, None), (True, t0 + 9)]

    async def test_the_same_over_a_revision_is_a_write(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("n", 1)], now_ms=t0)
        note = await the_note(store, "n", t0)

        assert await store.put_notes([NotePut("n", 1, revision=note.revision)], now_ms=t0) == [Answer.OK]
        assert await store.put_notes([NotePut("n", 1, revision=note.revision)], now_ms=t0) == [Answer.CONFLICT]

    async def test_a_write_over_the_right_revision_wins(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("n", 1)], now_ms=t0)
        note = await the_note(store, "n", t0)

        assert await store.put_notes([NotePut("n", 2, revision=note.revision)], now_ms=t0) == [Answer.OK]
        assert await store.put_notes([NotePut("n", 3, revision=note.revision)], now_ms=t0) == [Answer.CONFLICT]
        assert (await the_note(store, "n", t0)).value == 2

    async def test_a_write_that_must_be_the_first_wins_once(self, store: Store, t0: int) -> None:
        assert await store.put_notes([NotePut("n", 1, revision=0)], now_ms=t0) == [Answer.OK]
        assert await store.put_notes([NotePut("n", 2, revision=0)], now_ms=t0) == [Answer.CONFLICT]

    async def test_a_write_over_a_revision_of_nothing_conflicts(self, store: Store, t0: int) -> None:
        assert await store.put_notes([NotePut("n", 1, revision=3)], now_ms=t0) == [Answer.CONFLICT]
        assert await store.notes(now_ms=t0) == []

    async def test_a_note_without_a_value_is_deleted(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("n", 1), NotePut("m", 1)], now_ms=t0)

        assert await store.put_notes([NotePut("n", None)], now_ms=t0) == [Answer.OK]
        assert [note.key for note in await store.notes(now_ms=t0)] == ["m"]

    async def test_a_note_made_anew_is_not_taken_for_the_old_one(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("n", "old")], now_ms=t0)
        old = await the_note(store, "n", t0)
        await store.put_notes([NotePut("n", None)], now_ms=t0)
        await store.put_notes([NotePut("n", "new")], now_ms=t0)

        assert await store.put_notes([NotePut("n", 1, revision=old.revision)], now_ms=t0) == [Answer.CONFLICT]

    async def test_an_expired_note_is_not_there(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("n", 1, expires_ms=t0 + 1_000)], now_ms=t0)

        assert (await the_note(store, "n", t0 + 999)).expires_ms == t0 + 1_000
        assert await store.notes(now_ms=t0 + 1_000) == []

    async def test_an_expired_note_stands_in_nobodys_way(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("n", 1, expires_ms=t0 + 1_000)], now_ms=t0)

        assert await store.put_notes([NotePut("n", 2, revision=0)], now_ms=t0 + 999) == [Answer.CONFLICT]
        assert await store.put_notes([NotePut("n", 2, revision=0)], now_ms=t0 + 1_000) == [Answer.OK]
        assert (await the_note(store, "n", t0 + 99_999)).value == 2

    async def test_a_batch_of_notes_answers_in_order_and_makes_one_entry(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("a", 1)], now_ms=t0)
        await forget_feed(store)
        puts = [NotePut("b", 1), NotePut("a", 2, revision=0), NotePut("c", 1)]

        assert await store.put_notes(puts, now_ms=t0) == [Answer.OK, Answer.CONFLICT, Answer.OK]

        assert await entries(store, NotesChanged) == [NotesChanged(("b", "c"))]

    async def test_a_refused_note_tells_nobody(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("a", 1, revision=9)], now_ms=t0)

        assert await entries(store, NotesChanged) == []

    async def test_a_deleted_note_tells_the_leader(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("a", 1)], now_ms=t0)
        await forget_feed(store)
        await store.put_notes([NotePut("a", None)], now_ms=t0)

        assert await entries(store, NotesChanged) == [NotesChanged(("a",))]

    async def test_one_of_many_who_write_over_a_revision_wins(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("n", 0)], now_ms=t0)
        note = await the_note(store, "n", t0)
        puts = [store.put_notes([NotePut("n", n, revision=note.revision)], now_ms=t0) for n in range(10)]

        given_answers = [answer for [answer] in await asyncio.gather(*puts)]

        assert sorted(given_answers) == sorted([Answer.OK] + [Answer.CONFLICT] * 9)

    async def test_notes_survive_closing_and_opening(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut("n", {"a": 1})], now_ms=t0)
        before = await store.notes(now_ms=t0)
        await store.close()
        await store.open()

        assert await store.notes(now_ms=t0) == before
