"""Request head, request body and response of one request, as the gateway handles them.

The body is counted while it is received.  The rest of an unread one is drained for a moment, so that the answer reaches
a client that is still sending.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error
from collections.abc import Sequence
from contextlib import suppress

from starlette.types import Message, Receive, Scope, Send

from pollux.server.problems import Problem
from pollux.units import format_size

_WANTED = frozenset(
    {
        *(b"host", b"authorization", b"origin", b"sec-fetch-site", b"content-length", b"transfer-encoding", b"expect"),
        *(b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"),
    }
)
_ONCE = frozenset(
    {b"host", b"authorization", b"content-length"}
)  # repeated: implementations differ in which one counts


class RequestHead:
    """The headers that the gateway needs, read once, and the size of all."""

    __slots__ = ("is_ambiguous", "size", "values")

    def __init__(self, scope: Scope) -> None:
        self.values: dict[bytes, str] = {}
        self.size = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        self.is_ambiguous = False
        for name, value in scope["headers"]:
            self.size += len(name) + len(value) + 4
            if name in _WANTED:
                text = value.decode("latin-1")
                if name in self.values:
                    self.is_ambiguous = self.is_ambiguous or name in _ONCE
                    text = f"{self.values[name]}, {text}"
                self.values[name] = text
        if b"transfer-encoding" in self.values and b"content-length" in self.values:
            self.is_ambiguous = True  # request smuggling: two different ends of the body

    def __getitem__(self, name: bytes) -> str:
        return self.values.get(name, "")

    @property
    def token(self) -> str:
        """The token, sent as `Bearer` or as the password of `Basic`, as from a .netrc."""
        kind, _, rest = self[b"authorization"].partition(" ")
        match kind.lower():
            case "bearer":
                return rest.strip()
            case "basic":
                try:
                    return b64decode(rest.strip(), validate=True).decode("latin-1").partition(":")[2]
                except (Error, ValueError):
                    return ""
        return ""

    @property
    def body_length(self) -> int | None:
        """Length of the body: 0 if there is none, None if it is chunked."""
        if b"transfer-encoding" in self.values:
            return None
        length = self[b"content-length"].strip()
        return int(length) if length.isascii() and length.isdecimal() and len(length) < 19 else 0


LINGER_S = 2.0
LINGER_BYTES = 4_000_000
SMALL_BYTES = 65_536  # an unread body up to this size is read, so that the connection can be reused


class BodyTooLarge(Problem):
    """Raised to the reader of the body; the gateway answers with it in any case."""

    def __init__(self, limit: int) -> None:
        cure = "split it into several requests; a batch may be larger than a single job"
        super().__init__(413, "request body too large", f"the limit is {format_size(limit)}", cure=cure)


class RequestBody:
    """The body of one request, with its limit."""

    def __init__(self, receive: Receive, head: RequestHead, limit: int) -> None:
        self._receive, self.limit = receive, limit
        self.length = head.body_length
        self.is_whole = self.length == 0
        self.is_too_big = (self.length or 0) > limit
        self._waits = "100-continue" in head[b"expect"].lower()  # the client waits for `100 Continue`
        self._taken = 0

    async def receive(self) -> Message:
        if self.is_too_big:
            raise BodyTooLarge(self.limit)
        message = await self._receive()
        self._waits = False
        if message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            self.is_whole = self.is_whole or not message.get("more_body", False)
            if self._taken > self.limit:
                self.is_too_big = True
                raise BodyTooLarge(self.limit)
        return message

    async def finish(self) -> bool:
        """Before an answer begins: read a small rest, and return whether the body is complete."""
        if not self.is_whole and not self._waits and 0 < (self.length or 0) <= SMALL_BYTES:
            await self._let_run_out(SMALL_BYTES)
        return self.is_whole

    async def linger(self) -> None:
        """After an answer: drain the body for a moment, as a client that is still sending does not read."""
        if not self.is_whole and not self._waits:
            await self._let_run_out(LINGER_BYTES)

    async def _let_run_out(self, most: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self.is_whole and most > 0:
                    message = await self._receive()
                    if message["type"] != "http.request":
                        return
                    most -= len(message.get("body", b""))
                    self.is_whole = not message.get("more_body", False)


class ResponseSender:
    """Sends the answer, with the headers of every answer, after the request was read."""

    def __init__(self, send: Send, body: RequestBody, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._send, self._body, self._headers = send, body, headers
        self.has_begun = False
        self.status = 0  # until it has begun
        self._has_to_linger = False

    async def send(self, message: Message) -> None:
        """Send a message of a route; drop it if the request body is too large."""
        if self._body.is_too_big and not self.has_begun:
            return
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._has_to_linger and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._body.linger()
            await self._send({"type": "http.response.body", "body": b""})
        else:
            await self._send(message)

    async def refuse(self, problem: Problem, scope: Scope, headers: dict[str, str]) -> None:
        """Send the problem instead of an answer of the route."""
        self._body.is_too_big = False
        await problem.response(headers)(scope, self._body.receive, self.send)

    async def _begin(self, message: Message) -> None:
        self.has_begun, self.status = True, message["status"]
        headers = list(message.get("headers", ()))
        there = {name for name, _ in headers}
        headers += [pair for pair in self._headers if pair[0] not in there]
        if not await self._body.finish():
            self._has_to_linger = True
            headers.append((b"connection", b"close"))
        await self._send({**message, "headers": headers})
