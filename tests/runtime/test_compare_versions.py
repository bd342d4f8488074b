"""`compare` of two versions reports what happened in them."""

import asyncio

import pytest

from pollux import Pollux, every
from pollux.errors import NotFound
from pollux.model import RunState
from pollux.model.leader_notes import ENDS
from pollux.store.contract import NotePut, Pruning, RunFilter
from tests.servers import postgres, redis

HOUR = 3_600_000
PATIENCE_S = 60


def deployment(url, number):
    """Two jobs that recur: one fails always, of the other nothing changes."""
    app = Pollux(url, name=f"v{number}", scheduler_version=number)

    @app.job(every("100ms"), id=f"bad{number}", retry=False)
    async def bad(ctx):
        raise ValueError("no")

    @app.job(every("100ms"), id=f"ok{number}")
    async def ok(ctx):
        return 1

    return app


async def went(app, *ids, least):
    """Until each has ended so often."""
    async with asyncio.timeout(PATIENCE_S):
        while min([job.memory.ended for job in await app.operations.jobs.jobs_by_id(ids)]) < least:  # noqa: ASYNC110  in the store
            await asyncio.sleep(0.02)


async def came_to_rest(*apps):
    """Nothing fires any more, and each leader has read all ends."""
    for job in ("bad1", "ok1", "bad2", "ok2"):
        await apps[0].pause(job, reason="the end of the test")
    async with asyncio.timeout(PATIENCE_S):
        for app in apps:
            while (seen := await app.operations.status.counts()).ready + seen.leased + seen.feed:  # noqa: ASYNC110  in the store
                await asyncio.sleep(0.02)


@pytest.fixture
async def after(tmp_path, request):
    """A store on which two deployments have run and stopped; the history is thinned as far as it may be."""
    server = getattr(request, "param", None)
    url = f"sqlite:///{tmp_path}/c.db" if server is None else server.own_url("compare")
    async with deployment(url, 1) as one, deployment(url, 2) as two:
        await went(one, "bad1", "ok1", "bad2", "ok2", least=6)
        await came_to_rest(one, two)
    app = Pollux(url, name="after", scheduler_version=3)
    await app.open()
    now_ms = app._clock.now_ms()
    await app.backend.prune(Pruning(unchanged_before_ms=now_ms + HOUR))
    yield app
    await app.close()


async def compared(app, *versions, ago_ms=HOUR):
    return await app.operations.versions.compare(versions, since_ms=app._clock.now_ms() - ago_ms)


@pytest.mark.parametrize("after", [None, redis, postgres], indirect=True, ids=["sqlite", "redis", "postgres"])
async def test_failures_are_counted_whatever_the_history_keeps(after):
    bad1, ok1, bad2, ok2 = await after.operations.jobs.jobs_by_id(["bad1", "ok1", "bad2", "ok2"])
    kept = await after.backend.list_runs(RunFilter(states=(RunState.DEAD,)))
    assert len(kept.runs) == 2, "one dead letter stands for all of its job"
    deaths = {run.job_id: run.deaths for run in kept.runs}
    assert deaths == {job.id: job.memory.ended for job in (bad1, bad2)}, "stores count deaths, leaders count ends"

    figures = await compared(after, 1, 2)

    for each, bad, ok in zip(figures, (bad1, bad2), (ok1, ok2), strict=True):
        assert bad.memory.failures == bad.memory.ended
        assert (each.failed, each.dead) == (bad.memory.ended, bad.memory.ended)
        assert each.ended == bad.memory.ended + ok.memory.ended
        assert each.kept < each.ended


async def test_the_time_before_it_was_counted_is_told(after):
    [one] = await compared(after, 1)
    [job] = await after.operations.jobs.jobs_by_id(["bad1"])
    assert one.counted_from_ms <= job.memory.failing_since_ms
    [now] = await compared(after, 1, ago_ms=-120_000)
    assert (now.ended, now.counted_from_ms > one.counted_from_ms) == (0, True)


async def test_where_nobody_counted_the_history_is_what_is_known(after):
    """A store of an older Pollux."""
    notes = await after.backend.notes(ENDS)
    await after.backend.put_notes([NotePut(note.key) for note in notes])

    [one] = await compared(after, 1)
    assert one.counted_from_ms is None
    assert one.dead == 1
    assert one.ended == one.kept


async def test_a_version_that_is_finished_can_be_compared_as_long_as_anything_tells_of_it(after):
    before = await compared(after, 1, 2)
    await after.operations.versions.move_jobs(["bad1", "ok1"], to=2)
    await after.operations.versions.finish_version(1)
    assert 1 not in [each.number for each in await after.operations.versions.list_versions()]

    [one] = await compared(after, 1)
    assert (one.jobs, one.ended, one.failed) == (0, before[0].ended, before[0].failed)
    with pytest.raises(NotFound, match="4"):
        await compared(after, 4)
