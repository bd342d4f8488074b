"""What is said when it cannot be done?  Every error as problem+json, with a cure where there is one."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from pollux.errors import (
    Conflict,
    Illegible,
    InvalidConfig,
    InvalidInput,
    NotFound,
    PolluxError,
    StoreAway,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreMoved,
    StoreTimeout,
    problems_of,
)
from pollux.secrets import at_place, hide
from pollux.units import printable

KIND = "application/problem+json"
LINE_END = b"\n"  # of every document, for those who read it at a terminal
PROBLEMS_MAX = 100  # of one body that are told
log = logging.getLogger("pollux")
_AGAIN = "try again in a moment, with the same idempotency key if it has one"
_ANEW = "ask a node of the release that wrote it; if there is none put it anew, or delete it (a run: cancel or drop it)"
_STATUS: tuple[tuple[type[PolluxError], int, str, str], ...] = (  # the first that fits; the cure if none is told
    (InvalidInput, 422, "the request cannot be used", "mend what `problems` names"),
    (NotFound, 404, "there is no such thing", "the list of them has those that are there"),
    (Conflict, 409, "it is not as you believed", "look at it as it is now, then decide"),
    (StoreMoved, 409, "nobody works on this store", "`pollux doctor` on the node says why"),
    (Illegible, 409, "this node cannot read it", _ANEW),  # and will not: nobody is told to try again
    (StoreFull, 429, "there is no room", "wait until some of it is worked off, or add workers"),
    (StoreAway, 503, "the store cannot be reached", _AGAIN),
    (StoreBusy, 503, "the store is busy", _AGAIN),
    (StoreTimeout, 503, "the store did not answer in time", _AGAIN),
    (StoreError, 503, "the store said no", "`pollux doctor` on the node says why"),
    (PolluxError, 409, "it cannot be done", "the detail says why"),
)


class FieldProblem(Struct, frozen=True):
    """One thing that is wrong with a body."""

    where: str
    what: str
    cure: str = ""


class ProblemDocument(Struct, frozen=True, omit_defaults=True):
    """Why it was not done (RFC 9457), and what helps."""

    title: str
    status: int
    type: str = "about:blank"
    detail: str = ""
    cure: str = ""
    problems: list[FieldProblem] = []


class Problem(Exception):
    """A refusal that knows its status."""

    def __init__(self, status: int, title: str, detail: str = "", *, cure: str = "", **more: Any) -> None:
        self.status, self.title, self.detail, self.cure, self.more = status, title, detail, cure, more
        super().__init__(title)

    def document(self) -> dict[str, Any]:
        document = {"type": "about:blank", "title": self.title, "status": self.status, **self.more}
        if self.detail:
            document["detail"] = said(self.detail)
        if self.cure:
            document["cure"] = said(self.cure)
        return document

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        body = msgspec.json.encode(self.document()) + LINE_END
        return Response(body, status_code=self.status, media_type=KIND, headers=headers)


def said(text: str) -> str:
    """As it may be shown: without secrets, and of characters that steer nothing."""
    return printable(hide(text))


def problem_of(error: PolluxError) -> Problem:
    """The error in the API's words; all that is wrong with a body at once."""
    status, title, usual = next(known[1:] for known in _STATUS if isinstance(error, known[0]))
    if isinstance(error, InvalidConfig):
        each = [_one(one) for one in error.problems[:PROBLEMS_MAX]]
        words = "; ".join(at_place(one["where"], one["what"]) for one in each[:5])
        detail = f"{len(error.problems)} problems: {words}" if len(error.problems) > 1 else words
        cure = next((one["cure"] for one in each if one["cure"]), usual)
        return Problem(status, title, detail, cure=cure, problems=each)
    if isinstance(error, InvalidInput):
        words = at_place(error.where, error.what)
        return Problem(status, title, words, cure=error.cure or usual, problems=[_one(error)])
    words, cure = getattr(error, "what", "") or str(error), getattr(error, "cure", "") or usual
    return Problem(status, title, words, cure=cure, **getattr(error, "found", {}))


def with_places(error: InvalidInput, usual: str) -> InvalidInput:
    """What is said of the request as a whole is said of the part that it was read from."""
    found = problems_of(error)
    if all(one.where for one in found):
        return error
    named = [one if one.where else one.at(usual) for one in found]
    return InvalidConfig(named) if isinstance(error, InvalidConfig) else named[0]


def _one(error: InvalidInput) -> dict[str, str]:
    return {"where": said(error.where), "what": said(error.what), "cure": said(error.cure)}


def refusal_of(error: Exception, request: Request) -> Response:
    """The answer to whatever was raised.  What nobody expected is in the log under an id, and nowhere else."""
    if isinstance(error, Problem):
        return error.response({"Retry-After": "1"} if error.status in {429, 503} else None)
    if isinstance(error, PolluxError):
        problem = problem_of(error)
        return problem.response({"Retry-After": "1"} if problem.status in {429, 503} else None)
    number = secrets.token_hex(6)
    path = printable(request.url.path)[:200]
    log.error("request %s %s broke, error %s", request.method, path, number, exc_info=error)
    cure = f"look for {number} in the log of the node, and tell its makers"
    return Problem(500, "something broke here", cure=cure, id=number).response()


async def answer_problem(request: Request, error: Exception) -> Response:
    """For what is raised outside of a route."""
    return refusal_of(error, request)
