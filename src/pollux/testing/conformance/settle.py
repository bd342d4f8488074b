"""Settling attempts."""

from __future__ import annotations

import asyncio

from pollux.model import (
    Arrived,
    Cancelled,
    Cause,
    Dead,
    Done,
    End,
    Ended,
    Hold,
    NotePut,
    NotesChanged,
    RetryAt,
    RunState,
)
from pollux.store.contract import Answer, Settlement, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_failure,
    a_run,
    an_outcome,
    claim,
    entries,
    finished,
    given,
    given_jobs,
    ids,
    last_ends,
    leased,
    settlement,
    the_run,
)
from pollux.testing.conformance.contract import Contract


class SettleContract(Contract):
    async def test_a_done_run_leaves_the_live_and_keeps_its_outcome(self, store: Store, t0: int) -> None:
        run = await leased(store)
        outcome = an_outcome(t0 + 500, started_ms=t0 + 20, result={"n": 1}, changed=True)

        assert await store.settle([settlement(run, Done(), outcome=outcome)], now_ms=t0 + 500) == [Answer.OK]

        past = await the_run(store, run.id)
        assert (past.state, past.failed, past.error, past.result, past.changed) == (
            RunState.DONE,
            False,
            "",
            {"n": 1},
            True,
        )
        assert (past.started_ms, past.finished_ms, past.token) == (t0 + 20, t0 + 500, run.token)
        assert (await store.counts()).leased == 0
        assert await claim(store, now_ms=t0 + LEASE_MS) == ()

    async def test_a_done_run_may_have_failed(self, store: Store, t0: int) -> None:
        """A failed poll of a recurring job is over: the next firing is the retry."""
        run = await leased(store)

        await store.settle([settlement(run, Done(failed=True), outcome=a_failure(t0))], now_ms=t0)

        past = await the_run(store, run.id)
        assert (past.state, past.failed, past.error) == (RunState.DONE, True, "ConnectionError: refused")

    async def test_the_leader_is_told_how_the_attempt_ended(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a", due_ms=t0 - 50, cause=Cause.SCHEDULE))
        outcome = an_outcome(t0 + 70, started_ms=t0 + 20, changed=False, fingerprint="f00")

        await store.settle([settlement(run, Done(), outcome=outcome)], now_ms=t0 + 80)

        assert await entries(store, Ended) == [
            Ended(
                (
                    End(
                        "a",
                        "job",
                        RunState.DONE,
                        Cause.SCHEDULE,
                        due_ms=t0 - 50,
                        ended_ms=t0 + 70,
                        duration_ms=50,
                        changed=False,
                        fingerprint="f00",
                    ),
                )
            )
        ]

    async def test_the_same_settlement_again_is_already_there(self, store: Store, t0: int) -> None:
        run = await leased(store)
        ends = settlement(run, Done(), outcome=an_outcome(t0), follow_ups=(a_run("next"),))
        await store.settle([ends], now_ms=t0)
        before = (await store.counts(), await the_run(store, run.id))

        assert await store.settle([ends], now_ms=t0 + 9) == [Answer.ALREADY]

        assert (await store.counts(), await the_run(store, run.id)) == before

    async def test_another_token_settles_nothing(self, store: Store, t0: int) -> None:
        run = await leased(store)
        before = await store.counts()
        wrong = Settlement(run.id, "other:1", Done(), an_outcome(t0), (a_run("next"),), (NotePut("n", 1),))

        assert await store.settle([wrong], now_ms=t0) == [Answer.LOST]

        assert await the_run(store, run.id) == run
        assert await store.get_runs(["next"]) == [None]
        assert await store.notes(now_ms=t0) == []
        assert await store.counts() == before

    async def test_a_late_settlement_is_refused_once_somebody_else_has_the_run(self, store: Store, t0: int) -> None:
        old = await leased(store)
        [new] = await claim(store, now_ms=t0 + LEASE_MS)

        late = settlement(old, Done(), outcome=an_outcome(t0, result="old"), follow_ups=(a_run("next"),))
        assert await store.settle([late], now_ms=t0 + LEASE_MS) == [Answer.LOST]

        assert await the_run(store, old.id) == new
        assert await store.get_runs(["next"]) == [None]

    async def test_a_late_settlement_counts_while_nobody_else_has_the_run(self, store: Store, t0: int) -> None:
        """The token decides, not the clock."""
        run = await leased(store)

        assert await store.settle([settlement(run, Done())], now_ms=t0 + 10 * LEASE_MS) == [Answer.OK]
        assert (await the_run(store, run.id)).state is RunState.DONE

    async def test_a_settlement_of_an_unknown_run_is_lost(self, store: Store, t0: int) -> None:
        assert await store.settle([Settlement("nobody", "t:1", Done())], now_ms=t0) == [Answer.LOST]
        assert await entries(store, Ended) == []

    async def test_a_run_that_nobody_holds_cannot_be_settled(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))

        assert await store.settle([Settlement("a", "", Done())], now_ms=t0) == [Answer.LOST]
        assert (await the_run(store, "a")).state is RunState.READY

    async def test_follow_ups_come_with_the_end(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job", "after")
        run = await leased(store)
        follow_ups = (a_run("b", "after", payload={"x": 1}), a_run("c", "after", due_ms=t0 + 5_000))

        await store.settle([settlement(run, Done(), follow_ups=follow_ups)], now_ms=t0)

        assert (await the_run(store, "b")).payload == {"x": 1}
        assert ids(await claim(store, now_ms=t0)) == ["b"]
        assert ids(await claim(store, now_ms=t0 + 5_000)) == ["c"]

    async def test_a_gated_follow_up_arrives_at_the_gate(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.settle([settlement(run, Done(), follow_ups=(a_run("b", gated=True),))], now_ms=t0)

        assert (await the_run(store, "b")).state is RunState.HELD
        assert [entry.run_ids for entry in await entries(store, Arrived)] == [("b",)]

    async def test_a_follow_up_that_is_there_already_stands_in_nobodys_way(self, store: Store, t0: int) -> None:
        await finished(store, a_run("b"))
        run = await leased(store, a_run("a"))

        follow_ups = (a_run("b"), a_run("x", "no-such-job"), a_run("c"))
        assert await store.settle([settlement(run, Done(), follow_ups=follow_ups)], now_ms=t0) == [Answer.OK]

        assert (await the_run(store, "b")).state is RunState.DONE
        assert (await the_run(store, "c")).state is RunState.READY

    async def test_notes_come_with_the_end(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.settle([settlement(run, Done(), notes=(NotePut("cursor", 7),))], now_ms=t0)

        assert [note.value for note in await store.notes("cursor", now_ms=t0)] == [7]
        assert [entry.keys for entry in await entries(store, NotesChanged)] == [("cursor",)]

    async def test_a_batch_makes_one_entry_with_its_ends_in_order(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"), a_run("c"))
        a, b, c = await claim(store, now_ms=t0)
        batch = [
            settlement(c, Done()),
            Settlement("b", "other:1", Done()),
            settlement(a, RetryAt(t0 + 1_000), outcome=a_failure(t0)),
            settlement(b, Hold("no handler")),
        ]

        assert await store.settle(batch, now_ms=t0) == [Answer.OK, Answer.LOST, Answer.OK, Answer.OK]

        [entry] = await entries(store, Ended)
        assert [(end.run_id, end.state) for end in entry.ends] == [
            ("c", RunState.DONE),
            ("a", RunState.READY),
            ("b", RunState.HELD),
        ]

    async def test_one_refused_settlement_keeps_nobody_else_back(self, store: Store, t0: int) -> None:
        run = await leased(store)

        given_answers = await store.settle([Settlement("no", "t:1", Done()), settlement(run, Done())], now_ms=t0)

        assert given_answers == [Answer.LOST, Answer.OK]

    async def test_a_run_twice_in_one_batch_is_settled_once(self, store: Store, t0: int) -> None:
        run = await leased(store)

        batch = [settlement(run, Done()), settlement(run, Dead("x"))]
        assert await store.settle(batch, now_ms=t0) == [Answer.OK, Answer.ALREADY]

        assert (await the_run(store, run.id)).state is RunState.DONE
        assert len(await last_ends(store)) == 1

    async def test_only_one_of_many_who_settle_at_once_is_told_ok(self, store: Store, t0: int) -> None:
        run = await leased(store)
        calls = [store.settle([settlement(run, Done(), outcome=an_outcome(t0, result=n))]) for n in range(10)]

        given_answers = [answer for [answer] in await asyncio.gather(*calls)]

        assert sorted(given_answers) == sorted([Answer.OK] + [Answer.ALREADY] * 9)
        assert len(await entries(store, Ended)) == 1

    async def test_a_settled_run_survives_closing_and_opening(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, Done(), follow_ups=(a_run("next"),))], now_ms=t0)

        await store.close()
        await store.open()

        assert (await the_run(store, run.id)).state is RunState.DONE
        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.ALREADY]
        assert ids(await claim(store, now_ms=t0)) == ["next"]
        assert len(await entries(store, Ended)) == 1

    async def test_an_end_without_an_outcome_says_that_nothing_ran(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.settle([settlement(run, Cancelled("stopped before it began"))], now_ms=t0)

        past = await the_run(store, run.id)
        assert (past.state, past.cancel) == (RunState.CANCELLED, "stopped before it began")
        [end] = await last_ends(store)
        assert (end.state, end.ran, end.error) == (RunState.CANCELLED, False, "stopped before it began")
