"""Outcomes of the wrong kind: the handler's own run fails, and no other."""

import asyncio
import time

import pytest

from pollux import Observed, Pollux
from pollux.model import Isolate, Job, RunState
from tests.acceptance.move_world import url_of
from tests.runtime import child_work

PATIENCE_SECONDS = 60
ODD = {"number": 3, "nought": 0, "text": "yes", "list": []}


async def ended(app, accepted):
    """Those runs, when all are over and the leader has read of it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = [await app.get_run(each.id) for each in accepted]
        if all(run.is_finished for run in found) and not (await app.operations.status.counts()).feed:
            return found
        assert time.monotonic() < deadline, (
            f"{[run.state.value for run in found]}, {await app.operations.status.counts()}"
        )
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "postgres"])
async def test_an_odd_word_of_a_handler_fails_its_own_run_and_no_other(kind, tmp_path):
    app = Pollux(url_of(kind, tmp_path, "odd"))

    @app.handler
    async def odd(what):
        return Observed({"n": 1}, "mark", changed=ODD[what])

    @app.handler
    async def good():
        return Observed({"n": 1}, "mark", changed=True)

    app.handler(child_work.observed_odd)
    async with app:
        await app.put_jobs(
            [
                Job(id="odd", handler="odd"),
                Job(id="good", handler="good"),
                Job(id="apart", handler="observed_odd", isolate=Isolate.PROCESS),
            ]
        )
        odd_runs = [await app.enqueue("odd", {"what": what}) for what in ODD]
        apart, good_runs = await app.enqueue("apart"), [await app.enqueue("good") for _ in range(5)]

        *bad, child = await ended(app, [*odd_runs, apart])
        fine = await ended(app, good_runs)
        listed = (await app.operations.runs.list_runs()).runs

    assert {run.state for run in (*bad, child)} == {RunState.DEAD}
    for run, value in zip((*bad, child), (*ODD.values(), "yes"), strict=True):
        assert f"returned Observed(changed={value!r}); give True or False" in run.error
        assert (run.attempt, run.crashes) == (0, 0)
    assert {(run.state, run.changed) for run in fine} == {(RunState.DONE, True)}
    assert len(listed) == len(ODD) + 6
