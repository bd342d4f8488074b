"""Traces of runs, one each from the due time to the end, with spans from every node that took part.

    pollux.run ─┬─ pollux.fire      the leader: from the due time to the write that made the run
                ├─ pollux.wait      until a worker began with it
                ├─ pollux.attempt   the handler; its `traceparent` is this span
                ├─ pollux.settle    until its end was recorded
                └─ (wait, attempt, settle again after a retry, on whichever node)

The node that ends a run emits the root: the worker that settles it, or the leader for runs that end without a worker.
Off, nothing listens, nothing is computed and OpenTelemetry is not imported.

Ids are computed from the id of the run, so that nodes agree without a message and nothing is stored with the run:

    sha256 of the run's id:   16 bytes trace id │ 8 bytes id of the root span │ 8 bytes: is it sampled?

Two deployments that send to one collector and have jobs of the same ids differ by a `namespace`, which is hashed with
the id.  A thread of its own sends the spans in batches, and never holds up the engine:

    engine ── put ──▶ bounded queue ──▶ thread ── OTLP over HTTP ──▶ collector
                         │ full                     │ refused, or unreachable
                         └── dropped, counted ◀─────┘   logged once, then at most once a minute

The thread sleeps while there is nothing to send.  A collector that is dead, slow or wrong costs spans and nothing else.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from pollux import events as e
from pollux.errors import InvalidInput
from pollux.log_format import safe
from pollux.observe.logs import LogThrottle
from pollux.secrets import hide

STANDARD = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PATH = "/v1/traces"
CURE = "pip install 'pollux-scheduler[otel]', or remove `traces.endpoint`"
ID_CHARS_MAX = 300
ERROR_CHARS_MAX = 100  # of the name of an error's class
_CLASS = re.compile(r"[A-Za-z_][\w.]*(?=$|:|,| \()", re.ASCII)
_FINAL = frozenset({"done", "dead", "cancelled"})
_WORDS = {"retryat": "retry"}


class TraceOptions(Struct, frozen=True, kw_only=True):
    endpoint: str = ""  # "": from the standard variables, else no traces
    sample: float = 1.0  # the share of runs that have one
    namespace: str = ""  # distinguishes deployments with jobs of the same ids


class SpanRecord(Struct, frozen=True):
    """Data of a span, as emitted by the engine."""

    name: str
    run_id: str
    job_id: str
    start_ms: int
    end_ms: int
    fence: int = 0
    attempt: int = 0
    outcome: str = ""
    error: str = ""
    is_failed: bool = False
    follow_ups: tuple[str, ...] = ()


def endpoint_of(options: TraceOptions, environ: Mapping[str, str]) -> tuple[str, bool]:
    """Return where spans go ("": nowhere), and whether our own option names it."""
    whole, ground = (environ.get(name, "") for name in STANDARD)
    asked = options.endpoint
    if asked and asked not in (whole, ground):
        return _whole(asked), True
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER", "") == "none":
        return "", False
    return (whole, False) if whole else (_whole(ground), False) if ground else ("", False)


def _whole(url: str) -> str:
    return url if urlsplit(url).path.endswith(PATH) else url.rstrip("/") + PATH


class Traces:
    """Span records of a node, and their export."""

    def __init__(self, options: TraceOptions, export: Export) -> None:
        self.options, self.export = options, export

    def traceparent(self, run_id: str, fence: int) -> str:
        position = trace_position(run_id, self.options.namespace)
        return traceparent_of(
            position, position.span_id("attempt", fence), is_sampled=position.roll < self.options.sample
        )

    def enter(self, traceparent: str) -> None:
        from opentelemetry import context, trace

        _, trace_id, span_id, flags = traceparent.split("-")
        ids = int(trace_id, 16), int(span_id, 16)
        where = trace.SpanContext(*ids, is_remote=False, trace_flags=trace.TraceFlags(int(flags, 16)))
        context.attach(trace.set_span_in_context(trace.NonRecordingSpan(where)))

    def listen(self, bus: e.Events) -> Callable[[], None]:
        """Listen to the bus; the returned function ends it."""
        listeners: dict[type[e.Event], e.Listener] = {
            e.RunFired: self._fired,
            e.RunStarted: self._started,
            e.RunSettled: self._settled,
            e.RunStopped: self._stopped,
            e.LeaseWasLost: self._lost,
        }
        leaves = [bus.listen(kind, listener) for kind, listener in listeners.items()]

        def leave() -> None:
            for each in leaves:
                each()

        return leave

    def _fired(self, event: e.RunFired) -> None:
        if self._is_sampled(event.run_id):
            self.export.put(SpanRecord("fire", event.run_id, event.job_id, event.due_ms, event.fired_ms))

    def _started(self, event: e.RunStarted) -> None:
        if self._is_sampled(event.run_id):
            when = event.ready_ms, event.started_ms
            self.export.put(SpanRecord("wait", event.run_id, event.job_id, *when, event.fence, event.attempt))

    def _settled(self, event: e.RunSettled) -> None:
        if event.answer == "lost" or not self._is_sampled(event.run_id):
            return  # emitted by `_lost`
        run_id, job_id, fence, attempt = event.run_id, event.job_id, event.fence, event.attempt
        may_fail = event.has_outcome and event.verdict != "cancelled"  # of that one the error is why it was cancelled
        is_failed = event.verdict == "dead" or (may_fail and bool(event.error))
        outcome = "failed" if is_failed and event.verdict == "done" else _WORDS.get(event.verdict, event.verdict)
        error = event.error if is_failed else ""
        if event.started_ms:
            how, when = (outcome, error, is_failed, event.follow_ups), (event.started_ms, event.ended_ms)
            self.export.put(SpanRecord("attempt", run_id, job_id, when[0], when[1], fence, attempt, *how))
        self.export.put(SpanRecord("settle", run_id, job_id, event.ended_ms, event.settled_ms, fence, attempt, outcome))
        if event.has_outcome and event.verdict in _FINAL:
            when = event.due_ms, event.settled_ms
            self.export.put(SpanRecord("run", run_id, job_id, *when, 0, 0, outcome, error, is_failed))

    def _stopped(self, event: e.RunStopped) -> None:
        if event.state in _FINAL and self._is_sampled(event.run_id):
            is_dead = event.state == "dead"
            how = event.state, event.why if is_dead else "", is_dead
            self.export.put(SpanRecord("run", event.run_id, event.job_id, event.due_ms, event.stopped_ms, 0, 0, *how))

    def _lost(self, event: e.LeaseWasLost) -> None:
        if event.started_ms and self._is_sampled(event.run_id):
            delivery = event.fence, event.attempt
            step = SpanRecord("attempt", event.run_id, event.job_id, event.started_ms, event.lost_ms, *delivery, "lost")
            self.export.put(step)

    def _is_sampled(self, run_id: str) -> bool:
        share = self.options.sample
        return share >= 1 or trace_position(run_id, self.options.namespace).roll < share


def open_traces(
    options: TraceOptions, node_id: str, on_lost: Callable[[int, str], None], environ: Mapping[str, str] | None = None
) -> Traces | None:
    """Return traces as the options and the standard variables ask for them; None if they do not.

    An option of ours that cannot be met is an error.  A variable that a platform sets everywhere stops no node:
    `on_lost` reports what is missing.
    """
    environ = os.environ if environ is None else environ
    endpoint, is_ours = endpoint_of(options, environ)
    if not endpoint or options.sample <= 0:
        return None
    if not is_ours and "grpc" in (environ.get(name, "") for name in PROTOCOLS):
        on_lost(0, "the standard variables name a collector of gRPC; cure: name one of OTLP over HTTP, traces.endpoint")
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from pollux.observe.trace_spans import Spans
    except ImportError as error:
        what = f"traces need OpenTelemetry, which is not installed ({error.name})"
        if is_ours:
            raise InvalidInput(what, where="traces.endpoint", cure=CURE) from error
        on_lost(0, f"{what}; cure: {CURE.partition(',')[0]}")
        return None
    spans = Spans(options, node_id)
    return Traces(options, Export(OTLPSpanExporter(endpoint=endpoint), spans.of, on_lost))


def error_class(error: str) -> str:
    """Return the class at the beginning of "ValueError: no such host"; anything else stays private."""
    found = _CLASS.match(error)
    return found[0][:ERROR_CHARS_MAX] if found else "error"


def attributes_of(step: SpanRecord) -> dict[str, str | int]:
    """Return all attributes of a span; no text of a handler is among them."""
    attributes: dict[str, str | int] = {
        "pollux.run.id": hide(step.run_id)[:ID_CHARS_MAX],
        "pollux.job.id": hide(step.job_id)[:ID_CHARS_MAX],
    }
    if step.fence:
        attributes |= {"pollux.attempt": step.attempt, "pollux.delivery": step.fence}
    if step.outcome:
        attributes["pollux.outcome"] = step.outcome
    if step.is_failed:
        attributes["error.type"] = error_class(step.error)
    return attributes


LINKS_MAX = 100  # of one call that enqueued many
_ALL = 1 << 64


class TracePosition(Struct, frozen=True):
    """Where a run's spans belong."""

    trace_id: str  # 32 hex digits
    root_id: str  # 16
    roll: float  # in [0, 1): below the share that is sampled, it is

    def span_id(self, step: str, fence: int = 0) -> str:
        """Return the id of a step of the run; the same step always has the same span."""
        return sha256(f"{self.trace_id}\x1f{step}\x1f{fence}".encode()).hexdigest()[:16]


def trace_position(run_id: str, namespace: str = "") -> TracePosition:
    digest = sha256((f"{namespace}\x1f{run_id}" if namespace else run_id).encode("utf-8", "surrogateescape")).digest()
    return TracePosition(digest[:16].hex(), digest[16:24].hex(), int.from_bytes(digest[24:]) / _ALL)


def traceparent_of(position: TracePosition, span_id: str, *, is_sampled: bool) -> str:
    """Format the header of W3C Trace Context."""
    return f"00-{position.trace_id}-{span_id}-{'01' if is_sampled else '00'}"


def link_runs(run_ids: Sequence[str], namespace: str = "") -> None:
    """Link the caller's own span, if there is one, to the traces of the runs it just enqueued.

    The link is in the caller's trace, where it costs the run nothing and needs no field in the store.  Without
    OpenTelemetry in the process this is one look into a table.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is not None:
        with suppress(Exception):  # of any version of it: the runs are accepted already
            _link(api, run_ids[:LINKS_MAX], namespace)


def _link(api: Any, run_ids: Sequence[str], namespace: str) -> None:
    span = api.get_current_span()
    if not span.is_recording():
        return
    for run_id in run_ids:
        position = trace_position(run_id, namespace)
        ids = int(position.trace_id, 16), int(position.root_id, 16)
        flags = api.TraceFlags(api.TraceFlags.SAMPLED)
        span.add_link(api.SpanContext(*ids, is_remote=True, trace_flags=flags), {"pollux.run.id": run_id})


WAITING_MAX = 10_000  # spans
BATCH_MAX = 256
GATHER_SECONDS = 1.0
FLUSH_SECONDS = 3.0  # what the last ones get when the node ends
WHY_CHARS_MAX = 300
_EXPORTERS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.exporter.otlp.common.http")

Lost = Callable[[int, str], None]


class Exporter(Protocol):
    """The part of OpenTelemetry's exporter that is used."""

    def export(self, spans: Sequence[Any]) -> Any: ...

    def shutdown(self) -> None: ...


class ExportErrors(logging.Filter):
    """Filter that keeps the exporter's log records of our thread, to be logged by us, throttled."""

    def __init__(self) -> None:
        super().__init__()
        self.thread: int | None = None
        self.words = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self.thread:
            return True
        self.words = record.getMessage()
        return False


class Export:
    """Bounded queue of span records, and the thread that sends them."""

    def __init__(
        self,
        exporter: Exporter,
        spans_of: Callable[[Sequence[Any]], Sequence[Any]],
        on_lost: Lost,
        *,
        waiting_max: int = WAITING_MAX,
        gather_seconds: float = GATHER_SECONDS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self.exported = 0
        self.overflowed = 0  # there was no room for them: counted by the event loop
        self.refused = 0  # they could not be sent: counted by the thread
        self._exporter, self._spans_of, self._on_lost = exporter, spans_of, on_lost
        self._waiting_max, self._gather, self._flush = waiting_max, gather_seconds, flush_seconds
        self._waiting: deque[Any] = deque()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._errors, self._throttle, self._reported = ExportErrors(), LogThrottle(), 0
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name="pollux-traces", daemon=True)

    @property
    def dropped(self) -> int:
        return self.overflowed + self.refused

    def counts(self) -> dict[str, int]:
        """Return what became of all spans that left the queue, for the metrics."""
        return {"exported": self.exported, "dropped": self.overflowed, "failed": self.refused}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        for name in _EXPORTERS:
            logging.getLogger(name).addFilter(self._errors)
        self._thread.start()

    def put(self, step: Any) -> None:
        """Add a record; called by the event loop, never waits."""
        waiting = len(self._waiting)
        if waiting >= self._waiting_max:
            self.overflowed += 1
            return
        self._waiting.append(step)
        if not waiting:
            self._wake.set()

    def stop(self) -> None:
        """Send what is left, for `flush_seconds` at most; called in a thread."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(self._flush)
        self._is_over = True
        self._exporter.shutdown()  # ends the exporter's own retries
        self.overflowed += len(self._waiting)
        for name in _EXPORTERS:
            logging.getLogger(name).removeFilter(self._errors)

    def _work(self) -> None:
        self._errors.thread = threading.get_ident()
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            self._stopping.wait(self._gather)
            self._send_all()

    def _send_all(self) -> None:
        while self._waiting and not self._is_over:
            self._send([self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))])

    def _send(self, steps: Sequence[Any]) -> None:
        self._errors.words = ""
        try:
            is_sent = self._exporter.export(self._spans_of(steps)).name == "SUCCESS"
        except Exception as error:  # noqa: BLE001  whatever the collector answers
            is_sent, self._errors.words = False, f"{type(error).__name__}: {error}"
        if is_sent:
            self.exported += len(steps)
        else:
            self.refused += len(steps)
        self._say_lost()

    def _say_lost(self) -> None:
        lost = self.dropped - self._reported
        if not lost or self._throttle.left_out("lost") is None:
            return
        self._reported += lost
        why = self._errors.words or f"more than {self._waiting_max} were waiting for the collector"
        self._on_lost(lost, safe(why, WHY_CHARS_MAX))
