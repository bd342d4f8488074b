"""Results of requests: the API has what became of them, and the audit log who sent them."""

import json

import pytest

from pollux import Pollux
from pollux.client.rpc_codec import PATH, VERSION_HEADER
from pollux.model import NotePut
from pollux.server.auth import Role
from pollux.server.idempotency import PREFIX
from pollux.server.routes.openapi import WELCOMES
from pollux.version import __version__
from tests.acceptance.api_world import api_of, eventually, named, served
from tests.acceptance.strangers import world
from tests.acceptance.test_api_security import INSIDE

RUNS, JOBS = "/api/v2/runs", "/api/v2/jobs"


@pytest.fixture
async def client():
    async with served() as client:
        jobs = [{"id": name, "handler": handler} for name, handler in
                (("fine", "fine"), ("bad", "refuse"), ("slow", "slow"), ("page", "http"))]  # fmt: skip
        await client.ok("POST", f"{JOBS}/batch", {"jobs": jobs})
        yield client


async def audited(client, action):
    lines = (await client.ok("GET", "/api/v2/audit"))["lines"]
    return [(line["actor"], line["subject"], line["detail"]) for line in reversed(lines) if line["action"] == action]


async def state_of(client, run_id, state):
    async def look():
        return (await client.ok("GET", f"{RUNS}/{named(run_id)}"))["state"] == state

    await eventually(look, f"run {run_id} is {state}")


# the same run twice


async def test_a_dead_run_that_is_asked_for_again_says_what_was_dropped_and_how_to_revive_it(client):
    first = await client("POST", RUNS, {"job_id": "bad", "id": "r/1"})
    assert (first.status, first.json["message"]) == (201, "the run is accepted")
    await state_of(client, "r/1", "dead")
    await client.ok("PUT", f"{JOBS}/bad", {"handler": "fine"})
    again = await client("POST", RUNS, {"job_id": "bad", "id": "r/1", "params": {"word": "other"}, "priority": 1})
    assert (again.status, again.json["state"], again.json["params"]) == (200, "dead", None)
    assert again.json["message"] == (
        "run r/1 exists already and is dead; its params and priority were kept, and what was sent now was dropped; "
        "to run it again: POST /api/v2/dead-letters/r%2F1/revive"
    )
    [cure] = [word for word in again.json["message"].split() if word.startswith("/api")]
    assert (await client.ok("POST", cure))["revived"] == 1


async def test_a_batch_says_of_each_whether_it_was_there_already(client):
    await client.ok("POST", RUNS, {"job_id": "fine", "id": "r1", "delay": "1h"})
    await client.ok("POST", RUNS, {"job_id": "slow", "id": "r2", "delay": "1h"})
    asked = [{"id": "r1", "params": {"word": "x"}}, {"id": "new", "delay": "1h"}, {"id": "r2"}, {"job_id": "none"}]
    answer = await client.ok("POST", f"{RUNS}/batch", {"job_id": "fine", "runs": asked})
    assert (answer["ok"], answer["already"], answer["refused"]) == (1, 1, 2)
    already, new, taken, _ = answer["items"]
    assert (already["answer"], already["id"]) == ("already", "r1")
    assert already["message"] == (
        "run r1 exists already and is ready; its params were kept, and what was sent now was dropped"
    )
    assert new == {"answer": "ok", "id": "new"}
    assert (taken["problem"]["status"], taken["problem"]["cure"]) == (409, "use another id")
    assert "run r2 is one of job 'slow', not of 'fine'" in taken["problem"]["detail"]


async def test_a_batch_that_a_dead_node_left_half_done_is_answered_as_if_it_were_new(client):
    """The runs are there, their ids are made of the key: whoever sends it again must not be told of strangers."""
    body, headers = {"runs": [{"job_id": "fine", "delay": "1h"}]}, {"Idempotency-Key": "k"}
    first = await client.ok("POST", f"{RUNS}/batch", body, headers=headers)
    store = client.app._store
    [note] = [each for each in await store.notes(PREFIX) if "#" not in each.key]
    dead = {"digest": note.value["digest"], "until_ms": client.app.operations.now_ms() - 1}
    await store.put_notes([NotePut(note.key, dead)])
    assert await client.ok("POST", f"{RUNS}/batch", body, headers=headers) == first


# on record


async def test_whoever_asks_for_a_run_is_on_record_once(client):
    params = {"url": "https://example.com/", "headers": {"X-Api-Key": "geheim-0815"}}
    await client.ok("POST", RUNS, {"job_id": "page", "params": params, "id": "r1", "delay": "1h"})
    await client.ok("POST", RUNS, {"job_id": "page", "params": params, "id": "r1"})  # nothing new
    asked = {"job_id": "fine", "runs": [{"delay": "1h"} for _ in range(30)] + [{"x": 1}, {"job_id": "none"}]}
    answer = await client.as_(Role.OPERATOR).ok("POST", f"{RUNS}/batch", asked)
    first, batch = await audited(client, "enqueue")
    assert first == (
        "token:admin",
        "page",
        'run r1; params.url https://example.com/; params.headers {"X-Api-Key":"***"}',
    )
    ids = [item["id"] for item in answer["items"][:5]]
    assert batch == ("token:operator", "fine", f"30 runs: {', '.join(ids)}, ...")


async def test_several_jobs_in_one_batch_are_counted(client):
    runs = [{"job_id": "fine", "delay": "1h"}, {"job_id": "slow", "delay": "1h"}]
    await client.ok("POST", f"{RUNS}/batch", {"runs": runs})
    [(_, subject, detail)] = await audited(client, "enqueue")
    assert (subject, detail.partition(":")[0]) == ("2 jobs", "2 runs")


async def test_what_changed_nothing_leaves_no_line(client):
    before = await client.ok("GET", "/api/v2/audit")
    assert (await client("DELETE", f"{JOBS}/none")).status == 404
    await client.ok("POST", f"{JOBS}/fine/cancel")
    await client.ok("POST", "/api/v2/dead-letters/revive", {"all": True})
    await client.ok("POST", "/api/v2/dead-letters/drop", {"all": True})
    await client.ok("POST", "/api/v2/dead-letters/revive", {"ids": ["none"]})
    await client.ok("POST", f"{RUNS}/batch", {"runs": [{"job_id": "none"}]})
    assert await client.ok("GET", "/api/v2/audit") == before


async def test_what_was_done_to_runs_by_id_names_them(client):
    run = await client.ok("POST", RUNS, {"job_id": "bad"})
    await state_of(client, run["id"], "dead")
    late = await client.ok("POST", RUNS, {"job_id": "fine", "delay": "1h"})
    await client.ok("POST", f"{JOBS}/fine/cancel", {"reason": "enough"})
    await client.ok("POST", f"{RUNS}/{late['id']}/cancel")  # it is over
    await client.ok("POST", f"/api/v2/dead-letters/{run['id']}/revive")
    assert await audited(client, "cancel") == [("token:admin", "fine", "enough")]
    assert await audited(client, "revive") == [("token:admin", "dead letters", f"run {run['id']}")]


@pytest.mark.parametrize(("actor", "is_told"), [(None, False), ("cli:ann", True)])
async def test_what_a_program_asks_for_by_itself_is_on_record_only_for_a_named_actor(actor, is_told):
    app = Pollux("memory://", actor=actor)
    app.handler(lambda: None, name="h")
    await app.open()
    try:
        job = app.add("h", id="j")
        await app.put_jobs([job])
        await app.enqueue("j")
        await app.enqueue_many("j", [None] * 3)
        own = [line.action for line in (await app.operations.audit.list_audit()).lines].count("enqueue")
        await app.operations.as_actor("cli:bob").runs.enqueue("j")
        last = (await app.operations.audit.list_audit(newest=True, limit=1)).lines[-1]
    finally:
        await app.close()
    assert own == (2 if is_told else 0)
    assert (last.actor, last.action, last.subject) == ("cli:bob", "enqueue", "j")


# words of this face


async def test_a_job_that_runs_already_is_answered_with_what_to_send(client):
    run = (await client.ok("POST", f"{JOBS}/slow/force-run"))["run"]
    refused = await client("POST", f"{JOBS}/slow/force-run")
    assert (refused.status, refused.json["run_id"]) == (409, run["id"])
    assert refused.json["cure"] == 'wait for it, cancel it, or run the job anyway: send {"anyway": true}'
    assert "anyway" not in refused.json["detail"]
    assert (await client("POST", f"{JOBS}/slow/force-run", {"anyway": True})).status == 202
    cancelled = await client.ok("POST", f"{JOBS}/slow/cancel")
    assert cancelled["message"] == "2 runs are cancelled or requested to stop"


async def test_a_cure_is_said_once(client):
    for path in (f"{JOBS}/none", f"{RUNS}/none", f"{RUNS}/none/why", "/api/v2/nothing"):
        problem = (await client("GET", path)).json
        assert problem["cure"] not in problem["detail"], path
        assert problem["cure"]
    assert "history.age" in (await client("GET", f"{RUNS}/none")).json["cure"], "it may have been there"


@pytest.mark.parametrize(
    ("method", "path", "body", "where"),
    [
        ("GET", f"{RUNS}?since=noon", None, "since"),
        ("GET", "/api/v2/dead-letters?since=noon", None, "since"),
        ("GET", "/api/v2/runs?cursor=past:-1", None, "cursor"),
        ("GET", "/api/v2/dead-letters?cursor=past:-1", None, "cursor"),
        ("GET", "/api/v2/jobs/fine/runs?cursor=past:-1", None, "cursor"),
        ("GET", "/api/v2/scheduler/plan?window=soon", None, "window"),
        ("GET", "/api/v2/scheduler/plan?since=soon", None, "since"),
        ("GET", "/api/v2/scheduler/plan?from=soon", None, "from"),
        ("GET", "/api/v2/scheduler/plan?from=1970-01-01T00:00:00Z", None, "from"),
        ("GET", "/api/v2/scheduler/plan?window=9999d", None, "window"),
        ("POST", JOBS, [1], "body"),
        ("POST", "/api/v2/dead-letters/revive", {}, "body"),
        ("POST", "/api/v2/dead-letters/revive", {"since": "noon"}, "since"),
        ("POST", "/api/v2/stops", {}, "body"),
        ("DELETE", "/api/v2/stops", None, "query"),
        ("POST", "/api/v2/stops", {"group": "g", "duration": "soon"}, "duration"),
        ("POST", f"{JOBS}/fine/pause", {"duration": "soon"}, "duration"),
        ("POST", RUNS, {"job_id": "fine", "delay": "soon"}, "delay"),
        ("POST", RUNS, {"job_id": "fine", "at": "noon"}, "at"),
        ("POST", RUNS, {"job_id": "fine", "at": "2099-01-01T00:00:00Z", "delay": "1s"}, "delay"),
        ("POST", RUNS, {"job_id": "fine", "params": {"wrod": 1}}, "params"),
        ("POST", RUNS, {"job_id": "fine", "params": {"word": "${env:HOME}"}}, "params.word"),
        ("POST", RUNS, {"job_id": "page", "params": {"url": "ftp://x/"}}, "params.url"),
        ("POST", f"{JOBS}/fine/force-run", {"params": {"wrod": 1}}, "params"),
        ("POST", "/api/v2/tokens", {"role": "viewer", "expires": "soon"}, "expires"),
        ("PUT", "/api/v2/scheduler/settings/pool.seat", {"value": 5}, "pool.seat"),
        ("DELETE", "/api/v2/scheduler/settings/pool.seat", None, "pool.seat"),
        ("PUT", "/api/v2/scheduler/settings/store", {"value": "memory://"}, "store"),
        ("PUT", "/api/v2/scheduler/settings/pool.seats", {"value": "ten"}, "pool.seats"),
        ("POST", "/api/v2/scheduler/reload", {}, "config"),
        ("GET", "/api/v2/scheduler/file-versions", None, "config"),
    ],
    ids=str,
)  # fmt: skip
async def test_whatever_is_wrong_has_its_place(client, method, path, body, where):
    answer = await client(method, path, body)
    assert answer.status == 422
    assert [problem["where"] for problem in answer.json["problems"]] == [where]
    assert all(problem["what"] and problem["cure"] for problem in answer.json["problems"])


async def test_attempts_are_counted_as_the_handler_counts_them():
    seen = []
    async with served() as client:
        app = client.app

        async def stubborn(ctx):
            seen.append(ctx.attempt)
            if ctx.attempt < 2:
                raise RuntimeError("not yet")

        app._registry.add("stubborn", stubborn)
        await client.ok("POST", JOBS, {"id": "j", "handler": "stubborn", "retry": {"attempts": 3, "base": "1ms"}})
        run = await client.ok("POST", RUNS, {"job_id": "j"})
        assert run["attempt"] == 1
        await state_of(client, run["id"], "done")
        assert (await client.ok("GET", f"{RUNS}/{run['id']}"))["attempt"] == 2 == seen[-1]


# where nobody may go


async def test_a_run_by_api_brings_no_address_inside(client):
    """Refused at once, single, in a batch, by force and by a command of ours; a public one is let through."""
    outside = {"url": "https://example.com/", "timeout": "1s"}
    for url in INSIDE:
        params = {"url": url}
        said = await client("POST", RUNS, {"job_id": "page", "params": params})
        assert (said.status, said.json["problems"][0]["where"]) == (422, "params.url"), url
        assert said.json["cure"] == "name the URL in a job of a file or code, or allow its network"
        assert (await client("POST", f"{JOBS}/page/force-run", {"params": params})).status == 422
        for verb, given in (("accept", params), ("run_now", params), ("enqueue_many", [params])):
            asked = {"job": "page", "params": given}
            told = await client("POST", f"{PATH}/{verb}", asked, headers={VERSION_HEADER: __version__})
            assert (told.status, told.json["detail"]) == (422, said.json["detail"]), (verb, url)
    batch = await client.ok("POST", f"{RUNS}/batch", {"job_id": "page", "runs": [
        {"params": {"url": INSIDE[0]}}, {"params": outside, "delay": "1h"}]})  # fmt: skip
    assert (batch["ok"], batch["refused"]) == (1, 1)
    assert "127.0.0.1 is not a public address" in batch["items"][0]["problem"]["detail"]


async def test_an_allowed_network_may_come_with_a_run():
    async with served(http_allow_networks=["10.0.0.0/8"], runs=False) as client:
        await client.ok("POST", JOBS, {"id": "page", "handler": "http"})
        ok = await client("POST", RUNS, {"job_id": "page", "params": {"url": "http://10.1.2.3/"}})
        assert ok.status == 201


# whoever looks here first


@pytest.mark.parametrize("path", WELCOMES)
async def test_the_front_door_says_where_to_read_on_and_nothing_else(path):
    async with world() as api:
        for_programs = await api.ask(path)
        page = await api.ask(path, headers={"Accept": "text/html,application/xhtml+xml;q=0.9"})
    assert (for_programs.status, page.status) == (200, 200)
    assert json.loads(for_programs.body)["docs"] == "/api/v2/docs"
    assert "pollux token --curl" in json.loads(for_programs.body)["token"]
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b'<a href="/api/v2/docs">' in page.body
    assert b"pollux token --curl" in page.body
    assert b"a polling and job scheduler" in page.body
    for command in (b"pollux top", b"pollux jobs", b"pollux health", b"pollux why"):
        assert command in page.body
    assert b"there is no dashboard yet" in page.body
    assert set(json.loads(for_programs.body)) == {"message", "docs", "openapi", "token"}
    assert all(__version__.encode() not in body for body in (for_programs.body, page.body))


async def test_the_front_door_changes_nothing_and_is_counted_like_any_stranger():
    app = Pollux("memory://")
    await app.open()
    stranger = api_of(app).as_(None)
    try:
        assert (await stranger("POST", "/")).status == 405
        assert (await stranger("GET", "/api/v2/nothing")).status == 401
    finally:
        await app.close()


async def test_a_refusal_about_a_header_can_be_read_and_shows_no_value(client):
    """What stands behind `Authorization:` is hidden wherever it is shown; here that would be the reason."""
    params = {"url": "http://example.com/", "headers": {"Authorization": "Bearer swordfish-9000"}}
    answer = await client("POST", JOBS, {"id": "token", "handler": "http", "params": params})
    told = answer.json
    assert answer.status == 422, told
    [problem] = told["problems"]
    assert problem["where"] in told["detail"]
    assert problem["what"] in told["detail"]
    assert "***" not in told["detail"]
    assert "swordfish" not in json.dumps(told)
