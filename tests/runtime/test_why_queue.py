"""`why` of a run with others ahead of it, asked of a living node."""

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
        assert "up to 44 runs are ahead of it" in last.reason
        assert "next" not in last.reason
        urgent = await app.enqueue(slow, priority="high")
        assert "ahead" not in (await app.why(urgent.id)).reason
        await app.cancel(slow)
        goes_on.set()
