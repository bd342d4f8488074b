"""The message of a refused force-run whose live run ends between the refusal and the lookup."""

import pytest

from pollux import Pollux
from pollux.errors import Conflict
from pollux.model import Job, RunState
from pollux.store.contract import Answer, Pruning
from pollux.store.memory import MemoryStore


async def refused(monkeypatch, meanwhile) -> Conflict:
    """`meanwhile` gets the store and the live run's id, after the store has refused another run."""
    enqueue = MemoryStore.enqueue

    async def enqueue_and_go_on(self, runs, **asked):
        answers = await enqueue(self, runs, **asked)
        if answers[0].answer is Answer.OVERLAPPED:
            await meanwhile(self, answers[0].detail)
        return answers

    monkeypatch.setattr(MemoryStore, "enqueue", enqueue_and_go_on)
    app = Pollux("memory://")
    await app.open()
    await app.put_jobs([Job(id="nightly", handler="h")])
    live = await app.run_now("nightly")
    with pytest.raises(Conflict) as error:
        await app.run_now("nightly")
    await app.close()
    assert error.value.found["run_id"] == live.id
    return error.value


async def test_a_live_run_is_named_with_its_state_and_what_to_do(monkeypatch):
    async def nothing(store, run_id):
        pass

    error = await refused(monkeypatch, nothing)

    assert f"job 'nightly' has a live run, {error.found['run_id']} (ready)" in str(error)
    assert "wait for it, cancel it" in error.cure


async def test_a_run_that_has_ended_since_is_not_said_to_be_live(monkeypatch):
    async def end(store, run_id):
        await store.cancel(run_ids=[run_id])
        [run] = await store.get_runs([run_id])
        assert run.state is RunState.CANCELLED

    error = await refused(monkeypatch, end)

    assert f"job 'nightly' had a live run, {error.found['run_id']}, which has just ended" in str(error)
    assert (error.cure, error.found["run_state"]) == ("ask again", "cancelled")


async def test_a_run_that_has_ended_since_and_is_pruned_is_not_said_to_be_live(monkeypatch):
    async def end_and_prune(store, run_id):
        await store.cancel(run_ids=[run_id])
        await store.prune(Pruning(ids=(run_id,), limit=1))
        assert await store.get_runs([run_id]) == [None]

    error = await refused(monkeypatch, end_and_prune)

    assert "which has just ended" in str(error)
    assert (error.cure, error.found["run_state"]) == ("ask again", "removed")
