"""Routes of runs: list, show, enqueue one or many, cancel, explain."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from pollux.app.operations.runs import RunAccepted, RunRequest
from pollux.errors import PolluxError
from pollux.model import Answer
from pollux.server.auth import Role, check_asker
from pollux.server.limits import BATCH_BODY_MAX
from pollux.server.problems import Problem, problem_of
from pollux.server.routes.jobs import WhyView, made_id, quoted, run_list, why_view
from pollux.server.routing import Reply, RequestContext, Routes, in_pieces
from pollux.server.schemas.jobs import JobRef
from pollux.server.schemas.reading import read_fields
from pollux.server.schemas.runs import (
    OTHER_CURSOR,
    AcceptedView,
    ReasonBody,
    RunBody,
    RunList,
    RunQuery,
    RunView,
    accepted_view,
    run_filter_of,
    run_view,
)

ITEMS_MAX = 1_000
EXAMPLE = {"job_id": "home", "params": {"depth": 2}, "delay": "5m"}

routes = Routes("runs")


class RunsBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Up to 1,000 runs, each with the fields of a single one; `job_id` here applies to all."""

    runs: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=ITEMS_MAX)]
    job_id: JobRef | None = None


class RunItem(Struct, frozen=True, omit_defaults=True):
    answer: Literal["ok", "already", "refused"]
    id: str | None = None
    message: str = ""  # for a run that existed already: which of the sent fields were ignored
    problem: dict[str, Any] | None = None


class RunsAnswer(Struct, frozen=True):
    """One answer for each run, in the order of the request."""

    ok: int
    already: int
    refused: int
    items: list[RunItem]


class RunCancelled(Struct, frozen=True):
    message: str
    run_id: str
    answer: str


@routes.get("/api/v2/runs", Role.VIEWER, beyond=OTHER_CURSOR)
async def list_runs(context: RequestContext, query: RunQuery) -> RunList:
    """List runs: live ones by due time, then finished ones, newest first."""
    return await run_list(context, query, run_filter_of(query))


@routes.post(
    "/api/v2/runs",
    Role.OPERATOR,
    status=201,
    answer=AcceptedView,
    also={200: AcceptedView},
    keyed=True,
    refuses=(404, 409),
    example=EXAMPLE,
    beyond="params that the job's handler does not accept, and both `at` and `delay`",
)
async def enqueue(context: RequestContext, body: RunBody) -> Reply:
    """Enqueue one run of a job, now, `at` a time or after a `delay`.

    The same `id` again returns the existing run: 200, and `message` names the sent fields that were ignored.  At most
    one live run may have a `key`: otherwise 409.  The job's schedule goes on until a run for later is due.
    """
    job = await context.operations.jobs.get_job(body.job_id)
    check_asker(context, job, body.params)
    accepted = await context.operations.runs.accept(
        job,
        body.params,
        id=made_id(context) if body.id is None and context.once else body.id,
        key=body.key,
        at=body.at,
        delay=body.delay,
        priority=body.priority,
    )
    if body.id is None and not accepted.is_new:  # its id is made of the key: it is the run of the same request before
        accepted = replace(accepted, is_new=True)
    view = accepted_view(accepted.run, context.operations.now_ms(), accepted.in_words(revive=_revive(accepted)))
    return Reply(view, 201 if accepted.is_new else 200, {"Location": f"/api/v2/runs/{quoted(accepted.run.id)}"})


@routes.post("/api/v2/runs/batch", Role.OPERATOR, keyed=True, body_max=BATCH_BODY_MAX, example={"runs": [EXAMPLE]})
async def enqueue_batch(context: RequestContext, body: RunsBody) -> RunsAnswer:
    """Enqueue up to 1,000 runs in one write; each has its own answer."""
    asks: list[RunRequest | PolluxError | Problem] = []
    async for number, sent in in_pieces(body.runs):
        asks.append(_ask(context, {"job_id": body.job_id, **sent} if body.job_id is not None else sent, number))
    asks = await _permitted(context, asks)
    accepted = iter(await context.operations.runs.enqueue_each([ask for ask in asks if isinstance(ask, RunRequest)]))
    named = [bool(sent.get("id")) for sent in body.runs]
    items = [
        _item(next(accepted) if isinstance(ask, RunRequest) else ask, own) for ask, own in zip(asks, named, strict=True)
    ]
    ok, already, refused = (sum(item.answer == word for item in items) for word in ("ok", "already", "refused"))
    return RunsAnswer(ok, already, refused, items)


@routes.get("/api/v2/runs/{run_id}", Role.VIEWER, refuses=(409,))
async def show(context: RequestContext, run_id: str) -> RunView:
    """Show one run in full."""
    return run_view(await context.operations.runs.get_run(run_id), context.operations.now_ms())


@routes.post("/api/v2/runs/{run_id}/cancel", Role.OPERATOR)
async def cancel(context: RequestContext, run_id: str, body: ReasonBody) -> RunCancelled:
    """Cancel one run: at once if it waits, by request if it runs."""
    await context.operations.runs.find_run(run_id)
    [answer] = await context.operations.runs.cancel_runs([run_id], reason=body.reason or "")
    is_new = answer.answer is Answer.OK
    words = "cancelled, or requested to stop" if is_new else "it has ended already, or was requested to stop before"
    return RunCancelled(words, run_id, answer.answer.value)


@routes.get("/api/v2/runs/{run_id}/why", Role.VIEWER)
async def why(context: RequestContext, run_id: str) -> WhyView:
    """Explain why the run runs or does not run."""
    await context.operations.runs.find_run(run_id)
    return await why_view(context, run_id)


def _ask(context: RequestContext, sent: dict[str, Any], number: int) -> RunRequest | PolluxError:
    try:
        one = read_fields(RunBody, sent)
    except PolluxError as error:
        return error
    run_id = made_id(context, number) if one.id is None and context.once else one.id
    return RunRequest(one.job_id, one.params, run_id, one.key, one.at, one.delay, one.priority)


async def _permitted(
    context: RequestContext, asks: list[RunRequest | PolluxError | Problem]
) -> list[RunRequest | PolluxError | Problem]:
    """Those with params may need another role, by the handler of their job."""
    ids = list(dict.fromkeys(ask.job_id for ask in asks if isinstance(ask, RunRequest) and ask.params))
    jobs = {job.id: job for job in await context.operations.jobs.jobs_by_id(ids) if job is not None} if ids else {}
    checked: list[RunRequest | PolluxError | Problem] = []
    for ask in asks:
        try:
            if isinstance(ask, RunRequest) and ask.job_id in jobs:
                check_asker(context, jobs[ask.job_id], ask.params)
            checked.append(ask)
        except (Problem, PolluxError) as error:
            checked.append(error)
    return checked


def _revive(accepted: RunAccepted) -> str:
    return f"POST /api/v2/dead-letters/{quoted(accepted.run.id)}/revive"


def _item(answer: RunAccepted | PolluxError | Problem | RunRequest, is_id_given: bool) -> RunItem:  # noqa: FBT001  by place
    if isinstance(answer, RunAccepted):
        if answer.is_new or not is_id_given:  # made of the key: it is the run of the same request before
            return RunItem("ok", answer.run.id)
        return RunItem("already", answer.run.id, answer.in_words(revive=_revive(answer)))
    assert not isinstance(answer, RunRequest)
    problem = answer if isinstance(answer, Problem) else problem_of(answer)
    return RunItem("refused", problem=problem.document())
