"""Routes of one job: pause, resume, cancel, run now, explain, list its runs."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from pollux.app.operations.runs import ANYWAY
from pollux.app.operations.status import runs_in_state
from pollux.errors import Conflict, Unreadable
from pollux.model import STOP, Job
from pollux.secrets import hide
from pollux.server.authorization import check_asker
from pollux.server.cooperative import each_made
from pollux.server.roles import Role
from pollux.server.routes.jobs import made_id
from pollux.server.routing import RequestContext, Routes
from pollux.server.schemas.jobs import Duration, moment
from pollux.server.schemas.runs import (
    OTHER_CURSOR,
    ReasonBody,
    RunList,
    RunQuery,
    RunView,
    given,
    of_cursor,
    run_filter_of,
    run_view,
    states_of,
    unreadable_views,
)
from pollux.store.contract import RunFilter, RunPage
from pollux.units import counted

BY_API = 'send {"anyway": true}'

routes = Routes("jobs")


class PauseBody(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=1_000)] | None = None
    duration: Duration | None = None  # None: until it is resumed


class PausedView(Struct, frozen=True):
    message: str
    job_id: str
    stop: str  # the key of the pause
    until: str | None


class ResumedView(Struct, frozen=True):
    message: str
    job_id: str
    was_paused: bool


class CancelledView(Struct, frozen=True):
    message: str
    job_id: str
    runs: list[str]


class ForceBody(Struct, frozen=True, forbid_unknown_fields=True):
    params: dict[str, Any] | None = None
    anyway: bool = False  # also if one of its runs is live


class ForcedView(Struct, frozen=True):
    message: str
    job_id: str
    run: RunView


class WhyView(Struct, frozen=True):
    """An explanation in text."""

    id: str
    answer: str
    reason: str
    expected_at: str | None
    cure: str


@routes.post("/api/v2/jobs/{job_id}/pause", Role.OPERATOR)
async def pause(desk: RequestContext, job_id: str, body: PauseBody) -> PausedView:
    """Stop the firings of a job until it is resumed, or for a while."""
    found = await desk.operations.jobs.find_job(job_id)
    key = await desk.operations.pauses.pause(job_id, reason=body.reason or "", duration=body.duration)
    stop = next((each for each in await desk.operations.pauses.stops() if each.key == key), None)
    until = None if stop is None else moment(stop.expires_ms)
    words = "the job is paused; due times meanwhile are skipped" + _unreadable(found)
    return PausedView(words, job_id, key.removeprefix(STOP), until)


@routes.post("/api/v2/jobs/{job_id}/resume", Role.OPERATOR)
async def resume(desk: RequestContext, job_id: str) -> ResumedView:
    """Resume a paused job."""
    found = await desk.operations.jobs.find_job(job_id)
    was = await desk.operations.pauses.resume(job_id)
    words = ("the job is resumed" if was else "the job was not paused") + _unreadable(found)
    return ResumedView(words, job_id, was)


@routes.post("/api/v2/jobs/{job_id}/cancel", Role.OPERATOR)
async def cancel(desk: RequestContext, job_id: str, body: ReasonBody) -> CancelledView:
    """Cancel the live runs of a job: waiting ones at once, running ones by request.  Its schedule stays."""
    found = await desk.operations.jobs.find_job(job_id)
    answers = await desk.operations.runs.cancel(job_id, reason=body.reason or "")
    words = "the job has no live run"
    if answers:
        words = f"{counted(len(answers), 'run')} {'is' if len(answers) == 1 else 'are'} cancelled or requested to stop"
    return CancelledView(words + _unreadable(found), job_id, [answer.id for answer in answers])


@routes.post(
    "/api/v2/jobs/{job_id}/force-run",
    Role.OPERATOR,
    status=202,
    keyed=True,
    refuses=(409,),
    beyond="params that the job's handler does not accept",
)
async def force_run(desk: RequestContext, job_id: str, body: ForceBody) -> ForcedView:
    """Run a job now, regardless of its schedule and pauses.

    409 with the id of the live run if there is one and the job does not allow overlap, unless `anyway` is set.  Of
    many concurrent requests one starts a run.  A run that is scheduled for later does not count as live.
    """
    job = await desk.operations.jobs.get_job(job_id)
    check_asker(desk, job, body.params)
    run_id = made_id(desk) if desk.once else None
    try:
        run = await desk.operations.runs.run_now(job, body.params, anyway=body.anyway, id=run_id)
    except Conflict as error:
        raise Conflict(error.what, found=error.found, cure=error.cure.replace(ANYWAY, BY_API)) from None
    drain = await desk.operations.workers.drain_here()
    words = "the job runs now" if drain is None else f"the run waits: {drain}; POST /api/v2/scheduler/resume ends it"
    return ForcedView(words, job_id, run_view(run))


@routes.get("/api/v2/jobs/{job_id}/why", Role.VIEWER)
async def why(desk: RequestContext, job_id: str) -> WhyView:
    """Explain why the job runs or does not run."""
    await desk.operations.jobs.find_job(job_id)
    return await why_view(desk, job_id)


@routes.get("/api/v2/jobs/{job_id}/runs", Role.VIEWER, beyond=OTHER_CURSOR)
async def runs_of(desk: RequestContext, job_id: str, query: RunQuery) -> RunList:
    """List the runs of a job: live ones by due time, then finished ones, newest first."""
    where = replace(run_filter_of(query), job_id=job_id)
    page = await page_of(desk, query, where)
    if not page.runs:
        await desk.operations.jobs.find_job(job_id)
    return RunList(await each_made(run_view, page.runs), page.next, unreadable_views(page.unreadable))


async def page_of(desk: RequestContext, query: RunQuery, where: RunFilter) -> RunPage:
    """The page of runs that a query asks for."""
    states, now_ms = states_of(query), desk.operations.now_ms()
    with of_cursor():
        return await runs_in_state(
            desk.operations.runs, states, where, now_ms=now_ms, after=given(query.cursor), limit=query.limit
        )


async def why_view(desk: RequestContext, name: str) -> WhyView:
    found = await desk.operations.status.why(name)
    return WhyView(name, found.answer, hide(found.reason), moment(found.expected_ms), found.cure)


def _unreadable(job: Job | Unreadable) -> str:
    """The addition to a message about a job that this node cannot read."""
    return f"; this node cannot read it ({hide(job.why)})" if isinstance(job, Unreadable) else ""
