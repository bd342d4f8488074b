"""Routes of nodes and scheduler versions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict

from pollux.app.operations.status import nodes_now
from pollux.app.operations.storage import Percentiles, VersionFigures
from pollux.errors import read_at
from pollux.model import VERSION_MAX, Node, NodeRole, leader_of, role_of
from pollux.server.roles import Role
from pollux.server.routing import RequestContext, Routes
from pollux.server.schemas.jobs import moment
from pollux.units import past_ms

routes = Routes("nodes")
Number = Annotated[int, Meta(ge=1, le=VERSION_MAX, description="a scheduler version")]


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


@routes.get("/api/v2/nodes", Role.VIEWER)
async def list_nodes(desk: RequestContext) -> NodeList:
    """List the live nodes, and the leader."""
    nodes = await nodes_now(desk.operations)
    leader = leader_of(nodes)
    return NodeList([_view(node) for node in nodes], None if leader is None else leader.id)


@routes.get("/api/v2/versions", Role.VIEWER)
async def list_versions(desk: RequestContext) -> VersionList:
    """List the scheduler versions that share the store."""
    found = [
        VersionView(
            each.number, each.counts.jobs, each.counts.held, each.counts.ready, each.counts.leased, each.leader or None
        )
        for each in await desk.operations.versions.list_versions()
    ]
    return VersionList(found)


@routes.get("/api/v2/versions/compare", Role.VIEWER, refuses=(404,), beyond="an invalid time")
async def compare_versions(desk: RequestContext, query: CompareQuery) -> ComparedView:
    """Compare two scheduler versions by the runs that ended since then."""
    since_ms = read_at("since", lambda told: past_ms(told, desk.operations.now_ms()), query.since)
    figures = await desk.operations.versions.compare((query.one, query.other), since_ms=since_ms)
    return ComparedView(moment(since_ms), [_figures(each) for each in figures])


def _view(node: Node) -> NodeView:
    return NodeView(
        id=node.id,
        host=node.host,
        pid=node.pid,
        version=node.version,
        seats=node.seats,
        busy=node.busy,
        draining=node.draining,
        role=role_of(node),
        is_leader=bool(node.leads),
        term=node.leads,
        handlers=list(node.handlers),
        sources=[each.source for each in node.declares],
        started_at=moment(node.started_ms or None),
        beat_at=moment(node.beat_ms or None),
        scheduler_version=node.scheduler_version,
    )


def _figures(each: VersionFigures) -> FiguresView:
    told = asdict(each)
    return FiguresView(counted_from=moment(told.pop("counted_from_ms")), **told)
