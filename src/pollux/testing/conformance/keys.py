"""Unique keys: never two live runs with one key."""

from __future__ import annotations

import asyncio

from pollux.model import Back, Dead, Done, Hold, RetryAt, RunState
from pollux.store.contract import Answer, RunAnswer, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_run,
    answers,
    claim,
    dead_letter,
    given,
    given_jobs,
    leased,
    settlement,
    the_run,
)
from pollux.testing.conformance.contract import Contract


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
