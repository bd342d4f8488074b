"""How a run ends, whatever its handler does."""

import asyncio
import sys
import threading

import pytest

from pollux.errors import Permanent, Postponed, Transient
from pollux.events import HandlerStuck, LeaseWasLost, RunFailed, RunSettled, RunStarted
from pollux.model import Interval, RunState, run_of
from pollux.registry import Changed, Registry
from pollux.secrets import HIDDEN
from pollux.testing.conformance.builders import release
from tests.runtime.fakes import Heard, Shop, emptied, settle_down


async def a_shop(**options):
    return await Shop(**options).open()


async def seated(shop, call, *, payload=None, **options):
    """Claim one run of a job with this handler, and let it start."""
    job = await shop.job("job", call, **options)
    await shop.enqueue(job, "r1", payload=payload)
    await shop.dispatcher.turn()
    await settle_down()
    return job


async def recorded(shop):
    await shop.settler.turn()
    return await shop.run("r1")


async def test_what_a_handler_returns_is_the_result():
    async def add(ctx, a, b):
        return {"sum": a + b, "attempt": ctx.attempt}

    shop = await a_shop()
    await seated(shop, add, params={"a": 1, "b": 2}, payload={"b": 5})
    assert shop.pool.free == 2, "the seat is free before the outcome is recorded"
    run = await recorded(shop)
    assert run.state is RunState.DONE
    assert run.result == {"sum": 6, "attempt": 1}
    assert run.changed is True
    assert shop.worker.leases == {}


async def test_a_sync_handler_runs_in_a_thread_of_ours():
    where = []

    def work(ctx):
        where.append(threading.current_thread().name)
        return 7

    shop = await a_shop()
    await seated(shop, work)
    await emptied(shop.pool)
    run = await recorded(shop)
    assert run.result == 7
    assert where[0].startswith("pollux-handler-")
    shop.worker.threads.stop()


@pytest.mark.parametrize("params", [{}, {"a": 1, "c": 2}])
async def test_params_that_do_not_fit_are_a_permanent_fault(params):
    async def add(ctx, a):
        raise AssertionError("it must not be called")

    shop = await a_shop()
    await seated(shop, add, params=params)
    run = await recorded(shop)
    assert run.state is RunState.DEAD
    assert "do not fit" in run.error
    assert shop.pool.free == 2


@pytest.mark.parametrize(
    ("error", "state"),
    [(ValueError("odd"), RunState.READY), (Transient("later"), RunState.READY), (Permanent("no"), RunState.DEAD)],
)
async def test_an_exception_is_a_fault_and_its_kind_decides(error, state):
    async def fail(ctx):
        raise error

    shop = await a_shop()
    await seated(shop, fail)
    run = await recorded(shop)
    assert run.state is state
    line = fail.__code__.co_firstlineno + 1
    assert run.error == f"{type(error).__name__}: {error} (test_attempt.py:{line} in fail)"
    assert shop.pool.free == 2


async def test_runs_that_fail_together_do_not_come_again_together():
    async def fail(ctx):
        raise Transient("the whole house is down")

    shop = await a_shop(seats=20)
    names = [f"r{number}" for number in range(20)]
    await shop.enqueue(await shop.job("job", fail), *names)
    await shop.dispatcher.turn()
    await settle_down()
    await shop.settler.turn()
    runs = [await shop.run(name) for name in names]
    assert {run.state for run in runs} == {RunState.READY}
    assert len({run.visible_ms for run in runs}) > 10


@pytest.mark.parametrize(("after_s", "least_ms"), [(0.7, 700), (0.0, 100)])
async def test_a_run_that_was_postponed_goes_back_uncharged_says_why_and_is_not_claimed_again_at_once(
    after_s, least_ms
):
    async def waits(ctx):
        raise Postponed("waits for a place", after_s=after_s)

    shop = await a_shop()
    await seated(shop, waits)
    assert shop.pool.free == 2, "it holds no seat"
    run = await recorded(shop)
    assert (run.state, run.attempt, run.error, run.tried) == (RunState.READY, 0, "", ())
    assert run.progress == "waits for a place"
    assert run.visible_ms == shop.clock.now_ms() + least_ms
    assert not (await shop.store.claim(node="n2", token="t2", limit=9, lease_ms=30_000)).runs
    await shop.clock.advance(least_ms)
    [again] = (await shop.store.claim(node="n2", token="t3", limit=9, lease_ms=30_000)).runs
    assert (again.id, again.progress) == ("r1", ""), "whoever has it now has not said anything"


async def test_the_source_may_ask_for_a_later_retry():
    async def fail(ctx):
        raise Transient("slow down", retry_after=3_600)

    shop = await a_shop()
    await seated(shop, fail)
    run = await recorded(shop)
    assert run.visible_ms >= shop.clock.now_ms() + 3_600_000


@pytest.mark.parametrize("result", [object(), "x" * 70_000, {1, 2, object()}])
async def test_a_result_that_cannot_be_kept_is_a_permanent_fault(result):
    async def work(ctx):
        return result

    shop = await a_shop()
    await seated(shop, work)
    run = await recorded(shop)
    assert run.state is RunState.DEAD
    assert "the handler returned" in run.error


async def test_a_handler_that_leaves_the_program_only_leaves_its_attempt():
    async def leave(ctx):
        sys.exit(3)

    shop = await a_shop()
    await seated(shop, leave)
    run = await recorded(shop)
    assert run.state is RunState.READY
    assert run.error.startswith("SystemExit: 3 (test_attempt.py:")


async def test_a_cancellation_that_nobody_asked_for_is_a_transient_fault():
    async def cancel_itself(ctx):
        raise asyncio.CancelledError

    shop = await a_shop()
    await seated(shop, cancel_itself)
    run = await recorded(shop)
    assert run.state is RunState.READY
    assert run.attempt == 1
    assert run.error.startswith("CancelledError")


async def test_a_run_whose_end_cannot_be_judged_is_dead_and_holds_nothing(monkeypatch):
    """A retry policy that cannot be computed with is the job's fault; the seat and the lease are not its prisoners."""

    def broken(*_, **__):
        raise OverflowError("2 ** a lot")

    async def fail(ctx):
        raise ValueError("odd")

    monkeypatch.setattr("pollux.runtime.attempt.decide", broken)
    shop = await a_shop()
    await seated(shop, fail)
    run = await recorded(shop)
    assert run.state is RunState.DEAD
    assert "could not be judged: OverflowError" in run.error
    assert shop.pool.free == 2
    assert shop.worker.leases == {}


# too long


async def test_an_async_handler_is_cancelled_at_its_timeout():
    async def wait(ctx):
        await asyncio.Event().wait()

    shop = await a_shop()
    shop.timeouts.start()
    await seated(shop, wait, timeout_ms=5_000)
    await shop.clock.advance(4_999)
    assert shop.pool.busy == 1
    await shop.clock.advance(1)
    assert shop.pool.busy == 0
    run = await recorded(shop)
    assert run.state is RunState.READY
    assert run.error == "TimeoutError: it ran longer than 5000 ms"
    assert run.attempt == 1
    assert shop.worker.stuck_ever == 0
    await shop.timeouts.stop()


async def test_a_handlers_own_timeout_counts_where_the_job_says_nothing():
    async def wait(ctx):
        await asyncio.Event().wait()

    shop = await a_shop()
    shop.registry.add("job", wait, timeout="1s")
    shop.timeouts.start()
    job = await shop.job("job")
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    await shop.clock.advance(1_000)
    assert (await recorded(shop)).error == "TimeoutError: it ran longer than 1000 ms"
    await shop.timeouts.stop()


async def test_an_answer_given_in_spite_of_the_timeout_counts():
    async def finish_anyway(ctx):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved"

    shop = await a_shop()
    shop.timeouts.start()
    await seated(shop, finish_anyway, timeout_ms=5_000)
    await shop.clock.advance(5_000)
    run = await recorded(shop)
    assert (run.state, run.result) == (RunState.DONE, "saved")
    await shop.timeouts.stop()


async def test_a_handler_that_ignores_its_cancellation_is_settled_and_keeps_its_seat():
    release = asyncio.Event()

    async def deaf(ctx):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    shop = await a_shop()
    heard = Heard(shop.events, HandlerStuck)
    shop.timeouts.start()
    await seated(shop, deaf, timeout_ms=5_000)
    await shop.clock.advance(6_999)
    assert shop.settler.backlog == 0
    await shop.clock.advance(1)
    run = await recorded(shop)
    assert run.error.startswith("TimeoutError")
    assert shop.pool.busy == 1
    assert shop.worker.stuck == 1
    [stuck] = heard.all
    assert (stuck.run_id, stuck.job_id, stuck.stuck) == ("r1", "job", 1)

    release.set()
    await settle_down()
    assert shop.pool.busy == 0
    assert shop.worker.stuck == 0
    assert shop.settler.backlog == 0, "it is settled once"
    await shop.timeouts.stop()


async def test_a_sync_handler_past_its_timeout_is_settled_told_and_keeps_its_seat():
    started, told = threading.Event(), threading.Event()

    def work(ctx):
        started.set()
        if ctx.wait_cancelled(30):
            told.set()

    shop = await a_shop()
    heard = Heard(shop.events, HandlerStuck)
    shop.timeouts.start()
    await seated(shop, work, timeout_ms=5_000)
    await asyncio.to_thread(started.wait, 10)
    seen = []
    shop.worker.pool.on_free = lambda: seen.append("left")
    await shop.clock.advance(5_000)
    assert shop.settler.backlog == 1
    run = await recorded(shop)
    assert run.error == "TimeoutError: it ran longer than 5000 ms"
    assert len(heard.all) == 1
    assert await asyncio.to_thread(told.wait, 10)
    await emptied(shop.pool)
    assert seen == ["left"]
    assert shop.worker.stuck == 0
    assert shop.settler.backlog == 0
    await shop.timeouts.stop()
    shop.worker.threads.stop()


# asked to stop


def breaks():
    raise ValueError("no")


async def breaks_async(ctx):
    try:
        breaks()
    except ValueError as error:
        raise RuntimeError("wrapped") from error


def breaks_in_a_thread(ctx):
    breaks()


@pytest.mark.parametrize("call", [breaks_async, breaks_in_a_thread])
async def test_a_failure_keeps_the_frames_of_the_users_code_where_it_broke(call):
    shop = await a_shop()
    heard = Heard(shop.events, RunFailed)
    await seated(shop, call)
    await emptied(shop.pool)
    run = await recorded(shop)
    line = breaks.__code__.co_firstlineno + 1
    lines = run.traceback.splitlines()
    assert f'File "{__file__}", line {line}, in breaks' in lines
    assert '    raise ValueError("no")' in lines
    assert not any("pollux/" in each and "tests" not in each for each in lines), "none of ours"
    assert [tried.traceback for tried in run.tried] == [run.traceback]
    assert [event.traceback for event in heard.all] == [run.traceback]
    shop.worker.threads.stop()


async def test_a_traceback_hides_secrets():
    async def leaks(ctx):
        raise ValueError("secret-of-source")

    HIDDEN.add("secret-of-source")
    try:
        shop = await a_shop()
        await seated(shop, leaks)
        run = await recorded(shop)
    finally:
        HIDDEN.clear()
    assert "secret-of-source" not in run.traceback
    assert "raise ValueError" in run.traceback


async def test_the_context_tells_a_second_delivery_from_a_second_attempt():
    """A failure makes another attempt and another delivery; a lost lease only another delivery."""
    told = []

    async def fails(ctx):
        told.append((ctx.delivery, ctx.attempt))
        raise OSError("no")

    shop = await a_shop()
    job = await shop.job("job", fails)
    await shop.enqueue(job, "r1")
    await shop.store.claim(node="gone", token="t", limit=1, lease_ms=1_000)
    for _ in range(2):
        await shop.clock.advance(60_000)
        await shop.dispatcher.turn()
        await settle_down()
        await shop.settler.turn()
    assert told == [(2, 1), (3, 2)]


async def test_what_a_node_without_the_handler_handed_back_has_had_a_delivery():
    """A higher fence tells that another node may have begun; it cannot tell that none did."""
    told = []

    async def work(ctx):
        told.append((ctx.delivery, ctx.attempt))

    shop = await a_shop()
    await shop.enqueue(await shop.job("job"), "r1")
    await shop.dispatcher.turn()
    assert (await recorded(shop)).state is RunState.HELD
    shop.registry.add("job", work)
    await release(shop.store, "r1", now_ms=shop.clock.now_ms())
    await shop.dispatcher.turn()
    await settle_down()
    assert (await recorded(shop)).state is RunState.DONE
    assert told == [(2, 1)]


async def test_a_cancel_request_reaches_a_running_handler():
    reasons = []

    async def wait(ctx):
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append((ctx.cancelled, ctx.cancel_reason))

    shop = await a_shop()
    await seated(shop, wait)
    began_ms = shop.worker.time.now_ms()
    await shop.clock.advance(26_000)
    shop.worker.leases["r1"].cancel("ann said so")
    await settle_down()
    run = await recorded(shop)
    assert reasons == [(True, "ann said so")]
    assert (run.state, run.failed, run.error) == (RunState.CANCELLED, False, "")
    assert (run.started_ms, run.finished_ms) == (began_ms, began_ms + 26_000), "it ran until then"
    [ends] = shop.settler.stats.by_job.all()
    assert (ends.by_status, ends.ok, ends.failed) == ({"cancelled": 1}, 0, 0), "neither success nor failure"
    assert shop.pool.busy == 0


async def test_a_handler_that_does_not_obey_a_cancel_request_is_settled_after_ten_seconds():
    release = asyncio.Event()

    async def deaf(ctx):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    shop = await a_shop()
    shop.timeouts.start()
    await seated(shop, deaf)
    shop.worker.leases["r1"].cancel("ann said so")
    await shop.clock.advance(9_999)
    assert shop.settler.backlog == 0
    await shop.clock.advance(1)
    assert (await recorded(shop)).state is RunState.CANCELLED
    assert shop.pool.busy == 1
    release.set()
    await settle_down()
    assert shop.pool.busy == 0
    await shop.timeouts.stop()


@pytest.mark.parametrize("value", [None, {"rows": 3}], ids=["nothing", "a value"])
async def test_a_cancelled_sync_handler_that_returns_is_cancelled_whatever_it_returns(value):
    started = threading.Event()

    def work(ctx):
        started.set()
        assert ctx.wait_cancelled(30)
        return value

    shop = await a_shop()
    await seated(shop, work)
    await asyncio.to_thread(started.wait, 10)
    shop.worker.leases["r1"].cancel("ann said so")
    await emptied(shop.pool)
    run = await recorded(shop)
    assert (run.state, run.cancel, run.result) == (RunState.CANCELLED, "ann said so", None)
    shop.worker.threads.stop()


async def test_an_async_handler_that_catches_its_cancellation_and_returns_a_value_is_done():
    async def finish(ctx):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Changed("all of it")

    shop = await a_shop()
    await seated(shop, finish)
    shop.worker.leases["r1"].cancel("ann said so")
    await settle_down()
    assert (await recorded(shop)).state is RunState.DONE


async def test_a_lost_lease_stops_the_handler_and_records_nothing():
    stopped = []

    async def wait(ctx):
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.cancel_reason)

    shop = await a_shop()
    heard = Heard(shop.events, LeaseWasLost)
    await seated(shop, wait)
    shop.worker.leases["r1"].lose("somebody else has it")
    await settle_down()
    assert stopped == ["the lease was lost: somebody else has it"]
    assert shop.settler.backlog == 0
    assert shop.pool.busy == 0
    assert shop.worker.leases == {}
    [lost] = heard.all
    assert lost.run_id == "r1"


async def test_a_lease_that_could_not_be_renewed_is_lost_before_it_ends():
    """30 s of lease less 3 s of margin, on the monotonic clock; the wall clock does not matter."""

    async def wait(ctx):
        await asyncio.Event().wait()

    shop = await a_shop()
    heard = Heard(shop.events, LeaseWasLost)
    shop.timeouts.start()
    await seated(shop, wait)
    shop.clock.jump(3_600_000)
    await shop.clock.advance(26_999)
    assert shop.pool.busy == 1
    await shop.clock.advance(1)
    assert shop.pool.busy == 0
    assert [lost.why for lost in heard.all] == ["it could not be renewed in time"]
    assert shop.settler.backlog == 0
    await shop.timeouts.stop()


async def test_a_second_delivery_of_a_run_ends_the_first():
    async def wait(ctx):
        await asyncio.Event().wait()

    shop = await a_shop()
    await seated(shop, wait)
    first = shop.worker.leases["r1"]
    await shop.clock.advance(30_000)
    await shop.dispatcher.turn()
    await settle_down()
    second = shop.worker.leases["r1"]
    assert second is not first
    assert first not in shop.worker.running
    assert second in shop.worker.running
    second.lose("end of test")
    await settle_down()


async def test_follow_ups_are_recorded_with_a_success_and_dropped_with_a_failure():
    for fails in (False, True):
        shop = await a_shop()
        other = await shop.job("other")
        shop.registry.add_jobs([other])

        async def follow(ctx, fails=fails):
            ctx.enqueue("other", key="k")
            if fails:
                raise ValueError("after all")

        await seated(shop, follow)
        await shop.settler.turn()
        runs = (await shop.store.list_runs()).runs
        assert ("other" in {run.job_id for run in runs}) is not fails


async def test_lateness_is_counted_from_the_due_time():
    async def work(ctx):
        return None

    shop = await a_shop()
    job = await shop.job("job", work, schedule=Interval(60_000))
    heard = Heard(shop.events, RunStarted, RunSettled)
    await shop.store.enqueue([run_of(job, shop.clock.now_ms(), "enqueued", id="r1")])
    await shop.clock.advance(40)
    await shop.dispatcher.turn()
    await settle_down()
    await shop.settler.turn()
    seen = shop.worker.late.seen()
    assert (seen.count, seen.sum_ms, seen.max_ms) == (1, 40, 40)
    assert seen.at_most_ms(0.99) == 40
    [started, settled] = heard.all
    assert started.late_ms == 40
    assert (settled.verdict, settled.answer) == ("done", "ok")


def test_the_registry_is_the_only_way_to_code():
    assert Registry().get("os.system") is None


async def test_a_machine_that_gives_no_thread_costs_an_attempt_and_no_seat(monkeypatch):
    """Not the other runs of the claim either: they start as if nothing had been."""

    def work(ctx):
        return ctx.run.id

    shop = await a_shop(seats=2)
    real, refused = threading.Thread.start, []

    def start(thread):
        if thread.name.startswith("pollux-handler-") and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    job = await shop.job("job", work)
    await shop.enqueue(job, "r1")
    await shop.enqueue(job, "r2")
    await shop.dispatcher.turn()
    await emptied(shop.pool)
    await shop.settler.turn()

    failed, done = await shop.run("r1"), await shop.run("r2")
    assert (failed.state, failed.attempt) == (RunState.READY, 1)
    assert failed.error.startswith("RuntimeError: can't start new thread")
    assert (done.state, done.result) == (RunState.DONE, "r2")
    assert (shop.pool.free, shop.worker.running, shop.worker.leases) == (2, set(), {})


@pytest.mark.parametrize(("ask", "state"), [("cancel", RunState.CANCELLED), ("drain", RunState.READY), ("lose", None)])
async def test_a_handler_that_is_asked_to_stop_before_its_first_step_frees_its_seat(ask, state):
    """Cancelled so early, not even the first line of its wrapper runs."""
    begun = []

    async def work(ctx):
        begun.append(ctx.run.id)

    shop = await a_shop()
    job = await shop.job("job", work)
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    assert begun == [], "the test came too late"
    [attempt] = shop.worker.running
    getattr(attempt, ask)(*([] if ask == "drain" else ["enough"]))
    await settle_down()
    assert (begun, shop.worker.running, shop.pool.free) == ([], set(), 2)
    if state is not None:
        assert (await recorded(shop)).state is state
