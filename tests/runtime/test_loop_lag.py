"""What holds the event loop is sampled from outside of it, and nothing is sampled while it is on time."""

import asyncio
import threading
import time

from pollux import Pollux
from pollux.clock import SystemClock
from pollux.events import Events, LoopBlocked
from pollux.runtime.loop_lag import LATE_REST_MS, ON_TIME_REST_MS, LoopBlock, LoopLag, LoopSampler, blocker_of, where
from tests.runtime.test_app import until


def a_sampler(lag, said=None):
    said = [] if said is None else said
    looks, told = [], []

    def look(is_frozen):
        looks.append(is_frozen)
        return "handler fetch, shop.py:31 in parse"

    async def tell():
        told.append(lag.worst.ms)

    return LoopSampler(lag, look, tell, said.append, clock=SystemClock(), events=Events()), looks, told


async def test_nothing_is_looked_at_while_the_loop_is_on_time():
    lag = LoopLag()
    sampler, looks, told = a_sampler(lag)
    assert (await sampler.turn()).ms == ON_TIME_REST_MS
    assert (looks, told, lag.worst) == ([], [], (0, ""))


async def test_a_late_loop_is_looked_at_and_told_of_once():
    lag = LoopLag()
    sampler, looks, told = a_sampler(lag)
    lag._due = time.monotonic() - 3
    assert [(await sampler.turn()).ms for _ in range(3)] == [LATE_REST_MS] * 3
    assert (len(looks), len(told)) == (3, 1)
    assert told[0] >= 3_000
    assert lag.worst.by == "handler fetch, shop.py:31 in parse"
    lag._due = time.monotonic() + 60
    await sampler.turn()
    lag._due = time.monotonic() - 3
    await sampler.turn()
    assert len(told) == 2, "it is held again"


async def test_a_hold_is_said_once_while_it_lasts():
    lag, said = LoopLag(), []
    sampler, _, _ = a_sampler(lag, said)
    lag._due = time.monotonic() - 3
    for _ in range(3):
        await sampler.turn()
    assert [hold.by for hold in said] == ["handler fetch, shop.py:31 in parse"]
    assert said[0].ms >= 3_000
    assert lag.is_reported, "so that it is not said again when it is over"


async def test_a_hold_that_was_over_before_anybody_looked_is_said_when_it_is(caplog):
    app, heard = Pollux("memory://"), []
    async with app:
        node = app.runtime.node_id
        app.runtime.events.listen(LoopBlocked, heard.append)
        app.runtime.lag.on_blocked(LoopBlock(1_500, "handler fetch, shop.py:31 in parse"))
        app.runtime.lag.on_blocked(LoopBlock(900, "shorter than health.loop_lag"))
        app.runtime.lag.is_reported = True
        app.runtime.lag.on_blocked(LoopBlock(75_000, "handler fetch, shop.py:31 in parse"))
    told = LoopBlocked(node, 1_500, "handler fetch, shop.py:31 in parse", is_over=True)
    assert [each for each in heard if "shop.py" in each.by or "shorter" in each.by] == [told]
    [words] = [each.getMessage() for each in caplog.records if "shop.py" in each.getMessage()]
    assert "was blocked for 1s500ms by handler fetch, shop.py:31 in parse" in words


async def test_the_handler_that_holds_the_loop_is_named_with_the_line_of_the_users_own_code():
    app, seen = Pollux("memory://"), []
    ident = threading.get_ident()

    @app.job()
    async def inner(ctx):
        thread = threading.Thread(target=lambda: seen.append(blocker_of(ident, (), is_frozen=False)))
        thread.start()
        thread.join()

    async with app:
        await app.enqueue(inner)
        await until(_once(lambda: seen), "it was looked at")
    assert seen[0].startswith("handler inner, test_loop_lag.py:"), seen
    assert seen[0].endswith(" in inner")


async def test_where_handlers_are_in_threads_and_on_the_loop_is_known():
    app = Pollux("memory://", seats=2)
    began, may_end, ends = threading.Event(), threading.Event(), asyncio.Event()

    @app.job()
    def plain(ctx):
        began.set()
        may_end.wait()

    @app.job()
    async def waits(ctx):
        await ends.wait()

    async with app:
        await app.enqueue(plain)
        await app.enqueue(waits)
        await until(_once(lambda: began.is_set() and len(app.runtime.worker.running) == 2), "both run")
        attempts = {attempt.run.job_id: attempt for attempt in app.runtime.worker.running}
        await until(_once(lambda: "test_loop_lag.py" in where(attempts["waits"])), "it has begun")
        assert where(attempts["plain"]).startswith("handler plain, test_loop_lag.py:")
        assert where(attempts["waits"]).endswith(" in waits")
        assert blocker_of(0, [attempts["plain"]], is_frozen=False) == ""
        frozen = blocker_of(0, [attempts["plain"]], is_frozen=True)
        assert frozen.startswith("the whole process was frozen; running in threads: handler plain, test_loop_lag.py:")
        load = app.runtime.load()
        assert sorted(load.seated) == ["plain (1)", "waits (1)"]
        may_end.set()
        ends.set()


def _once(look):
    async def asked():
        return look()

    return asked
