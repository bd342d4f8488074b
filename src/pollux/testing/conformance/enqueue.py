"""Requested runs: enqueued, with unique keys, and cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pollux.model import Arrived, Back, Dead, Done, Ended, Hold, NotePut, NotesChanged, RetryAt, RunState
from pollux.store.contract import Answer, RunAnswer, RunsAlike, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    Contract,
    a_firing,
    a_job,
    a_run,
    advance,
    answers,
    claim,
    dead_letter,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    leased,
    renewal,
    runs_alike,
    settlement,
    the_run,
)


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


async def taken_by(store: Store, key: str = "k") -> str:
    """Return the run that holds the key, found by trying to take it."""
    [answer] = await store.enqueue([a_run("probe", "job", key=key, gated=True)])
    if answer.answer is Answer.CONFLICT:
        return answer.detail
    assert answer.answer is Answer.OK
    await store.cancel(run_ids=["probe"])
    return ""


class UniqueKeyContract(Contract):
    async def test_a_live_key_keeps_others_out_and_names_its_holder(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", key="k"))

        assert await store.enqueue([a_run("b", key="k")], now_ms=t0) == [RunAnswer(Answer.CONFLICT, "b", "a")]
        assert await store.get_runs(["b"]) == [None]

    async def test_a_key_is_taken_inside_its_own_batch(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        given_answers = await store.enqueue([a_run("a", key="k"), a_run("b", key="k")], now_ms=t0)

        assert answers(given_answers) == [Answer.OK, Answer.CONFLICT]
        assert given_answers[1].detail == "a"

    async def test_another_key_is_another_matter(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", key="k"))

        assert answers(await store.enqueue([a_run("b", key="K"), a_run("c")], now_ms=t0)) == [Answer.OK] * 2

    async def test_a_key_is_taken_across_jobs(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", "one", key="k"))
        await given_jobs(store, "two")

        assert answers(await store.enqueue([a_run("b", "two", key="k")], now_ms=t0)) == [Answer.CONFLICT]

    async def test_runs_without_a_key_never_conflict(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        assert answers(await store.enqueue([a_run("a"), a_run("b")], now_ms=t0)) == [Answer.OK] * 2

    async def test_a_held_run_holds_its_key(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", key="k", gated=True))

        assert await taken_by(store) == "a"

    async def test_a_leased_run_holds_its_key(self, store: Store, t0: int) -> None:
        await leased(store, a_run("a", key="k"))

        assert await taken_by(store) == "a"

    async def test_a_run_that_waits_for_its_retry_holds_its_key(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a", key="k"))
        await store.settle([settlement(run, RetryAt(t0 + 60_000))], now_ms=t0)

        assert await taken_by(store) == "a"

    async def test_a_run_handed_back_holds_its_key(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", key="ka"), a_run("b", key="kb"))
        a, b = await claim(store, now_ms=t0)
        await store.settle([settlement(a, Back()), settlement(b, Hold("x"))], now_ms=t0)

        assert [await taken_by(store, "ka"), await taken_by(store, "kb")] == ["a", "b"]

    async def test_a_run_whose_lease_was_lost_holds_its_key(self, store: Store, t0: int) -> None:
        await leased(store, a_run("a", key="k"))
        await claim(store, now_ms=t0 + LEASE_MS)

        assert await taken_by(store) == "a"

    async def test_a_done_run_frees_its_key(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a", key="k"))
        await store.settle([settlement(run, Done())], now_ms=t0)

        assert await taken_by(store) == ""

    async def test_a_dead_run_frees_its_key(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("a", key="k"))

        assert await taken_by(store) == ""

    async def test_a_run_dead_of_lost_leases_frees_its_key(self, store: Store, t0: int) -> None:
        await leased(store, a_run("a", key="k"))
        await claim(store, losses_max=1, now_ms=t0 + LEASE_MS)

        assert await taken_by(store) == ""

    async def test_a_cancelled_run_frees_its_key(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", key="k"))
        await store.cancel(run_ids=["a"], now_ms=t0)

        assert await taken_by(store) == ""

    async def test_a_deleted_job_frees_the_keys_of_its_waiting_runs(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", "gone", key="k"))
        await given_jobs(store, "job")
        await store.delete_jobs(["gone"], now_ms=t0)

        assert await taken_by(store) == ""

    async def test_a_follow_up_may_take_the_key_of_the_run_it_follows(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a", key="k"))

        await store.settle([settlement(run, Done(), follow_ups=(a_run("b", key="k"),))], now_ms=t0)

        assert await taken_by(store) == "b"

    async def test_a_follow_up_with_a_taken_key_is_left_out(self, store: Store, t0: int) -> None:
        await given(store, a_run("holder", key="k", due_ms=t0 + 60_000))
        run = await leased(store, a_run("a"))

        follow_ups = (a_run("b", key="k"), a_run("c"))
        assert await store.settle([settlement(run, Done(), follow_ups=follow_ups)], now_ms=t0) == [Answer.OK]

        assert await store.get_runs(["b"]) == [None]
        assert (await the_run(store, "c")).state is RunState.READY

    async def test_a_dead_run_is_not_revived_into_a_taken_key(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("a", key="k"))
        await given(store, a_run("b", key="k"))

        assert await store.revive(["a"], now_ms=t0) == [RunAnswer(Answer.CONFLICT, "a", "b")]
        assert (await the_run(store, "a")).state is RunState.DEAD

    async def test_a_revived_run_takes_its_key_again(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("a", key="k"))
        await store.revive(["a"], now_ms=t0)

        assert await taken_by(store) == "a"

    async def test_one_of_many_who_want_a_key_at_once_gets_it(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        calls = [store.enqueue([a_run(f"r{n}", key="k")], now_ms=t0) for n in range(20)]

        given_answers = [answer for [answer] in await asyncio.gather(*calls)]

        assert sorted(answers(given_answers)) == sorted([Answer.CONFLICT] * 19 + [Answer.OK])
        [winner] = [answer.id for answer in given_answers if answer.answer is Answer.OK]
        assert {answer.detail for answer in given_answers if answer.answer is Answer.CONFLICT} == {winner}

    async def test_a_settled_dead_run_of_the_same_key_twice_is_no_trouble(self, store: Store, t0: int) -> None:
        """Dead letters do not hold their key: several may have the same."""
        await dead_letter(store, a_run("a", key="k"))
        run = await leased(store, a_run("b", key="k"))
        await store.settle([settlement(run, Dead("again"))], now_ms=t0)

        assert [(await the_run(store, run_id)).state for run_id in ("a", "b")] == [RunState.DEAD] * 2


class CancelContract(Contract):
    async def test_a_ready_run_is_cancelled_at_once(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))

        assert await store.cancel(run_ids=["a"], reason="wrong host", now_ms=t0 + 5) == [RunAnswer(Answer.OK, "a")]

        past = await the_run(store, "a")
        assert (past.state, past.cancel, past.finished_ms) == (RunState.CANCELLED, "wrong host", t0 + 5)
        assert await claim(store, now_ms=t0 + 5) == ()
        assert (await store.counts()).ready == 0

    async def test_a_held_run_is_cancelled_at_once(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True))

        await store.cancel(run_ids=["a"], now_ms=t0)

        past = await the_run(store, "a")
        assert (past.state, past.held_reason) == (RunState.CANCELLED, "")
        assert (await store.counts()).held == 0

    async def test_the_leader_is_told_once_of_all_that_ended(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b", gated=True))
        await forget_feed(store)

        await store.cancel(run_ids=["b", "a", "nobody"], reason="enough", now_ms=t0)

        [entry] = await entries(store, Ended)
        assert [(end.run_id, end.state, end.ran, end.error) for end in entry.ends] == [
            ("b", RunState.CANCELLED, False, "enough"),
            ("a", RunState.CANCELLED, False, "enough"),
        ]

    async def test_a_leased_run_is_asked_and_goes_on(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await forget_feed(store)

        assert await store.cancel(run_ids=[run.id], reason="enough", now_ms=t0) == [RunAnswer(Answer.OK, run.id)]

        asked = await the_run(store, run.id)
        assert (asked.state, asked.cancel, asked.token) == (RunState.LEASED, "enough", run.token)
        assert (await store.feed(limit=9)).items == ()

    async def test_a_leased_run_that_was_asked_may_still_be_done(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.cancel(run_ids=[run.id], now_ms=t0)

        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.OK]
        assert (await the_run(store, run.id)).state is RunState.DONE

    async def test_a_request_without_a_reason_is_still_a_request(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.cancel(run_ids=[run.id], now_ms=t0)

        [renewed] = await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=t0)

        assert renewed.cancel

    async def test_what_is_finished_or_unknown_cannot_be_cancelled(self, store: Store, t0: int) -> None:
        await finished(store, a_run("done"))

        given_answers = await store.cancel(run_ids=["done", "nobody"], now_ms=t0)

        assert answers(given_answers) == [Answer.LOST, Answer.LOST]
        assert (await the_run(store, "done")).state is RunState.DONE

    async def test_cancelling_twice_changes_nothing_more(self, store: Store, t0: int) -> None:
        await leased(store, a_run("leased"))
        await given(store, a_run("ready"))
        await store.cancel(run_ids=["ready", "leased"], reason="first", now_ms=t0)
        before = (await store.counts(), await store.get_runs(["ready", "leased"]))

        given_answers = await store.cancel(run_ids=["ready", "leased"], reason="second", now_ms=t0 + 9)

        assert Answer.CONFLICT not in answers(given_answers)
        assert (await store.counts(), await store.get_runs(["ready", "leased"])) == before

    async def test_a_job_is_cancelled_with_all_its_live_runs(self, store: Store, t0: int) -> None:
        await leased(store, a_run("leased"))
        await given(store, a_run("ready"), a_run("held", gated=True), a_run("other", "other-job"))

        given_answers = await store.cancel(job_id="job", reason="enough", now_ms=t0)

        assert {(each.id, each.answer) for each in given_answers} == {
            ("leased", Answer.OK),
            ("ready", Answer.OK),
            ("held", Answer.OK),
        }
        assert (await the_run(store, "leased")).cancel == "enough"
        assert (await the_run(store, "other")).state is RunState.READY

    async def test_cancelling_a_job_leaves_its_definition(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")

        assert await store.cancel(job_id="job", now_ms=t0) == []
        assert await store.get_jobs(["job"]) == [job]

    async def test_a_batch_of_cancels_answers_in_order(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"))

        given_answers = await store.cancel(run_ids=["no", "b", "a"], now_ms=t0)

        assert [(each.id, each.answer) for each in given_answers] == [
            ("no", Answer.LOST),
            ("b", Answer.OK),
            ("a", Answer.OK),
        ]
