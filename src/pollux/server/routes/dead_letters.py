"""Routes of dead letters: list, show, revive, drop; one, several, or all that match a filter."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType

from pollux.errors import Conflict, InvalidInput, read_at
from pollux.model import Run, RunState
from pollux.server.auth import Role
from pollux.server.routing import RequestContext, Routes, each_made
from pollux.server.schemas.jobs import Moment
from pollux.server.schemas.runs import (
    OTHER_CURSOR,
    RUN_CURSOR,
    Limit,
    RunView,
    Text,
    UnreadableView,
    of_cursor,
    or_none,
    run_view,
    set_fields,
    unreadable_views,
)
from pollux.store.contract import RunFilter
from pollux.units import moment_ms

DEAD = (RunState.DEAD,)
IDS_MAX = 1_000
WHY_NOT = {
    "lost": "it is not a dead letter",
    "stale": "its job was deleted: add the job again, or drop the run",
    "conflict": "a live run has its key",
}

_FILTER = ("job_id", "group", "target", "error", "since")
_NO_FILTER = {name: {"type": "null"} for name in _FILTER}  # in a schema

routes = Routes("dead letters")


class DeadQuery(Struct, frozen=True, forbid_unknown_fields=True):
    job_id: Text | UnsetType = UNSET
    group: Text | UnsetType = UNSET
    target: Text | UnsetType = UNSET
    error: Annotated[str, Meta(max_length=1_000, description="part of the error")] | UnsetType = UNSET
    since: Annotated[Moment, Meta(description="died after this time")] | UnsetType = UNSET
    cursor: Annotated[str, Meta(pattern=RUN_CURSOR)] | UnsetType = UNSET
    limit: Limit = 100


class DeadList(Struct, frozen=True, omit_defaults=True):
    dead_letters: list[RunView]
    total: int | None  # null: counting would be too expensive
    next: str | None
    unreadable: list[UnreadableView] = []  # matching ones that cannot be decoded; omitted if empty


class DeadBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The dead letters: `ids`, or a filter (all of its fields must match), or `all: true`."""

    SCHEMA: ClassVar[dict[str, Any]] = {
        "oneOf": [
            {"required": ["ids"], "properties": {**_NO_FILTER, "ids": {"type": "array"}, "all": {"const": False}}},
            {"required": ["all"], "properties": {**_NO_FILTER, "ids": {"type": "null"}, "all": {"const": True}}},
            {
                "anyOf": [{"required": [name], "properties": {name: {"type": "string"}}} for name in _FILTER],
                "properties": {"ids": {"type": "null"}, "all": {"const": False}},
            },
        ]
    }
    ids: Annotated[list[Annotated[str, Meta(max_length=400)]], Meta(max_length=IDS_MAX)] | None = None
    job_id: Text | None = None
    group: Text | None = None
    target: Text | None = None
    error: Annotated[str, Meta(max_length=1_000)] | None = None
    since: Moment | None = None
    all: bool = False


class DeadItem(Struct, frozen=True):
    id: str
    answer: str
    detail: str


class Revived(Struct, frozen=True):
    revived: int
    refused: int
    items: list[DeadItem]  # all refused ones, and the first thousand others


class Dropped(Struct, frozen=True):
    dropped: int


@routes.get("/api/v2/dead-letters", Role.VIEWER, beyond=OTHER_CURSOR)
async def list_dead(context: RequestContext, query: DeadQuery) -> DeadList:
    """List dead letters, newest first."""
    since = or_none(query.since)
    where = RunFilter(
        states=DEAD,
        **set_fields(query, "job_id", "group", "target", "error"),
        finished_after_ms=None if since is None else read_at("since", moment_ms, since),
    )
    with of_cursor():
        page = await context.operations.runs.list_runs(where, after=or_none(query.cursor), limit=query.limit)
    is_all = where == RunFilter(states=DEAD)
    total = (await context.operations.status.counts()).dead if is_all else None
    if total is None and page.next is None and query.cursor is UNSET:
        total = len(page.runs)
    views = await each_made(partial(run_view, now_ms=context.operations.now_ms()), page.runs)
    return DeadList(views, total, page.next, unreadable_views(page.unreadable))


@routes.get("/api/v2/dead-letters/{run_id}", Role.VIEWER, refuses=(409,))
async def show(context: RequestContext, run_id: str) -> RunView:
    """Show one dead letter in full."""
    return run_view(await _dead(context, run_id), context.operations.now_ms())


@routes.post(
    "/api/v2/dead-letters/revive",
    Role.OPERATOR,
    needs_body=True,
    example={"job_id": "home", "since": "2030-01-31T09:00:00Z"},
)
async def revive(context: RequestContext, body: DeadBody) -> Revived:
    """Revive dead letters with their full number of attempts: by id, or all that match."""
    answers = await context.operations.dead_letters.revive(body.ids, where=_filter(body))
    items = [DeadItem(each.id, each.answer.value, WHY_NOT.get(each.answer.value, "")) for each in answers]
    refused = [item for item in items if item.answer != "ok"]
    return Revived(
        len(items) - len(refused), len(refused), [*refused, *(i for i in items if i.answer == "ok")][:IDS_MAX]
    )


@routes.post("/api/v2/dead-letters/drop", Role.OPERATOR, refuses=(404, 409), needs_body=True, example={"all": True})
async def drop(context: RequestContext, body: DeadBody) -> Dropped:
    """Delete dead letters permanently: by id, or all that match."""
    where = _filter(body)
    for run_id in body.ids or ():
        await _dead(context, run_id)
    return Dropped(await context.operations.dead_letters.drop(body.ids, where=where))


@routes.post("/api/v2/dead-letters/{run_id}/revive", Role.OPERATOR, refuses=(409,))
async def revive_one(context: RequestContext, run_id: str) -> Revived:
    """Revive one dead letter with its full number of attempts."""
    await _dead(context, run_id)
    [answer] = await context.operations.dead_letters.revive([run_id])
    if answer.answer.value != "ok":
        raise Conflict(f"run {run_id}: {WHY_NOT.get(answer.answer.value, answer.answer.value)}")
    return Revived(1, 0, [DeadItem(run_id, "ok", "")])


@routes.delete("/api/v2/dead-letters/{run_id}", Role.OPERATOR, refuses=(409,))
async def drop_one(context: RequestContext, run_id: str) -> Dropped:
    """Delete one dead letter permanently."""
    await _dead(context, run_id)
    return Dropped(await context.operations.dead_letters.drop([run_id]))


async def _dead(context: RequestContext, run_id: str) -> Run:
    run = await context.operations.runs.get_run(run_id)
    if run.state is not RunState.DEAD:
        raise Conflict(f"run {run_id} is {run.state.value}, not a dead letter", found={"state": run.state.value})
    return run


def _filter(body: DeadBody) -> RunFilter | None:
    """The filter, or None if ids are sent.  An empty body does not mean all."""
    parts = {name: getattr(body, name) for name in ("job_id", "group", "target", "error")}
    since = None if body.since is None else read_at("since", moment_ms, body.since)
    is_filter = since is not None or any(value is not None for value in parts.values())
    if (body.ids is not None) + is_filter + body.all != 1:
        raise InvalidInput(
            "exactly one of ids, a filter and all is required", cure='send {"job_id": "home"}, or {"all": true}'
        )
    return None if body.ids is not None else RunFilter(states=DEAD, finished_after_ms=since, **parts)
