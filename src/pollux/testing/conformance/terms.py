"""Terms of the leader, nodes, and notes."""

from __future__ import annotations

import asyncio

from pollux.model import Node, NodeSeen, Note, NotePut, NotesChanged, Plan, declares
from pollux.store.contract import Answer, Store
from pollux.testing.conformance.builders import (
    Contract,
    a_firing,
    claim,
    entries,
    forget_feed,
    given_jobs,
    ids,
    leased,
    the_job,
)


class TermContract(Contract):
    async def test_the_first_to_ask_leads(self, store: Store, t0: int) -> None:
        term = await store.elect("one", ttl_ms=15_000, now_ms=t0)

        assert (term.number, term.holder, term.until_ms, term.now_ms) == (1, "one", t0 + 15_000, t0)

    async def test_the_second_to_ask_is_told_who_leads(self, store: Store, t0: int) -> None:
        first = await store.elect("one", ttl_ms=15_000, now_ms=t0)

        second = await store.elect("two", ttl_ms=15_000, now_ms=t0 + 14_999)

        assert (second.number, second.holder, second.until_ms) == (first.number, "one", t0 + 15_000)

    async def test_the_leader_renews_its_own_term(self, store: Store, t0: int) -> None:
        first = await store.elect("one", ttl_ms=15_000, now_ms=t0)

        again = await store.elect("one", ttl_ms=15_000, now_ms=t0 + 5_000)

        assert (again.number, again.holder, again.until_ms) == (first.number, "one", t0 + 20_000)

    async def test_a_term_that_ended_goes_to_the_next_with_a_higher_number(self, store: Store, t0: int) -> None:
        first = await store.elect("one", ttl_ms=15_000, now_ms=t0)

        second = await store.elect("two", ttl_ms=15_000, now_ms=t0 + 15_000)

        assert second.holder == "two"
        assert second.number > first.number

    async def test_a_leader_that_slept_past_its_term_gets_a_new_number(self, store: Store, t0: int) -> None:
        first = await store.elect("one", ttl_ms=15_000, now_ms=t0)

        again = await store.elect("one", ttl_ms=15_000, now_ms=t0 + 60_000)

        assert again.holder == "one"
        assert again.number > first.number

    async def test_after_a_resignation_the_next_wins_at_once(self, store: Store, t0: int) -> None:
        first = await store.elect("one", ttl_ms=15_000, now_ms=t0)
        await store.resign("one", term=first.number, now_ms=t0)

        second = await store.elect("two", ttl_ms=15_000, now_ms=t0)

        assert second.holder == "two"
        assert second.number > first.number

    async def test_terms_rise_over_resignations_of_one_node(self, store: Store, t0: int) -> None:
        numbers = []
        for _ in range(4):
            term = await store.elect("one", ttl_ms=15_000, now_ms=t0)
            await store.resign("one", term=term.number, now_ms=t0)
            numbers.append(term.number)

        assert numbers == sorted(set(numbers))

    async def test_nobody_resigns_for_another(self, store: Store, t0: int) -> None:
        term = await store.elect("one", ttl_ms=15_000, now_ms=t0)

        await store.resign("two", term=term.number, now_ms=t0)

        assert (await store.elect("two", ttl_ms=15_000, now_ms=t0)).holder == "one"

    async def test_an_old_term_cannot_be_resigned(self, store: Store, t0: int) -> None:
        old = await store.elect("one", ttl_ms=15_000, now_ms=t0)
        new = await store.elect("one", ttl_ms=15_000, now_ms=t0 + 60_000)

        await store.resign("one", term=old.number, now_ms=t0 + 60_000)

        assert (await store.elect("two", ttl_ms=15_000, now_ms=t0 + 60_000)).number == new.number

    async def test_an_old_term_writes_nothing(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        old = await store.elect("one", ttl_ms=15_000, now_ms=t0)
        await store.elect("two", ttl_ms=15_000, now_ms=t0 + 15_000)
        feed = await store.feed(limit=99)
        plan = Plan(
            consumed=tuple(item.id for item in feed.items), firings=(a_firing(job, t0),), notes=(NotePut("n", 1),)
        )

        advanced = await store.advance(old.number, plan, now_ms=t0 + 15_000)

        assert (advanced.answer, advanced.firings, advanced.updates) == (Answer.FENCED, (), ())
        assert await the_job(store) == job
        assert await store.notes(now_ms=t0) == []
        assert await store.feed(limit=99, now_ms=feed.now_ms) == feed
        assert await claim(store, now_ms=t0) == ()

    async def test_a_term_that_never_was_writes_nothing(self, store: Store, t0: int) -> None:
        assert (await store.advance(1, Plan(), now_ms=t0)).answer is Answer.FENCED
        term = await store.elect("one", ttl_ms=15_000, now_ms=t0)

        assert (await store.advance(term.number + 1, Plan(), now_ms=t0)).answer is Answer.FENCED
        assert (await store.advance(term.number, Plan(), now_ms=t0)).answer is Answer.OK

    async def test_a_resigned_term_writes_nothing(self, store: Store, t0: int) -> None:
        term = await store.elect("one", ttl_ms=15_000, now_ms=t0)
        await store.resign("one", term=term.number, now_ms=t0)

        assert (await store.advance(term.number, Plan(), now_ms=t0)).answer is Answer.FENCED

    async def test_a_term_is_cut_to_its_length_when_the_clock_came_back(self, store: Store, t0: int) -> None:
        """A leader that died while its clock was an hour ahead is replaced within its ttl, not in an hour."""
        dead = await store.elect("dead", ttl_ms=15_000, now_ms=t0 + 3_600_000)

        assert (await store.elect("next", ttl_ms=15_000, now_ms=t0)).holder == "dead"
        term = await store.elect("next", ttl_ms=15_000, now_ms=t0 + 15_000)

        assert term.holder == "next"
        assert term.number > dead.number

    async def test_one_of_many_who_ask_at_once_leads(self, store: Store, t0: int) -> None:
        terms = await asyncio.gather(*(store.elect(f"n{n}", ttl_ms=15_000, now_ms=t0) for n in range(10)))

        assert len({(term.number, term.holder) for term in terms}) == 1

    async def test_terms_rise_over_closing_and_opening(self, store: Store, t0: int) -> None:
        before = await store.elect("one", ttl_ms=15_000, now_ms=t0)
        await store.close()
        await store.open()

        assert (await store.elect("two", ttl_ms=15_000, now_ms=t0)).holder == "one"
        assert (await store.elect("two", ttl_ms=15_000, now_ms=t0 + 15_000)).number > before.number


class NodeContract(Contract):
    async def test_a_node_that_beats_is_there_as_it_said(self, store: Store, t0: int) -> None:
        told = (declares("code:x", 3, ["a", "b"]), declares("file:y", 0, []))
        node = Node("n1", host="h", pid=7, started_ms=t0 - 9, seats=10, busy=3, handlers=("a", "b"), declares=told)

        await store.beat(node, ttl_ms=45_000, now_ms=t0)

        [seen] = await store.nodes(now_ms=t0)
        assert (seen.id, seen.host, seen.pid, seen.seats, seen.busy) == ("n1", "h", 7, 10, 3)
        assert (seen.handlers, seen.declares, seen.beat_ms) == (("a", "b"), told, t0)

    async def test_a_node_that_stops_beating_is_gone_after_its_time(self, store: Store, t0: int) -> None:
        await store.beat(Node("n1"), ttl_ms=45_000, now_ms=t0)

        assert ids(await store.nodes(now_ms=t0 + 44_999)) == ["n1"]
        assert await store.nodes(now_ms=t0 + 45_000) == []

    async def test_a_node_that_beats_again_lives_on(self, store: Store, t0: int) -> None:
        await store.beat(Node("n1", busy=1), ttl_ms=45_000, now_ms=t0)
        await store.beat(Node("n1", busy=2), ttl_ms=45_000, now_ms=t0 + 30_000)

        [seen] = await store.nodes(now_ms=t0 + 60_000)
        assert seen.busy == 2

    async def test_nodes_are_listed_by_id(self, store: Store, t0: int) -> None:
        for node_id in ("b", "c", "a"):
            await store.beat(Node(node_id), ttl_ms=45_000, now_ms=t0)

        assert ids(await store.nodes(now_ms=t0)) == ["a", "b", "c"]

    async def test_the_first_beat_tells_the_leader_and_the_next_does_not(self, store: Store, t0: int) -> None:
        for _ in range(3):
            await store.beat(Node("n1", handlers=("a",)), ttl_ms=45_000, now_ms=t0)

        assert await entries(store, NodeSeen) == [NodeSeen("n1")]

    async def test_a_beat_with_other_handlers_tells_the_leader(self, store: Store, t0: int) -> None:
        await store.beat(Node("n1", handlers=("a",)), ttl_ms=45_000, now_ms=t0)
        await store.beat(Node("n1", handlers=("a", "b")), ttl_ms=45_000, now_ms=t0)

        assert await entries(store, NodeSeen) == [NodeSeen("n1"), NodeSeen("n1")]

    async def test_a_node_that_left_is_gone_and_its_leases_stand(self, store: Store, t0: int) -> None:
        await store.beat(Node("n1"), ttl_ms=45_000, now_ms=t0)
        await leased(store, node="n1")

        await store.beat(Node("n1"), ttl_ms=0, now_ms=t0)
        await store.beat(Node("other"), ttl_ms=0, now_ms=t0)

        assert await store.nodes(now_ms=t0) == []
        assert (await store.counts()).leased == 1
        assert await claim(store, now_ms=t0 + 1_000) == ()


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

    async def test_the_last_expiry_of_a_note_in_a_batch_counts(self, store: Store, t0: int) -> None:
        ends = [t0 + 1_000, t0 + 2_000, None]
        batch = [NotePut(key, n, expires_ms=end) for n, end in enumerate(ends) for key in ("stays", f"other-{n}")]
        await store.put_notes(batch, now_ms=t0)

        await store.put_notes([NotePut("later", 1)], now_ms=t0 + 9_000)  # a store may delete expired notes now

        assert [note.key for note in await store.notes(now_ms=t0 + 9_000)] == ["later", "other-2", "stays"]

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
