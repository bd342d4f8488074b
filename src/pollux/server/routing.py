"""Route definitions.  A route cannot be added without the role that it needs.

    routes = Routes("jobs")

    @routes.put("/api/v2/jobs/{job_id}", Role.OPERATOR)
    async def change(context: RequestContext, job_id: str, body: JobBody, query: JobQuery) -> JobView:
        ...

A function gets the segments of the path by name, and `body` and `query` as the Structs of their annotations, decoded
and checked.  Its result is encoded as JSON; the return annotation is the schema of the answer, the docstring its
description.  A missing body is an empty object if none of its fields is required.

`raw` routes get the request itself, and return a `Response`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pollux.app import Operations, Pollux
from pollux.errors import Conflict, InvalidConfig, InvalidInput, StoreError, StoreMoved
from pollux.server.auth import Identity, Role
from pollux.server.idempotency import KEY_HEADER, answered_once
from pollux.server.limits import BODY_MAX
from pollux.server.problems import LINE_END, Problem, refusal_of, with_places
from pollux.server.schemas.reading import (
    UnfitBody,
    fields,
    header_of,
    json_of,
    read_body,
    read_bytes,
    read_query,
    unquoted,
)

Raw = Callable[["RequestContext"], Awaitable[Response]]
NO_CONTENT = 204
AT_ONCE = 50  # views of jobs or runs, or parsed bodies, in one iteration of the loop: two or three milliseconds

S = TypeVar("S")
T = TypeVar("T")
_KEY_HEADER = KEY_HEADER.lower().encode()
_PART = re.compile(r"\{(\w+)\}")


class RequestContext(NamedTuple):
    """Context of one request: the caller, and the app that acts on their behalf."""

    request: Request
    identity: Identity
    app: Pollux
    operations: Operations
    once: str = ""  # derived from the idempotency key: ids derived from it repeat

    def refuse_below(self, role: Role) -> None:
        if self.identity.role < role:
            raise Problem(
                403,
                "permission denied",
                f"{self.identity.name} has the role {self.identity.role.word}, this needs {role.word}",
                cure=f"`pollux token create --role {role.word}`",
            )


class Reply(NamedTuple):
    """An answer with another status or with headers."""

    value: Any
    status: int = 200
    headers: Mapping[str, str] | None = None


class Route(Struct, frozen=True, kw_only=True):
    """One method of one path, with its handler and its description in OpenAPI."""

    method: str
    path: str
    role: Role | None  # None: no token needed
    subject: str
    call: Callable[..., Awaitable[Any]]
    parts: tuple[str, ...] = ()
    body: Any = None  # a Struct
    query: Any = None  # a Struct
    answer: Any = None  # a Struct or another type
    status: int = 200
    also: Mapping[int, Any] = {}  # other success statuses
    kind: str = "application/json"
    body_max: int = BODY_MAX
    keyed: bool = False  # takes an idempotency key
    matched: bool = False  # takes If-Match
    needs_body: bool = False  # although no single field is required
    is_raw: bool = False
    include_in_schema: bool = True
    example: Any = None
    also_wrong: Callable[[UnfitBody], list[InvalidInput]] | None = None  # checks the fields that were decoded
    refuses: tuple[int, ...] = ()  # its specific error statuses
    beyond: str = ""  # what is refused although it matches the schema, because no schema can express it
    parts_schema: Mapping[str, Any] = {}  # schemas of segments of the path

    @property
    def is_body_needed(self) -> bool:
        return self.needs_body or (self.body is not None and any(field.required for field in fields(self.body)))

    async def answered(self, request: Request) -> Response:
        """The response; every problem of the request names its place."""
        try:
            return await self._answered(request)
        except InvalidInput as error:
            raise with_places(error, "query" if self.body is None else "body") from error.__cause__
        except Conflict:
            if self.method != "GET":
                await _refuse_sealed(context_of(request))
            raise

    async def _answered(self, request: Request) -> Response:
        context = context_of(request)
        if self.role is not None:
            context.refuse_below(self.role)
        if self.is_raw:
            response: Response = await self.call(context)
            return response
        given: dict[str, Any] = {name: unquoted(request.path_params[name]) for name in self.parts}
        if self.query is not None:
            given["query"] = read_query(self.query, request.scope["query_string"])
        if self.body is None:
            return await self._reply(context, given, b"")
        data = await read_bytes(request, self.body_max)
        value = {} if not data and not self.is_body_needed else json_of(data)
        try:
            given["body"] = read_body(self.body, value)
        except UnfitBody as error:
            more = self.also_wrong(error) if self.also_wrong is not None and error.partial is not None else []
            raise InvalidConfig([*error.problems, *more]) from None
        return await self._reply(context, given, data)

    async def _reply(self, context: RequestContext, given: dict[str, Any], data: bytes) -> Response:
        key = header_of(context.request, _KEY_HEADER) if self.keyed else None
        if key is None:
            return self._response(await self.call(context, **given))

        async def call(once: str) -> Response:
            return self._response(await self.call(context._replace(once=once), **given))

        scope = f"{context.identity.name} {self.method} {context.request.scope['path']}"
        return await answered_once(context.operations, scope, key, data, call)

    def _response(self, value: Any) -> Response:
        if isinstance(value, Response):
            return value
        status, headers = self.status, None
        if isinstance(value, Reply):
            value, status, headers = value
        return Response(msgspec.json.encode(value) + LINE_END, status, headers, media_type=self.kind)


def context_of(request: Request) -> RequestContext:
    identity: Identity | None = request.scope.get("state", {}).get("identity")
    app: Pollux = request.app.pollux
    if identity is None:  # an open route
        return RequestContext(request, Identity("anonymous", Role.NOBODY), app, app.operations)
    return RequestContext(request, identity, app, app.operations.as_actor(identity.name))


async def _refuse_sealed(context: RequestContext) -> None:
    """Raise `StoreMoved` instead of a conflict, as the cure of a conflict cannot help on a store that was moved."""
    try:
        what, _, cure = (await context.app.sealed()).partition("; ")
    except StoreError:
        return
    if what:
        raise StoreMoved(what, cure=cure)


class PathHandler:
    """One path with all of its methods, as an ASGI app; exceptions become problem documents."""

    def __init__(self, operations: Sequence[Route]) -> None:
        self.operations = {operation.method: operation for operation in operations}
        self.path = operations[0].path
        self.pattern = re.compile(_PART.sub(r"(?P<\1>[^/]+)", self.path))
        methods = set(self.operations) | ({"HEAD"} if "GET" in self.operations else set())
        self.allow = ", ".join(sorted(methods | {"OPTIONS"}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answered(request)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001  the outermost handler: it is answered and logged
            response = refusal_of(error, request)
        if request.method == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    async def _answered(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        operation = self.operations.get(method)
        if operation is not None:
            return await operation.answered(request)
        if method == "OPTIONS":
            return Response(status_code=NO_CONTENT, headers={"Allow": self.allow})
        cure = f"this path allows {self.allow}"
        problem = Problem(405, "method not allowed", f"{method[:20]} {self.path}", cure=cure)
        return problem.response({"Allow": self.allow})


class Routes:
    """The routes of one subject, each with its role."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.operations: list[Route] = []

    def get(self, path: str, role: Role, **options: Any) -> Callable[..., Any]:
        return self._add("GET", path, role, options)

    def post(self, path: str, role: Role, **options: Any) -> Callable[..., Any]:
        return self._add("POST", path, role, options)

    def put(self, path: str, role: Role, **options: Any) -> Callable[..., Any]:
        return self._add("PUT", path, role, options)

    def delete(self, path: str, role: Role, **options: Any) -> Callable[..., Any]:
        return self._add("DELETE", path, role, options)

    def open(self, path: str, **options: Any) -> Callable[..., Any]:
        """A route without a token: it must reveal nothing about jobs."""
        return self._add("GET", path, None, options)

    def raw(self, method: str, path: str, role: Role, **options: Any) -> Callable[[Raw], Raw]:
        """A route that gets the request itself, not decoded."""
        return self._add(method, path, role, options | {"is_raw": True})

    def _add(self, method: str, path: str, role: Role | None, options: dict[str, Any]) -> Callable[..., Any]:
        def add(call: Callable[..., Any]) -> Callable[..., Any]:
            hints = get_type_hints(call)
            parts = tuple(_PART.findall(path))
            answer = options.pop("answer", hints.get("return"))
            operation = Route(
                method=method,
                path=path,
                role=role,
                subject=self.subject,
                call=call,
                parts=parts,
                body=hints.get("body"),
                query=hints.get("query"),
                answer=None if answer in (Response, Reply) else answer,
                **options,
            )
            self.operations.append(operation)
            return call

        return add


def path_handlers(routes: Sequence[Routes]) -> list[PathHandler]:
    """Every path once, fixed ones before those with parameters in the same segment."""
    by_path: dict[str, list[Route]] = {}
    for each in routes:
        for operation in each.operations:
            by_path.setdefault(operation.path, []).append(operation)
    paths = sorted(by_path, key=lambda path: [part.startswith("{") for part in path.split("/")])
    return [PathHandler(by_path[path]) for path in paths]


# The engine runs on the same loop, so a route that computes for more than some milliseconds delays firings.


async def in_pieces(items: Sequence[S]) -> AsyncIterator[tuple[int, S]]:
    """Yield the items with their indexes; the loop runs in between."""
    for number, item in enumerate(items):
        if number and number % AT_ONCE == 0:
            await asyncio.sleep(0)
        yield number, item


async def each_made(make: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """The result of `make` for each item; the loop runs in between."""
    made: list[T] = []
    for start in range(0, len(items), AT_ONCE):
        if start:
            await asyncio.sleep(0)
        made += [make(item) for item in items[start : start + AT_ONCE]]
    return made
