"""What is said when it cannot be done?  Every error as problem+json, with a cure where there is one."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pollux.errors import (
    Conflict,
    InvalidConfig,
    InvalidInput,
    NotFound,
    PolluxError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreTimeout,
)
from pollux.secrets import hide

KIND = "application/problem+json"
_STATUS: tuple[tuple[type[PolluxError], int, str], ...] = (  # the first that fits
    (InvalidInput, 422, "the request cannot be used"),
    (NotFound, 404, "there is no such thing"),
    (Conflict, 409, "it is not as you believed"),
    (StoreFull, 429, "there is no room"),
    (StoreBusy, 503, "the store is busy"),
    (StoreTimeout, 503, "the store did not answer in time"),
    (StoreError, 503, "the store said no"),
    (PolluxError, 409, "it cannot be done"),
)


class Problem(Exception):
    """A refusal that knows its status."""

    def __init__(self, status: int, title: str, detail: str = "", *, cure: str = "", **more: Any) -> None:
        self.status, self.title, self.detail, self.cure, self.more = status, title, detail, cure, more
        super().__init__(title)

    def response(self, headers: dict[str, str] | None = None) -> Response:
        document = {"type": "about:blank", "title": self.title, "status": self.status, **self.more}
        if self.detail:
            document["detail"] = hide(self.detail)
        if self.cure:
            document["cure"] = self.cure
        body = msgspec.json.encode(document)
        return Response(body, status_code=self.status, media_type=KIND, headers=headers)


def problem_of(error: PolluxError) -> Problem:
    """The error in the API's words; all that is wrong with a body at once."""
    status, title = next((status, title) for kind, status, title in _STATUS if isinstance(error, kind))
    if isinstance(error, InvalidConfig):
        each = [{"where": one.where, "what": hide(one.what), "cure": one.cure} for one in error.problems]
        return Problem(status, title, str(error), problems=each)
    if isinstance(error, InvalidInput):
        return Problem(status, title, f"{error.where}: {error.what}" if error.where else error.what, cure=error.cure)
    return Problem(status, title, str(error), cure=getattr(error, "cure", ""))


async def answer_problem(request: Request, error: Exception) -> Response:  # noqa: ARG001  Starlette's
    assert isinstance(error, Problem)
    return error.response()


async def answer_refusal(request: Request, error: Exception) -> Response:  # noqa: ARG001  Starlette's
    assert isinstance(error, PolluxError)
    problem = problem_of(error)
    return problem.response({"Retry-After": "1"} if problem.status in {429, 503} else None)
