"""Jobs over HTTP: add, list, show, change, take away, act on them."""

import asyncio

import pytest
from msgspec.structs import replace

from pollux import every
from pollux.errors import StoreBusy
from pollux.model import Declares, Job, Node
from pollux.server.auth import Role
from tests.acceptance.api_world import eventually, named, served

SEED = {
    "source_id": "uuid",
    "url": "https://example.com",
    "schedule_type": "cron",
    "cron_expression": "0 */6 * * *",
    "priority": 1,
    "timeout_seconds": 7200,
    "depends_on": [],
    "trigger_webhook": "",
    "trigger_channel": "",
    "schedule_enabled": True,
    "scheduler_version": 2,
}


@pytest.fixture
async def client():
    async with served(runs=False) as client:
        yield client


async def ids(client, **query):
    return [job["id"] for job in (await client.ok("GET", "/api/v2/jobs", **query))["jobs"]]


async def test_a_job_with_all_the_fields_of_an_older_scheduler_is_stored_as_it_was_sent(client):
    answer = await client("POST", "/api/v2/jobs", SEED)

    assert answer.status == 201
    job = answer.json
    assert answer.headers["location"] == f"/api/v2/jobs/{job['id']}"
    assert {key: job[key] for key in SEED} == SEED
    assert (job["handler"], job["target"], job["revision"], job["state"]) == ("http", "example.com:443", 1, "active")
    shown = await client.ok("GET", answer.headers["location"])
    assert {key: shown[key] for key in SEED} == SEED
    assert shown["id"] == job["id"]


@pytest.mark.parametrize(
    ("sent", "schedule_type", "words"),
    [
        ({"interval": "30m"}, "interval", "every 30m"),
        ({"interval": 90}, "interval", "every 1m30s"),
        ({"schedule_type": "interval", "interval": "5s", "spread": False}, "interval", "every 5s"),
        ({"cron": "0 6 * * *", "tz": "Europe/Berlin"}, "cron", "cron 0 6 * * * Europe/Berlin"),
        ({"schedule_type": "immediate"}, "immediate", "once"),
        ({"once": True}, "immediate", "once"),
        ({"schedule_type": "once", "at": "2099-01-01T00:00:00Z"}, "once", "once at 2099-01-01T00:00:00Z"),
        ({"schedule_type": "event"}, "event", "on event"),
        ({}, "manual", "when asked"),
    ],
)
async def test_when_can_be_said_in_old_words_and_new_ones(client, sent, schedule_type, words):
    job = await client.ok("POST", "/api/v2/jobs", {"handler": "fine", **sent})

    assert (job["schedule_type"], job["schedule"]) == (schedule_type, words)


async def test_what_was_answered_can_be_sent_again(client):
    """GET, change a word, PUT: what only tells how it goes is read over."""
    for number, body in enumerate(
        [SEED, {"handler": "fine", "interval": "1m", "tags": ["a"], "retry": {"attempts": 3}}]
    ):
        job = await client.ok("PUT", f"/api/v2/jobs/job{number}", body)
        again = await client("PUT", f"/api/v2/jobs/job{number}", job)
        assert (again.status, again.json["revision"]) == (200, 1)
        changed = await client.ok("PUT", f"/api/v2/jobs/job{number}", {**job, "name": "Another"})
        assert (changed["name"], changed["revision"]) == ("Another", 2)


async def test_all_that_is_wrong_is_told_at_once_with_its_place(client):
    body = {
        "id": "no spaces",
        "interval": "soon",
        "priority": 7,
        "prio": 1,
        "handler": "fine",
        "timeout_seconds": "long",
        "depends_on": ["other"],
        "trigger_webhook": "/x",
        "retry": {"attempts": 0},
        "tags": ["ok", "\u202eevil"],
    }

    answer = await client("POST", "/api/v2/jobs", body)

    assert answer.status == 422
    assert answer.headers["content-type"] == "application/problem+json"
    wrong = {problem["where"] for problem in answer.json["problems"]}
    expected = {
        "id",
        "interval",
        "priority",
        "prio",
        "timeout_seconds",
        "depends_on",
        "trigger_webhook",
        "retry.attempts",
    }
    assert wrong == expected | {"tags"}
    assert (await client.ok("GET", "/api/v2/jobs"))["jobs"] == []


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"interval": "1m"}, "handler"),
        ({"handler": "fyne"}, "handler"),
        ({"handler": "os:system"}, "handler"),
        ({"url": "ftp://example.com"}, "url"),
        ({"http": {"url": "https://example.com", "methid": "GET"}}, "http.methid"),
        ({"http": {"url": "https://example.com", "auth": {"bearer": "sesame"}}}, "http.auth.bearer"),
        ({"handler": "fine", "params": {"wrod": "x"}, "interval": "1m"}, "params"),
        ({"handler": "fine", "params": {"word": "${env:HOME}"}}, "params.word"),
        ({"handler": "fine", "params": {"token": "***"}}, "params.token"),
        ({"url": "https://a.example", "handler": "fine"}, "url"),
        ({"url": "https://a.example", "params": {"url": "https://b.example"}}, "url"),
        ({"handler": "fine", "interval": "1m", "cron": "* * * * *"}, "cron"),
        ({"handler": "fine", "schedule_type": "cron"}, "cron_expression"),
        ({"handler": "fine", "schedule_type": "cron", "interval": "1m"}, "schedule_type"),
        ({"handler": "fine", "cron_expression": "nonsense"}, "cron_expression"),
        ({"handler": "fine", "cron": "1 * * * *", "cron_expression": "2 * * * *"}, "cron_expression"),
        ({"handler": "fine", "tz": "Mars/Olympus"}, "tz"),
        ({"handler": "fine", "cron": "1 * * * *", "tz": "Mars/Olympus"}, "tz"),
        ({"handler": "fine", "timeout": "1s", "timeout_seconds": 2}, "timeout_seconds"),
        ({"handler": "fine", "name": "<img\nonerror=x>"}, "name"),
        ({"handler": "fine", "name": "x" * 1_000}, "name"),
        ({"handler": "fine", "scheduler_version": 0}, "scheduler_version"),
        ([], "body"),
        ("x", "body"),
        (None, "body"),
    ],
)
async def test_what_cannot_be_a_job_is_refused_with_a_cure(client, body, where):
    answer = await client("POST", "/api/v2/jobs", data=__import__("json").dumps(body).encode())

    assert answer.status == 422, answer
    assert [problem["where"] for problem in answer.json["problems"]] == [where]
    assert (await client.ok("GET", "/api/v2/jobs"))["jobs"] == []


async def test_markup_in_a_name_is_a_name(client):
    """It goes out as JSON that no browser takes for a page."""
    name = "<img src=x onerror=alert(1)>"
    await client.ok("POST", "/api/v2/jobs", {"id": "x", "handler": "fine", "name": name})

    answer = await client("GET", "/api/v2/jobs/x")

    assert answer.json["name"] == name
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_job_is_made_once(client):
    body = {"id": "home", "handler": "fine", "interval": "1m"}

    assert (await client("POST", "/api/v2/jobs", body)).status == 201
    assert (await client("POST", "/api/v2/jobs", body)).status == 200
    other = await client("POST", "/api/v2/jobs", {**body, "interval": "2m"})
    assert (other.status, other.json["revision"]) == (409, 1)
    assert "PUT /api/v2/jobs/home" in other.json["cure"]
    assert (await client.ok("GET", "/api/v2/jobs/home"))["interval"] == "1m"


async def test_a_change_by_revision_says_both_if_it_comes_too_late(client):
    body = {"handler": "fine", "interval": "1m"}
    path = "/api/v2/jobs/home"
    assert (await client("PUT", path, body)).status == 201
    assert (await client("GET", path)).headers["etag"] == '"1"'

    by_body = await client.ok("PUT", path, {**body, "interval": "2m", "revision": 1})
    by_header = await client("PUT", path, {**body, "interval": "3m"}, headers={"If-Match": '"2"'})
    assert (by_body["revision"], by_header.json["revision"]) == (2, 3)

    for late in ({"revision": 2}, {}):
        headers = {} if late else {"If-Match": '"2"'}
        answer = await client("PUT", path, {**body, "interval": "9m", **late}, headers=headers)
        assert (answer.status, answer.json["revision"], answer.json["expected"]) == (409, 3, 2)
    both = await client("PUT", path, {**body, "revision": 3}, headers={"If-Match": '"2"'})
    assert both.status == 422
    assert (await client.ok("PUT", path, {**body, "interval": "4m"}))["revision"] == 4
    assert (await client.ok("GET", path))["interval"] == "4m"


async def test_a_job_that_is_not_there_cannot_be_changed_by_revision(client):
    body = {"handler": "fine"}
    assert (await client("PUT", "/api/v2/jobs/none", {**body, "revision": 3})).status == 404
    assert (await client("PUT", "/api/v2/jobs/none", body, headers={"If-Match": "*"})).status == 404
    assert (await client("PUT", "/api/v2/jobs/none", {**body, "id": "other"})).status == 422


async def test_the_jobs_of_a_file_are_not_the_apis_to_change(client):
    await client.app.put_jobs([Job(id="mine", handler="fine", source="file:x", schedule=every("1h"))])

    answer = await client("PUT", "/api/v2/jobs/mine", {"handler": "fine"})

    assert answer.status == 409
    assert "file:x owns it" in answer.json["detail"]
    assert "the file with name: x" in answer.json["cure"]


async def test_a_job_of_a_file_is_not_deleted_here_while_a_node_that_lives_declares_it(client):
    job = Job(id="mine", handler="fine", source="file:x", schedule=every("1h"))
    await client.app.put_jobs([job])
    await client.app.backend.beat(Node(id="theirs", declares=(Declares("file:x"),)), ttl_ms=600_000)

    answer = await client("DELETE", "/api/v2/jobs/mine")

    assert answer.status == 409
    assert "job 'mine' is declared by file:x, whose node is alive" in answer.json["detail"]
    assert "the file with name: x" in answer.json["cure"]
    assert (await client("GET", "/api/v2/jobs/mine")).status == 200
    await client.app.put_jobs([replace(job, declared=False)])
    assert (await client.ok("DELETE", "/api/v2/jobs/mine"))["message"] == "the job is deleted"
    await client.app.put_jobs([job])
    await client.app.backend.beat(Node("theirs"), ttl_ms=0)
    gone = (await client.ok("DELETE", "/api/v2/jobs/mine"))["message"]
    assert gone == "the job is deleted; a node of file:x adds it again when it starts"


async def test_a_job_is_deleted_once(client):
    await client.ok("POST", "/api/v2/jobs", {"id": "home", "handler": "fine"})

    assert (await client.ok("DELETE", "/api/v2/jobs/home"))["job_id"] == "home"
    assert (await client("DELETE", "/api/v2/jobs/home")).status == 404
    assert (await client("GET", "/api/v2/jobs/home")).status == 404
    again = await client("POST", "/api/v2/jobs", {"id": "home", "handler": "fine"})
    assert (again.status, again.json["revision"]) == (201, 2)


async def test_an_id_may_hold_slashes_and_dots(client):
    for name in ("a/b", "edge:1/pause", "..", "why"):
        path = f"/api/v2/jobs/{named(name)}"
        assert (await client("PUT", path, {"handler": "fine"})).status == 201
        assert (await client.ok("GET", path))["id"] == name
        assert (await client.ok("POST", f"{path}/pause"))["job_id"] == name
        assert (await client.ok("GET", path))["state"] == "paused"


async def test_lists_are_found_by_what_jobs_are(client):
    many = [
        {"id": "a", "handler": "fine", "priority": 1, "group": "g", "tags": ["x"], "source_id": "s"},
        {"id": "b", "handler": "fine", "priority": "low", "name": "Front Door", "group": "g"},
        {"id": "c", "url": "https://example.com/x", "source_id": "s", "enabled": False},
        {"id": "d", "handler": "slow", "interval": "1h"},
    ]
    assert (await client.ok("POST", "/api/v2/jobs/batch", {"jobs": many}))["ok"] == 4

    assert await ids(client) == ["a", "b", "c", "d"]
    assert await ids(client, priority="high") == ["a"]
    assert await ids(client, priority=3) == ["b"]
    assert await ids(client, group="g") == ["a", "b"]
    assert await ids(client, tag="x") == ["a"]
    assert await ids(client, source_id="s") == ["a", "c"]
    assert await ids(client, text="Door") == ["b"]
    assert await ids(client, target="example.com:443") == ["c"]
    assert await ids(client, handler="slow") == ["d"]
    assert await ids(client, source="api", group="g", priority="high") == ["a"]


async def test_pages_go_by_cursor_and_by_offset(client):
    many = [{"id": f"job{number:03}", "handler": "fine"} for number in range(25)]
    await client.ok("POST", "/api/v2/jobs/batch", {"jobs": many})
    every_id = [job["id"] for job in many]

    first = await client.ok("GET", "/api/v2/jobs", limit=10)
    assert {key: first[key] for key in ("total", "limit", "offset", "next")} == {
        "total": 25, "limit": 10, "offset": 0, "next": "job009"
    }  # fmt: skip
    second = await client.ok("GET", "/api/v2/jobs", limit=10, cursor=first["next"])
    third = await client.ok("GET", "/api/v2/jobs", limit=10, cursor=second["next"])
    assert [job["id"] for page in (first, second, third) for job in page["jobs"]] == every_id
    assert third["next"] is None
    assert await ids(client, limit=10, offset=20) == every_id[20:]
    assert (await client.ok("GET", "/api/v2/jobs", offset=99))["jobs"] == []
    assert (await client.ok("GET", "/api/v2/jobs", text="job01"))["total"] == 10
    assert (await client.ok("GET", "/api/v2/jobs", text="job01", limit=5))["total"] is None
    assert (await client("GET", "/api/v2/jobs", offset=10_001)).status == 422


async def test_a_batch_answers_each_of_its_jobs(client):
    await client.ok("POST", "/api/v2/jobs", {"id": "there", "handler": "fine"})
    jobs = [{"handler": "fine"}, {"id": "bad", "handler": "fine", "interval": 0}, {"id": "there", "url": "https://a.b"},
            {"id": "there", "handler": "fine"}, {"id": "new", "handler": "nobody"}, {"what": 1}]  # fmt: skip

    answer = await client.ok("POST", "/api/v2/jobs/batch", {"jobs": jobs})

    said = [(item["answer"], item.get("problem", {}).get("status")) for item in answer["items"]]
    assert said == [
        ("ok", None), ("refused", 422), ("refused", 409), ("already", None), ("refused", 422), ("refused", 422)
    ]  # fmt: skip
    assert (answer["ok"], answer["already"], answer["refused"]) == (1, 1, 4)
    over = await client.ok("POST", "/api/v2/jobs/batch", {"jobs": jobs[2:3], "overwrite": True})
    assert over["items"][0]["revision"] == 2
    too_many = {"jobs": [{"handler": "fine"}] * 1_001}
    assert (await client("POST", "/api/v2/jobs/batch", too_many)).status == 422


async def test_states_are_told_and_found():
    async with served() as client:
        for name in ("idle", "busy", "off", "still", "over"):
            body = {"id": name, "handler": "slow" if name == "busy" else "fine", "enabled": name != "off"}
            await client.ok("POST", "/api/v2/jobs", body | ({"schedule_type": "immediate"} if name == "over" else {}))
        await client.ok("POST", "/api/v2/jobs/still/pause", {"reason": "they move", "duration": "5m"})
        run = (await client.ok("POST", "/api/v2/jobs/busy/force-run"))["run"]["id"]

        async def state(name):
            return (await client.ok("GET", f"/api/v2/jobs/{name}"))["state"]

        async def running():
            return await state("busy") == "running"

        async def over():
            return await state("over") == "done"

        await eventually(running, "the job runs")
        await eventually(over, "the once-job has fired and ended")
        assert [await state(name) for name in ("idle", "off", "still")] == ["active", "disabled", "paused"]
        found = {word: await ids(client, state=word) for word in ("active", "running", "disabled", "paused", "done")}
        assert found == {
            "active": ["idle"], "running": ["busy"], "disabled": ["off"], "paused": ["still"], "done": ["over"]
        }  # fmt: skip
        assert await ids(client, status="scheduled") == ["idle"]

        again = await client("POST", "/api/v2/jobs/busy/force-run")
        assert (again.status, again.json["run_id"]) == (409, run)
        assert (await client("POST", "/api/v2/jobs/busy/force-run", {"anyway": True})).status == 202

        cancelled = await client.ok("POST", "/api/v2/jobs/busy/cancel", {"reason": "enough"})
        assert run in cancelled["runs"]

        async def idle():
            return await state("busy") == "active"

        await eventually(idle, "the runs were cancelled")
        shown = await client.ok("GET", f"/api/v2/runs/{run}")
        assert (shown["state"], shown["cancel"]) == ("cancelled", "enough")
        assert (await client.ok("POST", "/api/v2/jobs/still/resume"))["was_paused"]
        assert await state("still") == "active"


async def test_a_forced_run_is_told_and_can_be_watched():
    async with served() as client:
        await client.ok("POST", "/api/v2/jobs", {"id": "home", "handler": "fine", "params": {"word": "a"}})

        answer = await client("POST", "/api/v2/jobs/home/force-run", {"params": {"word": "b"}})
        assert answer.status == 202
        assert {"message", "job_id"} <= set(answer.json)
        run_id = answer.json["run"]["id"]

        async def done():
            run = await client.ok("GET", f"/api/v2/runs/{run_id}")
            return run if run["state"] == "done" else None

        run = await eventually(done, "it ran")
        assert (run["result"], run["cause"], run["params"]) == ({"word": "b"}, "forced", {"word": "b"})
        assert (await client.ok("GET", "/api/v2/jobs/home/runs"))["runs"][0]["id"] == run_id
        assert (await client("GET", "/api/v2/jobs/none/runs")).status == 404
        assert (await client.ok("GET", f"/api/v2/runs/{run_id}/why"))["answer"] == "done"
        assert (await client.ok("GET", "/api/v2/jobs/home/why"))["answer"] == "waits"
        lines = (await client.ok("GET", "/api/v2/audit"))["lines"]
        assert {"put", "run"} <= {line["action"] for line in lines}
        assert {line["actor"] for line in lines} == {"token:admin"}
        assert [line["seq"] for line in lines] == sorted((line["seq"] for line in lines), reverse=True)


async def test_secrets_in_params_are_not_shown(client):
    params = {"word": "plain", "password": "hunter2hunter2"}
    async with served(runs=False) as other:

        @other.app.handler(name="login")
        async def login(ctx, **more): ...

        await other.ok("POST", "/api/v2/jobs", {"id": "x", "handler": "login", "params": params})
        shown = await other("GET", "/api/v2/jobs/x")
        assert shown.json["params"] == {"word": "plain", "password": "***"}
        again = await other("PUT", "/api/v2/jobs/x", shown.json)
        assert again.json["problems"][0]["where"] == "params.password"


async def test_the_owner_of_a_change_is_who_asked(client):
    await client.as_(Role.OPERATOR).ok("POST", "/api/v2/jobs", {"id": "x", "handler": "fine"})

    [line] = (await client.ok("GET", "/api/v2/audit"))["lines"]

    assert (line["actor"], line["action"], line["subject"]) == ("token:operator", "put", "x")


async def test_many_change_one_job_and_each_revision_is_won_once(client):
    await client.ok("PUT", "/api/v2/jobs/x", {"handler": "fine"})

    bodies = [{"handler": "fine", "name": f"n{number}", "revision": 1} for number in range(10)]
    answers = await asyncio.gather(*(client("PUT", "/api/v2/jobs/x", body) for body in bodies))

    assert sorted(answer.status for answer in answers) == [200] + [409] * 9


async def test_many_add_one_job_each_and_each_is_answered_by_itself():
    """They go in common writes; what is wrong with one is nobody else's affair, and of one id there is one."""
    async with served(runs=False) as client:
        bodies = [{"id": f"job{number}", "handler": "fine"} for number in range(70)]
        bodies += [{"id": "same", "handler": "fine", "name": f"n{number}"} for number in range(5)]
        bodies += [{"id": "bad", "handler": "fine", "params": {"wrod": 1}, "interval": "1m"}] * 3

        answers = await asyncio.gather(*(client("POST", "/api/v2/jobs", body) for body in bodies))

        assert [answer.status for answer in answers[:70]] == [201] * 70
        assert [answer.json["id"] for answer in answers[:70]] == [body["id"] for body in bodies[:70]]
        assert sorted(answer.status for answer in answers[70:75]) == [201] + [409] * 4
        assert [answer.status for answer in answers[75:]] == [422] * 3
        assert (await client.ok("GET", "/api/v2/jobs"))["total"] == 71
        lines = (await client.ok("GET", "/api/v2/audit", limit=1000))["lines"]
        assert {line["subject"] for line in lines} >= {body["id"] for body in bodies[:71]}


async def test_whoever_waits_for_a_write_that_fails_is_told_and_the_next_is_not_held_up(monkeypatch):
    async with served(runs=False) as client:
        put_jobs = client.app._store.put_jobs

        async def busy(*_, **__):
            await asyncio.sleep(0.01)
            raise StoreBusy("somebody writes")

        monkeypatch.setattr(client.app._store, "put_jobs", busy)
        bodies = [{"id": f"job{number}", "handler": "fine"} for number in range(50)]
        answers = await asyncio.gather(*(client("POST", "/api/v2/jobs", body) for body in bodies))
        assert {answer.status for answer in answers} == {503}

        monkeypatch.setattr(client.app._store, "put_jobs", put_jobs)
        assert (await client("POST", "/api/v2/jobs", bodies[0])).status == 201


async def test_a_job_of_a_version_that_nobody_serves_says_so_at_once(client):
    """Also a new one: it will not be fired before somebody is there."""
    says = "no node serves version 99: it is neither fired nor run"
    body = {"handler": "fine", "interval": "1h"}
    assert (await client.ok("PUT", "/api/v2/jobs/new", body | {"scheduler_version": 99}))["held"] == says
    assert (await client.ok("POST", "/api/v2/jobs", body | {"id": "too", "scheduler_version": 99}))["held"] == says
    assert (await client.ok("GET", "/api/v2/jobs/new"))["held"] == says
    assert (await client.ok("POST", "/api/v2/jobs", body | {"id": "here"}))["held"] == ""
