"""`why` of a run with others before it in the queue, from a living node."""

import asyncio

from pollux import Pollux


async def test_a_run_in_a_long_queue_says_how_many_are_ahead():
    app, began, goes_on = Pollux("memory://", seats=1), asyncio.Event(), asyncio.Event()

    @app.job()
    async def slow(ctx):
        began.set()
        await goes_on.wait()

    async with app:
        await app.enqueue(slow)
        await asyncio.wait_for(began.wait(), 60)
        ids = await app.enqueue_many(slow, [None] * 45)
        last = await app.why(ids[-1])
        assert last.answer == "ready"
        assert "; 44 runs are ahead of it" in last.reason
        assert "next" not in last.reason
        assert "ahead" not in (await app.why(ids[0])).reason
        assert "; 20 runs are ahead of it" in (await app.why(ids[20])).reason
        urgent = await app.enqueue(slow, priority="high")
        assert "ahead" not in (await app.why(urgent.id)).reason
        assert "; 1 run is ahead of it" in (await app.why(ids[0])).reason
        await app.cancel(slow)
        goes_on.set()


async def test_a_job_whose_run_waits_in_a_long_queue_says_how_many_are_ahead():
    app, began, goes_on = Pollux("memory://", seats=1), asyncio.Event(), asyncio.Event()

    @app.job()
    async def slow(ctx):
        began.set()
        await goes_on.wait()

    @app.job()
    async def patient(ctx):
        pass

    async with app:
        await app.enqueue(slow)
        await asyncio.wait_for(began.wait(), 60)
        await app.enqueue_many(slow, [None] * 294)
        await app.enqueue(patient)
        why = await app.why("patient")
        assert why.answer == "ready"
        assert "; 294 runs are ahead of it" in why.reason
        assert "next" not in why.reason
        await app.cancel(slow)
        goes_on.set()
