"""OpenAPI 3.1 document, made of the routes and Structs that answer, and its page, Swagger UI, without the internet.

Document and pages describe the API and nothing of this node, so they need no token: a browser could not send one with
a page.  Swagger UI comes from the files of the package `offapi` (decision 0053).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from pollux.server.idempotency import KEY_CHARS_MAX, KEY_HEADER
from pollux.server.problems import KIND, ProblemDocument
from pollux.server.routing import RequestContext, Route, Routes
from pollux.server.schemas.reading import PART_CHARS_MAX, fields

OPENAPI = "/api/v2/openapi.json"
PAGE = "/api/v2/docs"
SWAGGER_FILES = {"swagger_bundle.js": "text/javascript", "swagger_style.css": "text/css"}  # of `offapi`
ICON = f"{PAGE}/icon.svg"
START = f"{PAGE}/start.js"
WELCOMES = ("/", "/api", "/api/v2", "/api/v2/")  # where people look first
API_VERSION = "2"
SCHEME = "token"  # the name of the authentication scheme
_REF = "#/components/schemas/{name}"
ABOUT = """Jobs, runs and the scheduler itself.

Every request needs a token: `Authorization: Bearer pf_...`. A body is read as JSON whatever its content type says.
Errors are `application/problem+json` with a `cure`. Lists come in pages: send `next` of one as `cursor` for the next.
"""
_REFUSALS = {
    400: "the request cannot be read",
    401: "no valid token",
    403: "the token's role does not allow that",
    404: "not found",
    409: "it conflicts with the current state",
    413: "the body is too large",
    422: "fields of the request are invalid; `problems` lists all of them",
    429: "too many requests, or the store is full",
    503: "the store does not answer; try again",
}


def document(routes: Sequence[Routes]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    operations = [each for group in routes for each in group.operations if each.include_in_schema]
    kinds = [kind for each in operations for kind in (each.body, each.answer, *each.also.values()) if _has_schema(kind)]
    schemas, components = msgspec.json.schema_components([*kinds, ProblemDocument], ref_template=_REF)
    for kind in kinds:
        if extra := getattr(kind, "SCHEMA", None):  # constraints between its fields
            components[kind.__name__].update(extra)
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


def _has_schema(kind: Any) -> bool:
    return kind is not None and kind not in (bytes, Any)


def _operation(each: Route, by_kind: Mapping[int, Any]) -> dict[str, Any]:
    words = inspect.cleandoc(each.call.__doc__ or "").split("\n\n", 1)
    described: dict[str, Any] = {
        "tags": [each.subject],
        "operationId": f"{each.subject}.{each.call.__name__}",
        "summary": words[0].replace("\n", " ").rstrip("."),
        "parameters": _parameters(each),
        "responses": _responses(each, by_kind),
    }
    if len(words) > 1:
        described["description"] = words[1]
    if each.role is None:
        described["security"] = []
    else:
        described["x-role"] = each.role.word
    if each.body is not None:
        content: dict[str, Any] = {"schema": by_kind[id(each.body)]}
        if each.example is not None:
            content["example"] = each.example
        described["requestBody"] = {"required": each.is_body_needed, "content": {"application/json": content}}
    return described


_PART = {"type": "string", "minLength": 1, "maxLength": PART_CHARS_MAX}


def _parameters(each: Route) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _PART | dict(each.parts_schema.get(name, {}))}
        for name in each.parts
    ]
    if each.query is not None:
        found += _query(each.query)
    if each.keyed:
        words = "the same key gives the same answer for a day, and the request is executed once"
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


def _responses(each: Route, by_kind: Mapping[int, Any]) -> dict[str, Any]:
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
_GOOD = {200: "done", 201: "created", 202: "accepted", 503: "not ready"}


def _refusal(status: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=ProblemDocument.__name__)}
    return {"description": _REFUSALS[status], "content": {KIND: {"schema": schema}}}


# pages

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)  # the page's own script sets styles of elements
_HTML = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Pollux: the API</title>
<link rel="icon" href="{ICON}">
<link rel="stylesheet" href="{PAGE}/swagger_style.css">
</head>
<body>
<div id="page"></div>
<noscript>This page needs JavaScript. The same is in <a href="{OPENAPI}">{OPENAPI}</a>.</noscript>
<script src="{PAGE}/swagger_bundle.js"></script>
<script src="{START}"></script>
</body>
</html>
"""
# The token is kept while the tab is open, and not on disk as by Swagger's `persistAuthorization`.
_START = f"""const PLACE = "pollux.token";
const keeping = () => ({{
  statePlugins: {{
    auth: {{
      wrapActions: {{
        authorize: (act) => (given) => {{
          if (given.{SCHEME}) sessionStorage.setItem(PLACE, given.{SCHEME}.value);
          return act(given);
        }},
        logout: (act) => (names) => {{
          sessionStorage.removeItem(PLACE);
          return act(names);
        }},
      }},
    }},
  }},
}});
const ui = SwaggerUIBundle({{
  url: "{OPENAPI}",
  dom_id: "#page",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
  plugins: [keeping],
  onComplete: () => {{
    const token = sessionStorage.getItem(PLACE);
    if (token) ui.preauthorizeApiKey("{SCHEME}", token);
  }},
}});
"""

_WELCOME = {
    "message": "this is the API of Pollux; every request needs a token",
    "docs": PAGE,
    "openapi": OPENAPI,
    "token": "on the machine of the node: `pollux token --curl` for curl, `pollux token create --role viewer` for more",
}
_WELCOME_POLICY = "default-src 'none'; img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_WELCOME_HTML = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Pollux</title>
<link rel="icon" href="{ICON}">
</head>
<body>
<h1>Pollux</h1>
<p>This is a node of Pollux, a polling and job scheduler: it decides when each of many things is checked or run, and
runs it. Here is its HTTP API; there is no dashboard yet.</p>
<p><a href="{PAGE}">The page of the API</a> has every path and lets you try them; for programs the same is in
<a href="{OPENAPI}">{OPENAPI}</a>. Every request needs a token. On the machine of the node:</p>
<pre>pollux token --curl                   for curl
pollux token create --role viewer     for others: Authorization: Bearer pf_...</pre>
<p>On the command line the same is at hand without one:</p>
<pre>pollux top       everything live, full screen
pollux jobs      what there is, and when it is due
pollux health    is it well, and what is the cure?
pollux why ID    why does it not run?</pre>
</body>
</html>
"""

_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="#24476b"/>'
    '<path d="M8 3.5V8l3 2" fill="none" stroke="#fff" stroke-width="1.6" stroke-linecap="round"/></svg>'
)

routes = Routes("docs")


def _page(path: str, content: Callable[[], bytes | str], kind: str, policy: str = "") -> None:
    headers = {"Content-Security-Policy": policy} if policy else None

    @routes.open(path, include_in_schema=False)
    async def page(context: RequestContext) -> Response:  # noqa: ARG001  every route has it
        return Response(content(), media_type=f"{kind}; charset=utf-8", headers=headers)


def _welcome(path: str) -> None:
    @routes.open(path, include_in_schema=False)
    async def welcome(context: RequestContext) -> Response:
        """Welcome page, with links to the documentation."""
        if "text/html" in context.request.headers.get("accept", ""):
            headers = {"Content-Security-Policy": _WELCOME_POLICY}
            return Response(_WELCOME_HTML, media_type="text/html; charset=utf-8", headers=headers)
        return Response(msgspec.json.encode(_WELCOME), media_type="application/json")


@lru_cache(maxsize=1)
def _encoded_document() -> bytes:
    from pollux.server.routes import EVERY  # here: it includes the routes of this module

    return msgspec.json.encode(document(EVERY))


@lru_cache(maxsize=len(SWAGGER_FILES))
def _swagger_file(name: str) -> bytes:
    package = find_spec("offapi")  # not imported: that would read all of its files
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).with_name(name).read_bytes()


for _path in WELCOMES:
    _welcome(_path)
_page(PAGE, lambda: _HTML, "text/html", _POLICY)
_page(START, lambda: _START, "text/javascript")  # a script inside the page is forbidden by its policy
_page(ICON, lambda: _ICON, "image/svg+xml")
for _name, _kind in SWAGGER_FILES.items():
    _page(f"{PAGE}/{_name}", partial(_swagger_file, _name), _kind)


@routes.open(OPENAPI, include_in_schema=False)
async def openapi(context: RequestContext) -> Response:  # noqa: ARG001  every route has it
    """The OpenAPI document."""
    return Response(_encoded_document(), media_type="application/json")
