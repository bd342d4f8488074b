"""How is a route written?  With the role it needs: there is no other way to add one, so none can be forgotten.

    routes = Routes("jobs")

    @routes.get("/api/v2/jobs/{job_id}", Role.VIEWER)
    async def show(desk: Desk, job_id: str) -> ...:
        return await desk.verbs.get_job(job_id)

`raw` routes get the request itself: they read and write with msgspec where a route is hot.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from pollux.app import Pollux
from pollux.server.identity import Identity, Role
from pollux.server.problems import Problem

Raw = Callable[["At"], Awaitable[Response]]


class At(NamedTuple):
    """Where a route stands: who asks, and the app as which they act."""

    request: Request
    identity: Identity
    verbs: Pollux

    def refuse_below(self, role: Role) -> None:
        if self.identity.role < role:
            raise Problem(
                403,
                "your role does not allow that",
                f"{self.identity.name} is {self.identity.role.word}, this needs {role.word}",
                cure=f"`pollux token create --role {role.word}`",
            )


def _desk(request: Request) -> At:
    identity: Identity = request.state.identity
    app: Pollux = request.app.state.pollux
    return At(request, identity, app.acting_as(identity.name))


Desk = Annotated[At, Depends(_desk)]


class Routes:
    """The routes of one subject, each with its role."""

    def __init__(self, subject: str) -> None:
        self.router = APIRouter(tags=[subject])

    def get(self, path: str, role: Role, **options: Any) -> Callable[..., Any]:
        return self._add("GET", path, role, options)

    def post(self, path: str, role: Role, **options: Any) -> Callable[..., Any]:
        return self._add("POST", path, role, options)

    def put(self, path: str, role: Role, **options: Any) -> Callable[..., Any]:
        return self._add("PUT", path, role, options)

    def delete(self, path: str, role: Role, **options: Any) -> Callable[..., Any]:
        return self._add("DELETE", path, role, options)

    def _add(self, method: str, path: str, role: Role, options: dict[str, Any]) -> Callable[..., Any]:
        extra = {**options.pop("openapi_extra", {}), "x-role": role.word}
        depends = [Depends(_needs(role))]
        return self.router.api_route(path, methods=[method], dependencies=depends, openapi_extra=extra, **options)

    def raw(self, method: str, path: str, role: Role, **options: Any) -> Callable[[Raw], Raw]:
        """A route that FastAPI only describes: nothing of the request is read before it is called."""

        def add(answer: Raw) -> Raw:
            async def called(request: Request) -> Response:
                desk = _desk(request)
                desk.refuse_below(role)
                return await answer(desk)

            called.__name__, called.__doc__ = answer.__name__, answer.__doc__
            self._add(method, path, role, options)(called)
            return answer

        return add


def _needs(role: Role) -> Callable[[Request], None]:
    def check(request: Request) -> None:
        _desk(request).refuse_below(role)

    return check
