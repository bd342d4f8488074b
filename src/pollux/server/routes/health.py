"""Routes of health: workers and metrics (JSON and Prometheus), nodes and scheduler versions, and the two probes.

Only `/live` tests whether the process is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.responses import Response

from pollux.app.operations.status import nodes_now
from pollux.app.operations.storage import Percentiles, VersionFigures
from pollux.errors import read_at
from pollux.model import VERSION_MAX, Node, NodeRole, leader_of, role_of
from pollux.observe.health import Health, health_document, workers_document
from pollux.observe.metrics import content_type, exposition, wants_openmetrics
from pollux.secrets import HIDDEN
from pollux.server.auth import Role
from pollux.server.problems import LINE_END
from pollux.server.routing import Reply, RequestContext, Routes
from pollux.server.schemas.jobs import moment
from pollux.server.schemas.reading import view
from pollux.units import past_ms

KEPT_MS = 1_000

routes = Routes("health")
nodes = Routes("nodes")
probes = Routes("probes")
Number = Annotated[int, Meta(ge=1, le=VERSION_MAX, description="a scheduler version")]


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
async def health(context: RequestContext) -> Response:
    """Show the health of the deployment: late firings, unclaimed runs, stalled nodes, each with its cure."""
    return await _document(context, health_document)


@routes.get("/api/v2/scheduler/workers", Role.VIEWER, answer=WorkersView)
async def workers(context: RequestContext) -> Response:
    """Show the workers and their current runs."""
    return await _document(context, workers_document)


@routes.get("/api/v2/scheduler/metrics", Role.VIEWER)
async def metrics(context: RequestContext) -> MetricsView:
    """Show the metrics of this process as JSON."""
    return await asyncio.to_thread(_parsed, (await _exposed(context, openmetrics=False)).decode())


@routes.get("/metrics", Role.VIEWER, answer=str, kind="text/plain; version=0.0.4; charset=utf-8")
async def prometheus(context: RequestContext) -> Response:
    """Show the metrics of this process in the Prometheus format."""
    newer = wants_openmetrics(context.request.headers.get("accept", ""))
    body = await _exposed(context, openmetrics=newer)
    return Response(body, headers={"Content-Type": content_type(openmetrics=newer)})


async def _exposed(context: RequestContext, *, openmetrics: bool) -> bytes:
    """Written at most once a second, however many ask: it takes the processor longer than any other answer."""
    documents: dict[str, tuple[Any, bytes]] = context.request.app.documents
    async with context.request.app.encoding:
        key, now_ms = f"metrics {openmetrics}", context.operations.now_ms()
        at_ms, body = documents.get(key, (0, b""))
        if not at_ms <= now_ms < at_ms + KEPT_MS:
            body = await exposition(context.app, openmetrics=openmetrics)
            documents[key] = (now_ms, body)
    return body


async def _document(context: RequestContext, write: Callable[[Health], dict[str, Any]]) -> Response:
    """Written once for each look at the store, of which there is one a second, however many ask."""
    documents: dict[str, tuple[Any, bytes]] = context.request.app.documents
    async with context.request.app.encoding:  # a request that waited for the same look finds its document
        deployment = await context.app.watch.deployment()
        seen, body = documents.get(write.__name__, (None, b""))
        if deployment is not None and seen is deployment:
            return Response(body, media_type="application/json")
        found = await context.operations.status.health()
        body = msgspec.json.encode(HIDDEN.hide_in(write(found))) + LINE_END
        documents[write.__name__] = (found.snapshot.deployment, body)
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


class NodeView(Struct, frozen=True, kw_only=True):
    id: str
    host: str
    pid: int
    version: str
    seats: int
    busy: int
    draining: bool
    role: NodeRole
    is_leader: bool
    term: int
    handlers: list[str]
    sources: list[str]
    started_at: str | None
    beat_at: str | None
    scheduler_version: int


class NodeList(Struct, frozen=True):
    nodes: list[NodeView]
    leader: str | None


class VersionView(Struct, frozen=True):
    number: int
    jobs: int
    held: int
    ready: int
    running: int
    leader: str | None


class VersionList(Struct, frozen=True):
    versions: list[VersionView]


class CompareQuery(Struct, frozen=True, forbid_unknown_fields=True):
    one: Number
    other: Number
    since: Annotated[str, Meta(max_length=64, description='an age ("1h", "7d"), or a time')] = "1h"


class FiguresView(Struct, frozen=True, kw_only=True):
    """Figures of one version, over its runs that ended since then; the times cover those still in the history."""

    version: int
    jobs: int
    waiting: int
    running: int
    unread: int  # ended runs that its leader has not counted yet
    counted_from: str | None  # None: no leader has counted, so only the history is known
    ended: int
    failed: int
    dead: int
    cancelled: int
    kept: int  # of those that ended, how many the history has
    late: Percentiles  # from due to the handler's start, first attempts only
    took: Percentiles
    is_cut: bool  # the history has more than were read: these are the newest
    uncounted: int  # of those in the history, how many ended before leaders began to count


class ComparedView(Struct, frozen=True):
    since: str | None
    versions: list[FiguresView]


@nodes.get("/api/v2/nodes", Role.VIEWER)
async def list_nodes(context: RequestContext) -> NodeList:
    """List the live nodes, and the leader."""
    found = await nodes_now(context.operations)
    leader = leader_of(found)
    return NodeList([_view(node) for node in found], None if leader is None else leader.id)


@nodes.get("/api/v2/versions", Role.VIEWER)
async def list_versions(context: RequestContext) -> VersionList:
    """List the scheduler versions that share the store."""
    found = [
        VersionView(
            each.number, each.counts.jobs, each.counts.held, each.counts.ready, each.counts.leased, each.leader or None
        )
        for each in await context.operations.versions.list_versions()
    ]
    return VersionList(found)


@nodes.get("/api/v2/versions/compare", Role.VIEWER, refuses=(404,), beyond="an invalid time")
async def compare_versions(context: RequestContext, query: CompareQuery) -> ComparedView:
    """Compare two scheduler versions by the runs that ended since then."""
    since_ms = read_at("since", lambda text: past_ms(text, context.operations.now_ms()), query.since)
    figures = await context.operations.versions.compare((query.one, query.other), since_ms=since_ms)
    return ComparedView(moment(since_ms), [_figures(each) for each in figures])


def _view(node: Node) -> NodeView:
    return view(
        NodeView,
        node,
        role=role_of(node),
        is_leader=bool(node.leads),
        term=node.leads,
        sources=[each.source for each in node.declares],
        started_at=moment(node.started_ms or None),
        beat_at=moment(node.beat_ms or None),
    )


def _figures(each: VersionFigures) -> FiguresView:
    figures = asdict(each)
    return FiguresView(counted_from=moment(figures.pop("counted_from_ms")), **figures)


class AliveView(Struct, frozen=True):
    status: Literal["alive"] = "alive"


class ReadyView(Struct, frozen=True):
    status: Literal["ready", "not ready"] = "ready"


@probes.open("/live")
async def live(context: RequestContext) -> AliveView:  # noqa: ARG001  every route has it
    """Test whether the process answers.

    It does not test the scheduling: see `/api/v2/scheduler/health`.
    """
    return AliveView()


@probes.open("/ready", answer=ReadyView, also={503: ReadyView})
async def ready(context: RequestContext) -> Reply:
    """Test whether the node has started and is not draining."""
    runtime = context.app.runtime
    is_ready = runtime is not None and not runtime.status().is_draining
    return Reply(ReadyView("ready" if is_ready else "not ready"), 200 if is_ready else 503)
