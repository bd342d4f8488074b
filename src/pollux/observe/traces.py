"""Traces of runs, one each from the due time to the end, with spans from every node that took part.

    pollux.run ─┬─ pollux.fire      the leader: from the due time to the write that made the run
                ├─ pollux.wait      until a worker began with it
                ├─ pollux.attempt   the handler; its `traceparent` is this span
                ├─ pollux.settle    until its end was recorded
                └─ (wait, attempt, settle again after a retry, on whichever node)

The root is told by whoever ends the run: the worker that settles it, or the leader, which hears of runs that end
without a worker.  Off, nothing listens, nothing is computed and OpenTelemetry is not imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from pollux import events as e
from pollux.errors import InvalidInput
from pollux.observe.trace_export import Export
from pollux.observe.trace_ids import mark_of, traceparent_of
from pollux.secrets import hide

STANDARD = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PATH = "/v1/traces"
CURE = "pip install 'pollux-scheduler[otel]', or take `traces.endpoint` away"
ID_CHARS_MAX = 300
ERROR_CHARS_MAX = 100  # of the name of an error's class
_CLASS = re.compile(r"[A-Za-z_][\w.]*(?=$|:|,| \()", re.ASCII)
_FINAL = frozenset({"done", "dead", "cancelled"})
_WORDS = {"retryat": "retry"}


class TraceOptions(Struct, frozen=True, kw_only=True):
    endpoint: str = ""  # "": what the standard variables say, else no traces
    sample: float = 1.0  # the share of runs that have one
    namespace: str = ""  # tells deployments with jobs of the same ids apart


class SpanRecord(Struct, frozen=True):
    """A span to be, as the engine tells it."""

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
    """Where spans go, and whether we were asked for it ourselves; "": nowhere."""
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
    """What a node tells of its runs, to whom it was told to tell it."""

    def __init__(self, options: TraceOptions, export: Export) -> None:
        self.options, self.export = options, export

    # what a handler is told

    def traceparent(self, run_id: str, fence: int) -> str:
        mark = mark_of(run_id, self.options.namespace)
        return traceparent_of(mark, mark.span_id("attempt", fence), is_sampled=mark.roll < self.options.sample)

    def enter(self, traceparent: str) -> None:
        from opentelemetry import context, trace

        _, trace_id, span_id, flags = traceparent.split("-")
        ids = int(trace_id, 16), int(span_id, 16)
        where = trace.SpanContext(*ids, is_remote=False, trace_flags=trace.TraceFlags(int(flags, 16)))
        context.attach(trace.set_span_in_context(trace.NonRecordingSpan(where)))

    # what the collector is told

    def listen(self, bus: e.Events) -> Callable[[], None]:
        """From now on; the answer ends it."""
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
            return  # `_lost` has told it
        run_id, job_id, fence, attempt = event.run_id, event.job_id, event.fence, event.attempt
        is_told = event.has_outcome and event.verdict != "cancelled"  # of that one the error is why it was cancelled
        is_failed = event.verdict == "dead" or (is_told and bool(event.error))
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
        return share >= 1 or mark_of(run_id, self.options.namespace).roll < share


def open_traces(
    options: TraceOptions, node_id: str, on_lost: Callable[[int, str], None], environ: Mapping[str, str] | None = None
) -> Traces | None:
    """Traces as the options and the standard variables ask for them; None if they do not.

    Where we were asked ourselves and cannot, that is an error.  A variable that a platform sets everywhere stops no
    node: `on_lost` says what is missing.
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
    """The class at the beginning of "ValueError: no such host"; of anything else nothing is told."""
    found = _CLASS.match(error)
    return found[0][:ERROR_CHARS_MAX] if found else "error"


def attributes_of(step: SpanRecord) -> dict[str, str | int]:
    """All that is ever told of a run; no text of a handler's is among it."""
    said: dict[str, str | int] = {
        "pollux.run.id": hide(step.run_id)[:ID_CHARS_MAX],
        "pollux.job.id": hide(step.job_id)[:ID_CHARS_MAX],
    }
    if step.fence:
        said |= {"pollux.attempt": step.attempt, "pollux.delivery": step.fence}
    if step.outcome:
        said["pollux.outcome"] = step.outcome
    if step.is_failed:
        said["error.type"] = error_class(step.error)
    return said
