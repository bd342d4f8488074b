"""OpenAPI 3.1 document, made of the same routes and Structs that answer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from pollux.server.idempotency import KEY_CHARS_MAX, KEY_HEADER
from pollux.server.problems import KIND, ProblemDocument
from pollux.server.routing import Operation, Routes
from pollux.server.schemas.jobs import NOT_READ
from pollux.server.schemas.reading import PART_CHARS_MAX, fields

OPENAPI = "/api/v2/openapi.json"
PAGE = "/api/v2/docs"
PAGE_FILES = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon.png": "image/png",
}
START = f"{PAGE}/start.js"
WELCOMES = ("/", "/api", "/api/v2", "/api/v2/")  # where people look first
OPEN_PAGES = frozenset({OPENAPI, PAGE, START, *WELCOMES, *(f"{PAGE}/{name}" for name in PAGE_FILES)})  # tell of no job
API_VERSION = "2"
SCHEME = "token"  # the name of the one way to prove who asks
_REF = "#/components/schemas/{name}"
ABOUT = """Jobs, runs and the scheduler itself.

Every request needs a token: `Authorization: Bearer pf_...`. A body is read as JSON whatever its content type says.
Errors are `application/problem+json` with a `cure`. Lists come in pages: send `next` of one as `cursor` for the next.
"""
_REFUSALS = {
    400: "the request cannot be read",
    401: "no valid token",
    403: "the token's role does not allow that",
    404: "there is no such thing",
    409: "it is not as you believed",
    413: "the body is too big",
    422: "something in the request cannot be used; `problems` has all of it",
    429: "too many requests, or no room",
    503: "the store does not answer; try again",
}


def document(routes: Sequence[Routes]) -> dict[str, Any]:
    """The whole description."""
    operations = [each for group in routes for each in group.operations if each.include_in_schema]
    kinds = [kind for each in operations for kind in (each.body, each.answer, *each.also.values()) if _is_told(kind)]
    schemas, components = msgspec.json.schema_components([*kinds, ProblemDocument], ref_template=_REF)
    for kind in kinds:
        if says := getattr(kind, "SAYS", None):  # what holds between its fields
            components[kind.__name__].update(says)
    by_kind = {id(kind): schema for kind, schema in zip([*kinds, ProblemDocument], schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pollux", "version": API_VERSION, "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {SCHEME: {"type": "http", "scheme": "bearer", "bearerFormat": "pf_<id>_<secret>"}},
            "responses": {str(status): _refusal(status) for status in _REFUSALS},
        },
        "security": [{SCHEME: []}],
        "tags": [
            {"name": group.subject} for group in routes if any(each.include_in_schema for each in group.operations)
        ],
    }


def _is_told(kind: Any) -> bool:
    return kind is not None and kind not in (bytes, Any)


def _operation(each: Operation, by_kind: Mapping[int, Any]) -> dict[str, Any]:
    words = inspect.cleandoc(each.call.__doc__ or "").split("\n\n", 1)
    told: dict[str, Any] = {
        "tags": [each.subject],
        "operationId": f"{each.subject}.{each.call.__name__}",
        "summary": words[0].replace("\n", " ").rstrip("."),
        "parameters": _parameters(each),
        "responses": _responses(each, by_kind),
    }
    if len(words) > 1:
        told["description"] = words[1]
    if each.role is None:
        told["security"] = []
    else:
        told["x-role"] = each.role.word
    if each.body is not None:
        content: dict[str, Any] = {"schema": by_kind[id(each.body)]}
        if each.example is not None:
            content["example"] = each.example
        told["requestBody"] = {"required": each.is_body_needed, "content": {"application/json": content}}
    return told


_PART = {"type": "string", "minLength": 1, "maxLength": PART_CHARS_MAX}


def _parameters(each: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _PART | dict(each.parts_say.get(name, {}))}
        for name in each.parts
    ]
    if each.query is not None:
        found += _query(each.query)
    if each.keyed:
        words = "the same key gives the same answer for a day, and the thing is done once"
        schema = {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "pattern": "^[ -~]+$"}
        found.append({"name": KEY_HEADER, "in": "header", "schema": schema, "description": words})
    if each.matched:
        words = "change it only if this is its revision"
        schema = {"type": "string", "pattern": '^"[0-9]{1,9}"$'}
        found.append({"name": "If-Match", "in": "header", "schema": schema, "description": words})
    return found


def _query(kind: type[Struct]) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([kind], ref_template=_REF)
    properties = components[kind.__name__]["properties"]
    found = []
    for field in fields(kind):
        schema = dict(properties[field.encode_name])
        words = schema.pop("description", "")
        parameter = {"name": field.encode_name, "in": "query", "required": field.required, "schema": schema}
        found.append(parameter | ({"description": words} if words else {}))
    return found


def _responses(each: Operation, by_kind: Mapping[int, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in {each.status: each.answer, **each.also}.items():
        responses[str(status)] = {"description": _GOOD.get(status, "done")}
        schema = by_kind.get(id(kind), {"type": "string"} if each.kind.startswith("text/") else {})
        responses[str(status)]["content"] = {each.kind: {"schema": schema}}
    refused = {*each.refuses}
    if each.role is not None:
        refused |= {401, 403, 429, 503}
    if each.query is not None:
        refused |= {400, 422}
    if each.body is not None:
        refused |= {400, 413, 422}
    if each.parts:
        refused |= {404, 422}
    if each.keyed:
        refused |= {409, 422}
    for status in sorted(refused):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    if beyond := "; ".join(filter(None, (each.beyond, _OTHER_KEY if each.keyed else ""))):
        responses["422"]["description"] = f"{_REFUSALS[422]}; also, although it fits the schema: {beyond}"
    return responses


_OTHER_KEY = "an idempotency key that was sent with another body"
_GOOD = {200: "done", 201: "made", 202: "accepted", 503: "not ready"}


def _refusal(status: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=ProblemDocument.__name__)}
    return {"description": _REFUSALS[status], "content": {KIND: {"schema": schema}}}


# for the documentation


def told_routes() -> dict[str, list[tuple[str, str, str]]]:
    """Every route that is told of, by subject: its method and path, its role, and what it does."""
    from pollux.server.routes import EVERY  # here: the routes import us

    found: dict[str, list[tuple[str, str, str]]] = {}
    for group in EVERY:
        for each in group.operations:
            if each.include_in_schema:
                words = " ".join(inspect.cleandoc(each.call.__doc__ or "").split()).replace("|", "\\|")
                role = "" if each.role is None else each.role.word
                found.setdefault(each.subject, []).append((f"`{each.method} {each.path}`", role, words))
    return found


def told_fields(kind: type[Struct]) -> list[tuple[str, str]]:
    """The fields of a body that are read: name and kind."""
    _, components = msgspec.json.schema_components([kind], ref_template=_REF)
    properties = components[kind.__name__]["properties"]
    return [(f"`{name}`", _kind(schema)) for name, schema in properties.items() if name not in NOT_READ]


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"] if choice is not None)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(each) for each in schema["anyOf"] if each.get("type") != "null"))
    if "$ref" in schema:
        return "object"
    kind = schema.get("type", "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
