"""Dead letters, and crashes of child processes."""

from __future__ import annotations

import pytest

from pollux.model import (
    AT_THE_GATE,
    Arrived,
    Back,
    Cancelled,
    Cause,
    Dead,
    Done,
    Hold,
    Isolate,
    RetryAt,
    RunState,
    Verdict,
)
from pollux.store.contract import Answer, Pruning, RunAnswer, RunFilter, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    Contract,
    a_failure,
    a_job,
    a_run,
    an_outcome,
    answers,
    claim,
    dead_letter,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    last_ends,
    leased,
    release,
    retried,
    settlement,
    the_job,
    the_run,
)


class DeadLetterContract(Contract):
    async def test_a_dead_letter_keeps_its_payload_and_its_error(self, store: Store, t0: int) -> None:
        letter = await dead_letter(store, a_run("a", payload={"order": 7}))

        assert (letter.state, letter.failed, letter.payload) == (RunState.DEAD, True, {"order": 7})
        assert letter.error == "ValueError: 42"
        assert (await store.counts()).dead == 1

    async def test_a_dead_letter_without_an_error_tells_the_reason(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, Dead("crashed three times"))], now_ms=t0)

        assert (await the_run(store, run.id)).error == "crashed three times"

    async def test_the_leader_is_told_of_a_dead_letter(self, store: Store, t0: int) -> None:
        await dead_letter(store)

        [end] = await last_ends(store)
        assert (end.state, end.failed, end.error) == (RunState.DEAD, True, "ValueError: 42")

    async def test_a_revived_run_is_ready_with_a_clean_slate(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await retried(store, run, t0)
        [run] = await claim(store, now_ms=t0)
        await store.settle([settlement(run, Dead("gave up"), outcome=a_failure(t0))], now_ms=t0)
        assert (await the_run(store, run.id)).attempt == 1

        assert await store.revive([run.id], now_ms=t0 + 9_000) == [RunAnswer(Answer.OK, run.id)]

        again = await the_run(store, run.id)
        assert (again.state, again.visible_ms) == (RunState.READY, t0 + 9_000)
        assert (again.attempt, again.lease_losses, again.crashes, again.deaths) == (0, 0, 0, 1)
        assert (await store.counts()).dead == 0

    async def test_a_revived_run_keeps_its_fence(self, store: Store, t0: int) -> None:
        letter = await dead_letter(store)
        await store.revive([letter.id], now_ms=t0)

        [again] = await claim(store, now_ms=t0)

        assert again.fence == letter.fence + 1

    async def test_a_revived_gated_run_arrives_at_the_gate(self, store: Store, t0: int) -> None:
        letter = await dead_letter(store, a_run("a", gated=True))
        await forget_feed(store)

        await store.revive([letter.id], now_ms=t0)

        again = await the_run(store, "a")
        assert (again.state, again.held_reason) == (RunState.HELD, AT_THE_GATE)
        assert [entry.run_ids for entry in await entries(store, Arrived)] == [("a",)]

    async def test_only_the_dead_can_be_revived(self, store: Store, t0: int) -> None:
        await finished(store, a_run("done"))
        held = await leased(store, a_run("leased"))
        await given(store, a_run("ready"))

        given_answers = await store.revive(["done", "leased", "ready", "nobody"], now_ms=t0)

        assert answers(given_answers) == [Answer.LOST] * 4
        assert await the_run(store, "leased") == held

    async def test_reviving_twice_makes_one_run(self, store: Store, t0: int) -> None:
        letter = await dead_letter(store)
        await store.revive([letter.id], now_ms=t0)
        before = (await store.counts(), await the_run(store, letter.id))

        [again] = await store.revive([letter.id], now_ms=t0 + 5)

        assert again.answer in {Answer.ALREADY, Answer.LOST}
        assert (await store.counts(), await the_run(store, letter.id)) == before

    async def test_a_dead_letter_of_a_deleted_job_is_stale(self, store: Store, t0: int) -> None:
        letter = await dead_letter(store)
        await store.delete_jobs(["job"], now_ms=t0)

        assert answers(await store.revive([letter.id], now_ms=t0)) == [Answer.STALE]
        assert (await the_run(store, letter.id)).state is RunState.DEAD

    async def test_a_sole_dead_letter_takes_the_place_of_the_earlier_ones(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("first", cause=Cause.SCHEDULE), sole=True)
        await dead_letter(store, a_run("second", cause=Cause.SCHEDULE), sole=True)
        third = await dead_letter(store, a_run("third", cause=Cause.SCHEDULE), sole=True)

        assert third.deaths == 3
        history = await store.list_runs(RunFilter(job_id="job", failed=True))
        assert [(run.id, run.state) for run in history.runs] == [
            ("third", RunState.DEAD),
            ("second", RunState.DONE),
            ("first", RunState.DONE),
        ]
        assert {run.error for run in history.runs} == {third.error}, "what went wrong stays readable"
        assert ids(history.runs[:1]) == ids((await store.list_runs(RunFilter(states=(RunState.DEAD,)))).runs)
        assert (await store.counts()).dead == 1
        assert answers(await store.revive(["first"], now_ms=t0)) == [Answer.LOST]

    async def test_a_sole_dead_letter_leaves_other_jobs_alone(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("mine", "one", cause=Cause.SCHEDULE), sole=True)
        other = await dead_letter(store, a_run("other", "two", cause=Cause.SCHEDULE), sole=True)

        assert other.deaths == 1
        assert (await the_run(store, "mine")).state is RunState.DEAD

    async def test_dead_letters_that_are_not_sole_add_up(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("first"))
        second = await dead_letter(store, a_run("second"))

        assert second.deaths == 1
        assert (await store.counts()).dead == 2

    async def test_a_success_clears_the_dead_letter_of_its_job(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("letter", cause=Cause.SCHEDULE), sole=True)
        await dead_letter(store, a_run("other", "other-job", cause=Cause.SCHEDULE), sole=True)
        run = await leased(store, a_run("good"))

        await store.settle([settlement(run, Done(clears=True))], now_ms=t0)

        cleared = await the_run(store, "letter")
        assert (cleared.state, cleared.failed) == (RunState.DONE, True)
        assert (await store.counts()).dead == 1
        assert await store.prune(Pruning(keep_per_job=1)) == 0, "as many that failed are kept as of the others"
        assert await store.prune(Pruning(keep_per_job=0)) == 2
        assert await store.get_runs(["letter"]) == [None]

    @pytest.mark.parametrize("verdict", [Done(clears=True), Dead("no", sole=True)], ids=["cleared", "replaced"])
    async def test_the_dead_letter_of_a_run_that_was_asked_for_stays(
        self, store: Store, t0: int, verdict: Done | Dead
    ) -> None:
        for cause in (Cause.ENQUEUED, Cause.FORCED):
            await dead_letter(store, a_run(cause.value, cause=cause))
        await dead_letter(store, a_run("fired", cause=Cause.SCHEDULE), sole=True)
        run = await leased(store, a_run("next", cause=Cause.SCHEDULE))

        await store.settle([settlement(run, verdict)], now_ms=t0)

        assert (await the_run(store, "fired")).state is RunState.DONE
        assert {(await the_run(store, name)).state for name in ("enqueued", "forced")} == {RunState.DEAD}
        assert (await the_run(store, "next")).deaths == (2 if isinstance(verdict, Dead) else 1)
        assert (await store.counts()).dead == (3 if isinstance(verdict, Dead) else 2)

    @pytest.mark.parametrize("verdict", [Done(clears=True), Dead("no", sole=True)], ids=["cleared", "replaced"])
    async def test_of_those_that_die_in_one_call_what_was_asked_for_stays(
        self, store: Store, t0: int, verdict: Done | Dead
    ) -> None:
        asked = await leased(store, a_run("asked", cause=Cause.ENQUEUED))
        fired = await leased(store, a_run("fired", cause=Cause.SCHEDULE))
        last = await leased(store, a_run("last", cause=Cause.SCHEDULE))

        ends = [settlement(asked, Dead("no")), settlement(fired, Dead("no", sole=True)), settlement(last, verdict)]
        assert await store.settle(ends, now_ms=t0) == [Answer.OK, Answer.OK, Answer.OK]

        assert [run and run.state for run in await store.get_runs(["asked", "fired"])] == [RunState.DEAD, RunState.DONE]
        assert (await the_run(store, "last")).deaths == (2 if isinstance(verdict, Dead) else 1)
        assert (await store.counts()).dead == (2 if isinstance(verdict, Dead) else 1)

    async def test_a_success_that_does_not_clear_leaves_the_dead_letter(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("letter"))
        await finished(store, a_run("good"))

        assert (await the_run(store, "letter")).state is RunState.DEAD

    async def test_dead_letters_survive_closing_and_opening(self, store: Store, t0: int) -> None:
        letter = await dead_letter(store)

        await store.close()
        await store.open()

        assert await the_run(store, letter.id) == letter
        assert answers(await store.revive([letter.id], now_ms=t0)) == [Answer.OK]
        assert ids(await claim(store, now_ms=t0)) == [letter.id]


class CrashContract(Contract):
    async def test_a_crash_is_counted_beside_the_failure(self, store: Store, t0: int) -> None:
        run = await leased(store)
        for crashes in (1, 2):
            outcome = an_outcome(t0, fault="transient", error="Crashed: SIGSEGV", crashed=True)
            await store.settle([settlement(run, RetryAt(t0), outcome=outcome)], now_ms=t0)
            [run] = await claim(store, now_ms=t0)

            assert (run.crashes, run.attempt, run.lease_losses) == (crashes, crashes, 0)

    async def test_a_crash_of_a_gated_run_is_counted(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a", gated=True, state=RunState.HELD))

        await store.settle([settlement(run, RetryAt(t0), outcome=an_outcome(t0, crashed=True))], now_ms=t0)
        await release(store, run.id)

        assert (await the_run(store, run.id)).crashes == 1

    @pytest.mark.parametrize(
        "verdict", [Dead("it crashed"), Done(failed=True), Done(clears=True), Cancelled("enough")], ids=str
    )
    async def test_the_crash_that_ends_a_run_is_counted(self, store: Store, t0: int, verdict: Verdict) -> None:
        run = await leased(store)

        await store.settle([settlement(run, verdict, outcome=an_outcome(t0, crashed=True))], now_ms=t0)

        past = await the_run(store, run.id)
        assert past.is_finished
        assert past.crashes == 1

    async def test_a_plain_failure_counts_no_crash(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.settle([settlement(run, RetryAt(t0), outcome=a_failure(t0))], now_ms=t0)

        assert (await the_run(store, run.id)).crashes == 0

    async def test_a_crash_told_twice_is_counted_once(self, store: Store, t0: int) -> None:
        run = await leased(store)
        ends = settlement(run, RetryAt(t0), outcome=an_outcome(t0, crashed=True))

        assert await store.settle([ends, ends], now_ms=t0) == [Answer.OK, Answer.ALREADY]
        assert await store.settle([ends], now_ms=t0) == [Answer.ALREADY]

        assert (await the_run(store, run.id)).crashes == 1

    @pytest.mark.parametrize("verdict", [Back(), Hold("stopped")], ids=str)
    async def test_a_run_that_is_handed_back_has_not_crashed(self, store: Store, t0: int, verdict: Verdict) -> None:
        run = await leased(store)

        await store.settle([settlement(run, verdict, outcome=an_outcome(t0, crashed=True))], now_ms=t0)

        assert (await the_run(store, run.id)).crashes == 0

    async def test_a_lost_lease_keeps_the_crashes(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, RetryAt(t0), outcome=an_outcome(t0, crashed=True))], now_ms=t0)
        await claim(store, now_ms=t0)

        [again] = await claim(store, now_ms=t0 + LEASE_MS)

        assert (again.crashes, again.lease_losses) == (1, 1)

    async def test_a_run_may_be_handed_back_until_a_time(self, store: Store, t0: int) -> None:
        """Uncharged, and not claimable before."""
        run = await leased(store)

        await store.settle([settlement(run, Back(t0 + 500))], now_ms=t0)

        waiting = await the_run(store, run.id)
        assert (waiting.state, waiting.visible_ms, waiting.attempt) == (RunState.READY, t0 + 500, 0)
        early = await store.claim(node="n", token="early", limit=9, lease_ms=LEASE_MS, now_ms=t0 + 499)
        assert (early.runs, early.look_again_ms) == ((), t0 + 500)
        assert ids(await claim(store, now_ms=t0 + 500)) == [run.id]

    async def test_a_run_handed_back_until_a_time_gone_by_is_ready_now(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.settle([settlement(run, Back(t0 - 500))], now_ms=t0)

        assert (await the_run(store, run.id)).visible_ms == t0

    @pytest.mark.parametrize("isolate", list(Isolate))
    async def test_a_job_keeps_where_it_runs(self, store: Store, isolate: Isolate) -> None:
        await given_jobs(store, a_job("job", isolate=isolate))

        assert (await the_job(store)).isolate is isolate
