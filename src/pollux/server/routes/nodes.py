"""Which processes are there, who leads, and which versions share the store?"""

from __future__ import annotations

from msgspec import Struct

from pollux.app.overview import nodes_now
from pollux.model import Node, leader_of
from pollux.server.identity import Role
from pollux.server.routing import At, Routes
from pollux.server.wire_jobs import moment

routes = Routes("nodes")


class NodeView(Struct, frozen=True, kw_only=True):
    id: str
    host: str
    pid: int
    version: str
    seats: int
    busy: int
    draining: bool
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


@routes.get("/api/v2/nodes", Role.VIEWER)
async def list_nodes(desk: At) -> NodeList:
    """The processes that live, and who leads."""
    nodes = await nodes_now(desk.verbs)
    leader = leader_of(nodes)
    return NodeList([_view(node) for node in nodes], None if leader is None else leader.id)


@routes.get("/api/v2/versions", Role.VIEWER)
async def list_versions(desk: At) -> VersionList:
    """The scheduler versions that share the store."""
    found = [
        VersionView(
            each.number, each.counts.jobs, each.counts.held, each.counts.ready, each.counts.leased, each.leader or None
        )
        for each in await desk.verbs.versions()
    ]
    return VersionList(found)


def _view(node: Node) -> NodeView:
    return NodeView(
        id=node.id,
        host=node.host,
        pid=node.pid,
        version=node.version,
        seats=node.seats,
        busy=node.busy,
        draining=node.draining,
        is_leader=bool(node.leads),
        term=node.leads,
        handlers=list(node.handlers),
        sources=[each.source for each in node.declares],
        started_at=moment(node.started_ms or None),
        beat_at=moment(node.beat_ms or None),
        scheduler_version=node.scheduler_version,
    )
