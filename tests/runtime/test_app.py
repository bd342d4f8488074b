"""The app as its users see it, on the memory store."""

import asyncio

import pytest

from pollux import Permanent, Pollux, every, once
from pollux.app.watchers import SettingsWatcher
from pollux.errors import Conflict, InvalidInput, NotFound, PolluxError
from pollux.model import Job, RunState
from pollux.store.contract import Answer

PATIENCE = 60.0


async def until(look, message: str):
    """Wait for what `look` answers; tests fail by this deadline, they do not pass by it."""
    async with asyncio.timeout(PATIENCE):
        while not (seen := await look()):  # noqa: ASYNC110  a store has no event to wait for
            await asyncio.sleep(0.005)
    return seen


async def finished(app, run_id):
    async def look():
        run = await app.get_run(run_id)
        return run if run.is_finished else None

    return await until(look, f"{run_id} ends")


@pytest.fixture
def app():
    return Pollux("memory://", name="shop")


async def test_a_cancel_reaches_a_running_handler_of_this_process_at_once(app):
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.job(timeout="1h")
    async def long(ctx):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with app:
        run = await app.enqueue(long)
        await asyncio.wait_for(started.wait(), PATIENCE)
        [answer] = await app.cancel(run.id, reason="enough")
        assert answer.answer is Answer.OK
        await asyncio.wait_for(stopped.wait(), PATIENCE)  # a third of the lease would be 10 s
        ended = await finished(app, run.id)
        assert (ended.state, ended.attempt) == (RunState.CANCELLED, 0)
        assert ended.started_ms is not None

        async def has_learnt():
            return (await app.operations.status.overview()).rows[0].last == "cancelled"

        await until(has_learnt, "its job learns of it")
        memory = (await app.operations.jobs.get_job("long")).memory
        assert (memory.last_success_ms, memory.last_error_ms, memory.failures) == (None, None, 0)


async def test_the_same_id_is_the_same_run_and_a_live_key_is_a_conflict(app):
    @app.job()
    def greet(ctx, name: str): ...

    await app.start()
    await app.pause(greet)
    first = await app.enqueue(greet, {"name": "Ada"}, id="one", key="k", delay="1h")
    assert (await app.enqueue(greet, {"name": "Ada"}, id="one", key="k", delay="1h")).id == first.id
    with pytest.raises(Conflict, match="one"):
        await app.enqueue(greet, {"name": "Bob"}, key="k")
    await app.close()


async def test_params_are_checked_when_declared_and_when_asked(app):
    @app.handler
    def fetch(ctx, url: str): ...

    with pytest.raises(InvalidInput, match="missing url"):
        app.add(fetch, every("1m"), id="a")
    job = app.add(fetch, every("1m"), id="b", params={"url": "x"})
    await app.open()
    with pytest.raises(InvalidInput, match=r"unknown uri.*it takes url"):
        await app.enqueue(job, {"uri": "y"})
    await app.close()


def test_two_handlers_or_jobs_of_one_name_are_refused(app):
    @app.job(every("1m"), id="same")
    def one(ctx): ...

    with pytest.raises(InvalidInput, match="two handlers are called 'same'"):

        @app.job(every("1m"), id="same")
        def two(ctx): ...

    with pytest.raises(InvalidInput, match="declared twice"):
        app.add(one, every("5m"), id="same")


async def test_a_job_without_code_is_not_found_and_says_so(app):
    await app.open()
    with pytest.raises(NotFound, match="no job 'nobody'"):
        await app.enqueue("nobody")
    with pytest.raises(InvalidInput, match="is not a job"):
        await app.enqueue(len)
    await app.close()


async def test_run_now_refuses_beside_a_live_run_unless_anyway(app):
    @app.job(once(at="2099-01-01T00:00:00Z"))
    async def later(ctx): ...

    async with app:
        await app.pause(everything=True)
        await app.enqueue(later, delay="1h")  # in nobody's way
        waiting = await app.enqueue(later)
        with pytest.raises(Conflict, match=waiting.id):
            await app.run_now(later)
        forced = await app.run_now(later, anyway=True)
        assert (await finished(app, forced.id)).state is RunState.DONE, "a forced run ignores pauses"


async def test_run_now_asks_nobody_where_runs_of_the_job_may_overlap(app):
    @app.job(overlap="allow")
    async def beside(ctx): ...

    async with app:
        await app.pause(everything=True)
        waiting = await app.enqueue(beside)
        forced = await app.run_now(beside)
        assert (await finished(app, forced.id)).state is RunState.DONE
        assert (await app.get_run(waiting.id)).is_finished is False


async def test_follow_ups_come_with_success_only_and_once(app):
    seen = []

    @app.job()
    async def child(ctx, n: int):
        seen.append(n)

    @app.job(retry={"attempts": 3, "base": "1ms"})
    async def parent(ctx):
        ctx.enqueue(child, {"n": ctx.attempt})
        if ctx.attempt == 1:
            raise RuntimeError("not yet")

    async with app:
        run = await app.enqueue(parent)
        assert (await finished(app, run.id)).attempt == 1

        async def look():
            return seen

        await until(look, "the child runs")
        counts = await app.operations.status.counts()
    assert seen == [2]
    assert counts.dead == 0


async def test_a_permanent_fault_is_a_dead_letter_that_can_be_revived(app):
    mended = []

    @app.job()
    def send(ctx, to: str):
        if not mended:
            raise Permanent("no address")
        return to

    async with app:
        run = await app.enqueue(send, {"to": "x"})
        dead = await finished(app, run.id)
        assert (dead.state, dead.payload) == (RunState.DEAD, {"to": "x"})
        assert "no address" in dead.error
        mended.append(True)
        [answer] = await app.operations.dead_letters.revive([run.id])
        assert answer.answer is Answer.OK
        assert (await finished(app, run.id)).result == "x"


async def test_a_result_that_is_no_json_or_too_big_is_a_recorded_outcome(app):
    @app.job()
    def odd(ctx, big: bool):
        return "x" * 10_000_000 if big else object()

    async with app:
        for big, message in ((True, "at most 64 kB"), (False, "which is no JSON")):
            run = await app.enqueue(odd, {"big": big})
            ended = await finished(app, run.id)
            assert ended.state is RunState.DEAD
            assert message in ended.error


async def test_blocking_serves_synchronous_callers_beside_a_running_app(app):
    @app.job()
    async def double(ctx, n: int):
        return 2 * n

    async with app:
        run = await asyncio.to_thread(app.blocking.enqueue, double, {"n": 21})
        assert (await finished(app, run.id)).result == 42
        assert (await asyncio.to_thread(app.blocking.why, run.id)).reason
    with pytest.raises(AttributeError, match="no verb"):
        app.blocking.nonsense()


async def test_a_start_that_fails_at_its_last_step_leaves_nothing_running_in_an_app_that_was_open(app, monkeypatch):
    async def refuse(watcher, runtime):
        raise PolluxError("the file cannot be watched")

    monkeypatch.setattr(SettingsWatcher, "begin", refuse)
    await app.open()

    with pytest.raises(PolluxError, match="cannot be watched"):
        await app.start()

    assert app.runtime is None
    assert await app.backend.nodes() == []
    assert (await app.operations.status.counts()).jobs == 0, "the store is open, as before"
    monkeypatch.undo()
    async with app:
        assert len(await app.backend.nodes()) == 1


async def test_a_running_app_takes_jobs_by_put_and_not_by_add(app):
    @app.handler
    async def tick(ctx): ...

    async with app:
        with pytest.raises(PolluxError, match="put_jobs"):
            app.add(tick, every("1s"))
        await app.put_jobs([Job(id="later", handler="tick", schedule=every("1h"))])
        with pytest.raises(InvalidInput, match=r"job 'bad'.*too"):
            await app.put_jobs([Job(id="bad", handler="tick", schedule=every("10ms"))])

        async def look():
            return (await app.operations.jobs.get_job("later")).memory.ended

        assert await until(look, "the new job runs at once") == 1


async def test_a_job_that_code_no_longer_declares_is_kept_but_skipped():
    from pollux.store.memory import MemoryStore

    store = MemoryStore()
    before, after = Pollux(store, name="a"), Pollux(store, name="a")

    @before.job(every("1h"))
    def old(ctx): ...

    @after.job(every("1h"))
    def new(ctx): ...

    async with before:
        pass
    async with after:
        job = await after.operations.jobs.get_job("old")
        assert job.declared is False
        assert "declares" in (await after.why("old")).reason


async def test_changes_are_in_the_audit_log(app):
    @app.job(every("1h"))
    def tick(ctx): ...

    async with app:
        await app.pause(tick, reason="lunch")
        assert await app.resume(tick) is True
        assert await app.resume(tick) is False
        lines = (await app.operations.audit.list_audit()).lines
    assert [(line.action, line.subject) for line in lines] == [("pause", "job:tick"), ("resume", "job:tick")]
    assert lines[0].detail == "lunch"


async def test_exactly_one_thing_is_paused(app):
    await app.open()
    for wrong in ({}, {"group": "a", "target": "b"}):
        with pytest.raises(InvalidInput, match="exactly one"):
            await app.pause(**wrong)
    await app.close()
