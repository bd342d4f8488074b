"""Fuzzed headers, paths and cursors, ten thousand of each; answered, or refused with a message."""

import asyncio
from collections import Counter
from itertools import count
from random import Random
from urllib.parse import quote

import msgspec
import pytest

from pollux.events import Events
from pollux.server.auth import Identity, Role, TokenCheck
from pollux.server.gateway import Gateway, Hosts, Proxies
from pollux.server.limits import Refusals
from tests.fuzz.draws import SCRAPS, Draws
from tests.fuzz.test_api import ENDLESS, NAMES, OPERATIONS, World

CASES = 10_000
TOKEN = "k" * 32
NAMED = (  # headers that mean something, and what they may say
    (b"host", ("localhost", "127.0.0.1:8060", "[::1]", "evil.example", "a.example, localhost", "[", "]:x", "")),
    (b"authorization", (f"Bearer {TOKEN}", f"bearer  {TOKEN} ", "Basic eDp5", "Basic %%", "Bearer", "Digest x", "")),
    (b"sec-fetch-site", ("same-origin", "cross-site", "none", "")),
    (b"origin", ("http://localhost", "null", "https://evil.example", "http://[", "://", "")),
    (b"content-length", ("0", "5", "10000001", "-1", "1e9", "٣", "9" * 40, "")),
    (b"transfer-encoding", ("chunked", "gzip, chunked", "")),
    (b"expect", ("100-continue", "x")),
    (b"x-forwarded-for", ("203.0.113.9", "10.0.0.1, 127.0.0.1", "fe80::1%eth0", "::ffff:1.2.3.4", "unknown", ",,")),
    (b"x-forwarded-proto", ("https", "javascript", "")),
    (b"x-forwarded-host", ("localhost", "a.example, localhost", "evil.example", "")),
    (b"x-other", ("x", "x" * 20_000)),
)
CURSORS = ("live:1790000000000:r1", "live:-5:x", "past:5", "past:9:1", "past:-1", "home", "a/b", "live::", "past:", "")
LISTS = ("/api/v2/runs", "/api/v2/dead-letters", "/api/v2/jobs/home/runs", "/api/v2/jobs")


@pytest.fixture(scope="module")
def world():
    found = World("memory://")
    yield found
    found.close()


def test_whatever_the_headers_say_the_door_opens_or_says_why_not():
    seen: Counter[int] = Counter()

    async def ask_all() -> None:
        door, dice = a_door(), Random(11)
        for _ in range(CASES):
            scope = scope_of(Draws(dice.randbytes(80)))
            status, body = await asked(door, scope)
            seen[status] += 1
            if status >= 400:
                told = msgspec.json.decode(body)
                assert told["title"], scope
                assert told["cure"], scope

    asyncio.run(ask_all())
    assert set(seen) == {204, 400, 401, 403, 413, 421, 431}, seen
    assert seen[204] > CASES // 50, seen


def a_door() -> Gateway:
    async def inside(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    leaps = count(0, 60)  # nobody asks too often
    tokens = TokenCheck()
    tokens.trust(TOKEN, Identity("token:x", Role.ADMIN))
    clock = lambda: float(next(leaps))  # noqa: E731  as short as it is
    proxies = Proxies(["127.0.0.0/8"])
    refusals = Refusals({}, Events(), clock)
    return Gateway(inside, tokens, refusals, hosts=Hosts("localhost"), proxies=proxies, clock=clock)


def scope_of(draws: Draws) -> dict:
    """Mostly what gets in, with a few slips."""
    headers = {b"host": "localhost", b"authorization": f"Bearer {TOKEN}"}
    said = list(headers.items()) if draws.number(8) else []
    for _ in range(draws.number(4)):
        name, values = draws.one(NAMED)
        value = draws.one(values)
        said.append((name, value if draws.number(3) else draws.mutated(value)))
    return {
        "type": "http",
        "method": draws.one(("GET", "POST", "DELETE", "HEAD")),
        "path": "/api/v2/nodes",
        "raw_path": b"/api/v2/nodes",
        "query_string": b"",
        "headers": [(name, value.encode("utf-8", "surrogatepass")) for name, value in said],
        "client": (draws.one(("127.0.0.1", "203.0.113.7", "::1", "fe80::1%eth0")), 5),
        "server": ("127.0.0.1", 8060),
    }


async def asked(door: Gateway, scope: dict) -> tuple[int, bytes]:
    start: dict = {}
    parts: list[bytes] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message.get("body", b""))

    await door(scope, receive, send)
    return start["status"], b"".join(parts)


def test_whatever_a_path_is_it_is_one_of_ours_or_nobodys(world, monkeypatch):
    looks = [each for each in OPERATIONS if each.method == "GET" and each.path not in ENDLESS]
    dice, seen = Random(13), Counter[int]()

    async def ask_all() -> None:
        for number in range(CASES):
            if number == CASES // 10:  # looking for one that is near takes longer than all the rest
                monkeypatch.setattr("pollux.server.routes.did_you_mean", lambda *_: "")
            draws = Draws(dice.randbytes(60))
            path = draws.one(looks).path
            for part in ("{job_id}", "{run_id}", "{path}", "{name}", "{token_id}", "{verb}"):
                name = draws.one(NAMES)
                path = path.replace(part, name if draws.number(4) else quote(draws.mutated(name), safe="%/"))
            if draws.number(3):
                path = draws.mutated(path).replace("\n", "").replace("?", "")
            answer = await world.client("GET", path)
            seen[answer.status] += 1
            is_ready = path.startswith("/ready")
            assert answer.status < 500 or is_ready, (path, answer)
            assert answer.status < 400 or is_ready or answer.json["cure"], (path, answer)

    world.runner.run(ask_all())
    assert set(seen) >= {200, 404, 405}, seen


def test_whatever_a_cursor_is_it_gives_a_page_or_is_refused_by_its_name(world):
    dice, seen = Random(17), Counter[int]()

    async def ask_all() -> None:
        for _ in range(CASES):
            draws = Draws(dice.randbytes(60))
            cursor = draws.one(CURSORS) if draws.number(4) == 3 else draws.mutated(draws.one((*CURSORS, *SCRAPS)))
            sent = quote(cursor.encode("utf-8", "surrogatepass"), safe="")
            answer = await world.client("GET", f"{draws.one(LISTS)}?cursor={sent}&limit=2")
            seen[answer.status] += 1
            assert answer.status in {200, 400, 422}, (cursor, answer)
            if answer.status == 422:
                assert {each["where"] for each in answer.json["problems"]} == {"cursor"}, (cursor, answer)
                assert answer.json["cure"], (cursor, answer)

    world.runner.run(ask_all())
    assert min(seen[200], seen[422]) > CASES // 20, seen
