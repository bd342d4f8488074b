"""`pollux.testing.story`: users' own tests of their own jobs, in virtual time."""

import asyncio
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pollux import Permanent, Pollux, Transient, cron, every, once
from pollux.errors import InvalidInput, NotFound, PolluxError, StoreBusy
from pollux.model import RunState
from pollux.testing import FaultyStore, story
from pollux.units import moment_ms

AT = "2026-03-01T08:00Z"


def whereabouts(ctx):
    return os.getpid()


@pytest.fixture
def app(tmp_path):
    """As users have it: on a file, that no story may touch."""
    app = Pollux(f"sqlite:///{tmp_path}/real.db", name="shop")
    yield app
    assert list(Path(tmp_path).iterdir()) == []


# time


async def test_an_hour_has_six_firings_of_every_ten_minutes(app):
    @app.job(cron("*/10 * * * *"))
    async def check_api(ctx):
        return ctx.run.due_ms

    async with story(app, at=AT) as tale:
        assert tale.fired(check_api) == 0
        await tale.advance("1h")
        assert tale.fired("check_api") == 6
        assert tale.now == datetime(2026, 3, 1, 9, tzinfo=UTC)
        assert tale.outcomes(check_api) == ["done"] * 6
        assert tale.results(check_api)[-1] == tale.clock.now_ms()  # due at this very moment, and done
        assert tale.next_due(check_api) == datetime(2026, 3, 1, 9, 10, tzinfo=UTC)
        assert tale.dead == []


async def test_many_small_steps_are_one_big_one(app):
    @app.job(every("7s"))
    async def tick(ctx): ...

    counts = []
    for steps in (1, 60, 1_200):
        async with story(app, at=AT) as tale:
            for _ in range(steps):
                await tale.advance(3_600 / steps)
            counts.append(tale.fired(tick))
            assert tale.now == datetime(2026, 3, 1, 9, tzinfo=UTC)
    assert counts[0] > 510
    assert len(set(counts)) == 1


async def test_a_handler_that_sleeps_for_an_hour_sleeps_in_virtual_time(app):
    @app.job(timeout="2h")
    async def nap(ctx):
        await asyncio.sleep(3_600)
        return "rested"

    async with story(app) as tale:
        run = await tale.enqueue(nap)
        await tale.advance("59m")
        assert tale.runs(nap)[0].state is RunState.LEASED
        await tale.advance("1m")
        assert tale.results(nap) == ["rested"]
        assert tale.runs(nap)[0].id == run.id
        assert tale.runs(nap)[0].lease_losses == 0


async def test_a_sleep_in_the_test_itself_passes_time_too(app):
    @app.job(every("1m", spread=False))
    async def tick(ctx): ...

    async with story(app, at=AT) as tale:
        await asyncio.sleep(601)
        assert tale.fired(tick) == 11


async def test_a_timeout_ends_a_handler_in_virtual_time(app):
    @app.job(timeout="30s", retry=False)
    async def stuck(ctx):
        await asyncio.Event().wait()

    async with story(app) as tale:
        await tale.enqueue(stuck)
        await tale.advance("29s")
        assert tale.outcomes(stuck) == []
        await tale.advance("2s")
        assert tale.outcomes(stuck) == ["dead"]
        assert "it ran longer than 30000 ms" in tale.errors(stuck)[0]


async def test_a_plain_function_runs_in_a_real_thread_and_takes_no_time(app):
    threads = set()

    @app.job(every("10m", spread=False))
    def crunch(ctx):
        threads.add(threading.current_thread().name)
        time.sleep(0.02)
        return "crunched"

    async with story(app, at=AT) as tale:
        await tale.advance("1h")
        assert tale.results(crunch) == ["crunched"] * 7
        assert threads
        assert threading.main_thread().name not in threads


async def test_a_plain_function_that_sleeps_by_its_context_sleeps_in_virtual_time(app):
    @app.job(timeout="1h")
    def patient(ctx):
        for _ in range(3):
            if ctx.wait_cancelled(600):
                return "asked to stop"
        return "slept"

    async with story(app) as tale:
        await tale.enqueue(patient)
        await tale.advance("29m")
        assert tale.results(patient) == []
        await tale.advance("2m")
        assert tale.results(patient) == ["slept"]
        run = await tale.enqueue(patient)
        await tale.advance("15m")
        await tale.cancel(run.id)
        await tale.advance("1s")
        assert [each.state for each in tale.runs(patient)] == [RunState.DONE, RunState.CANCELLED], "whatever it returns"
        assert tale.results(patient) == ["slept"]


async def test_a_plain_function_past_its_timeout_does_not_hang_the_story(app, monkeypatch):
    monkeypatch.setattr("pollux.simulate.virtual_loop.THREAD_SECONDS_MAX", 0.2)
    release = threading.Event()

    @app.job(timeout="1m", retry=False)
    def endless(ctx):
        release.wait()

    async with story(app) as tale:
        await tale.enqueue(endless)
        await tale.advance("2m")
        assert tale.outcomes(endless) == ["dead"]
        release.set()


async def test_the_clock_may_leap(app):
    @app.job(cron("0 * * * *"))
    async def hourly(ctx): ...

    async with story(app, at=AT) as tale:
        tale.jump("3h30m")
        await tale.advance("1m")
        assert [run.due_ms for run in tale.runs(hourly)] == [moment_ms("2026-03-01T11:00Z")]
        assert tale.skipped(hourly) == {"late": 2}
        tale.jump("-3h30m")
        await tale.advance("2h")
        assert tale.now == datetime(2026, 3, 1, 10, 1, tzinfo=UTC)
        assert tale.fired(hourly) == 3  # nine and ten have come after all; eleven is not made a second time


# what handlers do


async def test_a_failure_on_order_is_retried(app):
    @app.job(retry={"attempts": 3, "base": "10s", "jitter": 0})
    async def fetch(ctx):
        return ctx.attempt

    async with story(app) as tale:
        tale.fail(fetch, TimeoutError("no answer"), times=2)
        await tale.enqueue(fetch)
        assert tale.runs(fetch)[0].state is RunState.READY
        assert "TimeoutError: no answer" in tale.errors(fetch)[0]
        await tale.advance("10s")
        await tale.advance("20s")
        assert tale.results(fetch) == [3]


async def test_a_job_that_is_given_up_on_is_a_dead_letter_that_can_be_revived(app):
    @app.job(once())
    async def load(ctx):
        return "loaded"

    async with story(app) as tale:
        assert tale.results(load) == ["loaded"]
        tale.fail(load, Permanent("no such table"))
        await tale.run_now(load)
        [letter] = tale.dead
        assert letter.job_id == "load"
        await tale.revive(load)
        assert tale.dead == []
        assert tale.results(load) == ["loaded", "loaded"]


async def test_a_stand_in_takes_the_place_of_a_handler(app):
    @app.job(params={"url": "http://example.com"})
    async def fetch(ctx, url: str):
        raise AssertionError("the network, in a test")

    @app.job()
    def plain(ctx): ...

    async with story(app) as tale:
        tale.stand_in(fetch, lambda ctx, url: {"url": url, "attempt": ctx.attempt})
        await tale.enqueue(fetch)
        assert tale.results(fetch) == [{"url": "http://example.com", "attempt": 1}]

        async def other(ctx, url):
            await asyncio.sleep(5)
            return "other"

        tale.stand_in(fetch, other)
        await tale.enqueue(fetch)
        await tale.advance("5s")
        assert tale.results(fetch)[-1] == "other"
        with pytest.raises(InvalidInput, match="plain function"):
            tale.stand_in(plain, other)

    async with story(app) as tale:  # it was for that story alone
        tale.fail(fetch, Transient("x"), times=0)
        await tale.enqueue(fetch)
        assert "the network, in a test" in tale.errors(fetch)[0]


async def test_handlers_meet_the_story_when_they_use_the_app_itself(app):
    @app.job()
    async def child(ctx, n: int):
        return n

    @app.job()
    async def parent(ctx):
        await app.enqueue(child, {"n": 1})
        ctx.enqueue(child, {"n": 2}, delay="1h")

    @app.job()
    def plain_parent(ctx):
        app.blocking.enqueue(child, {"n": 3})

    async with story(app) as tale:
        await tale.enqueue(parent)
        assert tale.results(child) == [1]
        await tale.advance("1h")
        assert tale.results(child) == [1, 2]
        await tale.enqueue(plain_parent)
        assert tale.results(child) == [1, 2, 3]


async def test_a_job_that_asks_for_a_process_of_its_own_runs_here(app):
    app.add(app.handler(whereabouts), id="apart", isolate="process")
    async with story(app) as tale:
        await tale.enqueue("apart")
        assert tale.results("apart") == [os.getpid()]


# bad days


async def test_downtime_is_caught_up_with_as_the_job_says(app):
    @app.job(cron("*/10 * * * *"))
    async def one(ctx): ...

    @app.job(cron("*/10 * * * *"), misfire="skip")
    async def none(ctx): ...

    @app.job(cron("*/10 * * * *"), misfire="all", overlap="allow")
    async def all_of_them(ctx): ...

    async with story(app, at="2026-03-01T08:05Z") as tale:
        await tale.sleep_through("3h")
        await tale.advance("10s")
        assert (tale.fired(one), tale.skipped(one)) == (1, {"late": 17})
        assert (tale.fired(none), tale.skipped(none)) == (0, {"late": 18})
        assert tale.fired(all_of_them) == 18


async def test_a_run_survives_the_crash_of_its_node(app):
    begun = []

    @app.job()
    async def work(ctx):
        begun.append(ctx.run.fence)
        await asyncio.sleep(60)
        return "done"

    async with story(app) as tale:
        await tale.enqueue(work)
        await tale.advance("10s")
        await tale.restart()
        await tale.advance("20s")
        assert tale.outcomes(work) == []  # its lease has not ended yet
        await tale.advance("90s")
        assert tale.outcomes(work) == ["done"]
        assert tale.runs(work)[0].lease_losses == 1
        assert begun == [1, 2]


async def test_a_node_that_is_stopped_in_good_order_lets_handlers_finish(app):
    @app.job()
    async def work(ctx):
        await asyncio.sleep(10)
        return "finished"

    async with story(app) as tale:
        await tale.enqueue(work)
        await tale.stop()
        assert tale.results(work) == ["finished"]
        await tale.start()
        with pytest.raises(PolluxError, match="runs already"):
            await tale.start()
        await tale.crash()
        with pytest.raises(PolluxError, match="does not run"):
            await tale.crash()


async def test_faults_of_the_store_are_ordered_and_survived(app):
    @app.job(cron("* * * * *"))
    async def tick(ctx): ...

    async with story(app, at=AT) as tale:
        assert isinstance(tale.store, FaultyStore)
        tale.store.fail("settle", StoreBusy("locked"), times=3)
        tale.store.lose_answer("advance", times=2)
        await tale.advance("10m")
        await tale.advance("10s")
        assert tale.fired(tick) == 10
        assert tale.outcomes(tick) == ["done"] * 10
        assert sorted(tale.store.struck) == ["advance"] * 2 + ["settle"] * 3


# what people do


async def test_a_paused_job_skips_and_says_why(app):
    @app.job(cron("* * * * *"))
    async def tick(ctx): ...

    async with story(app, at=AT) as tale:
        await tale.pause(tick, reason="holidays")
        await tale.advance("10m")
        assert (tale.fired(tick), tale.skipped(tick)) == (0, {"paused": 10})
        assert "holidays" in tale.why(tick).reason
        assert await tale.resume(tick)
        await tale.advance("1m")
        assert tale.fired(tick) == 1


async def test_a_cancel_reaches_a_running_handler(app):
    @app.job()
    async def work(ctx):
        await asyncio.Event().wait()

    async with story(app) as tale:
        run = await tale.enqueue(work)
        await tale.cancel(run.id, reason="enough")
        await tale.advance("5s")
        assert tale.outcomes(work) == ["cancelled"]


# the same twice, and what is left behind


async def test_the_same_story_goes_the_same_way_twice(app):
    @app.job(every("1m"), retry={"attempts": 4, "base": "3s"})
    async def flaky(ctx):
        if ctx.run.due_ms // 60_000 % 3 == 0:
            raise Transient("so it goes")

    told = []
    for _ in range(2):
        async with story(app, at=AT) as tale:
            await tale.advance("2h")
            assert tale.fired(flaky) == 120
            told.append([(run.id, run.started_ms, run.finished_ms, run.token) for run in tale.runs(flaky)])
    assert told[0] == told[1]
    assert len(told[0]) > 100


async def test_the_app_is_itself_again_afterwards(app):
    @app.job(every("1m"))
    async def tick(ctx): ...

    before = (app.store_url, app.options)
    with pytest.raises(RuntimeError, match="a test that fails"):
        async with story(app):
            raise RuntimeError("a test that fails")
    assert (app.store_url, app.options, app.runtime) == (*before, None)
    really = time.monotonic()
    await asyncio.sleep(0.02)
    assert time.monotonic() - really >= 0.015


def test_a_plain_test_has_the_same_story_without_await(app):
    @app.job(cron("*/10 * * * *"))
    async def check(ctx):
        await asyncio.sleep(1)
        return "fine"

    with story(app, at=AT) as tale:
        tale.advance("1h")
        assert tale.fired(check) == 6
        assert tale.results(check) == ["fine"] * 5
        tale.fail(check, TimeoutError())
        tale.run_now(check, anyway=True)
        tale.sleep_through("3h")
        assert "TimeoutError" in tale.errors(check)[0]
        assert tale.now >= datetime(2026, 3, 1, 12, tzinfo=UTC)


# mistakes


async def test_mistakes_are_told_with_their_cure(app):
    @app.job(every("1m"))
    async def tick(ctx): ...

    with pytest.raises(InvalidInput, match="pass your app"):
        story("app")
    with pytest.raises(InvalidInput, match="has no offset"):
        story(app, at="2026-03-01T08:00")
    with pytest.raises(PolluxError, match="async with story"), story(app):
        pass
    async with story(app) as tale:
        with pytest.raises(NotFound, match="no job 'tock'"):
            tale.fired("tock")
        with pytest.raises(PolluxError, match="open already"):
            async with story(app):
                pass
        await tale.advance("1m")  # the first story was not disturbed
        assert tale.fired(tick) >= 1


async def test_an_app_that_runs_is_refused():
    app = Pollux("memory://")
    async with app:
        with pytest.raises(PolluxError, match="open already"):
            async with story(app):
                pass
        assert app.runtime is not None
