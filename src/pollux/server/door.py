"""May this request come in, and as whom?  One ASGI layer in front of every route; the routes name the role they need.

request ─▶ Door: host, limits, token ─▶ scope["state"]["identity"] ─▶ route: role ─▶ verbs of the app
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pollux.server.identity import Identity
from pollux.server.problems import Problem
from pollux.server.tokens import Tokens

OPEN = frozenset({"/live", "/ready"})  # what a probe may ask without a token


class Door:
    def __init__(self, inside: ASGIApp, tokens: Tokens) -> None:
        self.inside, self.tokens = inside, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            try:
                scope.setdefault("state", {})["identity"] = await self._identify(Headers(scope=scope))
            except Problem as problem:
                await problem.response({"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
        await self.inside(scope, receive, send)

    async def _identify(self, headers: Headers) -> Identity:
        kind, _, token = headers.get("authorization", "").partition(" ")
        identity = await self.tokens.identify(token.strip()) if kind.lower() == "bearer" else None
        if identity is None:
            cure = "send the header `Authorization: Bearer <token>`; `pollux token --curl` writes a .curlrc for curl"
            raise Problem(401, "who are you?", "no valid token came with the request", cure=cure)
        return identity
