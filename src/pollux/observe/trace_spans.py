"""OpenTelemetry spans of the steps of a run.  Imported only where traces are on."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pollux.observe.traces import SpanRecord, TraceOptions, TracePosition, attributes_of, trace_position
from pollux.secrets import hide
from pollux.version import __version__

NS = 1_000_000
SERVICE = "pollux"
_KINDS = {"fire": SpanKind.PRODUCER, "attempt": SpanKind.CONSUMER}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Spans:
    """Makes spans of steps, in the thread that sends them."""

    def __init__(self, options: TraceOptions, node_id: str) -> None:
        self._namespace = options.namespace
        self._scope = InstrumentationScope("pollux", __version__)
        self._resource = _resource(options.namespace, node_id)

    def of(self, steps: Sequence[SpanRecord]) -> list[ReadableSpan]:
        return [self._span(step) for step in steps]

    def _span(self, step: SpanRecord) -> ReadableSpan:
        position = trace_position(step.run_id, self._namespace)
        root = _context(position, position.root_id)
        is_root = step.name == "run"
        return ReadableSpan(
            f"pollux.{step.name}",
            context=root if is_root else _context(position, position.span_id(step.name, step.fence)),
            parent=None if is_root else root,
            resource=self._resource,
            attributes=attributes_of(step),
            links=[self._link(run_id) for run_id in step.follow_ups],
            kind=_KINDS.get(step.name, SpanKind.INTERNAL),
            status=Status(StatusCode.ERROR if step.is_failed else StatusCode.UNSET),
            start_time=min(step.start_ms, step.end_ms) * NS,
            end_time=step.end_ms * NS,
            instrumentation_scope=self._scope,
        )

    def _link(self, run_id: str) -> Link:
        """To the trace of a run that this one enqueued."""
        position = trace_position(run_id, self._namespace)
        return Link(_context(position, position.root_id), {"pollux.run.id": hide(run_id)})


def _context(position: TracePosition, span_id: str) -> SpanContext:
    return SpanContext(int(position.trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)


def _resource(namespace: str, node_id: str) -> Resource:
    """Return the resource of this node; the standard variables override ours."""
    variables = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    ours = {"service.instance.id": node_id, "service.version": __version__}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in variables:
        ours["service.name"] = SERVICE
    if namespace:
        ours["service.namespace"] = namespace
    return Resource.create(ours)
