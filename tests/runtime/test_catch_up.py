"""After a leader change: what was missed is caught up without replacing the due time right after it."""

import asyncio

import pytest

from pollux import Pollux, cron, every
from pollux.testing import story
from pollux.units import moment_ms

AT = "2026-03-01T08:00:00Z"


@pytest.fixture
def app(tmp_path):
    return Pollux(f"sqlite:///{tmp_path}/real.db", name="shop")


async def test_the_due_time_of_now_fires_instead_of_the_missed_one_before_it(app):
    """Both were fired at once: the missed one ran, and the one on time was skipped as an overlap."""

    @app.job(cron("* * * * *"))
    async def minutely(ctx):
        await asyncio.sleep(20)

    async with story(app, at=AT) as tale:
        await tale.advance("90s")
        await tale.crash()
        await tale.advance("3m35s")  # it is 8:05:05
        await tale.start()
        await tale.advance("40s")
        dues = [run.due_ms for run in tale.runs(minutely)]
        assert dues == [moment_ms("2026-03-01T08:01Z"), moment_ms("2026-03-01T08:05Z")]
        assert tale.skipped(minutely) == {"late": 3}


async def test_the_due_time_right_after_fires_on_time_where_a_catch_up_run_would_still_be_live(app):
    @app.job(cron("* * * * *"))
    async def minutely(ctx):
        await asyncio.sleep(20)

    async with story(app, at=AT) as tale:
        await tale.advance("90s")
        await tale.crash()
        await tale.advance("3m20s")  # it is 8:04:50: the next due time comes before a run of 20 s is over
        await tale.start()
        await tale.advance("5s")
        assert len(tale.runs(minutely)) == 1
        await tale.advance("35s")
        dues = [run.due_ms for run in tale.runs(minutely)]
        assert dues == [moment_ms("2026-03-01T08:01Z"), moment_ms("2026-03-01T08:05Z")]
        assert tale.skipped(minutely) == {"late": 3}


async def test_a_catch_up_run_that_is_over_before_the_next_due_time_is_made_at_once(app):
    @app.job(every("10m", spread=False))
    async def poll(ctx):
        await asyncio.sleep(20)

    async with story(app, at=AT) as tale:
        await tale.advance("12m")
        fired = tale.fired(poll)
        await tale.crash()
        await tale.advance("25m")  # 8:37
        await tale.start()
        await tale.advance("5s")
        assert [run.due_ms for run in tale.runs(poll)][fired:] == [moment_ms("2026-03-01T08:30Z")]
        assert tale.skipped(poll) == {"late": 1}
