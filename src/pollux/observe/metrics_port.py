"""Metrics port for Prometheus without a token, on this machine alone unless the operator names a host.

It answers `GET /metrics` and nothing else, one question a connection, a few at a time and each within seconds: whoever
connects and says nothing is sent away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from pollux.errors import InvalidInput
from pollux.observe.metrics import MeasuredMetrics, content_type, exposition, wants_openmetrics

LOOPBACK = ("127.0.0.1", "::1", "localhost")
HEAD_BYTES_MAX = 8_192
PATIENCE_SECONDS = 10.0
LINGER_SECONDS = 1.0
CONNECTIONS_MAX = 32

log = logging.getLogger("pollux")


class MetricsPort:
    def __init__(self, app: MeasuredMetrics, host: str, port: int) -> None:
        self.app, self.host, self.port = app, host, port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        try:
            self._server = await asyncio.start_server(self._connected, self.host, self.port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            raise InvalidInput(
                f"the metrics cannot be served on {self.host}:{self.port}: {error.strerror or error}",
                where="metrics.port",
                cure="name a free port, or 0 for any",
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("metrics are served on http://%s:%d/metrics", self.host, self.port)

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for talk in self._open:
            talk.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.get_running_loop().create_task(self._talk(reader, writer), name="pollux metrics")
        self._open.add(talk)
        talk.add_done_callback(self._open.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # TimeoutError is one
                async with asyncio.timeout(PATIENCE_SECONDS):
                    answer = await self._answer(reader)
                    writer.write(answer)
                    await writer.drain()
                if not answer.startswith(b"HTTP/1.1 200"):
                    await _hear_out(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        if len(self._open) > CONNECTIONS_MAX:
            return _response("503 Service Unavailable", b"too many ask at once; come again\n")
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError:
            return _response("431 Request Header Fields Too Large", b"the head is too long\n")
        line, *lines = head.split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        method, path = ([*line.split(" "), "", ""])[:2]
        if not self._is_meant(fields.get("host", "")):
            return _response("421 Misdirected Request", b"this port is for this machine alone\n")
        if path.partition("?")[0] != "/metrics":
            return _response("404 Not Found", b"there is only /metrics\n")
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"GET it\n", "Allow: GET, HEAD\r\n")
        newer = wants_openmetrics(fields.get("accept", ""))
        body = await exposition(self.app, openmetrics=newer)
        answer = _response("200 OK", body, kind=content_type(openmetrics=newer))
        return answer[: len(answer) - len(body)] if method == "HEAD" else answer

    def _is_meant(self, host: str) -> bool:
        """On loopback only by a name of this machine: a web page must not reach it through one of its own."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return self.host not in LOOPBACK or name.strip("[]").lower() in ("", *LOOPBACK)


async def _hear_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Who still speaks would not hear our answer if we hung up at once."""
    writer.write_eof()
    async with asyncio.timeout(LINGER_SECONDS):
        while await reader.read(HEAD_BYTES_MAX):
            pass


def _response(status: str, body: bytes, more: str = "", *, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode("latin-1") + body
