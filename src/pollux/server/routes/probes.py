"""Probes for liveness and readiness, without a token and without details."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from pollux.server.routing import Reply, RequestContext, Routes

routes = Routes("probes")


class AliveView(Struct, frozen=True):
    status: Literal["alive"] = "alive"


class ReadyView(Struct, frozen=True):
    status: Literal["ready", "not ready"] = "ready"


@routes.open("/live")
async def live(desk: RequestContext) -> AliveView:  # noqa: ARG001  every route has it
    """Test whether the process answers.

    It does not test the scheduling: see `/api/v2/scheduler/health`.
    """
    return AliveView()


@routes.open("/ready", answer=ReadyView, also={503: ReadyView})
async def ready(desk: RequestContext) -> Reply:
    """Test whether the node has started and is not draining."""
    crew = desk.app.crew
    is_ready = crew is not None and not crew.status().is_draining
    return Reply(ReadyView("ready" if is_ready else "not ready"), 200 if is_ready else 503)
