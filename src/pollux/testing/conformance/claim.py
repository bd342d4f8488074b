"""Claims and leases: delivery, renewal with progress, and leases that were lost."""

from __future__ import annotations

from msgspec.structs import replace

from pollux.model import PROGRESS_CHARS_MAX, Back, Dead, Done, Ended, NotePut, RetryAt, RunState, stop_key
from pollux.store.contract import Answer, Renewal, Renewed, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    Contract,
    a_failure,
    a_firing,
    a_job,
    a_run,
    advance,
    claim,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    ids_of,
    last_ends,
    leased,
    release,
    renewal,
    settlement,
    the_run,
)


class ClaimContract(Contract):
    async def test_a_claimed_run_stays_invisible_until_its_lease_ends(self, store: Store, t0: int) -> None:
        """Between claim and lease end no other claim returns the run; afterwards any may."""
        await given(store, a_run("a", due_ms=t0))

        assert ids(await claim(store, lease_ms=30_000, now_ms=t0)) == ["a"]
        assert ids(await claim(store, lease_ms=30_000, now_ms=t0 + 29_999)) == []
        assert ids(await claim(store, lease_ms=30_000, now_ms=t0 + 30_000)) == ["a"]

    async def test_what_was_visible_before_the_clock_came_back_stays_so(self, store: Store, t0: int) -> None:
        """A run that was due an hour ahead is due; one that was to wait longer still waits."""
        ahead = t0 + 3_600_000
        await given(store, *(a_run(name, due_ms=ahead) for name in ("x", "y")), a_run("later", due_ms=ahead + 60_000))

        assert ids(await claim(store, limit=1, now_ms=ahead)) == ["x"]
        assert ids(await claim(store, now_ms=t0)) == ["y"]
        assert ids(await claim(store, now_ms=t0 + 1_000)) == []

    async def test_a_firing_that_was_made_before_the_clock_came_back_can_be_claimed(
        self, store: Store, t0: int
    ) -> None:
        ahead = t0 + 3_600_000
        [job] = await given_jobs(store, "job")

        assert (await advance(store, now_ms=ahead, firings=(a_firing(job, ahead),))).firings == (Answer.OK,)
        assert [run.due_ms for run in await claim(store, now_ms=t0)] == [ahead]

    async def test_a_firing_is_due_by_its_makers_word_though_the_clock_came_back_meanwhile(
        self, store: Store, t0: int
    ) -> None:
        ahead = t0 + 3_600_000
        [job] = await given_jobs(store, "job")
        await advance(store, now_ms=t0, firings=(a_firing(job, ahead),))

        assert [run.due_ms for run in await claim(store, now_ms=t0 + 1)] == [ahead]

    async def test_a_lease_names_its_owner_its_end_and_its_token(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))

        [run] = await claim(store, node="node-7", token="tok", lease_ms=12_345, now_ms=t0)

        assert (run.state, run.owner, run.lease_until_ms) == (RunState.LEASED, "node-7", t0 + 12_345)
        assert (run.fence, run.token) == (1, "tok:1")
        assert await the_run(store, "a") == run

    async def test_a_claim_takes_no_more_than_its_limit(self, store: Store, t0: int) -> None:
        await given(store, *(a_run(f"{n}") for n in range(5)))

        assert len(await claim(store, 2, now_ms=t0)) == 2
        assert (await store.counts()).leased == 2
        assert (await store.counts()).ready == 3

    async def test_a_claim_takes_all_there_is_up_to_its_limit(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", priority=3), a_run("b", priority=1), a_run("c", priority=2))

        assert len(await claim(store, 3, now_ms=t0)) == 3

    async def test_the_higher_priority_goes_first(self, store: Store, t0: int) -> None:
        await given(store, a_run("low", priority=3), a_run("high", priority=1), a_run("normal", priority=2))

        assert ids(await claim(store, now_ms=t0)) == ["high", "normal", "low"]

    async def test_a_high_priority_that_came_late_overtakes(self, store: Store, t0: int) -> None:
        await given(store, a_run("old", priority=2, due_ms=t0 - 60_000))
        await given(store, a_run("new", priority=1, due_ms=t0))

        assert ids(await claim(store, 1, now_ms=t0)) == ["new"]

    async def test_inside_a_priority_what_became_visible_first_goes_first(self, store: Store, t0: int) -> None:
        await given(store, a_run("c", due_ms=t0 + 3), a_run("a", due_ms=t0 + 1), a_run("b", due_ms=t0 + 2))

        assert ids(await claim(store, now_ms=t0 + 10)) == ["a", "b", "c"]

    async def test_first_2_begins_with_the_normal_ones_and_ends_with_the_high(self, store: Store, t0: int) -> None:
        await given(store, a_run("high", priority=1), a_run("normal", priority=2), a_run("low", priority=3))

        assert ids(await claim(store, first=2, now_ms=t0)) == ["normal", "low", "high"]

    async def test_first_3_begins_with_the_low_ones(self, store: Store, t0: int) -> None:
        await given(store, a_run("high", priority=1), a_run("normal", priority=2), a_run("low", priority=3))

        assert ids(await claim(store, first=3, now_ms=t0)) == ["low", "high", "normal"]

    async def test_first_3_takes_a_high_one_if_there_is_no_low_one(self, store: Store, t0: int) -> None:
        await given(store, a_run("high", priority=1))

        assert ids(await claim(store, first=3, now_ms=t0)) == ["high"]

    async def test_a_later_run_of_high_priority_does_not_hide_a_ready_one(self, store: Store, t0: int) -> None:
        await given(store, a_run("later", priority=1, due_ms=t0 + 60_000), a_run("now", priority=3))

        assert ids(await claim(store, 1, now_ms=t0)) == ["now"]

    async def test_the_job_comes_with_its_runs_once(self, store: Store, t0: int) -> None:
        await given_jobs(store, a_job("one", params={"url": "x"}), a_job("two"))
        await given(store, a_run("a", "one"), a_run("b", "one"), a_run("c", "two"))

        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS, now_ms=t0)

        assert set(claimed.jobs) == {"one", "two"}
        assert claimed.jobs["one"].params == {"url": "x"}
        assert claimed.jobs["one"].revision == 1

    async def test_the_job_is_as_it_stands_at_the_claim(self, store: Store, t0: int) -> None:
        await given_jobs(store, a_job("job", params={"v": 1}))
        await given(store, a_run("a"))
        await given_jobs(store, a_job("job", params={"v": 2}))

        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS, now_ms=t0)

        assert claimed.jobs["job"].params == {"v": 2}

    async def test_every_delivery_raises_the_fence(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))
        now = t0
        for fence in (1, 2, 3):
            [run] = await claim(store, token=f"tok{fence}", now_ms=now)
            assert (run.fence, run.token) == (fence, f"tok{fence}:{fence}")
            now += LEASE_MS

    async def test_the_same_token_again_gives_the_same_runs_again(self, store: Store, t0: int) -> None:
        """The answer was lost: the repeated call must not lease more, nor leave the first runs stranded."""
        await given(store, a_run("a"), a_run("b"), a_run("c"))
        first = await claim(store, 2, token="tok", now_ms=t0)

        again = await claim(store, 2, token="tok", now_ms=t0 + 1_000)

        assert again == first
        assert (await store.counts()).ready == 1

    async def test_the_same_token_gives_only_what_still_stands(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"), a_run("c"))
        a, b = await claim(store, 2, token="tok", now_ms=t0)
        await store.settle([settlement(a, Done())], now_ms=t0)

        assert await claim(store, 2, token="tok", now_ms=t0) == (b,)

    async def test_the_same_token_shows_a_lease_as_it_was_renewed(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a"), token="tok", now_ms=t0)
        await store.renew([renewal(run)], lease_ms=60_000, now_ms=t0)

        [again] = await claim(store, token="tok", now_ms=t0 + 40_000)

        assert (again.lease_until_ms, again.token) == (t0 + 60_000, "tok:1")

    async def test_nothing_ready_says_when_to_look_again(self, store: Store, t0: int) -> None:
        await given(store, a_run("later", due_ms=t0 + 9_000), a_run("sooner", due_ms=t0 + 4_000, priority=3))

        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS, now_ms=t0)

        assert (claimed.runs, claimed.look_again_ms, claimed.now_ms) == ((), t0 + 4_000, t0)

    async def test_the_end_of_a_lease_is_a_time_to_look_again(self, store: Store, t0: int) -> None:
        await leased(store, a_run("a"), lease_ms=7_000, now_ms=t0)
        await given(store, a_run("later", due_ms=t0 + 9_000))

        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS, now_ms=t0)

        assert claimed.look_again_ms == t0 + 7_000

    async def test_an_empty_store_has_no_time_to_look_again(self, store: Store, t0: int) -> None:
        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS, now_ms=t0)

        assert (claimed.answer, claimed.runs, claimed.jobs, claimed.look_again_ms) == (Answer.OK, (), {}, None)

    async def test_a_claim_tells_when_the_stops_have_changed(self, store: Store, t0: int) -> None:
        async def revision() -> int:
            return (await store.claim(node="n", token="t", limit=1, lease_ms=1, now_ms=t0)).stops_revision

        seen = [await revision()]
        await store.put_notes([NotePut(stop_key("all"), "deploy")], now_ms=t0)
        seen.append(await revision())
        await store.put_notes([NotePut(stop_key("all"), "still")], now_ms=t0)
        seen.append(await revision())
        await store.put_notes([NotePut(stop_key("all"), None)], now_ms=t0)
        seen.append(await revision())
        await advance(store, now_ms=t0, notes=(NotePut(stop_key("job", "x"), "paused"),))
        seen.append(await revision())

        assert len(set(seen)) == 5, seen

    async def test_a_claim_tells_when_a_setting_has_changed(self, store: Store, t0: int) -> None:
        """As with stops: nodes learn of live settings from the claims that they make anyway."""

        async def revision() -> int:
            return (await store.claim(node="n", token="t", limit=1, lease_ms=1, now_ms=t0)).stops_revision

        seen = [await revision()]
        await store.put_notes([NotePut("setting:pool.seats", {"value": 50})], now_ms=t0)
        seen.append(await revision())
        await store.put_notes([NotePut("setting:pool.seats", {"value": 60})], now_ms=t0)
        seen.append(await revision())
        await store.put_notes([NotePut("setting:pool.seats", None)], now_ms=t0)
        seen.append(await revision())

        assert len(set(seen)) == 4, seen

    async def test_other_notes_leave_the_revision_of_the_stops_alone(self, store: Store, t0: int) -> None:
        await store.put_notes([NotePut(stop_key("all"), "deploy")], now_ms=t0)
        before = (await store.claim(node="n", token="t", limit=1, lease_ms=1, now_ms=t0)).stops_revision

        await store.put_notes([NotePut("capacity:db", 4), NotePut("a-stop", 1), NotePut("settings", 1)], now_ms=t0)

        after = (await store.claim(node="n", token="u", limit=1, lease_ms=1, now_ms=t0)).stops_revision
        assert after == before

    async def test_a_feed_too_far_behind_stops_all_claims(self, store: Store, t0: int) -> None:
        for run_id in ("a", "b", "c"):
            await finished(store, a_run(run_id))
        await given(store, a_run("d"))

        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS, feed_max=2, now_ms=t0)

        assert (claimed.answer, claimed.runs) == (Answer.FULL, ())
        assert (await the_run(store, "d")).state is RunState.READY

    async def test_claims_go_on_when_the_feed_was_read(self, store: Store, t0: int) -> None:
        for run_id in ("a", "b", "c"):
            await finished(store, a_run(run_id))
        await given(store, a_run("d"))
        await forget_feed(store)

        assert ids(await claim(store, feed_max=2, now_ms=t0)) == ["d"]

    async def test_only_ends_count_for_a_full_feed(self, store: Store, t0: int) -> None:
        for n in range(4):
            await given_jobs(store, f"job-{n}")
        await given(store, a_run("a"))
        assert len(ids_of((await store.feed(limit=99)).items)) >= 4

        assert ids(await claim(store, feed_max=2, now_ms=t0)) == ["a"]

    async def test_a_released_run_can_be_claimed(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True))
        await release(store, "a")

        [run] = await claim(store, now_ms=t0)

        assert (run.id, run.held_reason) == ("a", "")


class RenewContract(Contract):
    async def test_a_renewed_lease_lasts_from_now(self, store: Store, t0: int) -> None:
        run = await leased(store)

        assert await store.renew([renewal(run)], lease_ms=20_000, now_ms=t0 + 25_000) == [Renewed(Answer.OK)]

        assert (await the_run(store, run.id)).lease_until_ms == t0 + 45_000
        assert await claim(store, now_ms=t0 + 44_999) == ()
        assert ids(await claim(store, now_ms=t0 + 45_000)) == [run.id]

    async def test_renewing_changes_nothing_but_the_end(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.renew([renewal(run)], lease_ms=60_000, now_ms=t0)

        assert await the_run(store, run.id) == replace(run, lease_until_ms=t0 + 60_000)

    async def test_another_token_renews_nothing(self, store: Store, t0: int) -> None:
        run = await leased(store)

        assert await store.renew([Renewal(run.id, "other:1")], lease_ms=99_000, now_ms=t0) == [Renewed(Answer.LOST)]
        assert (await the_run(store, run.id)).lease_until_ms == t0 + LEASE_MS

    async def test_an_empty_token_renews_nothing(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))

        assert await store.renew([Renewal("a", "")], lease_ms=99_000, now_ms=t0) == [Renewed(Answer.LOST)]
        assert (await the_run(store, "a")).state is RunState.READY

    async def test_the_token_of_an_earlier_delivery_renews_nothing(self, store: Store, t0: int) -> None:
        old = await leased(store)
        [new] = await claim(store, now_ms=t0 + LEASE_MS)

        renewed = await store.renew([renewal(old), renewal(new)], lease_ms=50_000, now_ms=t0 + LEASE_MS)

        assert [each.answer for each in renewed] == [Answer.LOST, Answer.OK]

    async def test_an_unknown_run_is_lost(self, store: Store, t0: int) -> None:
        assert await store.renew([Renewal("nobody", "t:1")], lease_ms=1_000, now_ms=t0) == [Renewed(Answer.LOST)]

    async def test_a_finished_run_cannot_be_renewed(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, Done())], now_ms=t0)

        assert await store.renew([renewal(run)], lease_ms=1_000, now_ms=t0) == [Renewed(Answer.LOST)]
        assert (await the_run(store, run.id)).state is RunState.DONE

    async def test_the_token_decides_and_not_the_clock(self, store: Store, t0: int) -> None:
        """An expired lease that was not taken back can still be renewed by its owner."""
        run = await leased(store)

        assert await store.renew([renewal(run)], lease_ms=10_000, now_ms=t0 + LEASE_MS + 5_000) == [Renewed(Answer.OK)]
        assert await claim(store, now_ms=t0 + LEASE_MS + 14_999) == ()

    async def test_a_batch_of_renewals_answers_in_order(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"))
        a, b = await claim(store, now_ms=t0)

        renewed = await store.renew(
            [renewal(b), Renewal("a", "x:1"), renewal(a), Renewal("no", "x:1")], lease_ms=9, now_ms=t0
        )

        assert [each.answer for each in renewed] == [Answer.OK, Answer.LOST, Answer.OK, Answer.LOST]

    async def test_a_renewal_brings_the_request_to_stop(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.cancel(run_ids=[run.id], reason="no longer wanted", now_ms=t0)

        renewed = await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=t0)

        assert renewed == [Renewed(Answer.OK, "no longer wanted")]


class ProgressContract(Contract):
    async def test_a_renewal_brings_the_progress_to_everybody(self, store: Store, t0: int) -> None:
        run = await leased(store)
        assert run.progress == ""

        await store.renew([Renewal(run.id, run.token, "40% page 3")], lease_ms=LEASE_MS, now_ms=t0)

        assert (await the_run(store, run.id)).progress == "40% page 3"
        assert [each.progress for each in (await store.list_runs()).runs] == ["40% page 3"]

    async def test_a_renewal_that_says_nothing_leaves_the_progress(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.renew([Renewal(run.id, run.token, "half")], lease_ms=LEASE_MS, now_ms=t0)

        await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=t0)

        assert (await the_run(store, run.id)).progress == "half"

    async def test_a_stale_token_tells_no_progress(self, store: Store, t0: int) -> None:
        old = await leased(store)
        [new] = await claim(store, now_ms=t0 + LEASE_MS)

        both = [Renewal(old.id, old.token, "the dead speak"), Renewal(new.id, new.token, "10%")]
        assert [each.answer for each in await store.renew(both, lease_ms=LEASE_MS, now_ms=t0)] == [
            Answer.LOST,
            Answer.OK,
        ]
        assert (await the_run(store, new.id)).progress == "10%"
        await store.renew(both[:1], lease_ms=LEASE_MS, now_ms=t0)

        assert (await the_run(store, new.id)).progress == "10%"

    async def test_a_long_progress_is_cut(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.renew([Renewal(run.id, run.token, "x" * 5_000)], lease_ms=LEASE_MS, now_ms=t0)

        assert (await the_run(store, run.id)).progress == "x" * PROGRESS_CHARS_MAX

    async def test_the_progress_stays_after_the_end(self, store: Store, t0: int) -> None:
        """The last progress of a failed run shows how far it was."""
        for name, verdict in (("a", Done()), ("b", Dead("x"))):
            run = await leased(store, a_run(name))
            await store.renew([Renewal(run.id, run.token, "page 3")], lease_ms=LEASE_MS, now_ms=t0)
            await store.settle([settlement(run, verdict)], now_ms=t0)

            assert (await the_run(store, name)).progress == "page 3"

    async def test_a_settlement_brings_the_last_words(self, store: Store, t0: int) -> None:
        for name, verdict in (("a", Done()), ("b", Dead("x")), ("c", RetryAt(t0 + 9)), ("d", Back())):
            run = await leased(store, a_run(name))
            await store.renew([Renewal(run.id, run.token, "page 3")], lease_ms=LEASE_MS, now_ms=t0)
            await store.settle([settlement(run, verdict, progress="page 4" + "!" * 999)], now_ms=t0)

            assert (await the_run(store, name)).progress == ("page 4" + "!" * 999)[:PROGRESS_CHARS_MAX]
            await store.cancel(run_ids=[name], now_ms=t0)

    async def test_a_refused_settlement_tells_no_progress(self, store: Store, t0: int) -> None:
        old = await leased(store)
        [new] = await claim(store, now_ms=t0 + LEASE_MS)

        assert await store.settle([settlement(old, Done(), progress="late")], now_ms=t0) == [Answer.LOST]

        assert (await the_run(store, new.id)).progress == ""

    async def test_each_delivery_begins_without_progress(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.renew([Renewal(run.id, run.token, "page 3")], lease_ms=LEASE_MS, now_ms=t0)
        await store.settle([settlement(run, RetryAt(t0 + 5), outcome=a_failure(t0))], now_ms=t0)
        assert (await the_run(store, run.id)).progress == "page 3", "it is what the failed attempt said last"

        [again] = await claim(store, now_ms=t0 + 5)

        assert again.progress == (await the_run(store, run.id)).progress == ""

    async def test_a_revived_run_begins_without_progress(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, Dead("x"), progress="page 3")], now_ms=t0)

        await store.revive([run.id], now_ms=t0)

        assert (await the_run(store, run.id)).progress == ""


class LostLeaseContract(Contract):
    async def test_a_lost_lease_is_counted_and_is_no_failure(self, store: Store, t0: int) -> None:
        await leased(store)

        [again] = await claim(store, now_ms=t0 + LEASE_MS)

        assert (again.lease_losses, again.attempt, again.fence, again.failed) == (1, 0, 2, False)

    async def test_the_leader_is_told_of_a_lost_lease(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await forget_feed(store)

        await claim(store, now_ms=t0 + LEASE_MS)

        [end] = await last_ends(store)
        assert (end.run_id, end.ran, end.failed) == (run.id, False, False)
        assert end.state in {RunState.READY, RunState.LEASED}

    async def test_leases_lost_in_one_claim_make_one_entry(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"), a_run("c"))
        await claim(store, now_ms=t0)
        await forget_feed(store)

        await claim(store, now_ms=t0 + LEASE_MS)

        [entry] = await entries(store, Ended)
        assert sorted(end.run_id for end in entry.ends) == ["a", "b", "c"]

    async def test_a_lease_that_still_runs_is_left_alone(self, store: Store, t0: int) -> None:
        await leased(store, a_run("short"), lease_ms=5_000)
        await leased(store, a_run("long"), lease_ms=50_000)

        assert ids(await claim(store, now_ms=t0 + 10_000)) == ["short"]
        assert (await the_run(store, "long")).lease_losses == 0

    async def test_of_two_leases_only_the_one_that_ended_is_taken_back(self, store: Store, t0: int) -> None:
        await leased(store, a_run("first"), lease_ms=10_000)
        await leased(store, a_run("second"), lease_ms=10_001)

        assert ids(await claim(store, now_ms=t0 + 10_000)) == ["first"]
        assert (await the_run(store, "second")).state is RunState.LEASED
        assert ids(await claim(store, now_ms=t0 + 10_001)) == ["second"]

    async def test_too_many_lost_leases_make_a_dead_letter(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))
        for n in range(3):
            assert ids(await claim(store, losses_max=3, now_ms=t0 + n * LEASE_MS)) == ["a"]

        assert await claim(store, losses_max=3, now_ms=t0 + 3 * LEASE_MS) == ()

        letter = await the_run(store, "a")
        assert (letter.state, letter.lease_losses, letter.failed) == (RunState.DEAD, 3, True)
        assert letter.error
        [end] = await last_ends(store)
        assert (end.state, end.ran, end.failed) == (RunState.DEAD, False, True)

    async def test_a_settlement_after_the_lease_was_taken_back_is_lost(self, store: Store, t0: int) -> None:
        """Taken back and not yet delivered again: the token is invalid all the same."""
        run = await leased(store, a_run("a", priority=3))
        await given(store, a_run("b", priority=1, due_ms=t0))
        assert ids(await claim(store, 1, now_ms=t0 + LEASE_MS)) == ["b"]

        assert await store.settle([settlement(run, Done())], now_ms=t0 + LEASE_MS) == [Answer.LOST]
        assert (await the_run(store, "a")).state is RunState.READY
        assert (await store.renew([renewal(run)], lease_ms=9, now_ms=t0 + LEASE_MS))[0].answer is Answer.LOST

    async def test_a_settlement_of_a_run_that_died_of_lost_leases_is_lost(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await claim(store, losses_max=1, now_ms=t0 + LEASE_MS)

        assert await store.settle([settlement(run, Done())], now_ms=t0 + LEASE_MS) == [Answer.LOST]
        assert (await the_run(store, run.id)).state is RunState.DEAD

    async def test_a_lost_run_that_was_asked_to_stop_is_cancelled(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.cancel(run_ids=[run.id], reason="enough", now_ms=t0)

        assert await claim(store, losses_max=1, now_ms=t0 + LEASE_MS) == ()

        past = await the_run(store, run.id)
        assert (past.state, past.cancel) == (RunState.CANCELLED, "enough")
        assert [(end.state, end.ran) for end in await last_ends(store)] == [(RunState.CANCELLED, False)]

    async def test_a_lost_run_of_a_deleted_job_is_cancelled(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.delete_jobs(["job"], now_ms=t0)

        assert await claim(store, now_ms=t0 + LEASE_MS) == ()

        past = await the_run(store, run.id)
        assert (past.state, past.cancel) == (RunState.CANCELLED, "its job was deleted")

    async def test_a_lost_gated_run_is_ready_and_needs_no_new_release(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", gated=True))
        await release(store, "a")
        await claim(store, now_ms=t0)

        assert ids(await claim(store, now_ms=t0 + LEASE_MS)) == ["a"]

    async def test_a_lost_run_stands_behind_what_waited_longer(self, store: Store, t0: int) -> None:
        """It is ordered by the end of its lease: a run that kills workers must not always be first."""
        await leased(store, a_run("a", due_ms=t0))
        await given(store, a_run("b", due_ms=t0 + 1_000))

        assert ids(await claim(store, now_ms=t0 + LEASE_MS)) == ["b", "a"]

    async def test_a_lease_is_cut_to_its_length_when_the_clock_came_back(self, store: Store, t0: int) -> None:
        """Leased for 30 s while the clock was an hour ahead: it ends 30 s after the correction, not in an hour."""
        ahead = t0 + 3_600_000
        run = await leased(store, a_run("a"), now_ms=ahead)

        assert await claim(store, now_ms=t0) == ()

        assert (await the_run(store, run.id)).lease_until_ms == t0 + LEASE_MS
        assert await claim(store, now_ms=t0 + LEASE_MS - 1) == ()
        assert ids(await claim(store, now_ms=t0 + LEASE_MS)) == ["a"]

    async def test_a_cut_lease_is_still_its_owners(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a"), now_ms=t0 + 3_600_000)
        await claim(store, now_ms=t0)

        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.OK]

    async def test_losses_and_attempts_are_counted_apart(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.settle([settlement(run, RetryAt(t0))], now_ms=t0)
        await claim(store, now_ms=t0)
        [run] = await claim(store, now_ms=t0 + LEASE_MS)

        assert (run.attempt, run.lease_losses) == (1, 1)
        await store.settle([settlement(run, Dead("x"))], now_ms=t0 + LEASE_MS)
        letter = await the_run(store, run.id)
        assert (letter.attempt, letter.lease_losses) == (1, 1)

    async def test_leases_stand_over_closing_and_opening(self, store: Store, t0: int) -> None:
        run = await leased(store)

        await store.close()
        await store.open()

        assert await claim(store, now_ms=t0 + LEASE_MS - 1) == ()
        assert (await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=t0))[0].answer is Answer.OK
