"""Routes of pauses (group, target, everything), breakers and the audit log."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from pollux.app.operations.status import nobody_of
from pollux.errors import NotFound
from pollux.model import STOP, Note
from pollux.secrets import HIDDEN, hide
from pollux.server.auth import Role
from pollux.server.routing import RequestContext, Routes
from pollux.server.schemas.jobs import ID_PATTERN, PRINTED, Duration, moment
from pollux.server.schemas.runs import Limit, Text, or_none

BREAKER = "breaker:"
_TEXT, _NULL, _TRUE, _FALSE = {"type": "string"}, {"type": "null"}, {"const": True}, {"const": False}  # in a schema

routes = Routes("stops")


class StopView(Struct, frozen=True):
    """A pause.  `kind` is job, group, target, all, or claims (workers are drained)."""

    kind: str
    name: str
    reason: str
    by: str
    since: str | None
    until: str | None


class StopMade(StopView, frozen=True):
    """`hint`: a suggestion if no job has that group or target; otherwise empty."""

    hint: str


class StopList(Struct, frozen=True):
    stops: list[StopView]


class StopBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of `group`, `target`, `everything`; a job is paused by its own route."""

    SCHEMA: ClassVar[dict[str, Any]] = {
        "oneOf": [
            {"required": ["group"], "properties": {"group": _TEXT, "target": _NULL, "everything": _FALSE}},
            {"required": ["target"], "properties": {"group": _NULL, "target": _TEXT, "everything": _FALSE}},
            {"required": ["everything"], "properties": {"group": _NULL, "target": _NULL, "everything": _TRUE}},
        ]
    }
    group: Annotated[str, Meta(extra_json_schema={"pattern": ID_PATTERN})] | None = None
    target: Annotated[str, Meta(max_length=200, extra_json_schema={"pattern": PRINTED, "minLength": 1})] | None = None
    everything: bool = False
    reason: Annotated[str, Meta(max_length=1_000)] | None = None
    duration: Duration | None = None


class StopQuery(Struct, frozen=True, forbid_unknown_fields=True):
    group: Text | UnsetType = UNSET
    target: Text | UnsetType = UNSET
    everything: bool = False


class StopGone(Struct, frozen=True):
    message: str
    was_paused: bool


class BreakerView(Struct, frozen=True):
    name: str
    state: str
    value: dict[str, Any]


class BreakerList(Struct, frozen=True):
    breakers: list[BreakerView]


class BreakerReset(Struct, frozen=True):
    message: str
    name: str


class AuditView(Struct, frozen=True):
    seq: int
    at: str | None
    actor: str
    action: str
    subject: str
    detail: str
    chain: str


class AuditList(Struct, frozen=True):
    lines: list[AuditView]  # newest first
    next: int | None  # send it as `before`


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    before: Annotated[int, Meta(ge=1, le=2**53)] | UnsetType = UNSET
    limit: Limit = 100


@routes.get("/api/v2/stops", Role.VIEWER)
async def list_stops(context: RequestContext) -> StopList:
    """List all pauses."""
    return StopList([_stop(note) for note in await context.operations.pauses.stops()])


@routes.post(
    "/api/v2/stops",
    Role.OPERATOR,
    status=201,
    needs_body=True,
    example={"group": "edge", "reason": "they move", "duration": "2h"},
    beyond="a name with characters that cannot be printed",
)
async def pause(context: RequestContext, body: StopBody) -> StopMade:
    """Pause a group, a target or everything, until it is resumed or for a while.

    `hint` is set if no job has that group or target.
    """
    key = await context.operations.pauses.pause(
        group=body.group,
        target=body.target,
        everything=body.everything,
        reason=body.reason or "",
        duration=body.duration,
    )
    found = next((note for note in await context.operations.pauses.stops() if note.key == key), None)
    hint = await nobody_of(context.operations, group=body.group, target=body.target)
    return StopMade(**asdict(_stop(found or Note(key, {}))), hint=hint)


@routes.delete("/api/v2/stops", Role.OPERATOR, beyond="none, or more than one, of `group`, `target` and `everything`")
async def resume(context: RequestContext, query: StopQuery) -> StopGone:
    """Resume a group, a target or everything."""
    was = await context.operations.pauses.resume(
        group=or_none(query.group), target=or_none(query.target), everything=query.everything
    )
    return StopGone("it is resumed" if was else "it was not paused", was)


@routes.get("/api/v2/breakers", Role.VIEWER)
async def list_breakers(context: RequestContext) -> BreakerList:
    """List circuit breakers; none before this version supports them."""
    notes = await context.operations.storage.list_notes(BREAKER)
    return BreakerList([_breaker(note) for note in notes])


@routes.post("/api/v2/breakers/{name}/reset", Role.OPERATOR)
async def reset_breaker(context: RequestContext, name: str) -> BreakerReset:
    """Close a circuit breaker, so that its target is tried again now."""
    if not any(
        note.key == f"{BREAKER}{name}" for note in await context.operations.storage.list_notes(f"{BREAKER}{name}")
    ):
        raise NotFound("breaker", name, cure="GET /api/v2/breakers lists them")
    await context.operations.pauses.reset_breaker(name)
    return BreakerReset("the breaker is closed", name)


@routes.get("/api/v2/audit", Role.VIEWER)
async def list_audit(context: RequestContext, query: AuditQuery) -> AuditList:
    """List the lines of the audit log, newest first."""
    page = await context.operations.audit.list_audit(after=or_none(query.before) or 0, limit=query.limit, newest=True)
    lines = [
        AuditView(line.seq, moment(line.at_ms), line.actor, line.action, line.subject, hide(line.detail), line.chain)
        for line in reversed(page.lines)
    ]
    return AuditList(lines, page.next)


def _stop(note: Note) -> StopView:
    kind, _, name = note.key.removeprefix(STOP).partition(":")
    value = note.value if isinstance(note.value, dict) else {}
    since = value.get("at_ms")
    return StopView(
        kind=kind,
        name=name,
        reason=hide(str(value.get("reason", ""))),
        by=str(value.get("by", "")),
        since=moment(since) if isinstance(since, int) else None,
        until=moment(note.expires_ms),
    )


def _breaker(note: Note) -> BreakerView:
    value = HIDDEN.hide_in(note.value) if isinstance(note.value, dict) else {}
    return BreakerView(note.key.removeprefix(BREAKER), str(value.get("state", "")), value)
