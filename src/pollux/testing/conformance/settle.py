"""Settling: ends of runs, retries and hand-backs, and what is kept of earlier attempts."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from pollux.model import (
    AT_THE_GATE,
    TRIED_CHARS_MAX,
    TRIED_MAX,
    Arrived,
    Back,
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
    Tried,
)
from pollux.store.contract import Answer, RunFilter, Settlement, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    Contract,
    a_failure,
    a_run,
    an_outcome,
    claim,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    last_ends,
    leased,
    release,
    renewal,
    retried,
    settlement,
    the_run,
)


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

    async def test_a_note_that_several_ends_of_a_batch_write_is_the_last_of_them(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"), a_run("c"))
        puts = [NotePut("cursor", n, expires_ms=end) for n, end in enumerate((t0 + 1_000, t0 + 2_000, None))]
        batch = [
            settlement(run, Done(), notes=(put,)) for run, put in zip(await claim(store, now_ms=t0), puts, strict=True)
        ]

        assert await store.settle(batch, now_ms=t0) == [Answer.OK] * 3
        await store.put_notes([NotePut("later", 1)], now_ms=t0 + 9_000)  # a store may delete expired notes now

        assert [note.value for note in await store.notes("cursor", now_ms=t0 + 9_000)] == [2]

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


class TriedContract(Contract):
    """What is kept of earlier attempts."""

    async def test_the_errors_of_earlier_attempts_are_kept(self, store: Store, t0: int) -> None:
        await given(store, a_run())
        for n in range(2):
            [run] = await claim(store, now_ms=t0 + n)
            failure = a_failure(t0 + n, f"ValueError: {n}")
            await store.settle([settlement(run, RetryAt(t0 + n), outcome=failure)], now_ms=t0 + n)
        waiting = await the_run(store, run.id)
        assert waiting.tried == (Tried(1, t0 - 100, t0, "ValueError: 0"), Tried(2, t0 - 99, t0 + 1, "ValueError: 1"))
        [run] = await claim(store, now_ms=t0 + 9)
        assert run.tried == waiting.tried, "the one who tries next is told"

        await store.settle([settlement(run, Done(), outcome=an_outcome(t0 + 9))], now_ms=t0 + 9)

        done = await the_run(store, run.id)
        assert (done.error, done.tried) == ("", waiting.tried)

    async def test_the_traceback_of_each_attempt_is_kept_beside_its_error(self, store: Store, t0: int) -> None:
        """With the run as it waits, as it is claimed and as it ends; the leader's feed has the error alone."""
        await given(store, a_run())
        traces = [f'File "shop.py", line {n}, in fetch\n    login("{n}")' for n in range(3)]
        [run] = await claim(store, now_ms=t0)
        failure = a_failure(t0, "ValueError: 0", traceback=traces[0])
        await store.settle([settlement(run, RetryAt(t0), outcome=failure)], now_ms=t0)
        [run] = await claim(store, now_ms=t0)
        failure = a_failure(t0, "ValueError: 1", traceback=traces[1])
        await store.settle([settlement(run, RetryAt(t0), outcome=failure)], now_ms=t0)
        waiting = await the_run(store, run.id)
        assert (waiting.error, waiting.traceback) == ("ValueError: 1", traces[1])
        assert [(each.error, each.traceback) for each in waiting.tried] == [
            ("ValueError: 0", traces[0]),
            ("ValueError: 1", traces[1]),
        ]
        [run] = await claim(store, now_ms=t0)
        assert (run.traceback, run.tried) == (traces[1], waiting.tried)
        failure = a_failure(t0, "ValueError: 2", traceback=traces[2])

        await store.settle([settlement(run, Dead("gave up"), outcome=failure)], now_ms=t0)

        letter = await the_run(store, run.id)
        assert (letter.error, letter.traceback, letter.tried) == ("ValueError: 2", traces[2], waiting.tried)
        ends = [end for entry in await entries(store, Ended) for end in entry.ends]
        assert [end.error for end in ends] == ["ValueError: 0", "ValueError: 1", "ValueError: 2"]

    async def test_a_list_by_error_looks_at_the_traceback_too(self, store: Store, t0: int) -> None:
        run = await leased(store)
        failure = a_failure(t0, "ValueError: 1", traceback='File "shop.py"')
        await store.settle([settlement(run, Dead("x"), outcome=failure)], now_ms=t0)
        for part, found in (("ValueError", [run.id]), ("shop.py", [run.id]), ("other.py", [])):
            assert ids((await store.list_runs(RunFilter(error=part))).runs) == found

    async def test_a_run_remembers_its_latest_attempts_only(self, store: Store, t0: int) -> None:
        await given(store, a_run())
        for _ in range(TRIED_MAX + 3):
            [run] = await claim(store, now_ms=t0)
            await store.settle([settlement(run, RetryAt(t0), outcome=a_failure(t0, "x" * 9_999))], now_ms=t0)

        tried = (await the_run(store, run.id)).tried

        assert [each.fence for each in tried] == list(range(4, TRIED_MAX + 4))
        assert {len(each.error) for each in tried} == {TRIED_CHARS_MAX}

    async def test_an_attempt_whose_lease_was_lost_is_remembered(self, store: Store, t0: int) -> None:
        run = await leased(store)
        [again] = await claim(store, now_ms=t0 + LEASE_MS)

        [lost] = again.tried
        assert (lost.fence, lost.ended_ms) == (1, t0 + LEASE_MS)
        assert run.owner in lost.error

    async def test_what_is_handed_back_uncharged_was_not_tried(self, store: Store, t0: int) -> None:
        for verdict in (Back(), Hold("stopped")):
            run = await leased(store, a_run(type(verdict).__name__))
            await store.settle([settlement(run, verdict)], now_ms=t0)

            assert (await the_run(store, run.id)).tried == ()
            await store.cancel(run_ids=[run.id], now_ms=t0)

    async def test_a_revived_run_keeps_what_was_tried(self, store: Store, t0: int) -> None:
        await given(store, a_run())
        [run] = await claim(store, now_ms=t0)
        await store.settle([settlement(run, RetryAt(t0), outcome=a_failure(t0))], now_ms=t0)
        [run] = await claim(store, now_ms=t0)
        await store.settle([settlement(run, Dead("x"), outcome=a_failure(t0))], now_ms=t0)
        tried = (await the_run(store, run.id)).tried

        await store.revive([run.id], now_ms=t0)

        assert (await the_run(store, run.id)).tried == tried != ()


class HandBackContract(Contract):
    async def test_a_retry_is_ready_at_its_time(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await retried(store, run, t0 + 5_000)

        assert await claim(store, now_ms=t0 + 4_999) == ()
        [again] = await claim(store, now_ms=t0 + 5_000)
        assert (again.id, again.attempt, again.fence) == (run.id, 1, 2)

    async def test_a_retry_is_charged_and_shows_what_went_wrong(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, RetryAt(t0 + 5_000), outcome=a_failure(t0, "TimeoutError"))], now_ms=t0)

        waiting = await the_run(store, run.id)
        assert (waiting.state, waiting.attempt, waiting.visible_ms) == (RunState.READY, 1, t0 + 5_000)
        assert (waiting.failed, waiting.error, waiting.lease_losses) == (True, "TimeoutError", 0)
        assert (waiting.owner, waiting.lease_until_ms) == ("", 0)

    async def test_a_retry_tells_the_leader_that_the_attempt_failed(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await retried(store, run, t0 + 5_000)

        [end] = await last_ends(store)
        assert (end.run_id, end.state, end.failed, end.ran) == (run.id, RunState.READY, True, True)
        assert (end.error, end.duration_ms) == ("ConnectionError: refused", 100)

    async def test_attempts_add_up_over_retries(self, store: Store, t0: int) -> None:
        run = await leased(store)
        for attempt in (1, 2, 3):
            await retried(store, run, t0)
            assert (await the_run(store, run.id)).attempt == attempt
            [run] = await claim(store, now_ms=t0)

    async def test_a_gated_retry_goes_back_to_the_gate(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a", gated=True))
        await forget_feed(store)

        await retried(store, run, t0 + 5_000)

        waiting = await the_run(store, "a")
        assert (waiting.state, waiting.held_reason, waiting.attempt) == (RunState.HELD, AT_THE_GATE, 1)
        assert [entry.run_ids for entry in await entries(store, Arrived)] == [("a",)]
        await release(store, "a")
        assert await claim(store, now_ms=t0 + 4_999) == ()
        assert ids(await claim(store, now_ms=t0 + 5_000)) == ["a"]

    async def test_a_run_handed_back_is_ready_at_once_and_not_charged(self, store: Store, t0: int) -> None:
        run = await leased(store)

        assert await store.settle([settlement(run, Back())], now_ms=t0 + 9) == [Answer.OK]

        [again] = await claim(store, now_ms=t0 + 9)
        assert (again.attempt, again.lease_losses, again.fence) == (0, 0, 2)

    async def test_a_gated_run_handed_back_is_ready_and_not_held(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a", gated=True))
        await forget_feed(store)

        await store.settle([settlement(run, Back())], now_ms=t0)

        assert (await the_run(store, "a")).state is RunState.READY
        assert await entries(store, Arrived) == []

    async def test_a_run_handed_back_keeps_how_it_went_before(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await retried(store, run, t0)
        before = await the_run(store, run.id)
        [run] = await claim(store, now_ms=t0)

        await store.settle([settlement(run, Back(), outcome=an_outcome(t0 + 50, error="interrupted"))], now_ms=t0 + 50)

        after = await the_run(store, run.id)
        assert replace(after, visible_ms=0, fence=0, token="") == replace(before, visible_ms=0, fence=0, token="")

    async def test_handing_back_tells_the_leader_that_nothing_ran(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, Back())], now_ms=t0)

        [end] = await last_ends(store)
        assert (end.state, end.ran, end.failed) == (RunState.READY, False, False)

    async def test_a_held_back_run_says_why_and_arrives_at_the_gate(self, store: Store, t0: int) -> None:
        run = await leased(store)

        assert await store.settle([settlement(run, Hold("paused: deploy"))], now_ms=t0) == [Answer.OK]

        waiting = await the_run(store, run.id)
        assert (waiting.state, waiting.held_reason, waiting.attempt) == (RunState.HELD, "paused: deploy", 0)
        assert [entry.run_ids for entry in await entries(store, Arrived)] == [(run.id,)]
        assert await claim(store, now_ms=t0 + 3_600_000) == ()

    async def test_a_held_back_run_runs_again_when_released(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, Hold("paused"))], now_ms=t0)

        await release(store, run.id, now_ms=t0 + 1_000)

        [again] = await claim(store, now_ms=t0 + 1_000)
        assert (again.id, again.held_reason, again.fence) == (run.id, "", 2)

    async def test_the_same_hand_back_again_is_already_there(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"), a_run("c"))
        a, b, c = await claim(store, now_ms=t0)
        batch = [settlement(a, RetryAt(t0 + 5_000)), settlement(b, Back()), settlement(c, Hold("x"))]
        await store.settle(batch, now_ms=t0)
        before = (await store.counts(), await store.get_runs(["a", "b", "c"]))

        assert await store.settle(batch, now_ms=t0 + 1) == [Answer.ALREADY] * 3

        assert (await store.counts(), await store.get_runs(["a", "b", "c"])) == before

    async def test_a_hand_back_sent_again_after_the_next_delivery_is_already_there(self, store: Store, t0: int) -> None:
        run = await leased(store)
        ends = settlement(run, Back(), follow_ups=(a_run("next", priority=3),))
        await store.settle([ends], now_ms=t0)
        [again] = await claim(store, 1, now_ms=t0)

        assert await store.settle([ends], now_ms=t0) == [Answer.ALREADY]
        assert await the_run(store, run.id) == again

    async def test_a_token_that_handed_its_run_back_holds_it_no_more(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, Back())], now_ms=t0)

        [renewed] = await store.renew([renewal(run)], lease_ms=9_000, now_ms=t0)

        assert renewed.answer is Answer.LOST
        assert ids(await claim(store, now_ms=t0)) == [run.id]

    async def test_a_late_hand_back_is_refused_once_somebody_else_has_the_run(self, store: Store, t0: int) -> None:
        """A node that was suspended past its lease must not take the run from its new owner."""
        old = await leased(store)
        [new] = await claim(store, now_ms=t0 + LEASE_MS)
        before = await store.counts()

        for verdict in (Back(), Hold("paused"), RetryAt(t0)):
            assert await store.settle([settlement(old, verdict)], now_ms=t0 + LEASE_MS) == [Answer.LOST]

        assert await the_run(store, old.id) == new
        assert await store.counts() == before

    async def test_a_request_to_stop_turns_a_retry_into_cancelled(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.cancel(run_ids=[run.id], reason="enough", now_ms=t0)

        ends = settlement(run, RetryAt(t0 + 5_000), outcome=a_failure(t0))
        assert await store.settle([ends], now_ms=t0) == [Answer.OK]

        past = await the_run(store, run.id)
        assert (past.state, past.cancel) == (RunState.CANCELLED, "enough")
        assert [(end.state, end.ran) for end in await last_ends(store)] == [(RunState.CANCELLED, True)]

    async def test_a_request_to_stop_turns_back_and_hold_into_cancelled(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"))
        a, b = await claim(store, now_ms=t0)
        await store.cancel(run_ids=["a", "b"], now_ms=t0)

        await store.settle([settlement(a, Back()), settlement(b, Hold("x"))], now_ms=t0)

        assert [(await the_run(store, run_id)).state for run_id in ("a", "b")] == [RunState.CANCELLED] * 2
        assert (await store.counts()).held == 0

    async def test_a_retry_of_a_deleted_job_is_cancelled(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.delete_jobs(["job"], now_ms=t0)

        assert await store.settle([settlement(run, RetryAt(t0 + 5_000))], now_ms=t0) == [Answer.OK]

        past = await the_run(store, run.id)
        assert (past.state, past.cancel) == (RunState.CANCELLED, "its job was deleted")

    async def test_handing_back_to_a_deleted_job_is_cancelled(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"))
        a, b = await claim(store, now_ms=t0)
        await store.delete_jobs(["job"], now_ms=t0)

        await store.settle([settlement(a, Back()), settlement(b, Hold("x"))], now_ms=t0)

        assert [(await the_run(store, run_id)).state for run_id in ("a", "b")] == [RunState.CANCELLED] * 2
        assert (await store.counts()).ready == 0

    async def test_a_cancelled_verdict_ends_the_run(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.settle([settlement(run, Cancelled("asked to"), outcome=an_outcome(t0))], now_ms=t0)

        past = await the_run(store, run.id)
        assert (past.state, past.cancel, past.failed) == (RunState.CANCELLED, "asked to", False)

    async def test_a_dead_verdict_wins_over_a_request_to_stop(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.cancel(run_ids=[run.id], now_ms=t0)

        await store.settle([settlement(run, Dead("gave up"), outcome=a_failure(t0))], now_ms=t0)

        assert (await the_run(store, run.id)).state is RunState.DEAD
