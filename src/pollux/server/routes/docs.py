"""Documentation page for people, which works without the internet, and the OpenAPI document for programs.

They tell what the API is and nothing about this node, so they need no token: a browser could not send one with a page.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec
from starlette.responses import Response

from pollux.server.openapi import OPENAPI, PAGE, PAGE_FILES, SCHEME, START, WELCOMES, document
from pollux.server.routing import RequestContext, Routes

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
<link rel="icon" href="{PAGE}/favicon.png">
<link rel="stylesheet" href="{PAGE}/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<noscript>This page needs JavaScript. The same is in <a href="{OPENAPI}">{OPENAPI}</a>.</noscript>
<script src="{PAGE}/swagger-ui-bundle.js"></script>
<script src="{START}"></script>
</body>
</html>
"""
# The token is kept for as long as the tab is open, and not on the disk as the page's own `persistAuthorization` does.
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
<link rel="icon" href="{PAGE}/favicon.png">
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

routes = Routes("docs")


def _welcome(path: str) -> None:
    @routes.open(path, include_in_schema=False)
    async def welcome(desk: RequestContext) -> Response:
        """Where to read on, for whoever looks here first; nothing about this node."""
        if "text/html" in desk.request.headers.get("accept", ""):
            headers = {"Content-Security-Policy": _WELCOME_POLICY}
            return Response(_WELCOME_HTML, media_type="text/html; charset=utf-8", headers=headers)
        return Response(msgspec.json.encode(_WELCOME), media_type="application/json")


for _path in WELCOMES:
    _welcome(_path)


@routes.open(PAGE, include_in_schema=False)
async def page(desk: RequestContext) -> Response:  # noqa: ARG001  every route has it
    """The page."""
    return Response(_HTML, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": _POLICY})


@routes.open(START, include_in_schema=False)
async def start(desk: RequestContext) -> Response:  # noqa: ARG001  every route has it
    """What starts the page; a script inside of it would be forbidden."""
    return Response(_START, media_type="text/javascript; charset=utf-8")


def _file(name: str, kind: str) -> None:
    @routes.open(f"{PAGE}/{name}", include_in_schema=False)
    async def file(desk: RequestContext) -> Response:  # noqa: ARG001  every route has it
        """A part of the page."""
        return Response(_bytes_of(name), media_type=kind)


for _name, _kind in PAGE_FILES.items():
    _file(_name, _kind)


@lru_cache(maxsize=len(PAGE_FILES))
def _bytes_of(name: str) -> bytes:
    import fastapi_offline  # here: only for its files, when somebody reads the page

    return (Path(fastapi_offline.__file__).parent / "static" / name).read_bytes()


@routes.open(OPENAPI, include_in_schema=False)
async def openapi(desk: RequestContext) -> Response:  # noqa: ARG001  every route has it
    """OpenAPI 3.1."""
    return Response(described(), media_type="application/json")


@lru_cache(maxsize=1)
def described() -> bytes:
    from pollux.server.routes.all_routes import EVERY  # here: it lists us, too

    return msgspec.json.encode(document(EVERY))
