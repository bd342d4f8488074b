"""What does the API consist of?  Every route, the errors in its words, and the door in front."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from pollux.app import Pollux
from pollux.errors import PolluxError
from pollux.server.door import Door
from pollux.server.problems import Problem, answer_problem, answer_refusal
from pollux.server.routes import EVERY
from pollux.server.tokens import Tokens
from pollux.version import __version__


def make_api(app: Pollux, tokens: Tokens) -> ASGIApp:
    return Door(describe_api(app), tokens)


def describe_api(app: Pollux | None = None) -> FastAPI:
    """The routes without the door; what `openapi.json` tells is made of it."""
    api = FastAPI(
        title="Pollux", version=__version__, openapi_url="/api/v2/openapi.json", docs_url=None, redoc_url=None
    )
    api.state.pollux = app
    for routes in EVERY:
        api.include_router(routes.router)
    api.add_exception_handler(Problem, answer_problem)
    api.add_exception_handler(PolluxError, answer_refusal)
    return api
