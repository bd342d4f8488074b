"""Routes of health, workers and metrics (JSON and Prometheus).

None of them tests whether the process is alive: that is `/live`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from pollux.observe.health import Health, health_document, workers_document
from pollux.observe.metrics import content_type, exposition, wants_openmetrics
from pollux.secrets import HIDDEN
from pollux.server.problems import LINE_END
from pollux.server.roles import Role
from pollux.server.routing import RequestContext, Routes

KEPT_MS = 1_000

routes = Routes("health")


class FindingView(Struct, frozen=True):
    name: str
    level: str
    seen: str
    cure: str


class HealthView(Struct, frozen=True, kw_only=True):
    """`status` is healthy, degraded or unhealthy; each finding has an observation and a cure."""

    status: str
    findings: list[FindingView]
    running: bool
    is_leader: bool
    leader: str | None
    term: int | None
    node: str | None
    workers_active: int
    workers_busy: int
    queue_depth: int | None
    jobs_count: int | None
    cron_jobs_count: int | None
    last_check_at: str | None
    uptime_seconds: int
    circuit_breaker_state: str
    store: dict[str, Any]
    updatedAt: str | None  # noqa: N815  as older clients know it
    enabled: bool
    queue: dict[str, Any]
    deadLetter: dict[str, Any]  # noqa: N815  as older clients know it
    breakers: list[dict[str, Any]]
    staleness: list[dict[str, Any]]
    instances: list[dict[str, Any]]


class WorkersView(Struct, frozen=True):
    """`total`, `active` and `idle` are seats of all living nodes."""

    total: int
    active: int
    idle: int
    draining: bool
    workers: list[dict[str, Any]]
    queue_size: int | None


class SampleView(Struct, frozen=True):
    name: str
    labels: dict[str, str]
    value: float


class FamilyView(Struct, frozen=True):
    name: str
    type: str
    help: str
    samples: list[SampleView]


class MetricsView(Struct, frozen=True):
    metrics: list[FamilyView]


@routes.get("/api/v2/scheduler/health", Role.VIEWER, answer=HealthView)
async def health(desk: RequestContext) -> Response:
    """Show the health of the deployment: late firings, unclaimed runs, stalled nodes, each with its cure."""
    return await _told(desk, health_document)


@routes.get("/api/v2/scheduler/workers", Role.VIEWER, answer=WorkersView)
async def workers(desk: RequestContext) -> Response:
    """Show the workers and their current runs."""
    return await _told(desk, workers_document)


@routes.get("/api/v2/scheduler/metrics", Role.VIEWER)
async def metrics(desk: RequestContext) -> MetricsView:
    """Show the metrics of this process as JSON."""
    return await asyncio.to_thread(_parsed, (await _exposed(desk, openmetrics=False)).decode())


@routes.get("/metrics", Role.VIEWER, answer=str, kind="text/plain; version=0.0.4; charset=utf-8")
async def prometheus(desk: RequestContext) -> Response:
    """Show the metrics of this process in the Prometheus format."""
    newer = wants_openmetrics(desk.request.headers.get("accept", ""))
    body = await _exposed(desk, openmetrics=newer)
    return Response(body, headers={"Content-Type": content_type(openmetrics=newer)})


async def _exposed(desk: RequestContext, *, openmetrics: bool) -> bytes:
    """Written at most once a second, however many ask: it takes the processor longer than any other answer."""
    kept: dict[str, tuple[Any, bytes]] = desk.request.app.state.told
    async with desk.request.app.state.telling:
        key, now_ms = f"metrics {openmetrics}", desk.operations.now_ms()
        at_ms, body = kept.get(key, (0, b""))
        if not at_ms <= now_ms < at_ms + KEPT_MS:
            body = await exposition(desk.app, openmetrics=openmetrics)
            kept[key] = (now_ms, body)
    return body


async def _told(desk: RequestContext, write: Callable[[Health], dict[str, Any]]) -> Response:
    """Written once for each look at the store, of which there is one a second, however many ask."""
    state = desk.request.app.state
    kept: dict[str, tuple[Any, bytes]] = state.told
    async with state.telling:  # whoever waited for the same look finds it written
        deployment = await desk.app.watch.deployment()
        seen, body = kept.get(write.__name__, (None, b""))
        if deployment is not None and seen is deployment:
            return Response(body, media_type="application/json")
        found = await desk.operations.status.health()
        body = msgspec.json.encode(HIDDEN.hide_in(write(found))) + LINE_END
        kept[write.__name__] = (found.snapshot.deployment, body)
    return Response(body, media_type="application/json")


def _parsed(text: str) -> MetricsView:
    from prometheus_client.parser import text_string_to_metric_families

    return MetricsView(
        [
            FamilyView(
                family.name,
                family.type,
                family.documentation,
                [SampleView(each.name, dict(each.labels), float(each.value)) for each in family.samples],
            )
            for family in text_string_to_metric_families(text)
        ]
    )
