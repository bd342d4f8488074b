"""Store handles: opening, closing, twins."""

from __future__ import annotations

import asyncio

import pytest

from pollux.errors import StoreError
from pollux.store.contract import Store
from pollux.testing.conformance.builders import LEASE_MS, a_run, claim, given, given_jobs, ids, leased, renewal
from pollux.testing.conformance.contract import Contract


class HandleContract(Contract):
    async def test_a_store_says_what_it_can_do(self, store: Store) -> None:
        assert store.capabilities.name
        for answer in (store.capabilities.waits, store.capabilities.durable, store.capabilities.shared):
            assert isinstance(answer, bool)

    async def test_a_store_in_a_sound_place_has_no_problems(self, store: Store) -> None:
        assert await store.problems() == ()

    async def test_a_run_that_is_due_by_the_stores_clock_can_be_claimed_at_once(self, store: Store) -> None:
        await given_jobs(store, "job")
        now_ms = await store.now()
        await store.enqueue([a_run("a", due_ms=now_ms), a_run("later", due_ms=now_ms + 3_600_000)])

        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS)

        assert ids(claimed.runs) == ["a"]
        assert now_ms <= claimed.now_ms < now_ms + 3_600_000

    async def test_closing_twice_is_harmless(self, store: Store) -> None:
        await store.close()
        await store.close()
        await store.open()

        assert (await store.counts()).jobs == 0

    async def test_a_closed_handle_refuses_in_words(self, store: Store, t0: int) -> None:
        await store.close()

        with pytest.raises(StoreError, match="open"):
            await store.enqueue([a_run()], now_ms=t0)
        await store.open()

    async def test_a_twin_sees_what_the_other_wrote(self, store: Store, t0: int) -> None:
        twin = store.twin()
        await twin.open()

        await given(store, a_run("a"))
        assert ids(await claim(twin, now_ms=t0)) == ["a"]
        await given_jobs(twin, "second")
        assert (await store.counts()).jobs == 2

        await twin.close()

    async def test_closing_a_twin_leaves_the_other_open(self, store: Store, t0: int) -> None:
        twin = store.twin()
        await twin.open()
        await twin.close()

        await given(store, a_run("a"))

        assert ids(await claim(store, now_ms=t0)) == ["a"]

    async def test_a_twin_renews_from_another_thread(self, store: Store, t0: int) -> None:
        """As the Renewer does, while the first loop is busy with something else."""
        run = await leased(store)

        async def renew() -> str:
            twin = store.twin()
            await twin.open()
            [renewed] = await twin.renew([renewal(run)], lease_ms=2 * LEASE_MS, now_ms=t0)
            await twin.close()
            return renewed.answer

        assert await asyncio.to_thread(asyncio.run, renew()) == "ok"
        assert await claim(store, now_ms=t0 + LEASE_MS) == ()
        assert ids(await claim(store, now_ms=t0 + 2 * LEASE_MS)) == [run.id]

    async def test_without_a_given_time_the_stores_own_clock_counts(self, store: Store) -> None:
        now_ms = (await store.feed(limit=1)).now_ms
        await given(store, a_run("past", due_ms=now_ms - 60_000), a_run("future", due_ms=now_ms + 3_600_000))

        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=LEASE_MS)

        assert ids(claimed.runs) == ["past"]
        assert now_ms <= claimed.now_ms < now_ms + 3_600_000
