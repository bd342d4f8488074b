"""The same idempotency key gives the same answer, and the thing is done once, on whatever node it is asked for."""

import asyncio

import pytest

from pollux.model import NotePut
from pollux.server import idempotency
from pollux.server.auth import Role
from tests.acceptance.api_world import an_app, api_of, served

KEY = {"Idempotency-Key": "order-1"}


@pytest.fixture
async def client():
    async with served(runs=False) as client:
        await client.ok("POST", "/api/v2/jobs", {"id": "home", "handler": "fine"})
        yield client


async def runs(client):
    return [run["id"] for run in (await client.ok("GET", "/api/v2/runs"))["runs"]]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v2/jobs", {"id": "", "handler": "fine"}),
        ("/api/v2/jobs/batch", {"jobs": [{"id": "", "handler": "fine"}]}),
        ("/api/v2/runs", {"id": "", "job_id": "home"}),
        ("/api/v2/runs/batch", {"job_id": "home", "runs": [{"id": ""}]}),
    ],
)
async def test_an_empty_id_is_refused_and_not_made_of_the_key(client, path, body):
    refused = await client("POST", path, body, headers=KEY)
    told = refused.json["items"][0]["problem"] if refused.status == 200 else refused.json
    assert told["status"] == 422
    assert not await runs(client)
    assert (await client.ok("GET", "/api/v2/jobs"))["total"] == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v2/jobs", {"handler": "fine", "name": "a"}),
        ("/api/v2/jobs/batch", {"jobs": [{"handler": "fine"}, {"handler": "fine", "name": "b"}]}),
        ("/api/v2/runs", {"job_id": "home"}),
        ("/api/v2/runs/batch", {"job_id": "home", "runs": [{}, {}]}),
        ("/api/v2/jobs/home/force-run", {"anyway": True}),
    ],
)
async def test_the_second_time_is_the_first_answer(client, path, body):
    first = await client("POST", path, body, headers=KEY)
    before = (await runs(client), (await client.ok("GET", "/api/v2/jobs"))["total"])
    second = await client("POST", path, body, headers=KEY)

    assert first.status in {200, 201, 202}
    assert (second.status, second.body) == (first.status, first.body)
    assert second.headers["idempotent-replayed"] == "true"
    assert second.headers.get("location") == first.headers.get("location")
    assert (await runs(client), (await client.ok("GET", "/api/v2/jobs"))["total"]) == before
    other = await client("POST", path, body, headers={"Idempotency-Key": "order-2"})
    assert other.status == first.status
    assert other.body != first.body


async def test_a_key_is_for_one_body_one_path_and_one_caller(client):
    await client.ok("POST", "/api/v2/runs", {"job_id": "home"}, headers=KEY)

    other_body = await client("POST", "/api/v2/runs", {"job_id": "home", "priority": 1}, headers=KEY)
    assert other_body.status == 422
    assert "new key" in other_body.json["cure"]
    assert (await client("POST", "/api/v2/jobs/home/force-run", {"anyway": True}, headers=KEY)).status == 202
    mine = await client.as_(Role.OPERATOR)("POST", "/api/v2/runs", {"job_id": "home"}, headers=KEY)
    assert "idempotent-replayed" not in mine.headers
    assert len(await runs(client)) == 3


async def test_of_many_at_once_one_is_done_and_all_have_its_answer(client):
    path = "/api/v2/jobs/home/force-run"
    answers = await asyncio.gather(*(client("POST", path, headers=KEY) for _ in range(10)))

    assert {answer.status for answer in answers} == {202}
    assert len({answer.body for answer in answers}) == 1
    assert sorted("idempotent-replayed" in answer.headers for answer in answers) == [False] + [True] * 9
    assert len(await runs(client)) == 1
    lines = (await client.ok("GET", "/api/v2/audit"))["lines"]
    assert [line["action"] for line in lines].count("run") == 1, "whoever waits does nothing"


async def test_two_nodes_keep_the_same_keys(tmp_path):
    store = f"sqlite:///{tmp_path}/pollux.db"
    async with an_app(store, runs=False) as one, an_app(store, runs=False) as other:
        clients = [api_of(one), api_of(other)]
        await clients[0].ok("POST", "/api/v2/jobs", {"id": "home", "handler": "fine"})

        path = "/api/v2/jobs/home/force-run"
        answers = await asyncio.gather(*(client("POST", path, headers=KEY) for client in clients * 3))

        assert len({(answer.status, answer.body) for answer in answers}) == 1
        assert sorted("idempotent-replayed" in answer.headers for answer in answers) == [False] + [True] * 5
        assert len(await runs(clients[0])) == 1
        lines = (await clients[0].ok("GET", "/api/v2/audit"))["lines"]
        assert [line["action"] for line in lines].count("run") == 1, "whoever waits does nothing"


async def test_a_refusal_leaves_the_key_free(client):
    body = {"job_id": "later"}
    assert (await client("POST", "/api/v2/runs", body, headers=KEY)).status == 404
    await client.ok("POST", "/api/v2/jobs", {"id": "later", "handler": "fine"})

    assert (await client("POST", "/api/v2/runs", body, headers=KEY)).status == 201


async def test_a_long_answer_is_kept_whole(client):
    jobs = [{"id": f"{number:0200}", "handler": "fine"} for number in range(1_000)]
    first = await client("POST", "/api/v2/jobs/batch", {"jobs": jobs}, headers=KEY)
    second = await client("POST", "/api/v2/jobs/batch", {"jobs": jobs}, headers=KEY)

    assert len(first.body) > 200_000
    assert second.body == first.body
    assert second.headers["idempotent-replayed"] == "true"


async def test_whoever_takes_over_from_a_dead_node_does_nothing_twice(client):
    """The run was accepted, but the node died before it could keep the answer."""
    first = await client.ok("POST", "/api/v2/runs", {"job_id": "home"}, headers=KEY)
    store = client.app._store
    [note] = [each for each in await store.notes(idempotency.PREFIX) if "#" not in each.key]
    dead = {"digest": note.value["digest"], "until_ms": client.app.operations.now_ms() - 1}
    await store.put_notes([NotePut(note.key, dead)])

    again = await client("POST", "/api/v2/runs", {"job_id": "home"}, headers=KEY)

    assert (again.status, again.json["id"]) == (201, first["id"])
    assert len(await runs(client)) == 1


async def test_a_request_that_is_still_at_work_is_waited_for_and_then_told(client, monkeypatch):
    monkeypatch.setattr(idempotency, "WAIT_MS", 300)
    await client.ok("POST", "/api/v2/runs", {"job_id": "home"}, headers=KEY)
    store = client.app._store
    [note] = [each for each in await store.notes(idempotency.PREFIX) if "#" not in each.key]
    working = {"digest": note.value["digest"], "until_ms": client.app.operations.now_ms() + 60_000}
    await store.put_notes([NotePut(note.key, working)])

    answer = await client("POST", "/api/v2/runs", {"job_id": "home"}, headers=KEY)

    assert (answer.status, answer.json["title"] == "request in progress") == (409, True)


@pytest.mark.parametrize("key", ["", "x" * 129, "caf\u00e9", "tab\there"])
async def test_a_key_that_cannot_be_used_is_refused(client, key):
    answer = await client("POST", "/api/v2/runs", {"job_id": "home"}, headers={"Idempotency-Key": key})

    assert answer.status == 422
    assert await runs(client) == []


async def test_a_forced_run_is_not_forced_again_although_it_is_live(client):
    first = await client("POST", "/api/v2/jobs/home/force-run", headers=KEY)
    store = client.app._store
    for note in await store.notes(idempotency.PREFIX):
        await store.put_notes([NotePut(note.key)])  # the answer was lost with the node

    again = await client("POST", "/api/v2/jobs/home/force-run", headers=KEY)

    assert (again.status, again.json["run"]["id"]) == (202, first.json["run"]["id"])
    assert len(await runs(client)) == 1
