"""HTTP application: all routes, problem+json for every error, and the gateway in front."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Unpack

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pollux.app import Pollux
from pollux.errors import did_you_mean
from pollux.server.gateway import Gateway, GatewayOptions
from pollux.server.job_batching import JobBatcher
from pollux.server.limits import ApiLimits, Refusals
from pollux.server.problems import Problem, answer_problem
from pollux.server.routes import EVERY
from pollux.server.routing import PathHandler, places_of
from pollux.server.tokens import TokenCheck
from pollux.units import printable

TITLE = "Pollux"
NEAR_MAX = 60  # characters of a path for which one that is near is looked for


def make_api(app: Pollux, tokens: TokenCheck, **door: Unpack[GatewayOptions]) -> ASGIApp:
    refusals = Refusals(app.watch.refused, app.events, door.get("clock", time.monotonic))
    api = describe_api(app)
    api.state.limits = door.get("limits") or ApiLimits()
    return Gateway(
        RawPathMiddleware(api), tokens, refusals, lambda: app.crew is not None and app.crew.is_pressed, **door
    )


_SILENT = {"tracing": False, "metrics": False, "logs": False}  # of the framework: our own are in `observe`


def describe_api(app: Pollux | None = None) -> FastAPI:
    """The routes without the door; what `openapi.json` tells is made of it."""
    quiet: dict[str, Any] = {"telemetry": _SILENT}
    api = FastAPI(title=TITLE, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, **quiet)
    api.state.pollux = app
    api.state.together = JobBatcher()
    api.state.told = {}  # what was written for one look at the store
    api.state.telling = asyncio.Lock()
    places = places_of(EVERY)
    api.state.places = {place.path: place for place in places}
    api.router.routes.extend(Route(place.path, place, include_in_schema=False) for place in places)
    api.add_exception_handler(HTTPException, _lost)
    api.add_exception_handler(Exception, answer_problem)
    return api


class RawPathMiddleware:
    """Paths are matched as they were sent, so that `%2F` inside of an id does not end it; parts are decoded later.

    One that has no parts needs no search: the hot routes are among them.
    """

    def __init__(self, inside: FastAPI) -> None:
        self.inside = inside
        self._fixed: dict[str, PathHandler] = {
            path: place for path, place in inside.state.places.items() if "{" not in path
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if raw := scope.get("raw_path"):
            scope["path"] = raw.decode("latin-1").partition("?")[0]
        place = self._fixed.get(scope["path"])
        if place is None:
            await self.inside(scope, receive, send)
            return
        scope["app"] = self.inside
        await place(scope, receive, send)


async def _lost(request: Request, error: Exception) -> Response:
    """No route has this path."""
    assert isinstance(error, HTTPException)
    if error.status_code != 404:
        return Problem(error.status_code, str(error.detail)).response(error.headers)
    path = printable(request.scope["path"])[:200]
    near = did_you_mean(path[:NEAR_MAX], request.app.state.places).strip("; ")
    cure = near or "every path is in /api/v2/docs, and for programs in /api/v2/openapi.json"
    return Problem(404, "not found", f"no path {path}", cure=cure).response()
