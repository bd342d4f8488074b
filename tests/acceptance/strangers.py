"""The API as strangers meet it: a real server on a real port, and bytes on a real connection."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pollux import Pollux
from pollux.app.operations.tokens import MadeToken
from pollux.server import ApiServer, ServerOptions

PATIENCE_S = 60.0


class Said(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class World:
    """A server, and a client that speaks HTTP to it."""

    def __init__(self, app: Pollux, server: ApiServer) -> None:
        self.app, self.server = app, server
        self._writers: list[asyncio.StreamWriter] = []

    async def token(self, role: str = "admin", **options: Any) -> MadeToken:
        made = await self.app.operations.tokens.create_token(role, **options)
        self.server.tokens.forget()
        return made

    async def ask(
        self,
        path: str,
        method: str = "GET",
        *,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        socket: Path | None = None,
        **connection: Any,
    ) -> Said:
        """One request on a connection of its own."""
        said = {"Host": "localhost", "Connection": "close"} | dict(headers or {})
        if token:
            said["Authorization"] = f"Bearer {token}"
        if body:
            said.setdefault("Content-Length", str(len(body)))
        reader, writer = await self.connect(socket, **connection)
        try:
            writer.write(head_of(method, path, said) + body)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            return await answer_of(reader)
        finally:
            writer.close()

    async def connect(
        self, socket: Path | None = None, **connection: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that ends with the world at the latest."""
        if socket is not None:
            reader, writer = await asyncio.open_unix_connection(str(socket))
        else:
            host = connection.pop("host", "127.0.0.1")
            reader, writer = await asyncio.open_connection(host, self.server.port, **connection)
        self._writers.append(writer)
        return reader, writer

    async def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def head_of(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def answer_of(reader: asyncio.StreamReader) -> Said:
    async with asyncio.timeout(PATIENCE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.splitlines()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        length = headers.get("content-length")
        body = await (reader.readexactly(int(length)) if length is not None else reader.read())
        return Said(int(first.split()[1]), headers, body)


@contextlib.asynccontextmanager
async def world(store: str = "memory://", *, app: Pollux | None = None, **options: Any) -> AsyncIterator[World]:
    """An app with its store open and its API listening; nothing is planned or run."""
    app = app or Pollux(store)
    await app.open()
    server = ApiServer(app, ServerOptions(**({"port": 0, "is_port_given": True} | options)))
    there = World(app, server)
    try:
        await server.start()
        yield there
    finally:
        await there.hang_up()
        await server.stop()
        await app.close()
