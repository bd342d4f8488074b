"""Runs and dead letters over HTTP, and how the scheduler is steered by it."""

import pytest

from pollux.cli.runs import FAILED, STATES
from pollux.model import NotePut, RunState
from pollux.server.routes.health import HealthView, WorkersView
from pollux.server.schemas.reading import fields
from pollux.server.schemas.runs import RunQuery, run_filter_of
from pollux.store.contract import RunFilter
from tests.acceptance.api_world import eventually, named, served


@pytest.fixture
async def client():
    async with served() as client:
        await client.ok("POST", "/api/v2/jobs/batch", {"jobs": [
            {"id": "fine", "handler": "fine"}, {"id": "bad", "handler": "refuse"}, {"id": "slow", "handler": "slow"}
        ]})  # fmt: skip
        yield client


async def ended(client, run_id, state):
    async def look():
        run = await client.ok("GET", f"/api/v2/runs/{named(run_id)}")
        return run if run["state"] == state else None

    return await eventually(look, f"run {run_id} is {state}")


async def test_a_run_is_asked_for_and_done(client):
    answer = await client(
        "POST", "/api/v2/runs", {"job_id": "fine", "params": {"word": "x"}, "id": "r/1", "priority": 1}
    )

    assert answer.status == 201
    assert answer.headers["location"] == "/api/v2/runs/r%2F1"
    run = await ended(client, "r/1", "done")
    assert (run["job_id"], run["result"], run["priority"], run["failed"]) == ("fine", {"word": "x"}, 1, False)
    again = await client.ok("POST", "/api/v2/runs", {"job_id": "fine", "id": "r/1"})
    assert again["state"] == "done"


async def test_a_run_may_come_later_and_be_cancelled(client):
    run = await client.ok("POST", "/api/v2/runs", {"job_id": "fine", "delay": "1h", "key": "only"})

    taken = await client("POST", "/api/v2/runs", {"job_id": "fine", "key": "only"})
    assert taken.status == 409
    assert run["id"] in taken.json["detail"]
    assert (await client.ok("GET", "/api/v2/runs", state="ready", job_id="fine"))["runs"] == []
    [found] = (await client.ok("GET", "/api/v2/runs", state="scheduled", job_id="fine"))["runs"]
    assert (found["id"], found["state"], run["state"]) == (run["id"], "scheduled", "scheduled")
    assert "its time comes in" in (await client.ok("GET", f"/api/v2/runs/{run['id']}/why"))["reason"]
    assert (await client.ok("POST", f"/api/v2/runs/{run['id']}/cancel"))["answer"] == "ok"
    assert (await client.ok("GET", f"/api/v2/runs/{run['id']}"))["state"] == "cancelled"
    assert "has ended already" in (await client.ok("POST", f"/api/v2/runs/{run['id']}/cancel"))["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"job_id": "none"}, 404),
        ({"job_id": "fine", "params": {"wrod": 1}}, 422),
        ({"job_id": "fine", "at": "tomorrow"}, 422),
        ({"job_id": "fine", "at": "2099-01-01T00:00:00Z", "delay": "1s"}, 422),
        ({"job_id": "fine", "priority": 9}, 422),
        ({"job_id": "fine", "id": "no spaces"}, 422),
        ({"job_id": "fine", "params": {"word": "${env:HOME}"}}, 422),
        ({}, 422),
    ],
)
async def test_what_cannot_be_a_run_is_refused(client, body, status):
    answer = await client("POST", "/api/v2/runs", body)

    assert answer.status == status
    assert answer.json["cure"]


async def test_a_batch_of_runs_answers_each(client):
    runs = [{"params": {"word": str(number)}} for number in range(50)]
    answer = await client.ok(
        "POST", "/api/v2/runs/batch", {"job_id": "fine", "runs": [*runs, {"job_id": "none"}, {"x": 1}]}
    )

    assert (answer["ok"], answer["refused"]) == (50, 2)
    assert [item["problem"]["status"] for item in answer["items"][50:]] == [404, 422]
    for item in answer["items"][:50]:
        await ended(client, item["id"], "done")


async def test_runs_are_listed_by_page_and_filter(client):
    made = [(await client.ok("POST", "/api/v2/runs", {"job_id": "fine"}))["id"] for _ in range(7)]
    bad = (await client.ok("POST", "/api/v2/runs", {"job_id": "bad"}))["id"]
    for run_id in made:
        await ended(client, run_id, "done")
    await ended(client, bad, "dead")

    seen, cursor = [], {}
    while True:
        page = await client.ok("GET", "/api/v2/runs", limit=3, state="done", **cursor)
        seen += [run["id"] for run in page["runs"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert sorted(seen) == sorted(made)
    assert [run["id"] for run in (await client.ok("GET", "/api/v2/runs", failed="true"))["runs"]] == [bad]
    assert (await client.ok("GET", "/api/v2/runs", since="2099-01-01T00:00:00Z"))["runs"] == []
    for cursor in ("x", "live:1", "past:9" * 40, "live:99999999999999999999:x"):
        assert (await client("GET", "/api/v2/runs", cursor=cursor)).status == 422


async def test_dead_letters_are_listed_shown_revived_and_dropped(client):
    dead = [(await client.ok("POST", "/api/v2/runs", {"job_id": "bad"}))["id"] for _ in range(4)]
    fine = (await client.ok("POST", "/api/v2/runs", {"job_id": "fine"}))["id"]
    for run_id in dead:
        await ended(client, run_id, "dead")
    await ended(client, fine, "done")

    listed = await client.ok("GET", "/api/v2/dead-letters")
    assert {run["id"] for run in listed["dead_letters"]} == set(dead)
    assert listed["total"] == 4
    letter = await client.ok("GET", f"/api/v2/dead-letters/{dead[0]}")
    assert letter["error"].startswith("Permanent: it never works")
    assert "raise Permanent" in letter["traceback"][-1], "the last frame of the user's code, with its source"
    shown = await client.ok("GET", f"/api/v2/runs/{dead[0]}")
    assert shown["traceback"] == letter["traceback"]
    assert (await client("GET", f"/api/v2/dead-letters/{fine}")).status == 409
    assert (await client.ok("GET", "/api/v2/dead-letters", error="never", job_id="bad"))["total"] == 4
    assert (await client.ok("GET", "/api/v2/dead-letters", error="other"))["total"] == 0

    await client.ok("PUT", "/api/v2/jobs/bad", {"handler": "fine"})
    assert (await client.ok("POST", f"/api/v2/dead-letters/{dead[0]}/revive"))["revived"] == 1
    await ended(client, dead[0], "done")
    assert (await client("POST", f"/api/v2/dead-letters/{dead[0]}/revive")).status == 409
    by_ids = await client.ok("POST", "/api/v2/dead-letters/revive", {"ids": [dead[1], fine]})
    assert (by_ids["revived"], by_ids["refused"]) == (1, 1)
    assert (await client.ok("DELETE", f"/api/v2/dead-letters/{dead[2]}"))["dropped"] == 1
    assert (await client("DELETE", f"/api/v2/dead-letters/{fine}")).status == 409
    assert (await client("POST", "/api/v2/dead-letters/drop", {"ids": [fine]})).status == 409
    by_filter = await client.ok("POST", "/api/v2/dead-letters/revive", {"job_id": "bad", "error": "never"})
    assert by_filter["revived"] == 1
    await ended(client, dead[3], "done")
    assert (await client.ok("POST", "/api/v2/dead-letters/drop", {"all": True}))["dropped"] == 0


@pytest.mark.parametrize("verb", ["revive", "drop"])
@pytest.mark.parametrize("body", [{}, {"ids": [], "all": True}, {"all": True, "job_id": "x"}])
async def test_nobody_means_all_dead_letters_by_saying_nothing(client, verb, body):
    assert (await client("POST", f"/api/v2/dead-letters/{verb}", body)).status == 422


async def test_drained_workers_claim_nothing_until_they_are_resumed(client):
    await client.ok("POST", "/api/v2/scheduler/drain", {"reason": "deploy"})
    run = (await client.ok("POST", "/api/v2/runs", {"job_id": "fine"}))["id"]

    async def draining():
        return (await client.ok("GET", "/api/v2/scheduler/workers"))["draining"]

    await eventually(draining, "the workers are told as draining")
    assert (await client.ok("GET", f"/api/v2/runs/{run}"))["state"] == "ready"
    assert [stop["kind"] for stop in (await client.ok("GET", "/api/v2/stops"))["stops"]] == ["claims"]
    assert (await client.ok("POST", "/api/v2/scheduler/resume"))["draining"] is False
    await ended(client, run, "done")
    assert (await client("POST", "/api/v2/scheduler/drain?node=nobody")).status == 404


async def test_a_turn_now_says_what_it_did(client):
    async def led():
        told = await client.ok("POST", "/api/v2/scheduler/trigger")
        return told if told["answered"] else None

    told = await eventually(led, "the leader has answered")
    assert told["leaders"] == told["answered"] == [client.app.node_id]
    assert told["message"] == f"{told['fired']} fired, {told['released']} released, {told['skipped']} skipped"


async def test_settings_are_changed_shown_and_unset(client):
    path = "/api/v2/scheduler/settings/pool.seats"
    assert (await client.ok("PUT", path, {"value": 7}))["value"] == "7"

    [setting] = (await client.ok("GET", "/api/v2/scheduler/settings"))["settings"]
    assert (setting["path"], setting["by"]) == ("pool.seats", "token:admin")

    async def seated():
        return (await client.ok("GET", "/api/v2/scheduler/workers"))["total"] == 7

    await eventually(seated, "the node has seven seats")
    assert (await client.ok("DELETE", path))["path"] == "pool.seats"
    assert (await client("DELETE", path)).status == 404
    assert (await client("PUT", "/api/v2/scheduler/settings/store", {"value": "x"})).status == 422
    assert (await client("PUT", path, {"value": "many"})).status == 422


async def test_pauses_of_groups_and_of_everything(client):
    await client.ok("PUT", "/api/v2/jobs/fine", {"handler": "fine", "group": "edge"})
    made = await client("POST", "/api/v2/stops", {"group": "edge", "reason": "they move", "duration": "1h"})

    assert (made.status, made.json["kind"], made.json["name"], made.json["hint"]) == (201, "group", "edge", "")
    assert (await client.ok("GET", "/api/v2/jobs/fine"))["state"] == "paused"
    assert (await client.ok("DELETE", "/api/v2/stops", group="edge"))["was_paused"] is True
    assert (await client.ok("DELETE", "/api/v2/stops", group="edge"))["was_paused"] is False
    await client.ok("POST", "/api/v2/stops", {"everything": True})
    assert (await client.ok("GET", "/api/v2/jobs/slow"))["state"] == "paused"
    await client.ok("DELETE", "/api/v2/stops?everything=true")
    assert (await client("POST", "/api/v2/stops", {})).status == 422
    assert (await client("POST", "/api/v2/stops", {"group": "a", "target": "b"})).status == 422


@pytest.mark.parametrize("kind", ["group", "target"])
async def test_a_pause_of_something_that_no_job_has_says_so(client, kind):
    made = await client.ok("POST", "/api/v2/stops", {kind: "egde"})
    assert made["hint"] == f"no job has {kind} egde now; the pause applies to the first one that has it"


async def test_breakers_are_listed_and_reset(client):
    """There are none yet: breakers come later, and write these notes."""
    assert (await client.ok("GET", "/api/v2/breakers"))["breakers"] == []
    await client.app._store.put_notes([NotePut("breaker:a.example:443", {"state": "open", "failures": 3})])

    [breaker] = (await client.ok("GET", "/api/v2/breakers"))["breakers"]
    assert (breaker["name"], breaker["state"]) == ("a.example:443", "open")
    assert (await client("POST", "/api/v2/breakers/a.example/reset")).status == 404
    await client.ok("POST", "/api/v2/breakers/a.example%3A443/reset")
    assert (await client.ok("GET", "/api/v2/breakers"))["breakers"] == []


async def test_what_lies_ahead_is_told(client):
    await client.ok("POST", "/api/v2/jobs", {"id": "hourly", "handler": "fine", "cron": "0 * * * *", "group": "g"})

    plan = await client.ok("GET", "/api/v2/scheduler/plan", window="24h")

    assert (plan["total"], plan["jobs"], len(plan["firings"])) == (24, 1, 24)
    assert sum(plan["buckets"]) == 24
    assert (await client.ok("GET", "/api/v2/scheduler/plan", window="24h", group="other"))["total"] == 0
    assert (await client.ok("GET", "/api/v2/scheduler/plan", window="24h", limit=2))["firings"][1]["job_id"] == "hourly"
    for wrong in ({"window": "soon"}, {"window": "0s"}, {"window": "9999d"}, {"from": "1970-01-01T00:00:00Z"}):
        assert (await client("GET", "/api/v2/scheduler/plan", **wrong)).status == 422


async def test_health_and_workers_have_the_fields_that_older_clients_read(client):
    health = await client.ok("GET", "/api/v2/scheduler/health")
    workers = await client.ok("GET", "/api/v2/scheduler/workers")

    assert {
        "status", "running", "is_leader", "workers_active", "workers_busy", "queue_depth", "cron_jobs_count",
        "last_check_at", "uptime_seconds", "circuit_breaker_state", "updatedAt", "enabled", "queue", "deadLetter",
        "breakers", "staleness", "instances", "findings",
    } <= set(health)  # fmt: skip
    assert set(health["deadLetter"]) == {"count", "tasks"}
    assert {"total", "active", "idle", "draining", "workers", "queue_size"} <= set(workers)
    assert set(health) == {field.name for field in fields(HealthView)}, "the description has every field"
    assert set(workers) == {field.name for field in fields(WorkersView)}
    assert (workers["total"], workers["draining"]) == (4, False)


async def test_metrics_are_told_as_text_and_as_json(client):
    text = await client("GET", "/metrics")
    newer = await client("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    told = await client.ok("GET", "/api/v2/scheduler/metrics")

    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert newer.headers["content-type"].startswith("application/openmetrics-text")
    assert b"pollux_scheduler_worker_pool_size 4.0" in text.body
    [family] = [each for each in told["metrics"] if each["name"] == "pollux_scheduler_worker_pool_size"]
    assert family["samples"][0]["value"] == 4.0


async def test_every_word_of_the_state_column_is_accepted_as_by_the_command(client):
    """`failed` is what the column prints of a run that is done and failed."""
    for word in (*STATES, FAILED):
        assert (await client("GET", "/api/v2/runs", state=word)).status == 200, word
    assert run_filter_of(RunQuery(state=FAILED)) == RunFilter(states=(RunState.DONE,), failed=True)
    refused = await client("GET", "/api/v2/runs", state=FAILED, failed="false")
    assert (refused.status, "contradicts failed=false" in str(refused.json)) == (422, True)
