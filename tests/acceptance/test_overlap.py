"""Promises of `overlap` for jobs that are also run by hand: no two firings at once, every request is done."""

import asyncio

import pytest

from pollux import Pollux, every
from pollux.model import Cause, RunState
from pollux.store.contract import RunFilter
from pollux.testing import story

AT = "2026-03-01T08:00Z"


class Busy:
    """A job that takes 25 s each time its schedule fires, and 1 s when somebody runs it; who was at work together?"""

    def __init__(self, overlap):
        self.app = Pollux("memory://", name="shop")
        self.running, self.together, self.begun = set(), set(), []

        @self.app.job(every("10s"), overlap=overlap)
        async def slow(ctx):
            await self.work(ctx)

    async def work(self, ctx):
        self.begun.append(ctx.run.cause)
        self.running.add(ctx.run.id)
        self.together.add(frozenset(self.running))
        try:
            await asyncio.sleep(25 if ctx.run.cause is Cause.SCHEDULE else 1)
        finally:
            self.running.discard(ctx.run.id)

    def most_firings(self):
        return max(len([run_id for run_id in those if "@" in run_id]) for those in self.together)


async def by_hand(busy, tale, times=20):
    """Somebody runs the job every 7 s, whatever it does; and then nobody does for a minute."""
    ids = []
    for _ in range(times):
        ids.append((await busy.app.run_now("slow", anyway=True)).id)
        await tale.advance("7s")
    await tale.advance("1m")
    return ids


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
async def test_two_firings_are_never_at_work_together_though_somebody_runs_the_job_by_hand(overlap):
    busy = Busy(overlap)
    async with story(busy.app, at=AT) as tale:
        await by_hand(busy, tale)

        assert busy.most_firings() == 1
        assert busy.begun.count(Cause.SCHEDULE) >= 4, "they were not kept from it for ever"


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
async def test_a_run_for_later_lets_the_schedule_go_on(overlap):
    """The schedule fires every 10 s and takes 25; what was enqueued for the fifth minute runs then."""
    busy = Busy(overlap)
    async with story(busy.app, at=AT) as tale:
        later = await busy.app.enqueue("slow", delay="5m")
        await tale.advance("4m")

        assert busy.begun.count(Cause.SCHEDULE) >= 8
        assert (await busy.app.get_run(later.id)).state is RunState.READY
        await tale.advance("2m")
        assert (await busy.app.get_run(later.id)).state is RunState.DONE


async def test_a_waiting_firing_begins_when_the_run_before_it_is_put_off_for_a_retry():
    app = Pollux("memory://", name="shop")
    begun = []

    @app.job(every("10m"), overlap="queue", retry={"base": "30m", "max": "1h"})
    async def report(ctx):
        begun.append(ctx.run.cause)
        await asyncio.sleep(900 if ctx.run.cause is Cause.ENQUEUED else 1)
        if ctx.run.cause is Cause.ENQUEUED:
            raise ConnectionError("no route")

    async with story(app, at=AT) as tale:
        await tale.advance("5s")
        asked = await app.enqueue("report")
        await tale.advance("899s")
        assert begun[-1] is Cause.ENQUEUED, "a firing waits for it"
        await tale.advance("2s")

        assert begun[-1] is Cause.SCHEDULE
        assert (await app.get_run(asked.id)).attempt == 1, "it is to be tried again in half an hour"
        fired = len(begun)
        await tale.advance("21m")
        assert len(begun) == fired + 2


async def test_with_allow_they_are():
    busy = Busy("allow")
    async with story(busy.app, at=AT) as tale:
        await by_hand(busy, tale)

        assert busy.most_firings() > 1


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel", "allow"])
async def test_what_somebody_asked_for_is_done_whatever_the_schedule_does(overlap):
    busy = Busy(overlap)
    async with story(busy.app, at=AT) as tale:
        asked = await by_hand(busy, tale)
        runs = [await busy.app.get_run(run_id) for run_id in asked]

        assert {run.state for run in runs} == {RunState.DONE}
        assert busy.begun.count(Cause.FORCED) == len(asked)


@pytest.mark.parametrize(("overlap", "is_skipped"), [("queue", True), ("cancel", False)])
async def test_at_most_one_firing_waits_and_what_is_not_made_is_counted(overlap, is_skipped):
    """Under cancel the one before it is gone in time."""
    busy = Busy(overlap)
    async with story(busy.app, at=AT) as tale:
        for _ in range(12):
            await busy.app.enqueue("slow")
            await tale.advance("5s")
            waiting = (await busy.app.operations.runs.list_runs(RunFilter(job_id="slow", states=(RunState.HELD,)))).runs
            assert len(waiting) <= 1
        job = await busy.app.operations.jobs.get_job("slow")

        assert bool(job.memory.skips.get("overlap", 0)) is is_skipped
        assert tale.fired("slow") >= 2
