"""Health reports what is wrong in a deployment that really has it."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from pollux import Permanent, Pollux, cron, every
from pollux.clock import FakeClock
from pollux.model import Declares, Interval, JobUpdate, Node
from pollux.observe.health import DEGRADED, HEALTHY, UNHEALTHY, health_document, workers_document
from pollux.store.memory import MemoryStore
from pollux.testing.conformance.builders import a_job, a_run, advance, dead_letter, given_jobs, the_job
from pollux.units import moment_ms
from tests.runtime.test_app import finished, until

HEALTH_PAGE = Path(__file__).parents[2] / "docs" / "health.md"


async def found(app, name: str, level: str):
    """The finding of that name, once it is of that level."""

    async def look():
        [finding] = [each for each in (await app.operations.status.health()).findings if each.name == name]
        return finding if finding.level == level else None

    return await until(look, f"{name} is {level}")


async def home(ctx): ...


async def test_why_of_a_failing_job_names_its_last_failed_run(tmp_path):
    app = Pollux(f"sqlite:///{tmp_path}/p.db")

    @app.job(retry=False)
    async def poll(ctx):
        raise OSError("refused")

    async with app:
        for _ in range(2):
            last = await finished(app, (await app.enqueue(poll)).id)

        async def look():
            why = await app.why("poll")
            return why if "2 times in a row" in why.reason else None

        why = await until(look, "its failures are learnt")
    assert why.cure == f"run or enqueue it; see what went wrong: pollux runs show {last.id}"


async def test_a_deployment_without_a_leader_does_not_fire_and_says_so(tmp_path):
    store = f"sqlite:///{tmp_path}/p.db"
    first = Pollux(store)
    first.add(first.handler(home), every("100ms"))
    async with first:
        await found(first, "leader", HEALTHY)

        async def fired():
            return first.runtime.timekeeper.fired

        await until(fired, "it has a due time")
    second = Pollux(store, plans=False, health_wait="100ms", leader_ttl="1s")
    second.handler(home)
    async with second:
        finding = await found(second, "due", UNHEALTHY)
        assert "due but not fired: job home" in finding.seen
        await found(second, "leader", UNHEALTHY)
        assert not await second._is_well(), "the heartbeat stops"
        told = health_document(await second.operations.status.health())
        assert (told["is_leader"], told["leader"], told["workers_active"]) == (False, None, 10)


async def test_where_nobody_has_seats_what_is_ready_is_not_claimed():
    app = Pollux("memory://", runs=False, health_wait="50ms")
    app.add(app.handler(home), id="home")
    async with app:
        await app.enqueue("home")
        await found(app, "ready", DEGRADED)
        assert (await found(app, "nodes", UNHEALTHY)).seen == "1 node, and none has seats"


async def test_a_drain_a_pause_a_dead_letter_and_a_queue_are_each_told():
    app = Pollux("memory://", health_queue_depth=2)

    @app.job()
    async def bad(ctx):
        raise Permanent("no")

    async with app:
        await found(app, "leader", HEALTHY)
        await app.enqueue(bad)
        await found(app, "dead", DEGRADED)
        [letter] = health_document(await app.operations.status.health())["deadLetter"]["tasks"]
        assert (letter["instance"], letter["lastError"].split(" (")[0]) == ("bad", "Permanent: no")
        await app.operations.workers.drain_workers(reason="moving")
        finding = await found(app, "stops", DEGRADED)
        assert re.fullmatch(r"all workers are drained by app:\S+ since \S+Z \(moving\)", finding.seen)
        await app.enqueue_many(bad, [None] * 3)
        await found(app, "queue", DEGRADED)
        assert (await app.operations.status.health()).is_well, "degraded, but nobody need get up at night"
        assert workers_document(await app.operations.status.health())["draining"]
        await app.operations.settings.set_setting("health.queue_depth", 3)
        await found(app, "queue", HEALTHY)
        await app.operations.workers.resume_workers()
        await found(app, "stops", HEALTHY)


async def test_a_job_that_only_fails_is_stale_and_its_instance_tells_why():
    app = Pollux("memory://")
    begun_ms = app.clock.now_ms()

    @app.job(every("100ms"), group="edge", name="The door", target="door:1")
    async def door(ctx):
        raise TimeoutError("no answer")

    async with app:
        finding = await found(app, "freshness", DEGRADED)
        assert finding.seen == "no success for too long: door (never)"
        [instance] = health_document(await app.operations.status.health())["instances"]
        assert (instance["key"], instance["displayName"], instance["connection"]) == (
            "edge::door",
            "The door",
            "door:1",
        )
        assert "no answer" in instance["pollStatus"]["lastError"]["message"]
        assert instance["pollStatus"]["lastError"]["category"] == "timeout"
        assert instance["pollStatus"]["consecutiveFailures"] >= 3
        assert begun_ms - 1_000 <= moment_ms(instance["pollStatus"]["firstFailureAt"]) <= app.clock.now_ms()
        assert instance["warnings"]
        await app.operations.settings.set_setting("health.intervals", 1_000)
        await found(app, "freshness", HEALTHY)


async def test_a_nightly_job_that_is_not_yet_due_is_not_stale():
    app = Pollux("memory://")
    app.add(app.handler(home), cron("0 2 * * *"), id="nightly")
    async with app:

        async def planned():
            return (await app.operations.jobs.get_job("nightly")).next_due_ms

        await until(planned, "it has a due time")
        document = health_document(await app.operations.status.health())
    [told] = document["staleness"]
    assert (told["instance"], told["score"], told["lastSuccess"]) == ("nightly", 0.0, None)
    assert document["instances"][0]["warnings"] == []


async def test_among_many_jobs_those_that_do_not_succeed_are_looked_at_first():
    """Only 200 are looked at one by one: a failing one of 250 is among them, whatever its name and age."""
    app = Pollux("memory://", health_staleness="0s", health_intervals=1)

    async def fails(ctx):
        raise TimeoutError("no answer")

    fine, bad = app.handler(home), app.handler(fails)
    for n in range(250):
        app.add(fine, every("1h"), id=f"job-{n:03}")
    app.add(bad, every("1s"), id="last")
    async with app:
        finding = await found(app, "freshness", DEGRADED)
    assert finding.seen == "no success for too long: last (never)"


async def test_a_running_handler_is_seen_with_its_progress():
    app = Pollux("memory://")
    may_end, started = asyncio.Event(), asyncio.Event()

    @app.job()
    async def slow(ctx):
        ctx.progress("half way")
        started.set()
        await may_end.wait()

    async with app:
        run = await app.enqueue(slow)
        await asyncio.wait_for(started.wait(), 60)

        async def look():
            told = workers_document(await app.operations.status.health())
            return told if told["workers"] and told["active"] == 1 else None

        told = await until(look, "it is seen")
        [sits] = told["workers"][0]["runs"]
        assert (sits["run_id"], sits["job_id"], sits["progress"]) == (run.id, "slow", "half way")
        assert (told["total"], told["idle"]) == (10, 9)
        json.dumps(told)
        may_end.set()


async def test_health_can_be_asked_where_nothing_runs():
    app = Pollux("memory://")
    await app.open()
    health = await app.operations.status.health()
    assert (health.status, [each.name for each in health.worries()]) == ("unhealthy", ["nodes", "leader"])
    told = health_document(health)
    assert (told["running"], told["node"], told["uptime_seconds"]) == (False, None, 0)
    await app.close()


async def test_a_due_time_that_is_neither_fired_nor_skipped_is_not_healthy():
    """Somebody leads and beats, and does not fire: a second is much for a job that is due each second.

    Not for one that is due each day, though it waits longer.
    """
    clock = FakeClock()
    store = MemoryStore(clock)
    app = Pollux(store, clock=clock)
    app.handler(home)
    await app.open()
    now_ms = clock.now_ms()
    for seconds in (1, 86_400):
        await given_jobs(store, a_job(f"every-{seconds}", handler="home", schedule=Interval(seconds * 1_000)))
        job = await the_job(store, f"every-{seconds}")
        due_ms = now_ms if seconds == 1 else now_ms - 10_000
        await advance(store, now_ms=now_ms, updates=(JobUpdate(job.id, job.revision, due_ms, job.memory),))
    term = await store.elect("leader", ttl_ms=120_000)
    await store.beat(Node("leader", seats=1, handlers=("home",), leads=term.number), ttl_ms=120_000)
    assert [each.name for each in (await app.operations.status.health()).worries()] == []
    await clock.advance(2_000)
    health = await app.operations.status.health()
    [finding] = health.worries()
    assert (health.status, finding.name) == (DEGRADED, "due")
    assert finding.seen == "due but not fired: job every-1 for 2s"
    await store.beat(Node("leader", seats=1, handlers=("home",), leads=term.number), ttl_ms=120_000)
    await clock.advance(59_500)
    assert (await app.operations.status.health()).status == UNHEALTHY


async def test_a_version_beside_this_one_that_nobody_leads_any_more_is_told(tmp_path):
    """Its figures are another version's: only who leads it tells that it stands still."""
    store = f"sqlite:///{tmp_path}/p.db"
    new = Pollux(store, scheduler_version=2, leader_ttl="1s")
    old = Pollux(store, scheduler_version=1)
    old.add(old.handler(home), every("1h"))
    async with new:
        async with old:
            assert (await found(new, "versions", HEALTHY)).seen == "led as well: version 1 (1 job)"
        finding = await found(new, "versions", UNHEALTHY)
        assert "pollux jobs move --from-version 1 --to-version 2" in finding.cure
        assert not await new._is_well(), "the heartbeat stops"
        await new.operations.versions.move_jobs(["home"], to=2)
        await until(lambda: _has_no(new, "versions"), "nothing is left that wants a leader")


async def _has_no(app, name):
    return name not in {finding.name for finding in (await app.operations.status.health()).findings}


async def test_a_look_costs_no_more_calls_where_versions_share_the_store():
    clock = FakeClock()
    app = Pollux(MemoryStore(clock), clock=clock)
    app.handler(home)
    await app.open()
    await app.put_jobs([app.add("home", id="one"), app.add("home", id="other")])
    await app.backend.beat(Node("n1", seats=1, handlers=("home",)), ttl_ms=600_000)

    async def calls():
        before = {verb: stats.calls for verb, stats in app.backend.call_stats.items()}
        health = await app.operations.status.health()
        asked = {verb: stats.calls - before[verb] for verb, stats in app.backend.call_stats.items()}
        return {verb: count for verb, count in asked.items() if count}, {each.name for each in health.findings}

    alone, _ = await calls()
    assert alone == dict.fromkeys(("lines", "problems", "nodes", "versions", "due", "list_jobs"), 1) | {"notes": 2}
    await app.operations.versions.move_jobs(["other"], to=5)
    await clock.advance(2_000)  # a look serves for a second
    beside, names = await calls()
    assert (beside, "versions" in names) == (alone, True)
    await app.close()


async def test_a_look_at_a_deployment_where_much_is_amiss_costs_as_much_as_the_page_says():
    assert "twelve at most" in HEALTH_PAGE.read_text()
    store = MemoryStore()
    app = Pollux(store, plans=False)
    await app.open()
    for number in (2, *range(3, 10)):
        await given_jobs(store.of_version(number), a_job(f"j{number}", handler="gone", source="code:old"))
    await dead_letter(store, a_run("dead", "j2"))
    await app.operations.workers.drain_workers(reason="moving")
    declares = (Declares("file:p.yaml", jobs=1, mark="odd"),)
    await store.beat(Node("n", seats=1, handlers=("home",), plans=False, declares=declares), ttl_ms=600_000)
    before = {verb: stats.calls for verb, stats in app.backend.call_stats.items()}
    seen = (await app.operations.status.health()).snapshot
    asked = {verb: stats.calls - before[verb] for verb, stats in app.backend.call_stats.items()}
    assert sum(asked.values()) == 12, asked
    assert seen.dead
    assert seen.deployment.drained
    assert seen.deployment.orphaned
    await app.close()


@pytest.mark.parametrize("count", [3, 250])
async def test_a_look_reads_a_bounded_number_of_jobs(count):
    app = Pollux("memory://", plans=False)
    app.handler(home)
    await app.open()
    await app.put_jobs([app.add("home", id=f"j{number}") for number in range(count)])
    before = {verb: stats.calls for verb, stats in app.backend.call_stats.items()}
    health = await app.operations.status.health()
    asked = {verb: stats.calls - before[verb] for verb, stats in app.backend.call_stats.items()}
    assert len(health.snapshot.deployment.jobs) == min(count, 200)
    assert health_document(health)["cron_jobs_count"] == (0 if count <= 200 else None)
    assert sum(asked.values()) <= 9
    await app.close()
