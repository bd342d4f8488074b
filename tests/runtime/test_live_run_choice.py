"""Which live run of a job is shown: the one that runs, then one that is ready, one that is held, one for later."""

import asyncio

import pytest

from pollux import Pollux, Transient
from pollux.app.operations.status import live_by_job, live_runs
from pollux.cli.top import board
from pollux.model import Cause, Run, RunState
from pollux.testing import story

NOW = 1_800_000_000_000
LATER = NOW + 3_600_000
WAITING = 60  # runs that wait for their next attempt, due before the one that runs

LEASED = Run("leased", "a", NOW - 1, state=RunState.LEASED)
READY = Run("ready", "a", NOW - 2, visible_ms=NOW - 2)
HELD = Run("held", "a", NOW - 3, state=RunState.HELD, visible_ms=NOW)
SOON = Run("soon", "a", NOW - 4, Cause.ENQUEUED, visible_ms=LATER - 1)
LATE = Run("late", "a", NOW - 5, state=RunState.HELD, visible_ms=LATER)


@pytest.mark.parametrize("left", range(5))
def test_the_foremost_run_is_the_one_that_runs_then_ready_then_held_then_the_first_for_later(left):
    ranked = [LEASED, READY, HELD, SOON, LATE][left:]
    for runs in (ranked, ranked[::-1]):
        assert live_by_job(runs, NOW) == {"a": ranked[0]}


@pytest.fixture
def app(tmp_path):
    return Pollux(f"sqlite:///{tmp_path}/real.db", name="shop")


@pytest.mark.parametrize("page", [10, 1_000], ids=["more-than-a-page", "one-page"])
async def test_why_and_every_table_tell_of_the_run_that_runs_and_not_of_those_for_later(app, monkeypatch, page):
    @app.job(overlap="allow", retry={"attempts": 3, "base": "1h", "max": "1h", "jitter": 0})
    async def work(ctx):
        await asyncio.sleep(600)

    monkeypatch.setattr(board, "LIVE_PAGE", page)
    monkeypatch.setattr("pollux.app.operations.status.RUNS_A_CALL", page)
    async with story(app, at="2026-03-01T08:00Z", seats=WAITING) as tale:
        tale.fail(work, Transient("no answer"), times=WAITING)
        for _ in range(WAITING):
            await tale.enqueue(work)
        assert tale.why(work).answer == "waits"
        await tale.advance("1m")
        running = await tale.enqueue(work)

        assert tale.why(work).answer == "running"
        [row] = (await app.operations.status.overview()).rows
        assert (row.answer, row.state) == ("running", "running")
        [row] = (await app.operations.listing.job_rows()).rows
        assert row.state == "running"
        assert (await app.operations.listing.job_row("work")).state == "running"
        look = await board.look_at(app.operations, tale.clock.now_ms())
        [row] = await board.rows_for(app.operations, look, ["work"])
        assert row.answer == "running"
        assert (
            live_by_job((await live_runs(app.operations.runs, limit=page)).runs, look.now_ms)["work"].id == running.id
        )
