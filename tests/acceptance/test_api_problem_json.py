"""What the API says when it cannot: always problem+json, always with a cure, never a traceback."""

import json
import logging

import pytest

from pollux.errors import StoreBusy, StoreTimeout
from pollux.server.auth import Role
from tests.acceptance.api_world import served


@pytest.fixture
async def client():
    async with served(runs=False) as client:
        yield client


def is_problem(answer, status):
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["status"] == status
    assert answer.json["title"]
    assert answer.json["cure"]
    return answer.json


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/api/v2/job", "/api/v2/jobs"),
        ("/api/v2/scheduler/helth", "/api/v2/scheduler/health"),
        ("/api/v2/jobs/", "/api/v2/jobs"),
        ("/metric", "/metrics"),
        ("/nothing/like/it", "/api/v2/docs"),
        ("/api/v2/%6aobs", "/api/v2/jobs"),
        ("/%00", "/api/v2/docs"),
    ],
)
async def test_a_path_that_is_not_there_is_answered_with_one_that_is(client, path, near):
    assert near in is_problem(await client("GET", path), 404)["cure"]


async def test_a_method_that_a_path_does_not_take_is_answered_with_those_it_does(client):
    answer = await client("PATCH", "/api/v2/jobs/x")

    is_problem(answer, 405)
    assert answer.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"
    options = await client("OPTIONS", "/api/v2/jobs/x")
    assert (options.status, options.headers["allow"], options.body) == (204, answer.headers["allow"], b"")


async def test_a_look_has_the_headers_of_the_answer_and_no_body(client):
    got, looked = await client("GET", "/api/v2/nodes"), await client("HEAD", "/api/v2/nodes")

    assert (looked.status, looked.body) == (200, b"")
    assert abs(int(looked.headers["content-length"]) - len(got.body)) < 10  # the time in it may be longer
    assert (await client("HEAD", "/api/v2/jobs/none")).status == 404


@pytest.mark.parametrize(
    ("data", "status", "word"),
    [
        (b"", 400, "invalid JSON"),
        (b"{", 400, "invalid JSON"),
        (b'{"id": }', 400, "invalid JSON"),
        (b"source_id=uuid&url=x", 400, "invalid JSON"),
        (b"\xff\xfe{\x00}\x00", 400, "invalid JSON"),
        (b'{"handler": NaN}', 400, "invalid JSON"),
        (b'{"handler": -Infinity}', 400, "invalid JSON"),
        (b'{"handler": "fine", "handler": "fine"}', 400, "duplicate key"),
        (b'{"params": {"a": 1, "a": 2}}', 400, "duplicate key"),
        (b'{"params": {"a": 9223372036854775808}}', 422, "out of range"),
        (b'{"params": {"a": ' + b"9" * 5_000 + b"}}", 422, "out of range"),
        (b'{"params": {"a": 1e999}}', 422, "out of range"),
        (b'{"name": "\\ud800"}', 400, "invalid JSON"),
        (b'{"params": ' + b'{"a":' * 40 + b"1" + b"}" * 41, 400, "too deep"),
        (b"[" * 200_000, 400, "too deep"),
        (b'{"name": "' + b"x" * 1_100_000 + b'"}', 413, "too large"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused_in_words(client, data, status, word):
    problem = is_problem(await client("POST", "/api/v2/jobs", data=data), status)

    assert word in problem["title"]
    assert len(json.dumps(problem)) < 2_000


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "", "application/json; charset=x"])
async def test_a_body_is_read_as_json_whatever_its_content_type_says(client, kind):
    answer = await client("POST", "/api/v2/jobs", {"handler": "fine"}, headers={"Content-Type": kind})

    assert answer.status == 201


async def test_a_byte_order_mark_is_passed_over(client):
    assert (await client("POST", "/api/v2/jobs", data=b'\xef\xbb\xbf{"handler": "fine"}')).status == 201


async def test_an_error_that_nobody_expected_has_an_id_that_is_in_the_log(client, monkeypatch, caplog):
    async def broken(*_, **__):
        raise RuntimeError("the secret plan")

    monkeypatch.setattr(type(client.app.operations.status), "nodes", broken)
    with caplog.at_level(logging.ERROR, "pollux"):
        answer = await client("GET", "/api/v2/nodes")

    problem = is_problem(answer, 500)
    assert "secret" not in answer.body.decode()
    assert "Traceback" not in answer.body.decode()
    assert problem["id"] in problem["cure"]
    assert problem["id"] in caplog.text
    assert "the secret plan" in caplog.text


@pytest.mark.parametrize("error", [StoreBusy("it is locked"), StoreTimeout("no answer in 10s")])
async def test_a_store_that_does_not_answer_is_said_so(client, monkeypatch, error):
    async def broken(*_, **__):
        raise error

    monkeypatch.setattr(type(client.app.operations.status), "nodes", broken)
    answer = await client("GET", "/api/v2/nodes")

    assert is_problem(answer, 503)["detail"] == str(error)
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=x", "limit=1&limit=2", "nobody=1", "offset=-1", "priority=9", "state=flying", "cursor=%00",
     "text=%ff", "&".join(f"a{n}=1" for n in range(60)), "limit=9" + "9" * 300],
)  # fmt: skip
async def test_a_query_that_cannot_be_used_is_refused_in_words(client, query):
    answer = await client("GET", f"/api/v2/jobs?{query}")

    is_problem(answer, answer.status)
    assert answer.status in {400, 422}


async def test_several_things_that_are_wrong_with_a_query_are_told_together(client):
    problem = is_problem(await client("GET", "/api/v2/jobs?limit=0&offset=-1&stat=x"), 422)

    assert [one["where"] for one in problem["problems"]] == ["stat", "limit", "offset"]
    assert "state" in problem["problems"][0]["cure"] or "status" in problem["problems"][0]["cure"]


@pytest.mark.parametrize(
    ("query", "what", "cure"),
    [
        ("limit=99999", "it is more than 1,000 ('99999')", "give 1 to 1,000"),
        ("limit=0", "it is less than 1 ('0')", "give 1 to 1,000"),
        ("limit=many", "it is a text, not a whole number ('many')", "give 1 to 1,000"),
        ("offset=20000", "it is more than 10,000 ('20000')", "give 0 to 10,000"),
        ("group=" + "x" * 201, "it has more than 200 characters", "give at most 200 characters"),
    ],
)
async def test_a_value_out_of_bounds_is_refused_with_its_bounds(client, query, what, cure):
    problem = is_problem(await client("GET", f"/api/v2/jobs?{query}"), 422)

    [one] = problem["problems"]
    assert one["where"] == query.partition("=")[0]
    assert one["what"].startswith(what)
    assert one["cure"] == problem["cure"] == cure


@pytest.mark.parametrize(
    ("sent", "where", "what", "cure"),
    [
        ({"name": 5}, "name", "it is a whole number, not a text (5)", "give a text"),
        ({"timeout_seconds": -1}, "timeout_seconds", "it is less than 0 (-1)", "give 0 or more"),
        ({"retry": {"attempts": 0}}, "retry.attempts", "it is less than 1", "give at least 1"),
        ({"tags": ["a"] * 51}, "tags", "it has more than 50 items", "give at most 50 items"),
    ],
)
async def test_a_field_of_another_kind_is_refused_in_our_words(client, sent, where, what, cure):
    problem = is_problem(await client("POST", "/api/v2/jobs", {"handler": "fine", **sent}), 422)

    [one] = problem["problems"]
    assert (one["where"], one["what"], one["cure"]) == (where, what, cure)


async def test_control_characters_in_what_was_sent_come_back_spelt_out(client):
    answer = await client("POST", "/api/v2/jobs", {"handler": "fine", "interval": "\x1b[31mred\u202e"})

    problem = is_problem(answer, 422)
    assert "\x1b" not in problem["detail"]
    assert "\u202e" not in problem["detail"]


async def test_titles_are_the_standard_ones(client):
    await client.ok("POST", "/api/v2/jobs", {"id": "a", "handler": "fine"})

    unknown = await client.as_(None)("GET", "/api/v2/jobs")
    viewer = await client.as_(Role.VIEWER)("DELETE", "/api/v2/jobs/a")
    job, path = await client("GET", "/api/v2/jobs/b"), await client("GET", "/api/v2/nothing")
    stale = await client("PUT", "/api/v2/jobs/a", {"handler": "fine", "revision": 7})
    taken = await client("POST", "/api/v2/jobs", {"id": "a", "handler": "refuse"})
    foreign = await client("GET", "/api/v2/jobs", headers={"host": "evil.example"})

    assert is_problem(unknown, 401)["title"] == "authentication required"
    assert is_problem(viewer, 403)["title"] == "permission denied"
    assert {is_problem(each, 404)["title"] for each in (job, path)} == {"not found"}
    assert is_problem(stale, 409)["title"] == "revision conflict"
    assert is_problem(taken, 409)["title"] == "conflict"
    assert is_problem(foreign, 421)["title"] == "unknown host"
