"""Moved store: no change is made to a store that is sealed, through a handle that refuses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pollux.errors import StoreMoved
from pollux.model import AuditLine, Done, Node, NotePut
from pollux.store.contract import Answer, JobPut, Pruning, Store
from pollux.store.move_marks import SEAL
from pollux.testing.conformance.builders import (
    T0,
    a_job,
    a_run,
    dead_letter,
    finished,
    given,
    given_jobs,
    leased,
    settlement,
)
from pollux.testing.conformance.contract import Contract

CHANGES: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "put_jobs": lambda s: s.put_jobs([JobPut(a_job("new"))], now_ms=T0),
    "delete_jobs": lambda s: s.delete_jobs(["job"], now_ms=T0),
    "move_jobs": lambda s: s.move_jobs(["job"], 7, now_ms=T0),
    "enqueue": lambda s: s.enqueue([a_run("new")], now_ms=T0),
    "enqueue of two kinds": lambda s: s.enqueue([a_run("new"), a_run("held", gated=True)], now_ms=T0),
    "cancel": lambda s: s.cancel(run_ids=["a"], now_ms=T0),
    "cancel of a job": lambda s: s.cancel(job_id="job", now_ms=T0),
    "revive": lambda s: s.revive(["dead"], now_ms=T0),
    "prune of runs": lambda s: s.prune(Pruning(ids=("done",))),
    "put_notes": lambda s: s.put_notes([NotePut("n", 1)], now_ms=T0),
    "log": lambda s: s.log([AuditLine(T0, "anna", "say", "it")]),
    "load": lambda s: s.load([("note", {"key": "n", "value": 1, "revision": 1})]),
}


async def everything(store: Store) -> list[tuple[str, Any]]:
    return list((await store.dump(limit=1_000)).records)


class MovedStoreContract(Contract):
    @pytest.mark.parametrize("change", list(CHANGES))
    async def test_a_sealed_store_is_not_changed(self, store: Store, change: str) -> None:
        await self.filled(store)
        store.refuse_if_moved("memory://")
        await store.of_version(store.scheduler_version).put_notes([NotePut("before", 1)], now_ms=T0)
        await self.seal(store)
        before = await everything(store)

        for handle in (store, store.of_version(store.scheduler_version)):
            with pytest.raises(StoreMoved):
                await CHANGES[change](handle)

        assert await everything(store) == before

    @pytest.mark.parametrize("change", list(CHANGES))
    async def test_a_seal_that_is_taken_away_refuses_nothing(self, store: Store, change: str) -> None:
        await self.filled(store)
        store.refuse_if_moved("memory://")
        await self.seal(store)
        await self.seal(store, value=None)

        await CHANGES[change](store)

    @pytest.mark.parametrize("change", list(CHANGES))
    async def test_a_handle_that_moves_a_store_changes_it(self, store: Store, change: str) -> None:
        await self.filled(store)
        await self.seal(store)
        before = await everything(store)

        await CHANGES[change](store)

        assert await everything(store) != before

    async def test_what_runs_on_a_sealed_store_ends(self, store: Store, t0: int) -> None:
        run = await leased(store, a_run("a"))
        store.refuse_if_moved("memory://")
        await self.seal(store)

        await store.beat(Node("n1"), ttl_ms=1_000, now_ms=t0)
        settled = await store.settle([settlement(run, Done())], now_ms=t0)

        assert settled == [Answer.OK]

    async def filled(self, store: Store) -> None:
        await given_jobs(store, "job")
        await dead_letter(store, a_run("dead"))
        await finished(store, a_run("done"))
        await given(store, a_run("a"), a_run("b"))

    async def seal(self, store: Store, value: object = True) -> None:
        """As the mover does it, on a handle of its own."""
        mover = store.twin()
        mover.refuse_if_moved(None)
        await mover.open()
        try:
            await mover.put_notes([NotePut(SEAL, value)], now_ms=T0)
        finally:
            await mover.close()
