"""Do the metrics tell the truth?  What was done is counted, what is there is shown, and neither grows for ever."""

import asyncio
import sys
import time
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_newer
from prometheus_client.parser import text_string_to_metric_families as read

from pollux import Permanent, Pollux, every, once
from pollux.app.health import _histogram
from pollux.clock import FakeClock
from pollux.errors import InvalidInput, StoreError
from pollux.events import Events
from pollux.model import Cancelled, Dead, Done, Event, Fault, Job, Outcome, RetryAt
from pollux.observe.metrics import exposition, names
from pollux.observe.metrics_port import HEAD_BYTES_MAX, MetricsPort
from pollux.runtime.lag import LoopLag
from pollux.runtime.lateness import Lateness
from pollux.runtime.leader import Leader
from pollux.runtime.tallies import NAMES_MAX, Tallies
from pollux.store.contract import JobPut, Settlement
from pollux.store.memory import MemoryStore
from pollux.testing.faults import FaultyStore
from tests.runtime.test_app import until
from tests.servers import postgres, redis

MANY = 100_000
OF_SEEDS = {
    # a crawler's scheduler
    *("scheduler_jobs_scheduled_total", "scheduler_jobs_executed_total", "scheduler_job_duration_seconds_bucket"),
    *("scheduler_jobs_currently_running", "scheduler_worker_pool_size", "scheduler_workers_busy"),
    *("scheduler_workers_idle", "scheduler_queue_depth", "scheduler_queue_enqueued_total"),
    *("scheduler_queue_dequeued_total", "scheduler_is_leader", "scheduler_leader_election_attempts_total"),
    *("scheduler_worker_tasks_wait_seconds_bucket", "scheduler_queue_process_lag_seconds"),
    *("scheduler_leader_election_wins_total", "scheduler_leader_election_losses_total"),
    # a monitor
    *("monitor_poll_total", "monitor_poll_duration_seconds_bucket", "monitor_poll_staleness_seconds"),
    *("monitor_poll_queue_depth", "monitor_poll_errors_total", "monitor_poll_last_success_timestamp"),
    "monitor_poll_inflight",
    *("scheduler_queue_due_soon", "scheduler_queue_wait_seconds_bucket", "scheduler_dead_letter_depth"),
}


class Scrape:
    """What a scraper reads."""

    def __init__(self, text: str, read=read) -> None:
        self.text = text
        self.samples = {}
        self.families = {}
        for family in read(text):
            self.families[family.name] = family
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in self.samples, f"{key} is there twice"
                self.samples[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[f"pollux_{name}", tuple(sorted(labels.items()))]

    def total(self, name: str, **labels: str) -> float:
        return sum(self.all(name, **labels).values())

    def all(self, name: str, **labels: str) -> dict:
        wanted = labels.items()
        return {key: value for key, value in self.samples.items() if key[0] == f"pollux_{name}" and wanted <= {*key[1]}}

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


async def scrape(app) -> Scrape:
    return Scrape((await exposition(app)).decode())


async def settled(app, count: int) -> None:
    async def look():
        return app.crew.settler.settled >= count

    await until(look, f"{count} ends are recorded")


def worries(health) -> list[str]:
    """Of what; a busy machine may hold any event loop."""
    return [finding.name for finding in health.worries() if finding.name != "loop"]


@pytest.fixture
def app() -> Pollux:
    return Pollux("memory://", name="shop")


async def test_every_end_is_counted_by_how_it_ended_and_whose_it_was(app):
    @app.job(source_id="crm", group="edge")
    async def good(ctx): ...

    @app.job(source_id="crm")
    async def bad(ctx):
        raise Permanent("no")

    @app.job(retry={"attempts": 2, "base": "1m"}, priority="high")
    async def late(ctx):
        raise TimeoutError

    async with app:
        await app.enqueue_many(good, [None] * 3)
        await app.enqueue(bad)
        await app.enqueue(late)
        await settled(app, 5)
        seen = await scrape(app)
    assert seen("scheduler_jobs_executed_total", status="done", source_id="crm") == 3
    assert seen("scheduler_jobs_executed_total", status="dead", source_id="crm") == 1
    assert seen("scheduler_jobs_executed_total", status="retried", source_id="") == 1
    assert (seen("scheduler_retries_total"), seen("scheduler_runs_dead_total")) == (1, 1)
    assert seen("scheduler_job_duration_seconds_count", source_id="crm") == 4
    assert seen("scheduler_job_duration_seconds_bucket", source_id="crm", le="+Inf") == 4
    edge = {"instance": "good", "instance_type": "edge"}
    assert seen("monitor_poll_total", result="success", **edge) == 3
    assert seen("monitor_poll_total", result="error", **edge) == 0
    assert seen("monitor_poll_duration_seconds_count", **edge) == 3
    for name, kind in (("bad", "permanent"), ("late", "timeout")):
        assert seen("monitor_poll_errors_total", instance=name, instance_type=name, error_type=kind) == 1
    assert seen("scheduler_queue_enqueued_total", priority="normal") == 4
    assert seen("scheduler_queue_enqueued_total", priority="high") == 1
    assert seen("scheduler_queue_dequeued_total", priority="normal") == 4
    assert seen("scheduler_queue_dequeued_total", priority="high") == 1
    assert seen("scheduler_queue_depth", priority="high") == 0, "it waits for its retry"
    assert seen("scheduler_runs", state="ready") == 1
    assert seen("scheduler_dead_letter_depth") == 1
    assert seen("scheduler_settled_total") == seen("scheduler_start_lateness_seconds_count") == 5
    assert seen("store_calls_total", verb="settle") >= 1
    assert seen("store_call_seconds_total", verb="settle") > 0


async def test_what_is_fired_is_counted_by_its_schedule_and_its_lateness_is_known(app):
    app.add(app.handler(once_more), once(), id="now", priority="high")
    app.add("once_more", every("100ms"), id="tick")
    async with app:
        await settled(app, 4)
        seen = await scrape(app)
        health = await app.health()
    assert seen("scheduler_jobs_scheduled_total", schedule_type="immediate", priority="high") == 1
    assert seen("scheduler_jobs_scheduled_total", schedule_type="interval", priority="normal") >= 3
    fired = seen.total("scheduler_jobs_scheduled_total")
    assert seen("scheduler_fire_lateness_seconds_count") == seen.total("scheduler_queue_enqueued_total") == fired
    assert (seen("scheduler_is_leader"), seen("scheduler_leaders"), seen("scheduler_nodes")) == (1, 1, 1)
    assert seen("scheduler_leader_election_wins_total") == 1
    assert seen("scheduler_leader_election_attempts_total") >= 1
    assert seen("scheduler_timers") >= 1
    assert (seen("scheduler_queue_due_soon"), seen("scheduler_jobs")) == (1, 2)
    tick = {"instance": "tick", "instance_type": "once_more"}
    assert 0 <= seen("monitor_poll_staleness_seconds", **tick) < 20
    assert seen("monitor_poll_planned_seconds", **tick) == pytest.approx(0.1)
    assert seen("monitor_poll_last_success_timestamp", **tick) == pytest.approx(time.time(), abs=20)
    assert not seen.all("monitor_poll_staleness_seconds", instance="now"), "it is not planned again"
    assert worries(health) == []


async def once_more(ctx): ...


@pytest.mark.parametrize("late_ms", [0, 1, 2, 15, 16, 1_023, 1_024, 65_535, 4_194_303, 4_194_304, 2**40])
def test_lateness_is_told_in_a_few_buckets_and_none_of_it_is_lost(late_ms):
    late = Lateness()
    for ms in (late_ms, 0):
        late.add(ms)
    told = _histogram(late.seen())
    expected = [0] * 11
    expected[0] += 1
    expected[bisect_left(told.bounds_ms, late_ms)] += 1
    assert (len(told.bounds_ms), list(told.counts), told.sum_ms) == (10, expected, late_ms)


async def test_a_firing_that_failed_is_not_done_and_the_buckets_add_up():
    tallies = Tallies()
    for verdict, took_ms in ((Done(failed=True), 10), (Done(), 11), (Done(), 60_000), (Done(), 4_000_000)):
        tallies.add(Job(id="a", handler="h"), Settlement("r", "t", verdict, Outcome(0, took_ms)))
    app = Pollux("memory://")
    async with app:
        app.crew.settler.tallies = tallies
        seen = await scrape(app)
    assert seen("scheduler_jobs_executed_total", status="failed", source_id="") == 1
    assert seen("scheduler_jobs_executed_total", status="done", source_id="") == 3
    bounds = {"0.01": 1, "0.05": 2, "30.0": 2, "60.0": 3, "3600.0": 3, "+Inf": 4}
    assert {le: seen("scheduler_job_duration_seconds_bucket", source_id="", le=le) for le in bounds} == bounds
    assert seen("scheduler_job_duration_seconds_sum", source_id="") == pytest.approx(4_060.021)


async def test_a_term_that_another_node_took_is_a_loss_and_one_given_up_is_none():
    clock = FakeClock()
    store = MemoryStore(clock)
    await store.open()
    leader = Leader(store, "n1", clock=clock, events=Events())
    await leader.turn()
    await clock.advance(60_000)
    await store.elect("n2", ttl_ms=1_000)
    await leader.turn()
    assert (leader.attempts, leader.wins, leader.losses) == (2, 1, 1)
    await clock.advance(60_000)
    await leader.turn()
    await leader.resign()
    assert (leader.attempts, leader.wins, leader.losses) == (3, 2, 1)


async def test_beyond_two_hundred_jobs_those_that_this_node_met_are_shown(app):
    """Not the first two hundred by name, of which it may have run none."""
    app.handler(once_more)
    async with app:
        await app.backend.put_jobs([JobPut(Job(id=f"a{n:03}", handler="once_more")) for n in range(250)])
        await app.backend.put_jobs([JobPut(Job(id="zebra", handler="once_more"))])
        await app.enqueue("zebra")
        await settled(app, 1)

        async def look():
            return (await scrape(app)).all("monitor_poll_last_success_timestamp") or None

        shown = await until(look, "its success is known")
    assert [dict(labels)["instance"] for _, labels in shown] == ["zebra"]


async def test_a_job_that_never_succeeded_has_a_staleness_of_minus_one(app):
    @app.job(every("100ms"))
    async def bad(ctx):
        raise Permanent("no")

    async with app:
        await settled(app, 3)

        async def look():
            seen = await scrape(app)
            return seen.all("monitor_poll_staleness_seconds") and seen

        seen = await until(look, "the job is seen")
        assert seen("monitor_poll_staleness_seconds", instance="bad", instance_type="bad") == -1


async def test_what_is_held_and_what_is_skipped_is_shown_by_reason(app):
    may_end = asyncio.Event()

    @app.job(every("100ms"))
    async def slow(ctx):
        await may_end.wait()

    @app.job(target="db")
    async def paused(ctx): ...

    async with app:
        await app.pause(target="db")
        await app.enqueue(paused)

        async def look():
            seen = await scrape(app)
            is_there = seen.all("scheduler_firings_skipped_total", reason="overlap")
            return is_there and seen("scheduler_runs_held", reason="paused") == 1 and seen

        seen = await until(look, "one is held, and some were skipped")
        assert seen("scheduler_runs", state="held") == 1
        assert seen("scheduler_runs", state="leased") == seen("scheduler_jobs_currently_running") == 1
        assert seen("monitor_poll_inflight", instance_type="slow") == 1
        assert (seen("scheduler_workers_busy"), seen("scheduler_workers_idle")) == (1, 9)
        may_end.set()
        await app.resume(target="db")

        async def released():
            seen = await scrape(app)
            is_let = seen("scheduler_runs_held", reason="paused") == 0 and seen("scheduler_runs_released_total") == 1
            return is_let and seen.all("monitor_poll_inflight", instance_type="paused") and seen

        seen = await until(released, "it is let through")
        assert seen("monitor_poll_inflight", instance_type="paused") == 0, "none is at work: 0, not nothing"


async def test_every_metric_of_the_older_schedulers_is_there_by_name():
    """And by their own first word, if the operator says so."""
    for prefix in ("pollux", "crawler", "pulse"):
        app = Pollux("memory://", metrics_prefix=prefix)

        @app.job(every("100ms"))
        async def bad(ctx):
            if ctx.run.due_ms % 200 < 100:
                raise TimeoutError

        async with app:
            await settled(app, 3)

            async def look(app=app, prefix=prefix):
                seen = await scrape(app)
                return {f"{prefix}_{name}" for name in OF_SEEDS} <= seen.names() and seen

            seen = await until(look, "all are there")
        assert seen.names() <= names(prefix), "those that write dashboards are told every name"
        assert not [name for name in seen.names() if name.endswith("_created")]
        kinds = {f"{name}_total" if family.type == "counter" else name for name, family in seen.families.items()}
        declared = {name for name in names(prefix) if not name.endswith(("_bucket", "_count", "_sum"))}
        assert declared <= kinds | {f"{prefix}_build_info"}


async def test_a_prefix_that_cannot_begin_a_name_is_refused():
    with pytest.raises(InvalidInput, match="cannot begin a name"):
        Pollux("memory://", metrics_prefix="a-b")


async def test_both_formats_tell_the_same(app):
    app.add(app.handler(once_more), id="job")
    async with app:
        await app.enqueue("job")
        await settled(app, 1)
        newer = Scrape((await exposition(app, openmetrics=True)).decode(), read_newer)
        older = await scrape(app)
    assert newer.text.endswith("# EOF\n")
    assert newer.names() == older.names()
    assert newer("scheduler_settled_total") == older("scheduler_settled_total") == 1


# bounds


def ends(tallies: Tallies, count: int, **job: str) -> None:
    for n in range(count):
        fields = {name: value.format(n) for name, value in job.items()}
        tallies.add(Job(handler="h", **fields), Settlement("r", "t", Done(), Outcome(0, 70)))


async def test_the_first_two_hundred_have_series_of_their_own_and_the_rest_share_one(app):
    async with app:
        ends(app.crew.settler.tallies, 300, id="job-{}", source_id="source-{}")
        seen = await scrape(app)
    polls = seen.all("monitor_poll_total", result="success")
    assert len(polls) == NAMES_MAX + 1
    assert seen("monitor_poll_total", instance="other", instance_type="other", result="success") == 100
    assert sum(polls.values()) == 300, "nothing is lost"
    assert seen("monitor_poll_total", instance="job-199", instance_type="h", result="success") == 1
    assert len(seen.all("scheduler_jobs_executed_total")) == NAMES_MAX + 1
    for label in ("instance", "source_id"):
        assert seen("metrics_series_dropped_total", label=label) == 100


async def test_however_many_jobs_there_are_and_however_they_end_the_series_have_an_end(app):
    """Each of a thousand has ended in every way, with every kind of error; and none has a success yet."""
    faults = [Outcome(0, 70, fault=Fault.TRANSIENT, error=error) for error in ("OSError", "TimeoutError")]
    faults += [Outcome(0, 70, fault=Fault.PERMANENT), Outcome(0, 70, fault=Fault.TRANSIENT, crashed=True)]
    verdicts = (Done(), Done(failed=True), RetryAt(1), Dead("no"), Cancelled("no"))
    async with app:
        tallies = app.crew.settler.tallies
        for number in range(1_000):
            job = Job(id=f"j{number}", handler="h", group=f"g{number}", source_id=f"s{number}")
            for verdict, outcome in zip(verdicts, (*faults, faults[0]), strict=True):
                tallies.add(job, Settlement("r", "t", verdict, outcome))
        seen = await scrape(app)
    assert 8_000 < len(seen.samples) < 10_500, "as the page says"


async def test_a_job_called_other_is_one_of_the_others(app):
    async with app:
        ends(app.crew.settler.tallies, 1, id="other", source_id="other")
        ends(app.crew.settler.tallies, 250, id="job-{}")
        seen = await scrape(app)
    assert seen("monitor_poll_total", instance="other", instance_type="other", result="success") == 1 + 51


HOSTILE = ('a"b', "a\\b", "a\nb", "a\x1b[31mb", "a\u202eb", "a\x00b", "<img onerror>", "x" * 5_000, "é")


async def test_a_hostile_name_is_one_line_of_harmless_text(app):
    async with app:
        tallies = app.crew.settler.tallies
        for number, name in enumerate(HOSTILE):
            ends(tallies, 1, id=f"j{number}", source_id=name, group=name)
        ends(tallies, 1, id="k", source_id="x" * 6_000)  # the same once it is cut
        text = (await exposition(app)).decode()
        newer = await exposition(app, openmetrics=True)
    seen = Scrape(text)
    assert not any(ord(char) < 32 or char in "\x7f\u202e" for line in text.split("\n") for char in line)
    assert len(seen.all("scheduler_jobs_executed_total")) == len(HOSTILE)
    assert max(map(len, text.split("\n"))) < 500
    Scrape(newer.decode(), read_newer)


async def test_a_scrape_of_a_hundred_thousand_jobs_costs_what_one_of_a_hundred_costs():
    """Counted in calls, which no other work disturbs; and it asks the store the same few things."""
    costs, asked = [], []
    for count in (100, MANY):
        app = Pollux("memory://", plans=False)
        async with app:
            for start in range(0, count, 1_000):
                jobs = [Job(id=f"j{n}", handler="h", schedule=Event()) for n in range(start, min(count, start + 1_000))]
                await app.backend.put_jobs([JobPut(job) for job in jobs])
            ends(app.crew.settler.tallies, min(count, 300), id="j{}", source_id="s{}")
            await exposition(app)
            app.watch._last = None
            before = {verb: stats.calls for verb, stats in app.backend.calls.items()}
            seen = Scrape((await exposition(app)).decode())
            after = {verb: stats.calls for verb, stats in app.backend.calls.items()}
            asked.append(sum(after.values()) - sum(before.values()))
            costs.append(await calls_of_a_scrape(app))
            assert seen("scheduler_jobs") == count
            assert len(seen.all("monitor_poll_last_success_timestamp")) <= NAMES_MAX
    assert 1_000 < costs[1] <= 3 * costs[0], costs
    assert max(asked) <= 8, "a claim or a renewal may fall into the same moment"


async def calls_of_a_scrape(app: Pollux) -> int:
    """How many functions are called until it is written, by this thread."""
    app.watch._last = None
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        await exposition(app)
    finally:
        sys.setprofile(None)
    return calls


async def test_however_many_ask_the_store_is_asked_once_a_second():
    clock = FakeClock()
    app = Pollux(MemoryStore(clock), clock=clock)
    await app.open()
    counted = app.backend.calls["counts"]
    await asyncio.gather(*(exposition(app) for _ in range(20)))
    assert counted.calls == 1
    await clock.advance(999)
    seen = await scrape(app)
    assert (counted.calls, seen("store_reading_age_seconds")) == (1, pytest.approx(0.999))
    await clock.advance(1)
    seen = await scrape(app)
    assert (counted.calls, seen("store_reading_age_seconds")) == (2, 0)
    await app.close()


def store_url(kind: str, tmp_path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/p.db"
    return (redis if kind == "redis" else postgres).own_url("metrics")


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
async def test_every_store_tells_the_same(kind, tmp_path):
    app = Pollux(store_url(kind, tmp_path))

    @app.job(every("100ms"), group="edge")
    async def tick(ctx): ...

    @app.job(priority="low")
    async def asked(ctx): ...

    async with app:
        await settled(app, 2)
        await app.drain_workers()
        await app.enqueue_many(asked, [None] * 3)
        await app.enqueue(asked, delay="1h")

        async def look():
            seen = await scrape(app)
            depth = seen.all("scheduler_queue_depth", priority="low")
            is_whole = list(depth.values()) == [3] and seen("scheduler_runs", state="ready") >= 4
            return seen if is_whole else None  # a claim that began before the drain may hold one for a moment

        seen = await until(look, "three wait for a seat, and the delayed one for its time")
        assert (seen("scheduler_jobs"), seen("scheduler_leaders"), seen("scheduler_nodes")) == (2, 1, 1)
        assert seen("store_reachable") == 1
        assert seen("scheduler_queue_process_lag_seconds", priority="low") >= 0
        assert len(seen.all("monitor_poll_staleness_seconds")) == 1
        health = await app.health()
        assert worries(health) == ["stops"]
        await app.resume_workers()


# trouble


@pytest.fixture
async def faulty() -> AsyncIterator[tuple[Pollux, FaultyStore, FakeClock]]:
    clock = FakeClock()
    store = FaultyStore(MemoryStore(clock))
    app = Pollux(store, clock=clock)
    await app.open()
    yield app, store, clock
    await app.close()


async def test_a_store_that_is_down_is_told_and_what_this_process_counted_is_there_all_the_same(faulty):
    app, store, clock = faulty
    store.fail("counts", StoreError("refused"))
    seen = await scrape(app)
    assert (seen("store_reachable"), seen("store_errors_total", verb="counts")) == (0, 1)
    assert not seen.all("scheduler_jobs")
    health = await app.health()
    assert (health.status, health.findings[0].name) == ("unhealthy", "store")
    assert "refused" in health.findings[0].seen
    await clock.advance(1_000)
    assert (await scrape(app))("store_reachable") == 1


async def test_a_store_that_hangs_holds_a_scrape_for_seconds_only(faulty, monkeypatch):
    app, store, _ = faulty
    monkeypatch.setattr("pollux.app.health.LOOK_SECONDS", 0.05)
    store.delay("lines", asyncio.Event())
    async with asyncio.timeout(11):  # the store's own deadline is 12 s
        assert (await scrape(app))("store_reachable") == 0
        assert not (await app.health()).is_well


async def test_a_scraper_that_goes_away_leaves_the_look_to_the_others(faulty):
    app, store, _ = faulty
    may_go_on = asyncio.Event()
    store.delay("counts", may_go_on)
    first, second = (asyncio.ensure_future(exposition(app)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    assert b"pollux_store_reachable 1" in await second
    assert app.backend.calls["counts"].calls == 1


async def test_a_held_event_loop_is_seen():
    lag = LoopLag()
    lag.start()
    time.sleep(0.8)  # noqa: ASYNC251  that is what is measured

    async def look():
        return lag.late.count

    await until(look, "the timer rings")
    lag.stop()
    assert lag.worst_ms >= 250
    assert lag.late.seen().max_ms == lag.worst_ms


async def test_a_retried_attempt_and_one_handed_back_are_told_apart():
    tallies = Tallies()
    tallies.add(Job(id="a", handler="h"), Settlement("r", "t", RetryAt(1), Outcome(0, 5)))
    [only] = tallies.by_job.all()
    assert only.by_status == {"retried": 1}


# its own port


@asynccontextmanager
async def served(**options) -> AsyncIterator[tuple[Pollux, int]]:
    app = Pollux("memory://", metrics_port=0, **options)
    async with app:
        yield app, app._alongside.port.port


async def ask(port: int, request: str, host: str = "127.0.0.1") -> tuple[str, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request}\r\nHost: {host}\r\n\r\n".encode())
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status.partition(" ")[2], dict(line.split(": ", 1) for line in lines), body


async def test_the_port_answers_metrics_in_both_formats_and_nothing_else():
    async with served() as (_, port):
        status, head, body = await ask(port, "GET /metrics HTTP/1.1")
        assert (status, head["Content-Type"]) == ("200 OK", "text/plain; version=0.0.4; charset=utf-8")
        assert int(head["Content-Length"]) == len(body)
        assert Scrape(body.decode())("scheduler_is_leader") in (0, 1)
        accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
        status, head, body = await ask(port, f"GET /metrics?x=1 HTTP/1.1\r\n{accept}")
        assert (status, body[-6:]) == ("200 OK", b"# EOF\n")
        assert head["Content-Type"].startswith("application/openmetrics-text")
        status, head, body = await ask(port, "HEAD /metrics HTTP/1.1")
        assert (status, body, int(head["Content-Length"]) > 1_000) == ("200 OK", b"", True)
        assert (await ask(port, "GET / HTTP/1.1"))[0] == "404 Not Found"
        assert (await ask(port, "POST /metrics HTTP/1.1"))[0] == "405 Method Not Allowed"
        assert (await ask(port, "nonsense"))[0] == "404 Not Found"


async def test_on_this_machine_it_answers_to_names_of_this_machine_only():
    """A web page that gives its own name our address does not get to read it."""
    async with served() as (_, port):
        for host in ("localhost:9091", "127.0.0.1", "[::1]:9091", ""):
            assert (await ask(port, "GET /metrics HTTP/1.1", host))[0] == "200 OK"
        assert (await ask(port, "GET /metrics HTTP/1.1", "evil.example:9091"))[0] == "421 Misdirected Request"
    async with served(metrics_host="0.0.0.0") as (_, port):
        assert (await ask(port, "GET /metrics HTTP/1.1", "node-7.example:9091"))[0] == "200 OK"


async def test_whoever_says_nothing_or_too_much_is_sent_away_and_holds_nobody_up(monkeypatch):
    """The patience with those who say nothing is short here; that with those who speak is as usual."""
    met, answer = [], MetricsPort._answer

    async def meet(port, reader):
        met.append(reader)
        return await answer(port, reader)

    monkeypatch.setattr(MetricsPort, "_answer", meet)
    async with served() as (_, port):
        with monkeypatch.context() as short:
            short.setattr("pollux.observe.metrics_port.PATIENCE_SECONDS", 0.2)
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]

            async def look():
                return len(met) == 20

            await until(look, "all are met")
        assert (await ask(port, "GET /metrics HTTP/1.1"))[0] == "200 OK"
        assert (await ask(port, f"GET /metrics HTTP/1.1\r\nX: {'x' * HEAD_BYTES_MAX}"))[0].startswith("431")
        for reader, writer in silent:
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()


async def test_too_many_at_once_are_told_to_come_again(monkeypatch):
    monkeypatch.setattr("pollux.observe.metrics_port.CONNECTIONS_MAX", 3)
    async with served() as (app, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]

        async def look():
            return len(app._alongside.port._open) == 3

        await until(look, "all are connected")
        assert (await ask(port, "GET /metrics HTTP/1.1"))[0] == "503 Service Unavailable"
        for _, writer in silent:
            writer.close()


async def test_a_port_that_is_taken_is_an_error_of_the_start_and_leaves_nothing_behind():
    async with served() as (_, port):
        app = Pollux("memory://", metrics_port=port)
        with pytest.raises(InvalidInput, match=f"cannot be served on 127.0.0.1:{port}") as refused:
            await app.start()
        assert "metrics.port" in str(refused.value)
        assert app.crew is None


async def test_while_a_node_drains_its_metrics_are_still_there():
    app = Pollux("memory://", metrics_port=0)
    started, may_end = asyncio.Event(), asyncio.Event()

    @app.job()
    async def slow(ctx):
        started.set()
        await may_end.wait()

    await app.start()
    port = app._alongside.port.port
    await app.enqueue(slow)
    await asyncio.wait_for(started.wait(), 60)
    drain = asyncio.ensure_future(app.drain())

    async def look():
        seen = Scrape((await ask(port, "GET /metrics HTTP/1.1"))[2].decode())
        return seen("scheduler_is_draining") == 1 and seen

    seen = await until(look, "it drains")
    assert seen("scheduler_jobs_currently_running") == 1
    may_end.set()
    await drain
    await app.close()
    with pytest.raises(OSError, match=r"refused|Connect"):
        await ask(port, "GET /metrics HTTP/1.1")


async def test_the_port_stops_with_talks_under_way():
    asked = asyncio.Event()

    class Slow:
        async def readings(self):
            asked.set()
            await asyncio.Event().wait()

    port = MetricsPort(Slow(), "127.0.0.1", 0)
    await port.start()
    asking = asyncio.ensure_future(ask(port.port, "GET /metrics HTTP/1.1"))
    await asyncio.wait_for(asked.wait(), 60)  # the question was read: who is closed with words unread hears of a reset
    assert port._open
    await port.stop()
    status, _, _ = await asking
    assert status == ""
