"""World of the tests of the http handler: contexts, names, and the smallest of servers."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from pollux.clock import SystemClock
from pollux.handlers.http import Http
from pollux.model import Cause, Job, Memory, run_of
from pollux.registry import Context, Handler

PATIENCE_S = 60.0


class Names:
    """A resolver that knows a few names and remembers who was asked for."""

    def __init__(self, known: dict[str, list[str]]) -> None:
        self.known, self.asked = known, []

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[dict[str, Any]]:
        self.asked.append(host)
        if host not in self.known:
            raise OSError(socket.EAI_NONAME, "Name or service not known")
        kinds = {True: socket.AF_INET6, False: socket.AF_INET}
        return [
            {"hostname": host, "host": text, "port": port, "family": kinds[":" in text], "proto": 0, "flags": 0}
            for text in self.known[host]
        ]

    async def close(self) -> None: ...


def an_http(*, resolver: Any = None, allow_networks: list[str] | None = None, per_target: int | None = None) -> Http:
    http = Http()
    http.resolver = resolver
    http.set(allow_networks=allow_networks, per_target=per_target)
    return http


def a_context(
    source: str = "file:p.yaml",
    *,
    id: str = "poll",
    params: dict[str, Any] | None = None,
    fingerprint: str = "",
    timeout_ms: int = 60_000,
) -> Context:
    memory = Memory(fingerprint=fingerprint)
    job = Job(id=id, handler="http", params=params or {}, source=source, timeout_ms=timeout_ms, memory=memory)
    return Context(run_of(job, 0, Cause.FORCED), job, Handler("http", len), SystemClock(), 0)


async def serve_raw(seen: list[tuple[str, str]], host: str, port: int = 0) -> asyncio.Server:
    """Answers every request with the same few bytes, and keeps where it came to and what host it asked for."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        wanted = next(line[6:] for line in head.splitlines() if line.lower().startswith("host: "))
        seen.append((writer.get_extra_info("sockname")[0], wanted))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()
        await writer.wait_closed()

    return await asyncio.start_server(answer, host, port)


async def until(look: Callable[[], Awaitable[Any]], *, patience_s: float = PATIENCE_S) -> Any:
    """Look again and again until there is something to see."""
    async with asyncio.timeout(patience_s):
        while not (seen := await look()):  # noqa: ASYNC110  what is looked at is in a store, and rings for nobody here
            await asyncio.sleep(0.005)
    return seen
