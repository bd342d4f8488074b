"""Metrics: what was done is counted, what exists is shown, and neither grows for ever."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_newer

from pollux import Permanent, Pollux, every, once
from pollux.app.health import _histogram
from pollux.clock import FakeClock
from pollux.errors import InvalidInput, StoreError
from pollux.events import Events
from pollux.model import Done, Job, Outcome, RetryAt
from pollux.observe.metrics import exposition, names
from pollux.runtime.leader import Leader
from pollux.runtime.loop_lag import LoopLag
from pollux.runtime.stats import AttemptStats, Lateness
from pollux.store.contract import JobPut, Settlement
from pollux.store.memory import MemoryStore
from pollux.testing.faults import FaultyStore
from tests.runtime.scrape import Scrape, scrape, settled, worries
from tests.runtime.test_app import until

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
        health = await app.operations.status.health()
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
    stats = AttemptStats()
    for verdict, took_ms in ((Done(failed=True), 10), (Done(), 11), (Done(), 60_000), (Done(), 4_000_000)):
        stats.add(Job(id="a", handler="h"), Settlement("r", "t", verdict, Outcome(0, took_ms)))
    app = Pollux("memory://")
    async with app:
        app.runtime.settler.stats = stats
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
    health = await app.operations.status.health()
    assert (health.status, health.findings[0].name) == ("unhealthy", "store")
    assert "refused" in health.findings[0].seen
    await clock.advance(1_000)
    assert (await scrape(app))("store_reachable") == 1


async def test_a_store_that_hangs_holds_a_scrape_for_seconds_only(faulty, monkeypatch):
    app, store, _ = faulty
    monkeypatch.setattr("pollux.app.health.READ_SECONDS", 0.05)
    store.delay("lines", asyncio.Event())
    async with asyncio.timeout(11):  # the store's own deadline is 12 s
        assert (await scrape(app))("store_reachable") == 0
        assert not (await app.operations.status.health()).is_well


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
    assert app.backend.call_stats["counts"].calls == 1


async def test_a_held_event_loop_is_seen():
    lag = LoopLag()
    lag.start()
    time.sleep(0.8)  # noqa: ASYNC251  that is what is measured

    async def look():
        return lag.late.count

    await until(look, "the timer rings")
    lag.stop()
    assert lag.worst.ms >= 250
    assert lag.late.seen().max_ms == lag.worst.ms


async def test_a_retried_attempt_and_one_handed_back_are_told_apart():
    stats = AttemptStats()
    stats.add(Job(id="a", handler="h"), Settlement("r", "t", RetryAt(1), Outcome(0, 5)))
    [only] = stats.by_job.all()
    assert only.by_status == {"retried": 1}


async def test_nodes_of_two_versions_on_one_store_tell_each_of_its_own(tmp_path):
    """And a scraper that has both can tell whose is whose."""
    url, seen = f"sqlite:///{tmp_path}/v.db", {}
    for number, jobs in ((1, ["a", "b", "c"]), (2, ["d"])):
        app = Pollux(url, scheduler_version=number)
        for job_id in jobs:
            app.add(app.handler(once_more, name=f"h.{job_id}"), id=job_id)
        async with app:
            found = await scrape(app)
        [(_, labels)] = found.all("build_info")
        seen[dict(labels)["scheduler_version"]] = found("scheduler_jobs")
    assert seen == {"1": 3, "2": 1}
