"""Is the process alive, and may it be given work?  Without a token, and without any detail."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pollux.app import Pollux


class _Open:
    """The only routes without a role; the door lets them in by their paths."""

    def __init__(self) -> None:
        self.router = APIRouter(tags=["probes"])


routes = _Open()


@routes.router.get("/live")
async def live() -> dict[str, str]:
    """The process answers.  It says nothing about scheduling: see `/api/v2/scheduler/health`."""
    return {"status": "alive"}


@routes.router.get("/ready", responses={503: {}})
async def ready(request: Request, response: Response) -> dict[str, str]:
    """The node has started and is not draining."""
    app: Pollux = request.app.state.pollux
    is_ready = app.crew is not None and not app.crew.status().is_draining
    response.status_code = 200 if is_ready else 503
    return {"status": "ready" if is_ready else "not ready"}
