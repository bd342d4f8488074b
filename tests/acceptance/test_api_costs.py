"""Cost of a request, counted in writes, reads and turns of the event loop, and whom it keeps waiting."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from pollux.model import Cron
from pollux.schedule import first_due
from pollux.server.routing import AT_ONCE, each_made, in_pieces
from pollux.units import moment_ms
from tests.acceptance.api_world import an_app, api_of, eventually, served


@asynccontextmanager
async def opened(folder):
    """A store with nobody at work, and an API on it: what is written there was asked for."""
    app = an_app(f"sqlite:///{folder}/pollux.db")
    await app.open()
    try:
        yield api_of(app), app
    finally:
        await app.close()


async def test_a_job_that_is_added_costs_one_write_and_its_audit_line_goes_along(tmp_path):
    async with opened(tmp_path) as (client, app):
        stats = app._store.stats
        ops, commits = stats.ops, stats.commits

        await client.ok("POST", "/api/v2/jobs", {"id": "a", "handler": "fine", "interval": "1m"})

        assert (stats.ops - ops, stats.commits - commits) == (1, 1)
        [line] = (await app.operations.audit.list_audit()).lines
        assert (line.actor, line.action, line.subject, line.detail[:13]) == ("token:admin", "put", "a", "new: every 1m")


async def test_jobs_that_are_added_at_the_same_time_share_their_writes(tmp_path):
    async with opened(tmp_path) as (client, app):
        before = app._store.stats.ops

        bodies = [{"id": f"job{number}", "handler": "fine"} for number in range(20)]
        await asyncio.gather(*(client.ok("POST", "/api/v2/jobs", body) for body in bodies))

        assert app._store.stats.ops - before <= 2
        assert (await app.operations.audit.verify_audit()).lines == 20


async def test_what_is_refused_changes_nothing_and_is_no_line_of_the_audit_log(tmp_path):
    async with opened(tmp_path) as (client, app):
        await client.ok("POST", "/api/v2/jobs", {"id": "a", "handler": "fine"})
        answer = await client("POST", "/api/v2/jobs", {"id": "a", "handler": "slow"})
        same = await client("POST", "/api/v2/jobs", {"id": "a", "handler": "fine"})

        assert (answer.status, same.status) == (409, 200)
        lines = (await app.operations.audit.list_audit()).lines
        assert [line.detail.partition(":")[0] for line in lines] == ["new"]


@pytest.mark.parametrize("line", ["0 */6 * * *", "30 4 1 1 *"])
async def test_a_job_that_is_added_tells_when_it_will_be_due(line):
    async with served(runs=False) as client:
        schedule, begun_ms = Cron(line), client.app.operations.now_ms()
        job = await client.ok("POST", "/api/v2/jobs", {"id": "a", "handler": "fine", "cron": line})
        ended_ms = client.app.operations.now_ms()

        told = moment_ms(job["next_due_at"])
        assert told in {first_due(schedule, "a", now_ms=begun_ms), first_due(schedule, "a", now_ms=ended_ms)}

        async def planned():
            return (await client.ok("GET", "/api/v2/jobs/a"))["next_due_at"]

        assert moment_ms(await eventually(planned, "it is planned")) >= told


async def test_an_interval_begins_at_once_and_says_so():
    async with served(runs=False) as client:
        begun_ms = client.app.operations.now_ms()
        job = await client.ok("PUT", "/api/v2/jobs/a", {"handler": "fine", "interval": "1h"})

        assert begun_ms <= moment_ms(job["next_due_at"]) <= client.app.operations.now_ms()


@pytest.mark.parametrize("sent", [{}, {"event": True}, {"interval": "1m", "enabled": False}])
async def test_a_job_that_is_never_due_by_itself_tells_no_time(sent):
    async with served(runs=False) as client:
        job = await client.ok("POST", "/api/v2/jobs", {"handler": "fine", **sent})

        assert job["next_due_at"] is None


async def test_a_once_job_in_the_place_of_one_that_has_fired_tells_no_time():
    """A once-job fires once per id, also if it was deleted in between."""
    async with served(runs=False) as client:
        body = {"id": "a", "handler": "fine", "once": True}
        await client.ok("POST", "/api/v2/jobs", body)

        async def fired():
            return (await client.ok("GET", "/api/v2/jobs/a"))["last_due_at"]

        await eventually(fired, "it has fired")
        await client.ok("DELETE", "/api/v2/jobs/a")

        job = await client.ok("POST", "/api/v2/jobs", body)
        assert (job["revision"], job["next_due_at"]) == (2, None)


async def test_many_who_ask_how_it_does_cost_one_judgement(monkeypatch):
    async with served(runs=False) as client:
        judged, health = [], client.app.watch.health

        async def counted():
            judged.append(1)
            return await health()

        monkeypatch.setattr(client.app.watch, "health", counted)
        monkeypatch.setattr("pollux.app.health.CACHED_MS", 60_000)
        await asyncio.gather(*(client.ok("GET", "/api/v2/scheduler/health") for _ in range(20)))
        await client.ok("GET", "/api/v2/scheduler/health")

        assert len(judged) == 1


async def rounds_while(making):
    """How often others had their turn on the loop meanwhile."""
    rounds, done = 0, asyncio.ensure_future(making)
    while not done.done():
        await asyncio.sleep(0)
        rounds += 1
    return rounds, done.result()


async def test_a_long_answer_is_made_in_pieces():
    rounds, made = await rounds_while(each_made(str, range(10 * AT_ONCE)))

    assert made == [str(number) for number in range(10 * AT_ONCE)]
    assert rounds >= 10


async def test_a_long_body_is_read_in_pieces():
    async def read():
        return [pair async for pair in in_pieces([str(number) for number in range(10 * AT_ONCE)])]

    rounds, found = await rounds_while(read())

    assert found == [(number, str(number)) for number in range(10 * AT_ONCE)]
    assert rounds >= 10


async def test_a_page_of_a_thousand_jobs_lets_others_go_on():
    """Whatever is on the loop besides, the page is made in at least as many turns as it has pieces."""
    async with served(runs=False) as client:
        bodies = [{"id": f"job{number:04}", "handler": "fine"} for number in range(1_000)]
        rounds, _ = await rounds_while(client.ok("POST", "/api/v2/jobs/batch", {"jobs": bodies}))
        assert rounds >= 1_000 / AT_ONCE

        rounds, page = await rounds_while(client.ok("GET", "/api/v2/jobs", limit=1_000))
        assert [job["id"] for job in page["jobs"]] == [body["id"] for body in bodies]
        assert rounds >= 1_000 / AT_ONCE


async def test_a_job_with_many_live_runs_is_running_if_the_last_of_them_is():
    """Those that wait are due before it, and more than are looked at."""
    async with served(seats=1) as client:
        await client.ok("PUT", "/api/v2/jobs/a", {"handler": "slow", "overlap": "allow"})
        await client.ok("POST", "/api/v2/runs", {"job_id": "a", "params": {"seconds": 60}})

        async def running():
            return (await client.ok("GET", "/api/v2/jobs/a"))["state"] == "running"

        assert await eventually(running, "it runs")
        asked = [{"at": "2000-01-01T00:00:00Z"} for _ in range(150)]
        await client.ok("POST", "/api/v2/runs/batch", {"job_id": "a", "runs": asked})
        assert await running()
