"""How long does a lease last?"""

from __future__ import annotations

from msgspec.structs import replace

from pollux.model import Done, RunState
from pollux.store.contract import Answer, Renewal, Renewed, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
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
        """A lease that ran out but was taken by nobody is still its owner's to renew."""
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
