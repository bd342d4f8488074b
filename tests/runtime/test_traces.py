"""Traces of runs: what is in them, what is not, and what they cost; and the connection to the collector."""

import asyncio
import logging
import threading
import time

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pollux import Pollux, every
from pollux.clock import FakeClock
from pollux.errors import InvalidInput
from pollux.events import Events, LeaseWasLost, RunFired, RunSettled, RunStarted, RunStopped
from pollux.observe.traces import (
    LINKS_MAX,
    Export,
    TraceOptions,
    Traces,
    attributes_of,
    endpoint_of,
    error_class,
    open_traces,
    trace_position,
)
from pollux.runtime.attempt import Tracing
from pollux.runtime.options import RuntimeOptions
from pollux.secrets import HIDDEN
from tests.runtime.fakes import Heard, Shop, a_crew, settle_down

EACH_RUN = (RunFired, RunStarted, RunSettled, RunStopped)
CLOSED_LIST = {"pollux.run.id", "pollux.job.id", "pollux.attempt", "pollux.delivery", "pollux.outcome", "error.type"}


class Kept:
    """An export that keeps the steps."""

    def __init__(self):
        self.steps = []

    def put(self, step):
        self.steps.append(step)

    def told(self):
        return [(step.name, step.outcome, step.start_ms, step.end_ms) for step in self.steps]


@pytest.fixture
def kept():
    return Kept()


async def until(look):
    """Threads and servers take their time; a generous deadline ends a wait in vain."""
    async with asyncio.timeout(30):
        while not look():  # noqa: ASYNC110  what is looked at rings no bell
            await asyncio.sleep(0.002)


@pytest.fixture
def canary():
    HIDDEN.add("canary-6d1a77")
    yield "canary-6d1a77"
    HIDDEN.clear()


async def a_traced_shop(kept, **options):
    shop = await Shop(seats=4).open()
    traces = Traces(TraceOptions(**options), kept)
    traces.listen(shop.events)
    shop.worker.tracing = traces
    return shop


# ids


def test_the_ids_are_those_of_the_run_and_nothing_else_decides_them():
    """A node of another release must come to the same ids: these are for good."""
    mark = trace_position("home@1800000000000")
    assert mark.trace_id == "36a9c0ef11f8883a3c0cf730c7a20cf9"
    assert mark.root_id == "5f3f03e115608a1a"
    assert mark.span_id("attempt", 1) == "33049cbe5e7ab849"


def test_deployments_with_the_same_jobs_are_told_apart_by_their_namespace():
    assert len({trace_position("home@1", name).trace_id for name in ("", "blue", "green")}) == 3


def test_the_share_that_is_sampled_is_the_share_that_was_asked_for_and_the_same_on_every_node(kept):
    sampled = [
        {n for n in range(4_000) if Traces(TraceOptions(sample=0.25), kept)._is_sampled(f"job@{n}")} for _ in range(2)
    ]
    assert sampled[0] == sampled[1]
    assert 850 <= len(sampled[0]) <= 1_150
    flags = {Traces(TraceOptions(sample=0.25), kept).traceparent(f"job@{n}", 1)[-2:] for n in range(100)}
    assert flags == {"00", "01"}


async def test_a_run_that_is_not_sampled_says_so_to_its_handler_and_is_not_told(kept):
    shop = await a_traced_shop(kept, sample=0.0)
    given = []

    async def work(ctx):
        given.append(ctx.traceparent)

    job = await shop.job("job", work)
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    await settle_down()
    await shop.settler.turn()
    assert [each[-2:] for each in given] == ["00"]
    assert kept.steps == []


# what is told


async def test_an_attempt_is_told_with_its_wait_its_end_and_the_whole(kept):
    shop = await a_traced_shop(kept)

    async def work(ctx):
        await shop.clock.wait(asyncio.Event(), 30)

    job = await shop.job("job", work)
    [run] = await shop.enqueue(job, "r1")
    await shop.clock.advance(40)
    await shop.dispatcher.turn()
    await shop.clock.advance(30)
    await shop.settler.turn()
    due = run.due_ms
    assert kept.told() == [
        ("wait", "", due, due + 40),
        ("attempt", "done", due + 40, due + 70),
        ("settle", "done", due + 70, due + 70),
        ("run", "done", due, due + 70),
    ]


async def test_a_handler_that_fails_is_told_by_the_class_of_its_error_alone(kept, canary):
    shop = await a_traced_shop(kept)

    class NoSession(Exception):
        pass

    def work(ctx):
        raise NoSession(f"for {canary} at https://me:hunter2@host")

    job = await shop.job(canary, work)
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    await until(lambda: shop.settler.backlog)
    await shop.settler.turn()
    said = [attributes_of(step) for step in kept.steps]
    assert {key for each in said for key in each} == CLOSED_LIST
    assert {each.get("error.type") for each in said} == {None, "NoSession"}
    assert "canary" not in str(said)
    assert "hunter2" not in str(said)
    assert [step.is_failed for step in kept.steps if step.name == "attempt"] == [True]


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("ValueError: no", "ValueError"),
        ("KeyError", "KeyError"),
        ("its outcome cannot be recorded: x", "error"),
        ("password=hunter2", "error"),
        ("", "error"),
        ("X" * 500 + ": no", "X" * 100),
        ("TimeoutError (shop.py:3 in work)", "TimeoutError"),
    ],
)
def test_of_an_error_only_its_class_is_told(error, name):
    assert error_class(error) == name


async def test_a_lease_that_was_lost_ends_its_attempt_and_not_the_run(kept):
    shop = await a_traced_shop(kept)
    heard = Heard(shop.events, LeaseWasLost)

    async def work(ctx):
        await asyncio.Event().wait()

    job = await shop.job("job", work)
    [run] = await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    await settle_down()
    await shop.clock.advance(500)
    shop.worker.leases["r1"].lose("somebody else has it")
    await settle_down()
    assert len(heard.all) == 1
    assert kept.told()[1:] == [("attempt", "lost", run.due_ms, run.due_ms + 500)]


async def test_a_run_that_is_cancelled_while_it_runs_is_told_by_its_worker_and_is_no_failure(kept):
    shop = await a_traced_shop(kept)

    async def work(ctx):
        await asyncio.Event().wait()

    job = await shop.job("job", work)
    [run] = await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    await settle_down()
    await shop.clock.advance(500)
    shop.worker.leases["r1"].cancel("ann said so")
    await settle_down()
    await shop.settler.turn()
    assert ("attempt", "cancelled", run.due_ms, run.due_ms + 500) in kept.told()
    assert [(step.name, step.outcome) for step in kept.steps][-1] == ("run", "cancelled")
    assert not any(step.is_failed for step in kept.steps)


async def test_a_run_that_is_cancelled_while_it_waits_is_told_by_the_leader():
    """By whoever hears of it: no worker ever had it."""
    kept, clock = Kept(), FakeClock()
    app = Pollux("memory://", clock=clock, seats=1)

    @app.job
    async def work(ctx): ...

    await app.open()
    events = Events()
    Traces(TraceOptions(), kept).listen(events)
    await app.put_jobs(app.declared_jobs())
    runtime = a_crew(app._store, app._registry, clock, events, runs=False)
    run = await app.enqueue("work", id="r1")
    await runtime.start()
    await clock.advance(100)
    await app.cancel("r1")
    await clock.advance(1_000)
    await runtime.drain()
    await app.close()
    assert [(step.name, step.outcome, step.start_ms) for step in kept.steps] == [("run", "cancelled", run.due_ms)]


# a handler's own libraries


async def test_the_attempt_is_the_current_span_in_handlers_of_both_kinds_and_leaves_no_trace_after(kept):
    shop = await a_traced_shop(kept)
    seen = {}

    def current():
        where = trace.get_current_span().get_span_context()
        return f"00-{where.trace_id:032x}-{where.span_id:016x}-{where.trace_flags:02x}"

    async def on_loop(ctx):
        await asyncio.sleep(0)
        seen[ctx.run.id] = (current(), ctx.traceparent)

    def in_thread(ctx):
        seen[ctx.run.id] = (current(), ctx.traceparent)

    for name, call in (("loop", on_loop), ("thread", in_thread)):
        await shop.enqueue(await shop.job(name, call), name)
    await shop.dispatcher.turn()
    await until(lambda: len(seen) == 2)
    await settle_down()
    assert len({each for pair in seen.values() for each in pair}) == 2
    assert all(inside == told for inside, told in seen.values())
    assert not trace.get_current_span().get_span_context().is_valid
    after = []
    shop.worker.threads.submit(
        lambda: after.append(trace.get_current_span().get_span_context().is_valid), lambda *_: None
    )
    await until(lambda: after)
    assert after == [False]
    shop.worker.threads.stop()


async def test_a_caller_with_a_span_of_its_own_links_to_the_runs_that_it_enqueues():
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    app = Pollux("memory://", traces_namespace="shop")

    @app.job
    async def work(ctx, n=0): ...

    await app.open()
    await app.put_jobs(app.declared_jobs())
    with provider.get_tracer("test").start_as_current_span("request"):
        one = await app.enqueue("work")
        many = await app.enqueue_many("work", [{"n": n} for n in range(LINKS_MAX + 20)])
        forced = await app.run_now("work", anyway=True)
    await app.enqueue("work")
    await app.close()
    [span] = kept.get_finished_spans()
    marks = [trace_position(run_id, "shop") for run_id in (one.id, *many[:LINKS_MAX], forced.id)]
    assert [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links] == [
        (mark.trace_id, mark.root_id) for mark in marks
    ]


async def test_a_link_that_cannot_be_made_costs_the_caller_nothing(monkeypatch):
    class Old(trace.NonRecordingSpan):
        def is_recording(self):
            return True

        def add_link(self, *_, **__):
            raise NotImplementedError

    app = Pollux("memory://")

    @app.job
    async def work(ctx): ...

    await app.open()
    await app.put_jobs(app.declared_jobs())
    with trace.use_span(Old(trace.INVALID_SPAN_CONTEXT)):
        assert (await app.enqueue("work", id="r1")).id == "r1"
    await app.close()


# off


async def test_off_nobody_listens_and_no_hook_is_called(monkeypatch):
    """No event of a single run is made at all, no id is computed, and no thread is there."""

    def never(*_args, **_more):
        raise AssertionError("a hook was called")

    for kind in (RunFired, RunStarted, RunSettled, RunStopped):
        for module in ("timekeeper", "attempt", "settler"):
            monkeypatch.setattr(f"pollux.runtime.{module}.{kind.__name__}", never, raising=False)
    monkeypatch.setattr("pollux.observe.traces.sha256", never)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    done = asyncio.Event()
    app = Pollux("memory://")

    @app.job(every("1h"))
    async def work(ctx):
        assert ctx.traceparent == ""
        done.set()

    async with app, asyncio.timeout(60):
        await done.wait()
        assert app.runtime.worker.tracing is None
        assert not any(app.events.wants(kind) for kind in EACH_RUN)
        assert not [thread for thread in threading.enumerate() if thread.name == "pollux-traces"]
        await until(lambda: app.runtime.settler.settled)
    assert app.events.listener_errors == 0


@pytest.mark.parametrize(
    ("endpoint", "environ", "answer"),
    [
        ("", {}, ("", False)),
        ("http://c:4318", {}, ("http://c:4318/v1/traces", True)),
        ("http://c:4318/", {}, ("http://c:4318/v1/traces", True)),
        ("http://c/x/v1/traces", {}, ("http://c/x/v1/traces", True)),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, ("http://c:4318/v1/traces", False)),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/own"}, ("http://c/own", False)),
        ("http://c/own", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/own"}, ("http://c/own", False)),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, ("", False)),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, ("", False)),
        (
            "http://d",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"},
            ("http://d/v1/traces", True),
        ),
    ],
)
def test_where_spans_go_is_what_was_said_last(endpoint, environ, answer):
    assert endpoint_of(TraceOptions(endpoint=endpoint), environ) == answer


def test_a_share_of_nothing_is_off():
    assert open_traces(TraceOptions(endpoint="http://127.0.0.1:1", sample=0), "n", lambda *_: None, {}) is None


def test_a_collector_that_speaks_otherwise_is_said_once_and_not_tried():
    said, told = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, []
    assert open_traces(TraceOptions(), "n", lambda *each: told.append(each), said) is None
    [(count, why)] = told
    assert count == 0
    assert "gRPC" in why
    ours = open_traces(TraceOptions(endpoint="http://c:4318"), "n", lambda *each: told.append(each), said)
    assert ours is not None
    assert len(told) == 1


@pytest.mark.parametrize(
    "wrong", [{"traces_endpoint": "collector"}, {"traces_sample": 2}, {"heartbeat_url": "x"}, {"heartbeat_every_ms": 1}]
)
def test_options_that_cannot_work_are_refused(wrong):
    with pytest.raises(InvalidInput):
        RuntimeOptions(**wrong)


# the line to the collector


class Stuck:
    """An exporter that hangs until it is let go, and then says what it was told to say."""

    def __init__(self, name="FAILURE"):
        self.drop_lease, self.begun, self.batches, self.name = threading.Event(), threading.Event(), [], name

    def export(self, spans):
        self.batches.append(len(spans))
        self.begun.set()
        self.drop_lease.wait(30)
        logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").error("no route to it")
        return self

    def shutdown(self):
        self.drop_lease.set()


def test_a_collector_that_hangs_makes_nobody_wait_and_what_has_no_room_is_counted(caplog):
    lost, exporter = [], Stuck()
    export = Export(exporter, list, lambda *told: lost.append(told), waiting_max=100, gather_seconds=0)
    export.start()
    export.put(0)
    assert exporter.begun.wait(20)
    begun = time.thread_time()
    for n in range(1_000):
        export.put(n)
    assert time.thread_time() - begun < 1
    assert export.overflowed == 900
    exporter.drop_lease.set()
    export.stop()
    assert export.dropped == 1_001
    assert sum(count for count, _ in lost) <= 1_001
    assert len(lost) == 1
    assert lost[0][1] == "no route to it"
    assert caplog.records == []


def test_what_waits_at_the_end_is_sent_and_a_hanging_end_is_given_up():
    sent = Stuck("SUCCESS")
    sent.drop_lease.set()
    export = Export(sent, list, lambda *_: None, gather_seconds=30)
    export.start()
    for n in range(600):
        export.put(n)
    export.stop()
    assert (export.exported, export.dropped, sent.batches) == (600, 0, [256, 256, 88])
    deaf = Stuck()
    deaf.shutdown = lambda: None
    export = Export(deaf, list, lambda *_: None, gather_seconds=0, flush_seconds=0.1)
    export.start()
    for n in range(600):
        export.put(n)
    export.stop()
    deaf.drop_lease.set()
    export._thread.join(20)
    assert export.exported == 0
    assert export.dropped == 600


def test_what_others_say_about_their_own_exporter_is_left_to_them(caplog):
    export = Export(Stuck(), list, lambda *_: None)
    export.start()
    logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").error("theirs")
    export.stop()
    assert [record.getMessage() for record in caplog.records] == ["theirs"]


def test_traces_are_what_the_runtime_expects(kept):
    tracing: Tracing = Traces(TraceOptions(), kept)
    assert len(tracing.traceparent("r1", 1)) == 55
