"""Jobs over HTTP, where words must lead somewhere: cures that hold, changes that are changes, problems all at once."""

import pytest

from pollux import cron, every
from pollux.model import Job, Retry
from pollux.store.contract import RunFilter
from tests.acceptance.api_world import eventually, served

JOB = {"handler": "fine", "interval": "1m"}


@pytest.fixture
async def client():
    async with served(runs=False) as client:
        yield client


async def log_of(client) -> list[str]:
    lines = (await client.ok("GET", "/api/v2/audit"))["lines"]
    return [f"{line['action']} {line['subject']} {line['detail']}" for line in lines]


# cures


async def test_who_adds_a_job_that_a_file_owns_is_not_sent_in_a_circle(client):
    await client.app.put_jobs([Job(id="mine", handler="fine", source="file:x", schedule=every("1h"))])

    alone = await client("POST", "/api/v2/jobs", {**JOB, "id": "mine"})
    one_of_many = await client.ok("POST", "/api/v2/jobs/batch", {"jobs": [{**JOB, "id": "mine"}]})

    for cure in (alone.json["cure"], one_of_many["items"][0]["problem"]["cure"]):
        assert cure.startswith("change it in the file with name: x"), cure
    ours = await client.ok("POST", "/api/v2/jobs", {**JOB, "id": "ours"})
    again = await client("POST", "/api/v2/jobs", {**ours, "interval": "2m", "revision": None})
    assert (again.status, again.json["cure"]) == (409, "PUT /api/v2/jobs/ours changes it")


async def test_a_secret_in_plain_text_is_sent_where_it_may_be_named(client):
    """A reference is refused here, so that nobody is told to send one."""
    body = {"http": {"url": "https://example.com", "auth": {"bearer": "sesame"}}}
    answer = await client("POST", "/api/v2/jobs", body)
    assert answer.json["problems"][0]["cure"].startswith("declare the job in a config file or in code")


# revisions


async def test_a_wrong_revision_is_refused_also_if_nothing_would_change(client):
    path = "/api/v2/jobs/home"
    await client.ok("PUT", path, JOB)

    for late in ({"headers": {"If-Match": '"9"'}}, {"body": {**JOB, "revision": 9}}):
        answer = await client("PUT", path, **{"body": JOB, **late})
        assert (answer.status, answer.json["revision"], answer.json["expected"]) == (409, 1, 9)
        assert "revision 9 was expected" in answer.json["detail"]
    right = await client("PUT", path, JOB, headers={"If-Match": '"1"'})
    assert (right.status, right.json["revision"]) == (200, 1)


@pytest.mark.parametrize(
    "job",
    [
        Job(id="home", handler="fine", schedule=every("1m")),
        Job(id="home", handler="fine", schedule=cron("0 6 * * *"), retry=Retry(attempts_max=7)),
        Job(id="home", handler="http", params={"url": "https://example.com"}, tags=("a",), target="db"),
    ],
    ids=["every", "cron", "http"],
)
async def test_what_was_answered_and_is_sent_again_changes_nothing_and_is_in_no_log(tmp_path, job):
    async with served(f"sqlite:///{tmp_path}/p.db", runs=False) as client:
        await client.app.put_jobs([job])
        before = await log_of(client)
        shown = await client.ok("GET", "/api/v2/jobs/home")

        again = await client.ok("PUT", "/api/v2/jobs/home", shown)

        assert again["revision"] == shown["revision"] == 1
        assert await log_of(client) == before
        changed = await client.ok("PUT", "/api/v2/jobs/home", {**shown, "name": "Home"})
        assert changed["revision"] == 2
        assert (await log_of(client))[0] == "put home name (usual) -> Home"


async def test_what_was_refused_is_not_in_the_audit_log(client):
    await client.ok("PUT", "/api/v2/jobs/home", JOB)
    before = await log_of(client)

    other = {**JOB, "interval": "2m"}
    assert (await client("PUT", "/api/v2/jobs/home", other, headers={"If-Match": '"9"'})).status == 409
    assert (await client("POST", "/api/v2/jobs", {**other, "id": "home"})).status == 409
    many = [{**other, "id": "home"} for _ in range(25)]
    assert (await client.ok("POST", "/api/v2/jobs/batch", {"jobs": many}))["refused"] == 25

    assert await log_of(client) == before


# all at once


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({"cron": "61 * * * *", "tz": "Mars/X"}, {"cron", "tz"}),
        ({"cron_expression": "61 * * * *", "tz": "Mars/X", "priority": 9}, {"cron_expression", "tz", "priority"}),
        ({"cron": "61 * * * *", "tz": "Mars/X", "interval": "soon"}, {"cron", "tz", "interval"}),
        ({"cron": "61 * * * *", "schedule_type": "interval"}, {"cron", "schedule_type"}),
    ],
)
async def test_a_line_its_zone_and_an_interval_are_all_judged(client, body, wrong):
    answer = await client("POST", "/api/v2/jobs", {"handler": "fine", **body})
    assert answer.status == 422
    assert {problem["where"] for problem in answer.json["problems"]} == wrong


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"handler": "fine", "retry": {"base": "1h", "max": "1s"}}, "retry.max"),
        ({"handler": "fine", "retry": {"base": "soon"}}, "retry.base"),
        ({"handler": "fine", "retry": 0}, "retry.attempts"),
        ({"url": "ftp://example.com", "timeout": "soon"}, "url"),
    ],
)
async def test_a_place_is_named_once(client, body, where):
    answer = await client("POST", "/api/v2/jobs", body)
    assert where in [problem["where"] for problem in answer.json["problems"]], answer.json


# what is told


async def test_the_audit_log_tells_which_dead_letters_went_by_what_and_how_long_a_pause_lasts():
    async with served() as client:
        for number in range(3):
            await client.ok("POST", "/api/v2/jobs", {"id": f"bad{number}", "handler": "refuse"})
            await client.ok("POST", "/api/v2/runs", {"job_id": f"bad{number}", "id": f"run{number}"})

        async def are_dead():
            return len((await client.ok("GET", "/api/v2/dead-letters"))["dead_letters"]) == 3

        await eventually(are_dead, "they are dead")
        await client.app.operations.dead_letters.drop(["run0"])
        await client.app.operations.dead_letters.drop(where=RunFilter(error="never works", job_id="bad1"))
        await client.app.operations.dead_letters.drop()
        await client.app.pause("bad0", reason="they move", duration="90m")
        await client.app.pause(group="edge")

        assert [line for line in await log_of(client) if line.startswith(("drop", "pause"))][::-1] == [
            "drop dead letters run run0",
            "drop dead letters run run1; by job_id bad1, error never works",
            "drop dead letters run run2; by all",
            "pause job:bad0 they move; for 1h30m",
            "pause group:edge ",
        ]


async def test_only_a_dead_letter_has_deaths():
    async with served() as client:
        for name, state in (("fine", "done"), ("refuse", "dead")):
            await client.ok("POST", "/api/v2/jobs", {"id": name, "handler": name})
            await client.ok("POST", "/api/v2/runs", {"job_id": name, "id": f"{name}-run"})

            async def ended(name=name, state=state):
                run = await client.ok("GET", f"/api/v2/runs/{name}-run")
                return run if run["state"] == state else None

            assert (await eventually(ended, "it has ended"))["deaths"] == (state == "dead")


async def test_every_document_ends_its_line(client):
    """So that the prompt of whoever asked with curl stands on a line of its own."""
    for method, path in (("GET", "/api/v2/jobs"), ("GET", "/api/v2/scheduler/health"), ("GET", "/api/v2/jobs/none")):
        answer = await client(method, path)
        assert answer.body.endswith(b"}\n"), path
        assert answer.headers["content-length"] == str(len(answer.body))
