"""Prometheus exposition of an app: one snapshot as text, and the port that serves it without a token.

The engine counts in plain integers; they become series only here, at a scrape.  The store is read at most once a
second, whatever the number of scrapes.  The text is written in a thread, so that a large one does not hold up the
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from pollux.observe.metrics_table import COUNTER, FAMILIES, GAUGE, HISTOGRAM, INFO, Family, Readings
from pollux.observe.snapshot import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric
import logging

from pollux.errors import InvalidInput

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_ONE_WRITES = threading.Lock()


class MeasuredMetrics(Protocol):
    async def readings(self) -> Readings: ...


async def exposition(app: MeasuredMetrics, *, openmetrics: bool = False) -> bytes:
    """Return all metrics of this process, as text in the format that `content_type` names."""
    readings = await app.readings()
    return await _in_thread(lambda: render(readings, openmetrics=openmetrics))


def wants_openmetrics(accept: str) -> bool:
    """Whether the client accepts the newer format."""
    return any(part.partition(";")[0].strip().lower() == "application/openmetrics-text" for part in accept.split(","))


def content_type(*, openmetrics: bool) -> str:
    return OPENMETRICS if openmetrics else TEXT


def render(readings: Readings, *, openmetrics: bool = False) -> bytes:
    from prometheus_client import exposition as text
    from prometheus_client.openmetrics import exposition as newer

    collector = _Collector(readings)
    if openmetrics:
        return newer.generate_latest(collector)  # type: ignore[no-any-return, no-untyped-call]
    return text.generate_latest(collector)


async def _in_thread(write: Callable[[], bytes]) -> bytes:
    """Write in a thread of its own, one text at a time: handlers may hold all threads of asyncio."""
    loop = asyncio.get_running_loop()
    written: asyncio.Future[bytes] = loop.create_future()

    def deliver(answer: bytes | Exception) -> None:
        if written.done():  # the caller was cancelled
            return
        if isinstance(answer, Exception):
            written.set_exception(answer)
        else:
            written.set_result(answer)

    def work() -> None:
        answer: bytes | Exception
        try:
            with _ONE_WRITES:
                answer = write()
        except Exception as error:  # noqa: BLE001  raised in the caller
            answer = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, answer)

    threading.Thread(target=work, name="pollux-metrics", daemon=True).start()
    return await written


def names(prefix: str = "pollux") -> frozenset[str]:
    """Return every name under which there are samples, for dashboards and alerts."""
    found: set[str] = set()
    for family in FAMILIES:
        name = family.full_name(prefix)
        match family.kind:
            case "histogram":
                found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
            case "info":
                found.add(f"{name}_info")
            case _:
                found.add(name)
    process = ("cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "open_fds", "max_fds")
    return frozenset(found | {f"process_{each}" for each in (*process, "start_time_seconds")})


class _Collector:
    """Collector for prometheus_client: the families of one reading, and those of the process."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.process_collector import ProcessCollector

        for family in FAMILIES:
            yield _metric(family, self._readings)
        yield from ProcessCollector(registry=None).collect()


def _metric(family: Family, readings: Readings) -> Metric:
    from prometheus_client.core import Metric

    name = family.full_name(readings.prefix)
    bare = name.removesuffix("_total") if family.kind == COUNTER else name
    metric = Metric(bare, family.help, family.kind)
    sample_name = {COUNTER: f"{bare}_total", GAUGE: bare, INFO: f"{bare}_info", HISTOGRAM: bare}[family.kind]
    for values, value in family.read(readings):
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(value, Histogram):
            _add_histogram(metric, bare, labels, value)
        else:
            metric.add_sample(sample_name, labels, float(value))
    return metric


def _add_histogram(metric: Metric, name: str, labels: dict[str, str], seen: Histogram) -> None:
    count = 0
    for bound_ms, here in zip(seen.bounds_ms, seen.counts, strict=False):
        count += here
        metric.add_sample(f"{name}_bucket", {**labels, "le": str(bound_ms / 1_000)}, count)
    count += sum(seen.counts[len(seen.bounds_ms) :])
    metric.add_sample(f"{name}_bucket", {**labels, "le": "+Inf"}, count)
    metric.add_sample(f"{name}_count", labels, count)
    metric.add_sample(f"{name}_sum", labels, seen.sum_ms / 1_000)


LOOPBACK = ("127.0.0.1", "::1", "localhost")
HEAD_BYTES_MAX = 8_192
REQUEST_SECONDS_MAX = 10.0
LINGER_SECONDS = 1.0
CONNECTIONS_MAX = 32

log = logging.getLogger("pollux")


class MetricsPort:
    """Server of `GET /metrics` and nothing else, on this machine alone unless the operator names a host.

    It answers one request a connection, a few at a time and each within seconds; silent clients are cut off.
    """

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
        for connection in self._open:
            connection.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.get_running_loop().create_task(self._connection(reader, writer), name="pollux metrics")
        self._open.add(connection)
        connection.add_done_callback(self._open.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # TimeoutError is one
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    answer = await self._answer(reader)
                    writer.write(answer)
                    await writer.drain()
                if not answer.startswith(b"HTTP/1.1 200"):
                    await _read_rest(reader, writer)
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
        """On loopback only a name of this machine is accepted: a web page must not reach it through one of its own."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return self.host not in LOOPBACK or name.strip("[]").lower() in ("", *LOOPBACK)


async def _read_rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what the client still sends: closing at once could discard our answer."""
    writer.write_eof()
    async with asyncio.timeout(LINGER_SECONDS):
        while await reader.read(HEAD_BYTES_MAX):
            pass


def _response(status: str, body: bytes, more: str = "", *, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode("latin-1") + body
