"""Enqueueing: which runs are accepted, and which are already stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pollux.model import Arrived, NotePut, NotesChanged, RunState
from pollux.store.contract import Answer, RunAnswer, RunsAlike, Store
from pollux.testing.conformance.builders import (
    a_firing,
    a_job,
    a_run,
    advance,
    answers,
    claim,
    entries,
    finished,
    given,
    given_jobs,
    ids,
    leased,
    runs_alike,
    the_run,
)
from pollux.testing.conformance.contract import Contract


class EnqueueContract(Contract):
    async def test_an_enqueued_run_is_there_as_it_was_given(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        run = a_run("a", due_ms=t0, payload={"n": [1, {"x": None}]}, priority=1, group="g", target="host", key="k")

        assert await store.enqueue([run], now_ms=t0) == [RunAnswer(Answer.OK, "a")]

        assert await the_run(store, "a") == run

    async def test_a_batch_answers_in_the_order_of_its_runs(self, store: Store, t0: int) -> None:
        await given(store, a_run("b"))
        runs = [a_run("c"), a_run("b"), a_run("x", "no-such-job"), a_run("a")]

        given_answers = await store.enqueue(runs, now_ms=t0)

        assert [(each.id, each.answer) for each in given_answers] == [
            ("c", Answer.OK),
            ("b", Answer.ALREADY),
            ("x", Answer.STALE),
            ("a", Answer.OK),
        ]

    @pytest.mark.parametrize(
        "fields",
        [{}, {"priority": 1, "group": "g", "target": "a\nhost"}, {"gated": True}, {"key": "k"}],
        ids=["plain", "with a target", "gated", "with a key"],
    )
    async def test_runs_alike_are_taken_as_a_list_of_them_is(
        self, store: Store, t0: int, fields: dict[str, Any]
    ) -> None:
        await given_jobs(store, "job")
        payloads = {"c": {"n": [1, {"x": None}]}, "a": None, "b": {"text": "two\nlines \u2603"}, "new\nline": {"n": 1}}

        told = await store.enqueue(runs_alike(payloads, due_ms=t0, **fields), now_ms=t0)

        made = list(payloads)[:1] if "key" in fields else list(payloads)
        rest = [RunAnswer(Answer.CONFLICT, each, "c") for each in list(payloads)[len(made) :]]
        assert told == [RunAnswer(Answer.OK, each) for each in made] + rest
        assert await store.get_runs(made) == [a_run(each, due_ms=t0, payload=payloads[each], **fields) for each in made]
        assert ids(await claim(store, now_ms=t0)) == ([] if "gated" in fields else made)

    async def test_of_runs_alike_each_is_answered(self, store: Store, t0: int) -> None:
        await given(store, a_run("b"))
        some = runs_alike(dict.fromkeys("abcd"))

        assert answers(await store.enqueue(some, ready_max=3, now_ms=t0)) == [
            Answer.OK,
            Answer.ALREADY,
            Answer.OK,
            Answer.FULL,
        ]
        assert answers(await store.enqueue(some, now_ms=t0)) == [*[Answer.ALREADY] * 3, Answer.OK]
        assert answers(await store.enqueue(runs_alike(dict.fromkeys("ef"), job_id="nobody"))) == [Answer.STALE] * 2

    async def test_runs_alike_with_one_id_are_one(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        one = runs_alike({"a": {"n": 1}})
        twice = RunsAlike(one.one, one.ids * 2, one.bodies * 2)

        assert answers(await store.enqueue(twice, now_ms=t0)) == [Answer.OK, Answer.ALREADY]
        assert (await store.counts()).ready == 1

    async def test_an_empty_batch_is_harmless(self, store: Store, t0: int) -> None:
        assert await store.enqueue([], now_ms=t0) == []
        assert await store.enqueue(runs_alike({}), now_ms=t0) == []

    async def test_an_id_twice_in_one_batch_is_accepted_once(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        given_answers = await store.enqueue([a_run("a", priority=1), a_run("a", priority=3)], now_ms=t0)

        assert answers(given_answers) == [Answer.OK, Answer.ALREADY]
        assert (await the_run(store, "a")).priority == 1
        assert (await store.counts()).ready == 1

    async def test_the_same_call_again_changes_nothing(self, store: Store, t0: int) -> None:
        runs = [a_run("a"), a_run("b", gated=True)]
        await given(store, *runs)
        before = (await store.counts(), await store.get_runs(["a", "b"]))

        assert answers(await store.enqueue(runs, now_ms=t0)) == [Answer.ALREADY, Answer.ALREADY]

        assert (await store.counts(), await store.get_runs(["a", "b"])) == before

    async def test_the_id_of_a_leased_run_is_known(self, store: Store, t0: int) -> None:
        await leased(store, a_run("a"))

        assert answers(await store.enqueue([a_run("a")], now_ms=t0)) == [Answer.ALREADY]
        assert (await the_run(store, "a")).state is RunState.LEASED

    async def test_the_id_of_a_finished_run_is_known(self, store: Store, t0: int) -> None:
        await finished(store, a_run("a"))

        assert answers(await store.enqueue([a_run("a")], now_ms=t0 + 1)) == [Answer.ALREADY]
        assert (await the_run(store, "a")).state is RunState.DONE

    async def test_a_run_without_a_job_is_stale(self, store: Store, t0: int) -> None:
        assert await store.enqueue([a_run("a", "nobody")], now_ms=t0) == [RunAnswer(Answer.STALE, "a")]
        assert await store.get_runs(["a"]) == [None]

    async def test_one_refusal_keeps_nobody_else_out(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        await store.enqueue([a_run("x", "nobody"), a_run("a")], now_ms=t0)

        assert ids(await claim(store, now_ms=t0)) == ["a"]

    async def test_a_full_line_refuses_what_is_new(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        given_answers = await store.enqueue([a_run(str(n)) for n in range(4)], ready_max=3, now_ms=t0)

        assert answers(given_answers) == [Answer.OK] * 3 + [Answer.FULL]
        assert await store.get_runs(["3"]) == [None]

    async def test_held_runs_fill_the_line_too(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True), a_run("b", gated=True))

        for run in (a_run("c"), a_run("d", gated=True)):
            assert answers(await store.enqueue([run], ready_max=2, now_ms=t0)) == [Answer.FULL]
        assert answers(await store.enqueue([a_run("e"), a_run("f")], ready_max=3, now_ms=t0)) == [
            Answer.OK,
            Answer.FULL,
        ]

    async def test_a_full_line_still_knows_what_it_has(self, store: Store, t0: int) -> None:
        """A repeated call must not be answered `full` because of its own runs."""
        await given(store, a_run("a"), a_run("b"))

        assert answers(await store.enqueue([a_run("a"), a_run("b")], ready_max=2, now_ms=t0)) == [Answer.ALREADY] * 2

    async def test_leased_runs_leave_room_in_the_line(self, store: Store, t0: int) -> None:
        await leased(store, a_run("a"))

        assert answers(await store.enqueue([a_run("b")], ready_max=1, now_ms=t0)) == [Answer.OK]

    async def test_a_gated_run_is_held_and_tells_the_leader(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True), a_run("b"), a_run("c", gated=True))

        run = await the_run(store, "a")
        assert (run.state, run.held_reason) == (RunState.HELD, "at the gate")
        assert [entry.run_ids for entry in await entries(store, Arrived)] == [("a", "c")]

    async def test_a_run_that_is_not_gated_tells_nobody(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))

        assert await entries(store, Arrived) == []

    async def test_a_held_run_cannot_be_claimed(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True))

        assert await claim(store, now_ms=t0 + 3_600_000) == ()

    async def test_notes_come_with_an_accepted_run(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        await store.enqueue([a_run("a")], notes=[NotePut("seen:1", {"by": "a"})], now_ms=t0)

        assert [(note.key, note.value) for note in await store.notes("seen:", now_ms=t0)] == [("seen:1", {"by": "a"})]
        assert [entry.keys for entry in await entries(store, NotesChanged)] == [("seen:1",)]

    async def test_notes_stay_away_when_no_run_is_accepted(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))

        await store.enqueue([a_run("a"), a_run("x", "nobody")], notes=[NotePut("seen:1", 1)], now_ms=t0)

        assert await store.notes(now_ms=t0) == []
        assert await entries(store, NotesChanged) == []

    async def test_a_run_for_later_waits_for_its_time(self, store: Store, t0: int) -> None:
        await given(store, a_run("later", due_ms=t0 + 5_000), a_run("now", due_ms=t0))

        assert ids(await claim(store, now_ms=t0)) == ["now"]
        assert ids(await claim(store, now_ms=t0 + 4_999)) == []
        assert ids(await claim(store, now_ms=t0 + 5_000)) == ["later"]

    async def test_accepted_runs_survive_closing_and_opening(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", payload={"x": 1}), a_run("b", gated=True))

        await store.close()
        await store.open()

        assert (await the_run(store, "a")).payload == {"x": 1}
        assert (await the_run(store, "b")).state is RunState.HELD
        assert ids(await claim(store, now_ms=t0)) == ["a"]

    async def test_two_callers_with_one_id_make_one_run(self, store: Store, t0: int) -> None:
        await given_jobs(store, a_job("job"))
        calls = [store.enqueue([a_run("a")], now_ms=t0) for _ in range(20)]

        given_answers = [answer for [answer] in await asyncio.gather(*calls)]

        assert sorted(answers(given_answers)) == sorted([Answer.OK] + [Answer.ALREADY] * 19)

    async def test_a_firing_and_an_enqueue_of_one_id_make_one_run(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0),))

        assert answers(await store.enqueue([a_run(f"job@{t0}")], now_ms=t0)) == [Answer.ALREADY]
        assert (await store.counts()).ready == 1
