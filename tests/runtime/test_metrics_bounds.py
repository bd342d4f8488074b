"""Metrics stay small and cheap, however many jobs, names and scrapers there are, on every store."""

import asyncio
import sys

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_newer

from pollux import Pollux, every
from pollux.clock import FakeClock
from pollux.model import Cancelled, Dead, Done, Fault, Job, OnEvent, Outcome, RetryAt
from pollux.observe.metrics import exposition
from pollux.runtime.stats import NAMES_MAX, AttemptStats
from pollux.store.contract import JobPut, Settlement
from pollux.store.memory import MemoryStore
from tests.runtime.scrape import Scrape, scrape, settled, worries
from tests.runtime.test_app import until
from tests.servers import postgres, redis

MANY = 100_000
SCRAPED = {"due": 1, "lines": 1, "problems": 1, "notes": 3, "nodes": 1, "versions": 1}  # all calls of the store
NAMED = ({"list_jobs": 1}, {"get_jobs": 1})  # and how the jobs that have names are had: all there are, or these


# bounds


def ends(stats: AttemptStats, count: int, **job: str) -> None:
    for n in range(count):
        fields = {name: value.format(n) for name, value in job.items()}
        stats.add(Job(handler="h", **fields), Settlement("r", "t", Done(), Outcome(0, 70)))


async def test_the_first_two_hundred_have_series_of_their_own_and_the_rest_share_one(app):
    async with app:
        ends(app.runtime.settler.stats, 300, id="job-{}", source_id="source-{}")
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
        stats = app.runtime.settler.stats
        for number in range(1_000):
            job = Job(id=f"j{number}", handler="h", group=f"g{number}", source_id=f"s{number}")
            for verdict, outcome in zip(verdicts, (*faults, faults[0]), strict=True):
                stats.add(job, Settlement("r", "t", verdict, outcome))
        seen = await scrape(app)
    assert 8_000 < len(seen.samples) < 10_500, "as the page says"


async def test_a_job_called_other_is_one_of_the_others(app):
    async with app:
        ends(app.runtime.settler.stats, 1, id="other", source_id="other")
        ends(app.runtime.settler.stats, 250, id="job-{}")
        seen = await scrape(app)
    assert seen("monitor_poll_total", instance="other", instance_type="other", result="success") == 1 + 51


HOSTILE = ('a"b', "a\\b", "a\nb", "a\x1b[31mb", "a\u202eb", "a\x00b", "<img onerror>", "x" * 5_000, "é")


async def test_a_hostile_name_is_one_line_of_harmless_text(app):
    async with app:
        stats = app.runtime.settler.stats
        for number, name in enumerate(HOSTILE):
            ends(stats, 1, id=f"j{number}", source_id=name, group=name)
        ends(stats, 1, id="k", source_id="x" * 6_000)  # the same once it is cut
        text = (await exposition(app)).decode()
        newer = await exposition(app, openmetrics=True)
    seen = Scrape(text)
    assert not any(ord(char) < 32 or char in "\x7f\u202e" for line in text.split("\n") for char in line)
    assert len(seen.all("scheduler_jobs_executed_total")) == len(HOSTILE)
    assert max(map(len, text.split("\n"))) < 500
    Scrape(newer.decode(), read_newer)


async def test_a_scrape_of_a_hundred_thousand_jobs_costs_what_one_of_a_hundred_costs():
    """Counted in calls, which no other work disturbs, since no time passes; it asks the store the same few things."""
    costs, asked = [], []
    for count in (100, MANY):
        app = Pollux("memory://", plans=False, clock=FakeClock())
        async with app:
            for start in range(0, count, 1_000):
                jobs = [
                    Job(id=f"j{n}", handler="h", schedule=OnEvent()) for n in range(start, min(count, start + 1_000))
                ]
                await app.backend.put_jobs([JobPut(job) for job in jobs])
            ends(app.runtime.settler.stats, min(count, 300), id="j{}", source_id="s{}")
            await exposition(app)
            app.watch._last = None
            before = {verb: stats.calls for verb, stats in app.backend.call_stats.items()}
            seen = Scrape((await exposition(app)).decode())
            after = {verb: stats.calls for verb, stats in app.backend.call_stats.items()}
            asked.append({verb: more for verb in after if (more := after[verb] - before.get(verb, 0))})
            costs.append(await calls_of_a_scrape(app))
            assert seen("scheduler_jobs") == count
            assert len(seen.all("monitor_poll_last_success_timestamp")) <= NAMES_MAX
    assert 1_000 < costs[1] <= 3 * costs[0], costs
    assert asked == [SCRAPED | named for named in NAMED]


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
    counted = app.backend.call_stats["counts"]
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
        await app.operations.workers.drain_workers()
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
        health = await app.operations.status.health()
        assert worries(health) == ["stops"]
        await app.operations.workers.resume_workers()
