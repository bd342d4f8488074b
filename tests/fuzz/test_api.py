"""Fuzzed API requests: an answer, or a refusal with a status below 500; never a crash."""

import asyncio
import json
import string
from collections import Counter
from random import Random

import pytest

from pollux.server.auth import Role
from pollux.server.routes import EVERY
from pollux.server.routes.dead_letters import DeadBody
from pollux.server.routes.jobs import BatchBody
from pollux.server.routes.pauses import StopBody
from pollux.server.routes.runs import RunsBody
from pollux.server.schemas.jobs import JobBody
from pollux.server.schemas.reading import fields
from pollux.server.schemas.runs import RunBody
from tests.acceptance.api_world import an_app, api_of
from tests.fuzz.draws import SCRAPS, Draws
from tests.servers import postgres as postgres_servers
from tests.servers import redis as redis_servers

CASES = 10_000
BYTES = 160  # choices of one case
ON_SERVERS = 400  # of each other store: what only it stumbles over
ENDLESS = {"/api/v2/events"}
OPERATIONS = [
    each
    for group in EVERY
    for each in group.operations
    if each.path not in ENDLESS and not each.path.startswith("/api/v2/docs")
]
WITH_BODY = [each for each in OPERATIONS if each.body is not None]
GOOD = {
    JobBody: (
        {"handler": "fine", "interval": "30s"},
        {"url": "https://example.com", "schedule_type": "cron", "cron_expression": "0 6 * * *", "priority": 1},
        {"id": "new", "handler": "slow", "params": {"seconds": 1}, "tags": ["a"], "retry": {"attempts": 2}},
    ),
    RunBody: (
        {"job_id": "home"},
        {"job_id": "home", "delay": "5m", "params": {"word": "x"}},
        {"job_id": "a/b", "id": "r9"},
    ),
    BatchBody: ({"jobs": [{"handler": "fine"}, {"id": "x"}]}, {"jobs": [{"handler": "fine"}] * 3, "overwrite": True}),
    RunsBody: ({"job_id": "home", "runs": [{}, {"params": {"word": "y"}}, {"params": {"z": 1}}]},),
    DeadBody: ({"all": True}, {"ids": ["r1"]}, {"job_id": "home", "error": "x"}),
    StopBody: ({"group": "g"}, {"everything": True, "duration": "5m"}, {"target": "t"}),
}
FITTING = {  # what may stand there
    "id": ("new", "home", "a/b", "x:1"),
    "job_id": ("home", "a/b"),
    "handler": ("fine", "slow", "http"),
    "url": ("https://example.com", "http://127.0.0.1:1/"),
    "params": ({"word": "x"}, {}, {"url": "https://example.com"}),
    "schedule_type": ("cron", "interval", "manual", "immediate"),
    "cron_expression": ("0 6 * * *", "@daily", "H * * * *"),
    "cron": ("0 6 * * *", "*/5 * * * * *"),
    "tz": ("Europe/Berlin", "UTC"),
    "interval": ("30s", 5, 0.25, "1h"),
    "at": ("2030-01-31T09:00:00Z", "1970-01-01T00:00:00Z"),
    "delay": ("5m", 1),
    "priority": (1, "low", 3),
    "timeout": ("5s", 1),
    "timeout_seconds": (30, 0.5),
    "retry": (3, False, {"attempts": 2, "base": "1s"}),
    "tags": (["a"], ["a", "b"]),
    "revision": (1, 2, 0),
    "reason": ("because", ""),
    "duration": ("5m", 60),
    "ids": (["r1"], ["nobody", "r1"]),
    "group": ("g", ""),
    "value": (5, "5s", True),
    "role": ("viewer",),
    "limit": (1, 5, 1_000),
    "cursor": ("home", "live:1:x", "past:5:1", "past:5"),
    "window": ("1h", "7d"),
    "state": ("active", "running", "ready", "dead"),
}
NAMES = (
    "home",
    "r1",
    "nobody",
    "a%2Fb",
    "..",
    "%00",
    "%ff",
    "%E2%80%AE",
    "x" * 500,
    "home@1790000000000",
    "%2e%2e%2f",
    "-",
)
VALUES = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63 - 1,
        -(2**63),
        2**63,
        1.5,
        1e300,
        8.0,
        "",
        "x",
        "home",
        "30s",
        "5m",
        "1h",
    ),
    *(
        "0 6 * * *",
        "@daily",
        "Europe/Berlin",
        "https://example.com",
        "http://[::1]:80/",
        "ftp://x",
        "2030-01-31T09:00:00Z",
    ),
    *(
        "fine",
        "http",
        "exec",
        "high",
        "cron",
        "interval",
        "skip",
        "live:1:x",
        "past:1:1",
        "past:9",
        "${env:HOME}",
        "***",
    ),
    *("<img src=x onerror=alert(1)>", "\u202eevil", "\0", "\ud7ff", "é" * 300, "9" * 400, "x" * 20_000),
    *(
        [],
        {},
        [1, 2],
        ["a"],
        {"url": "https://example.com"},
        {"word": "x"},
        {"attempts": 3},
        {"a": {"b": [{}]}},
        [[[]]],
    ),
)
HEADERS = (
    "Idempotency-Key",
    "If-Match",
    "Content-Type",
    "Accept",
    "Range",
    "Last-Event-ID",
    "Expect",
    "X-Forwarded-For",
)
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "get", "\x00", "QUERY")
QUERY_WORDS = ("limit", "cursor", "offset", "state", "priority", "from", "window", "since", "everything", "kind")


class World:
    """One API for all cases, on one loop."""

    def __init__(self, store: str) -> None:
        self.runner = asyncio.Runner()
        self.app = an_app(store)
        self.statuses: Counter[int] = Counter()
        self.client = self.runner.run(self._open())

    async def _open(self):
        await self.app.open()
        client = api_of(self.app)
        for body in ({"id": "home", "handler": "fine", "interval": "1h"}, {"id": "a/b", "handler": "slow"}):
            await client("POST", "/api/v2/jobs", body)
        await client("POST", "/api/v2/runs", {"job_id": "home", "id": "r1"})
        return client

    def close(self) -> None:
        self.runner.run(self.app.close())
        self.runner.close()

    def ask(self, count: int, dice: Random) -> None:
        self.runner.run(self._ask_all(count, dice))

    async def _ask_all(self, count: int, dice: Random) -> None:
        for _ in range(count):
            await self._ask(Draws(dice.randbytes(BYTES)))

    async def _ask(self, draws: Draws) -> None:
        method, path, body, headers, role = request_of(draws)
        answer = await self.client.as_(role)(method, path, data=body, headers=headers)
        self.statuses[answer.status] += 1
        seen = (method, path, body[:300], headers, answer)
        is_ready = path.startswith("/ready")
        assert answer.status < 500 or (is_ready and answer.status == 503), seen
        assert len(answer.body) < 2_000_000
        kind = answer.headers.get("content-type", "")
        if answer.status >= 400 and method != "HEAD":
            assert kind == "application/problem+json" or is_ready, seen
            assert is_ready or (answer.json["title"] and answer.json["cure"]), seen
            assert b"Traceback" not in answer.body, seen
        elif kind == "application/json" and method != "HEAD":
            json.loads(answer.body)


def request_of(draws: Draws):
    operation = draws.one(OPERATIONS if draws.number(3) else WITH_BODY)
    method = operation.method if draws.number(8) else draws.one(METHODS)
    path = operation.path
    for part in operation.parts:
        path = path.replace(f"{{{part}}}", draws.one(NAMES) if draws.number(6) else draws.mutated(draws.one(NAMES)))
    if draws.number(12) == 11:
        path = draws.mutated(path)
    if query := query_of(draws, operation):
        path = f"{path}?{query}"
    headers = {draws.one(HEADERS): text_of(draws) for _ in range(draws.number(3))}
    role = draws.one((*(Role.ADMIN,) * 9, Role.OPERATOR, Role.VIEWER, None))
    return method, path.replace("\n", ""), body_of(draws, operation), headers, role


def query_of(draws: Draws, operation) -> str:
    known = [field.encode_name for field in fields(operation.query)] if operation.query is not None else []
    pairs = []
    for _ in range(draws.number(4)):
        name = draws.one(known) if known and draws.number(6) else draws.one(QUERY_WORDS)
        fits = FITTING.get(name, ()) if draws.number(3) else ()
        pairs.append(f"{name}={draws.one(fits) if fits else text_of(draws)}")
    return "&".join(pairs)


def text_of(draws: Draws) -> str:
    value = draws.one(VALUES) if draws.number(4) else draws.one(SCRAPS)
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(each for each in text if each in string.printable and each not in "\r\n\x0b\x0c#")[:3_000]


def body_of(draws: Draws, operation) -> bytes:
    if operation.body is None:
        return b"" if draws.number(4) else draws.one((b"{}", b"[", b"\xff"))
    text = json.dumps(object_of(draws, operation.body))
    match draws.number(10):
        case 0:
            return draws.mutated(text).encode("utf-8", "surrogatepass")
        case 1:
            return draws.one((b"", b"null", b"[]", b'"x"', b"{" * 5_000, b"\xff\xfe", b'{"a":1,"a":2}', b"1" * 400))
    return text.encode()


def object_of(draws: Draws, kind) -> dict:
    names = [field.encode_name for field in fields(kind)]
    made = dict(draws.one(GOOD[kind])) if kind in GOOD and draws.number(4) else {}
    for _ in range(draws.number(3 if made else 6)):
        name = draws.one(names) if draws.number(9) else draws.mutated(draws.one(names))
        fits = FITTING.get(name, ()) if draws.number(3) else ()
        many = name in {"jobs", "runs"}
        made[name] = [nested(draws) for _ in range(draws.number(4))] if many else draws.one(fits or VALUES)
    return made


def nested(draws: Draws):
    names = ("id", "handler", "interval", "cron", "params", "url", "priority", "job_id", "delay", "key", "at", "retry")
    return (
        {draws.one(names): draws.one(VALUES) for _ in range(draws.number(4))} if draws.number(8) else draws.one(VALUES)
    )


@pytest.fixture(scope="module")
def world():
    found = World("memory://")
    yield found
    found.close()


@pytest.fixture(scope="module", params=["sqlite", "redis", "postgres"])
def elsewhere(request, tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/pollux.db"
    if request.param == "redis":
        url = redis_servers.own_url("fuzz")
    elif request.param == "postgres":
        url = postgres_servers.own_url("fuzz")
    found = World(url)
    yield found
    found.close()


def test_whatever_is_asked_is_answered_in_words(world):
    """Bytes of a seeded generator: a request that goes wrong is shown whole, so there is nothing to shrink."""
    world.ask(CASES, Random(5))
    assert {200, 201, 202, 204, 400, 401, 403, 404, 405, 409, 422} <= set(world.statuses)
    assert sum(world.statuses[status] for status in (200, 201, 202)) > CASES // 5, world.statuses


def test_no_store_stumbles_over_what_is_asked(elsewhere):
    elsewhere.ask(ON_SERVERS, Random(7))
