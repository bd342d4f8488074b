"""Errors as `application/problem+json` (RFC 9457), each with a cure where one is known."""

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
LINE_END = b"\n"  # ends every document, for readers at a terminal
PROBLEMS_MAX = 100  # listed for one body
log = logging.getLogger("pollux")
_AGAIN = "try again in a moment, with the same idempotency key if it has one"
_ANEW = "use a node of the release that wrote it; without one, put it again or delete it (a run: cancel or drop it)"
_STATUS: tuple[tuple[type[PolluxError], int, str, str], ...] = (  # the first match counts; the cure is the default
    (InvalidInput, 422, "invalid request", "correct the fields that `problems` lists"),
    (NotFound, 404, "not found", "list the collection to see which ones exist"),
    (Conflict, 409, "conflict", "read the current state, then repeat the request"),
    (StoreMoved, 409, "store moved", "run `pollux doctor` on the node"),
    (Illegible, 409, "record not readable", _ANEW),  # no 503: a retry cannot help
    (StoreFull, 429, "store full", "wait until the queue is shorter, or add workers"),
    (StoreAway, 503, "store unavailable", _AGAIN),
    (StoreBusy, 503, "store busy", _AGAIN),
    (StoreTimeout, 503, "store timeout", _AGAIN),
    (StoreError, 503, "store error", "run `pollux doctor` on the node"),
    (PolluxError, 409, "operation refused", "see the detail"),
)


class FieldProblem(Struct, frozen=True):
    """One problem of a body, query or path."""

    where: str
    what: str
    cure: str = ""


class ProblemDocument(Struct, frozen=True, omit_defaults=True):
    """A problem document (RFC 9457) with its cure."""

    title: str
    status: int
    type: str = "about:blank"
    detail: str = ""
    cure: str = ""
    problems: list[FieldProblem] = []


class Problem(Exception):
    """A refusal with its HTTP status."""

    def __init__(self, status: int, title: str, detail: str = "", *, cure: str = "", **more: Any) -> None:
        self.status, self.title, self.detail, self.cure, self.more = status, title, detail, cure, more
        super().__init__(title)

    def document(self) -> dict[str, Any]:
        document = {"type": "about:blank", "title": self.title, "status": self.status, **self.more}
        if self.detail:
            document["detail"] = shown(self.detail)
        if self.cure:
            document["cure"] = shown(self.cure)
        return document

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        body = msgspec.json.encode(self.document()) + LINE_END
        return Response(body, status_code=self.status, media_type=KIND, headers=headers)


def shown(text: str) -> str:
    """The text without secrets and without control characters."""
    return printable(hide(text))


def problem_of(error: PolluxError) -> Problem:
    """The `Problem` for an error of ours, with every problem of a body at once."""
    status, title, usual = next(known[1:] for known in _STATUS if isinstance(error, known[0]))
    if isinstance(error, InvalidConfig):
        each = [_field_problem(one) for one in error.problems[:PROBLEMS_MAX]]
        detail = "; ".join(at_place(one["where"], one["what"]) for one in each[:5])
        detail = f"{len(error.problems)} problems: {detail}" if len(error.problems) > 1 else detail
        cure = next((one["cure"] for one in each if one["cure"]), usual)
        return Problem(status, title, detail, cure=cure, problems=each)
    if isinstance(error, InvalidInput):
        detail = at_place(error.where, error.what)
        return Problem(status, title, detail, cure=error.cure or usual, problems=[_field_problem(error)])
    detail, cure = getattr(error, "what", "") or str(error), getattr(error, "cure", "") or usual
    return Problem(status, title, detail, cure=cure, **getattr(error, "found", {}))


def with_places(error: InvalidInput, usual: str) -> InvalidInput:
    """The error with `usual` (`body` or `query`) as the place of each problem that names no field."""
    found = problems_of(error)
    if all(one.where for one in found):
        return error
    named = [one if one.where else one.at(usual) for one in found]
    return InvalidConfig(named) if isinstance(error, InvalidConfig) else named[0]


def _field_problem(error: InvalidInput) -> dict[str, str]:
    return {"where": shown(error.where), "what": shown(error.what), "cure": shown(error.cure)}


def refusal_of(error: Exception, request: Request) -> Response:
    """The response for any exception.  Details of an unexpected one are only in the log, under an id."""
    if isinstance(error, Problem):
        return error.response({"Retry-After": "1"} if error.status in {429, 503} else None)
    if isinstance(error, PolluxError):
        problem = problem_of(error)
        return problem.response({"Retry-After": "1"} if problem.status in {429, 503} else None)
    number = secrets.token_hex(6)
    path = printable(request.url.path)[:200]
    log.error("request %s %s failed, error %s", request.method, path, number, exc_info=error)
    cure = f"search the log of the node for {number}, and report it"
    return Problem(500, "internal error", cure=cure, id=number).response()
