"""Claims: which runs, in which order, and for how long."""

from __future__ import annotations

from pollux.model import Done, NotePut, RunState, stop_key
from pollux.store.contract import Answer, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_firing,
    a_job,
    a_run,
    advance,
    claim,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    ids_of,
    leased,
    release,
    renewal,
    settlement,
    the_run,
)
from pollux.testing.conformance.contract import Contract


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
