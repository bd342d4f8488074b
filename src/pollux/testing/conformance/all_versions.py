"""Handles of all versions: fair claims and complete reads."""

from __future__ import annotations

import asyncio

import pytest

from pollux.errors import InvalidInput
from pollux.model import (
    ALL_VERSIONS,
    Done,
    Plan,
)
from pollux.store.contract import Answer, JobPut, Store
from pollux.testing.conformance.builders import (
    LEASE_MS,
    a_job,
    a_run,
    an_outcome,
    answers,
    claim,
    given,
    given_jobs,
    ids,
    last_ends,
    renewal,
    settlement,
)
from pollux.testing.conformance.contract import Contract
from pollux.testing.conformance.versions import another
from pollux.testing.conformance.waits import soon


class AllVersionsContract(Contract):
    """A worker of all versions."""

    async def test_a_handle_of_all_claims_from_every_version(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))
        await given(another(store), a_run("b", "other"))

        claimed = await store.of_version(ALL_VERSIONS).claim(node="n", token="t", limit=9, lease_ms=LEASE_MS, now_ms=t0)

        assert sorted(ids(claimed.runs)) == ["a", "b"]
        assert sorted(claimed.jobs) == ["job", "other"]
        assert {run.token.partition("/")[0] for run in claimed.runs} == {"t"}

    async def test_a_handle_of_all_sees_versions_that_come_later(self, store: Store, t0: int) -> None:
        handle = store.of_version(ALL_VERSIONS)
        assert await claim(handle) == ()

        await given(another(store), a_run("b", "other"))

        assert ids(await claim(handle)) == ["b"]

    async def test_a_handle_of_all_takes_no_more_than_it_asked_for_and_begins_elsewhere_each_time(
        self, store: Store, t0: int
    ) -> None:
        """However much is in one version, the other has its turn."""
        await given(store, *(a_run(f"a{n}") for n in range(4)))
        await given(another(store), *(a_run(f"b{n}", "other") for n in range(4)))
        handle = store.of_version(ALL_VERSIONS)

        rounds = [ids(await claim(handle, 2)) for _ in range(4)]

        assert [len(taken) for taken in rounds] == [2, 2, 2, 2]
        assert sorted(run_id[0] for taken in rounds[:2] for run_id in taken) == ["a", "a", "b", "b"]

    async def test_the_same_claim_of_all_gives_the_same_runs_again(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))
        await given(another(store), a_run("b", "other"))
        handle = store.of_version(ALL_VERSIONS)

        first = await claim(handle, token="t")
        again = await claim(handle, token="t")

        assert sorted(ids(first)) == ["a", "b"]
        assert sorted((run.id, run.token) for run in again) == sorted((run.id, run.token) for run in first)

    async def test_the_same_claim_of_all_gives_the_same_runs_again_however_much_else_there_is(
        self, store: Store, t0: int
    ) -> None:
        """An answer was lost, and fewer seats are free by now: the leased runs must be returned again."""
        await given(store, *(a_run(f"a{n}") for n in range(4)))
        await given(another(store), *(a_run(f"b{n}", "other") for n in range(4)))
        handle = store.of_version(ALL_VERSIONS)
        for seats in (2, 6):
            first = await claim(handle, seats, token=f"t{seats}")
            again = await claim(handle, 1, token=f"t{seats}")

            assert sorted(ids(again)) == sorted(ids(first))

    async def test_what_a_handle_of_all_claimed_it_renews_and_settles(self, store: Store, t0: int) -> None:
        await given(another(store), a_run("b", "other"))
        handle = store.of_version(ALL_VERSIONS)
        [run] = await claim(handle)

        assert answers(await handle.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=t0)) == [Answer.OK]
        assert await handle.settle([settlement(run, Done(), outcome=an_outcome())], now_ms=t0) == [Answer.OK]
        assert [end.run_id for end in await last_ends(another(store))] == ["b"]

    async def test_who_waits_for_all_hears_every_version(self, store: Store) -> None:
        await given_jobs(store, "job")
        await given_jobs(another(store), "other")
        handle = store.of_version(ALL_VERSIONS)
        for run_id, job_id in (("a", "job"), ("b", "other")):
            waiting = asyncio.ensure_future(
                handle.claim(node="n", token=run_id, limit=1, lease_ms=LEASE_MS, wait_ms=60_000)
            )
            await asyncio.sleep(0)
            await store.enqueue([a_run(run_id, job_id, due_ms=0)])
            assert ids((await soon(waiting)).runs) == [run_id]

    async def test_a_handle_of_all_counts_over_all(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"))
        await given(another(store), a_run("b", "other"), a_run("g", "other", gated=True))

        counts = await store.of_version(ALL_VERSIONS).counts()

        assert (counts.jobs, counts.ready, counts.held) == (2, 2, 1)
        assert [line.ready for line in await store.of_version(ALL_VERSIONS).lines(now_ms=t0)] == [0, 2, 0]

    async def test_a_handle_of_all_refuses_what_is_of_one_version(self, store: Store, t0: int) -> None:
        handle = store.of_version(ALL_VERSIONS)
        for call in (
            lambda: handle.put_jobs([JobPut(a_job())]),
            lambda: handle.due(before_ms=t0, limit=1),
            lambda: handle.feed(limit=1),
            lambda: handle.advance(1, Plan()),
            lambda: handle.elect("n", ttl_ms=9),
            lambda: handle.resign("n", term=1),
        ):
            with pytest.raises(InvalidInput):
                await call()
