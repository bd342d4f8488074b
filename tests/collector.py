"""A collector of traces: a real HTTP server that takes OTLP apart, and misbehaves if it is told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Seen(NamedTuple):
    """A span as it came."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    node: str
    start_ms: int
    end_ms: int
    is_error: bool
    said: dict[str, Any]
    links: list[tuple[str, str]]


class Collector:
    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.bodies: list[bytes] = []
        self.services: set[str] = set()
        self.paths: list[str] = []
        self.got: list[tuple[str, str]] = []  # path and traceparent of every GET
        self.status = 200
        self.hangs = False
        self.release = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def trace(self, run_id: str) -> dict[str, list[Seen]]:
        """The spans of a run by their name, each in the order of its begin."""
        found: dict[str, list[Seen]] = {}
        for span in sorted(self.spans, key=lambda span: (span.start_ms, span.end_ms)):
            if span.said["pollux.run.id"] == run_id:
                found.setdefault(span.name.removeprefix("pollux."), []).append(span)
        return found

    def take(self, body: bytes) -> None:
        told = ExportTraceServiceRequest()
        told.ParseFromString(body)
        for part in told.resource_spans:
            about = {each.key: each.value.string_value for each in part.resource.attributes}
            self.services.add(about["service.name"])
            self.spans += [
                _seen(span, about["service.instance.id"]) for scope in part.scope_spans for span in scope.spans
            ]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.append(self.path)
                collector.bodies.append(body)
                if collector.hangs:
                    collector.release.wait(60)
                if collector.status == 200:
                    collector.take(body)
                self._answer(collector.status)

            def do_GET(self) -> None:
                collector.got.append((self.path, self.headers.get("traceparent", "")))
                self._answer(collector.status)

            def _answer(self, status: int) -> None:
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except OSError:
                    pass  # whoever asked has left

            def log_message(self, *_: object) -> None:
                pass

        return Door

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _seen(span: Any, node: str) -> Seen:
    return Seen(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        node=node,
        start_ms=span.start_time_unix_nano // 1_000_000,
        end_ms=span.end_time_unix_nano // 1_000_000,
        is_error=span.status.code == 2,
        said={each.key: each.value.string_value or each.value.int_value for each in span.attributes},
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    collector.start()
    try:
        yield collector
    finally:
        collector.stop()
