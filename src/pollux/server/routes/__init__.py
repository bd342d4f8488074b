"""Routes of the HTTP API, one module for each subject, and the dispatch of a request to its route."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from pollux.app import Pollux
from pollux.errors import did_you_mean
from pollux.server.job_batching import JobBatcher
from pollux.server.limits import ApiLimits
from pollux.server.problems import Problem
from pollux.server.routes import dead_letters, events, health, jobs, openapi, pauses, rpc, runs, scheduler, tokens
from pollux.server.routing import path_handlers
from pollux.units import printable

EVERY = (  # in the order of the documentation
    jobs.routes,
    runs.routes,
    dead_letters.routes,
    scheduler.routes,
    health.routes,
    pauses.routes,
    health.nodes,
    events.routes,
    tokens.routes,
    health.probes,
    openapi.routes,
    rpc.routes,
)
OPEN_PATHS = frozenset(each.path for group in EVERY for each in group.operations if each.role is None)

__all__ = [
    "EVERY", "OPEN_PATHS", "Api", "dead_letters", "events", "health", "jobs", "openapi", "pauses", "rpc", "runs",
    "scheduler", "tokens",
]  # fmt: skip
NEAR_MAX = 60  # characters of a path that is compared with the known ones


class Api:
    """All routes of one app, and what they share between requests.

    Paths are matched as they were sent, so that `%2F` in an id does not end it; segments are decoded later.
    """

    def __init__(self, app: Pollux, limits: ApiLimits) -> None:
        self.pollux, self.limits = app, limits
        self.batcher = JobBatcher()
        self.documents: dict[str, tuple[Any, bytes]] = {}  # encoded health and metrics, with what they were made from
        self.encoding = asyncio.Lock()  # of `documents`
        self.events: events.EventBuffer | None = None  # made with the first client
        handlers = path_handlers(EVERY)
        self._fixed = {each.path: each for each in handlers if not each.pattern.groups}
        self._patterns = [each for each in handlers if each.pattern.groups]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if raw := scope.get("raw_path"):
            path = scope["path"] = raw.decode("latin-1").partition("?")[0]
        scope["app"] = self
        handler = self._fixed.get(path)
        if handler is None:
            for each in self._patterns:
                if found := each.pattern.fullmatch(path):
                    handler, scope["path_params"] = each, found.groupdict()
                    break
        if handler is None:
            await self._not_found(path).response()(scope, receive, send)
        else:
            await handler(scope, receive, send)

    def _not_found(self, path: str) -> Problem:
        shown = printable(path)[:200]
        paths = [*self._fixed, *(each.path for each in self._patterns)]
        near = did_you_mean(shown[:NEAR_MAX], paths).strip("; ")
        cure = near or "every path is in /api/v2/docs, and for programs in /api/v2/openapi.json"
        return Problem(404, "not found", f"no path {shown}", cure=cure)
