"""Routes of the scheduler: drain, resume, trigger, reload, rollback, settings, forecast."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from pollux.app.forecast import foretell, known_of
from pollux.app.operations.control import Setting, TriggerResult
from pollux.app.operations.status import nodes_now
from pollux.app.reload import OptionChange, ReloadResult
from pollux.config.settings import LIVE_PATHS, is_overruled
from pollux.errors import InvalidInput, NotFound, read_at
from pollux.model import Job
from pollux.server.auth import Role
from pollux.server.routing import RequestContext, Routes
from pollux.server.schemas.jobs import moment
from pollux.server.schemas.reading import view
from pollux.server.schemas.runs import ReasonBody, Text, or_none
from pollux.units import DAY_MS, duration_ms, moment_ms

PLAN_JOBS_MAX = 200_000
PLAN_MAX_MS = 366 * DAY_MS
NO_FILE = "this node has no config file, or the file is invalid"
CHANGEABLE = {"path": {"enum": list(LIVE_PATHS)}}

routes = Routes("scheduler")


class NodeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    node: Annotated[str, Meta(max_length=300, description="only this node; default: all")] | UnsetType = UNSET


class DrainView(Struct, frozen=True):
    message: str
    draining: bool
    node: str | None
    workers_busy: int  # runs in progress


class ReloadBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`text` replaces the text of the file for a dry run; it is never applied, so `dry_run` must be set."""

    dry_run: bool = False  # only report what would change
    replace: bool = False  # also if most jobs are removed, or jobs that a living node declares from another text
    text: Annotated[str, Meta(description="compare this instead of the file; with dry_run")] | None = None
    called: Annotated[str, Meta(max_length=1_000, description="the name of its file, for messages")] | None = None
    source: (
        Annotated[
            str, Meta(max_length=300, description="the source that the text belongs to; default: that of this node")
        ]
        | None
    ) = None


class RollbackBody(Struct, frozen=True, forbid_unknown_fields=True):
    to: (
        Annotated[str, Meta(max_length=100, description="the digest of a version; default: the previous one")] | None
    ) = None
    replace: bool = False  # as with a reload


class ChangeView(Struct, frozen=True):
    path: str
    before: str
    after: str


class ReloadView(Struct, frozen=True):
    message: str
    path: str
    digest: str
    dry_run: bool
    added: int
    changed: int
    removed: int
    same: int
    lines: list[str]
    options: list[ChangeView]
    needs_restart: list[ChangeView]
    source: str  # whose jobs were compared
    unseen: list[str]  # functions that a sent text names and the node has not imported: not checked
    refused: str  # of a dry run: why it would be refused without `replace`; empty: it would not


class FileVersion(Struct, frozen=True):
    digest: str
    at: str | None


class FileVersions(Struct, frozen=True):
    versions: list[FileVersion]


class TriggerView(Struct, frozen=True):
    message: str
    leaders: list[str]
    answered: list[str]
    fired: int
    released: int
    skipped: int


class SettingView(Struct, frozen=True):
    path: str
    value: str
    by: str
    at: str | None
    meaning: str
    overruled_by: Annotated[
        str, Meta(description="what overrides the setting on the node that answers: its environment, ...")
    ]


class SettingList(Struct, frozen=True):
    settings: list[SettingView]


class SettingBody(Struct, frozen=True, forbid_unknown_fields=True):
    value: str | int | float | bool


class SettingGone(Struct, frozen=True):
    message: str
    path: str


class PlanQuery(Struct, frozen=True, forbid_unknown_fields=True):
    since: Annotated[str, Meta(max_length=64, description="start of the window; default: now")] | UnsetType = field(
        default=UNSET, name="from"
    )
    window: Annotated[str, Meta(max_length=32, description='length: "1h", "24h", "7d"')] = "1h"
    group: Text | UnsetType = UNSET
    job_id: Text | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1_000, description="firings that are listed; all are counted")] = 100


class FiringView(Struct, frozen=True):
    at: str | None
    job_id: str
    schedule: str


class PlanView(Struct, frozen=True):
    """The firings of the window if nothing changes."""

    from_at: str | None
    to_at: str | None
    total: int
    late: int
    jobs: int
    firings: list[FiringView]
    bucket_seconds: float
    buckets_from: str | None
    buckets: list[int]  # firings in each
    peak: int
    quiet: dict[str, int]  # jobs without a schedule, by kind


@routes.post("/api/v2/scheduler/drain", Role.OPERATOR, refuses=(404,))
async def drain(context: RequestContext, query: NodeQuery, body: ReasonBody) -> DrainView:
    """Stop workers from claiming runs until they are resumed, also across restarts; current runs and planning go on."""
    node = or_none(query.node)
    await context.operations.workers.drain_workers(node, reason=body.reason or "")
    words = "the workers are drained" if node is None else f"node {node} is drained"
    return DrainView(words, draining=True, node=node, workers_busy=await _busy(context, node))


@routes.post("/api/v2/scheduler/resume", Role.OPERATOR, refuses=(409,))
async def resume(context: RequestContext, query: NodeQuery) -> DrainView:
    """Let the workers claim again."""
    node = or_none(query.node)
    was = await context.operations.workers.resume_workers(node)
    words = "the workers claim again" if was else "the workers were not drained"
    return DrainView(words, draining=False, node=node, workers_busy=await _busy(context, node))


@routes.post("/api/v2/scheduler/trigger", Role.OPERATOR)
async def trigger(context: RequestContext) -> TriggerView:
    """Make the leader plan now, on whichever node it is, and report what it fired and released."""
    done: TriggerResult = await context.operations.workers.trigger()
    words = f"{done.fired} fired, {done.released} released, {done.skipped} skipped"
    if not done.leaders:
        words = "there is no leader, so nothing was planned"
    elif len(done.answered) < len(done.leaders):
        words += "; not every leader has answered yet"
    return TriggerView(words, list(done.leaders), list(done.answered), done.fired, done.released, done.skipped)


@routes.post("/api/v2/scheduler/reload", Role.ADMIN, refuses=(409, 422), example={"dry_run": True}, beyond=NO_FILE)
async def reload(context: RequestContext, body: ReloadBody) -> ReloadView:
    """Read the config file again and apply it; an invalid file changes nothing.

    `dry_run` only reports what would change; with `text`, what that text would change instead of the file.  A text
    that the source never had is refused if it removes jobs that a living node declares from another text, or more
    than half of them (and at least five), unless its `release` is higher or `replace` is set.
    """
    if body.text is None and (body.called or body.source):
        raise InvalidInput("it is required with `called` and `source`", where="text", cure="send the text")
    called, source = body.called or "", body.source or ""
    verbs, dry_run, replace = context.operations, body.dry_run, body.replace
    return _reloaded(
        await verbs.config_file.reload(dry_run=dry_run, text=body.text, called=called, source=source, replace=replace)
    )


@routes.post("/api/v2/scheduler/rollback", Role.ADMIN, refuses=(404, 409, 422), beyond=NO_FILE)
async def rollback(context: RequestContext, body: RollbackBody) -> ReloadView:
    """Write the previous text back into the config file, and apply it."""
    return _reloaded(await context.operations.config_file.rollback(body.to, replace=body.replace))


@routes.get("/api/v2/scheduler/file-versions", Role.VIEWER, refuses=(422,), beyond=NO_FILE)
async def file_versions(context: RequestContext) -> FileVersions:
    """List the texts of the config file that were applied, oldest first."""
    return FileVersions(
        [FileVersion(each.digest, moment(each.at_ms)) for each in await context.operations.config_file.file_versions()]
    )


@routes.get("/api/v2/scheduler/settings", Role.VIEWER)
async def settings(context: RequestContext) -> SettingList:
    """List the options that were changed for all nodes, and by whom."""
    return SettingList([_setting(context, each) for each in await context.operations.settings.list_settings()])


@routes.put(
    "/api/v2/scheduler/settings/{path}",
    Role.ADMIN,
    example={"value": 50},
    beyond="a value that this option does not allow",
    parts_schema=CHANGEABLE,
)
async def change_setting(context: RequestContext, path: str, body: SettingBody) -> SettingView:
    """Change an option for all nodes, also across restarts."""
    return _setting(context, await context.operations.settings.set_setting(path, body.value))


@routes.delete("/api/v2/scheduler/settings/{path}", Role.ADMIN, parts_schema=CHANGEABLE)
async def unset_setting(context: RequestContext, path: str) -> SettingGone:
    """Remove a setting, so that the file or the default applies again."""
    if not await context.operations.settings.unset_setting(path):
        raise NotFound("setting", path, cure="it is not set: the file or the default applies already")
    return SettingGone("the file or the default applies again", path)


@routes.get("/api/v2/scheduler/plan", Role.VIEWER, refuses=(409,), beyond="a window out of range")
async def plan(context: RequestContext, query: PlanQuery) -> PlanView:
    """Forecast the firings of a window: list, histogram, and the number of jobs without a schedule."""
    now_ms = context.operations.now_ms()
    since = or_none(query.since)
    from_ms = now_ms if since is None else read_at("from", moment_ms, since)
    width_ms = read_at("window", duration_ms, query.window)
    if not now_ms - DAY_MS <= from_ms <= now_ms + PLAN_MAX_MS:
        raise InvalidInput("out of range", where="from", cure="from a day ago to 366d ahead")
    if not 0 < width_ms <= PLAN_MAX_MS:
        raise InvalidInput("out of range", where="window", cure="more than 0, and at most 366d")
    if (count := (await context.operations.status.counts()).jobs) > PLAN_JOBS_MAX:
        cure = f"this route handles at most {PLAN_JOBS_MAX:,}; use `pollux plan`"
        raise InvalidInput(f"there are {count:,} jobs", cure=cure)
    known = await known_of(context.operations)
    group, job_id = or_none(query.group), or_none(query.job_id)

    def chosen(job: Job) -> bool:
        return (group is None or job.group == group) and (job_id is None or job.id == job_id)

    found = await asyncio.to_thread(
        lambda: foretell(
            known.jobs,
            known,
            now_ms=now_ms,
            from_ms=from_ms,
            to_ms=from_ms + width_ms,
            rows_max=query.limit,
            choose=chosen,
        )
    )
    return PlanView(
        from_at=moment(found.from_ms),
        to_at=moment(found.to_ms),
        total=found.total,
        late=found.late,
        jobs=found.jobs,
        firings=[FiringView(moment(each.at_ms), each.job_id, each.schedule) for each in found.firings],
        bucket_seconds=found.bucket_ms / 1000,
        buckets_from=moment(found.start_ms),
        buckets=list(found.counts),
        peak=max(found.counts, default=0),
        quiet={each.kind: each.count for each in found.quiet},
    )


async def _busy(context: RequestContext, node: str | None) -> int:
    return sum(each.busy for each in await nodes_now(context.operations) if node in (None, each.id))


def _reloaded(done: ReloadResult) -> ReloadView:
    words = "this would change" if done.is_dry else "the file is applied"
    return view(
        ReloadView,
        done,
        message="nothing changes" if done.is_empty else words,
        dry_run=done.is_dry,
        options=_changes(done.options),
        needs_restart=_changes(done.needs_restart),
    )


def _changes(found: Iterable[OptionChange]) -> list[ChangeView]:
    return [ChangeView(each.path, str(each.before), str(each.after)) for each in found]


def _setting(context: RequestContext, each: Setting) -> SettingView:
    return SettingView(
        each.path, each.value, each.by, moment(each.at_ms), each.meaning, _overruled_by(context, each.path)
    )


def _overruled_by(context: RequestContext, path: str) -> str:
    reloader = context.app.reloader
    if reloader is None or not is_overruled(reloader.config, path):
        return ""
    return reloader.config.origins[path]
