"""Renewal of leases."""

from __future__ import annotations

from msgspec.structs import replace

from pollux.model import PROGRESS_CHARS_MAX, Back, Dead, Done, RetryAt, RunState
from pollux.store.contract import Answer, Renewal, Renewed, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_failure,
    a_run,
    claim,
    given,
    ids,
    leased,
    renewal,
    settlement,
    the_run,
)
from pollux.testing.conformance.contract import Contract


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
