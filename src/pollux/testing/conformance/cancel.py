"""Cancelling runs."""

from __future__ import annotations

from pollux.model import Done, Ended, RunState
from pollux.store.contract import Answer, RunAnswer, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_run,
    answers,
    claim,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    leased,
    renewal,
    settlement,
    the_run,
)
from pollux.testing.conformance.contract import Contract


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
