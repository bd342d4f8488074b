"""A node and its API in this process: every byte of HTTP but the socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

import msgspec

from pollux import Pollux
from pollux.server.auth import Identity, Role, TokenCheck
from pollux.server.gateway import make_api
from pollux.server.limits import ApiLimits

SECRETS = {role: f"pf_{role.word}_{'x' * 43}" for role in Role}
PATIENCE_S = 60.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Client:
    """A client with a token; every request is one call of the ASGI app."""

    def __init__(self, api: Any, role: Role | None = Role.ADMIN) -> None:
        self.api, self.role = api, role

    def as_(self, role: Role | None) -> Client:
        return Client(self.api, role)

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """`body` goes as JSON, `data` as it is; the path is sent as it is given."""
        sent = data if data is not None else b"" if body is None else msgspec.json.encode(body)
        raw, _, asked = path.partition("?")
        told = {"host": "localhost", "content-length": str(len(sent)), **(headers or {})}
        if self.role is not None:
            told.setdefault("authorization", f"Bearer {SECRETS[self.role]}")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(raw),
            "raw_path": raw.encode("latin-1", "replace"),
            "query_string": (urlencode(query) or asked).encode("latin-1", "replace"),
            "headers": [(k.lower().encode("latin-1"), v.encode("latin-1", "replace")) for k, v in told.items()],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 8060),
        }
        return await asyncio.wait_for(self._called(scope, sent), PATIENCE_S)

    async def _called(self, scope: dict[str, Any], sent: bytes) -> Answer:
        given = iter([{"type": "http.request", "body": sent, "more_body": False}])
        start: dict[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> dict[str, Any]:
            return next(given, {"type": "http.disconnect"})

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self.api(scope, receive, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], headers, b"".join(parts))

    async def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        answer = await self(method, path, body, **options)
        assert 200 <= answer.status < 300, (method, path, answer)
        return answer.json


def api_of(app: Pollux, **door: Any) -> Client:
    tokens = TokenCheck(app)
    for role, secret in SECRETS.items():
        tokens.trust(secret, Identity(f"token:{role.word}", role))
    leaps = count(0, 60)  # every look at the clock is a minute after the last: no rate limit is met here
    return Client(make_api(app, tokens, **{"limits": ApiLimits(rate=0), "clock": lambda: float(next(leaps)), **door}))


def named(part: str) -> str:
    """A part of a path."""
    return quote(part, safe="")


def an_app(store: str = "memory://", **options: Any) -> Pollux:
    app = Pollux(store, name="api", **{"seats": 4, "grace": "1s", **options})

    @app.handler
    async def fine(ctx: Any, word: str = "hello") -> dict[str, str]:
        return {"word": word}

    @app.handler
    async def refuse(ctx: Any) -> None:
        from pollux import Permanent

        raise Permanent("it never works")

    @app.handler
    async def slow(ctx: Any, seconds: float = 30.0) -> None:
        ctx.progress(0.5)
        await asyncio.sleep(seconds)

    return app


@asynccontextmanager
async def served(store: str = "memory://", **options: Any) -> AsyncIterator[Client]:
    """A node that plans and runs, and its API."""
    async with an_app(store, **options) as app:
        client = api_of(app)
        client.app = app  # type: ignore[attr-defined]
        yield client


async def eventually(look: Any, what: str) -> Any:
    """Look again and again until there is something to see."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = await look()
            if seen:
                return seen
            await asyncio.sleep(0.02)
