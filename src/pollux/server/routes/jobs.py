"""Routes of jobs: add, list, show, change, delete, batches; pause, resume, cancel, run now, explain, list the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from pollux.app.operations.jobs import PutResult, cure_of
from pollux.app.operations.runs import ANYWAY
from pollux.app.operations.status import JobState, runs_in_state
from pollux.errors import Conflict, InvalidConfig, InvalidInput, NotFound, PolluxError, Unreadable, problems_of
from pollux.model import API_SOURCE, STOP, VERSION_MAX, Answer, Job, Note
from pollux.model.job import PRIORITIES
from pollux.secrets import hide
from pollux.server.auth import Role, check_asker, check_author, known_handlers
from pollux.server.job_batching import JobBatcher
from pollux.server.limits import BATCH_BODY_MAX
from pollux.server.problems import Problem, problem_of
from pollux.server.routing import Reply, RequestContext, Routes, each_made, in_pieces
from pollux.server.schemas.jobs import (
    ID_PATTERN,
    Duration,
    JobBody,
    JobView,
    StateWord,
    also_wrong,
    job_of_body,
    moment,
    place_in,
    view_of,
    word_of_params,
)
from pollux.server.schemas.reading import read_body
from pollux.server.schemas.runs import (
    OTHER_CURSOR,
    Limit,
    ReasonBody,
    RunList,
    RunQuery,
    RunView,
    Text,
    UnreadableView,
    of_cursor,
    or_none,
    run_filter_of,
    run_view,
    set_fields,
    states_of,
    unreadable_views,
)
from pollux.store.contract import JobFilter, JobPut, RunFilter
from pollux.units import counted

ITEMS_MAX = 1_000
REVISION_CONFLICT = "revision conflict"
EXAMPLE = {"id": "home", "url": "https://example.com", "cron": "0 */6 * * *", "timeout": "10s", "priority": "high"}
_PUT: dict[str, Any] = {
    "answer": JobView,
    "refuses": (409,),
    "needs_body": True,
    "also_wrong": also_wrong,
    "example": EXAMPLE,
    "beyond": "an invalid cron line, time zone, URL, handler or params, and fields that contradict each other",
}
_OLDER = {"scheduled": "active", "completed": "done", "pending": "waiting"}  # words of older clients
BY_API = 'send {"anyway": true}'

routes = Routes("jobs")


class JobList(Struct, frozen=True, omit_defaults=True):
    jobs: list[JobView]
    total: int | None  # of all matching ones; null: counting would be too expensive
    limit: int
    offset: int
    next: str | None
    unreadable: list[UnreadableView] = []  # matching ones that cannot be decoded; omitted if empty
    unreadable_runs: list[UnreadableView] = []  # live ones, which `state` omits; omitted if empty


class JobQuery(Struct, frozen=True, forbid_unknown_fields=True):
    state: StateWord | UnsetType = UNSET
    status: (
        Annotated[Literal[StateWord, "scheduled", "completed", "pending"], Meta(description="an older name of `state`")]
        | UnsetType
    ) = UNSET
    priority: Literal["high", "normal", "low", "1", "2", "3"] | UnsetType = UNSET
    group: Text | UnsetType = UNSET
    target: Text | UnsetType = UNSET
    tag: Text | UnsetType = UNSET
    source_id: Text | UnsetType = UNSET
    source: Annotated[str, Meta(max_length=1_000, description="api, file:... or code:...")] | UnsetType = UNSET
    handler: Text | UnsetType = UNSET
    text: Annotated[str, Meta(max_length=200, description="part of the id or the name")] | UnsetType = UNSET
    scheduler_version: Annotated[int, Meta(ge=1, le=VERSION_MAX)] | UnsetType = UNSET
    cursor: Annotated[str, Meta(pattern=ID_PATTERN, description="`next` of the page before")] | UnsetType = UNSET
    limit: Limit = 50
    offset: Annotated[int, Meta(ge=0, le=10_000, description="beyond that, go by `cursor`")] = 0


class BatchBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Up to 1,000 jobs, each with the fields of a single one."""

    jobs: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=ITEMS_MAX)]
    overwrite: bool = False  # also change existing ones


class BatchItem(Struct, frozen=True, omit_defaults=True):
    answer: Literal["ok", "already", "refused"]
    id: str | None = None
    revision: int = 0
    problem: dict[str, Any] | None = None


class BatchAnswer(Struct, frozen=True):
    """One answer for each job, in the order of the request."""

    ok: int
    already: int
    refused: int
    items: list[BatchItem]


class DoneView(Struct, frozen=True):
    message: str
    job_id: str


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


def made_id(context: RequestContext, number: int = 0) -> str:
    """An id for a job or run that was sent without one; with an idempotency key always the same."""
    return f"{context.once[:20]}{number:08x}" if context.once else context.operations.new_id()


def row_view(row: JobState) -> JobView:
    return view_of(row.job, row.state, row.held, row.failing_since_ms)  # type: ignore[arg-type]


def etag(revision: int) -> dict[str, str]:
    return {"ETag": f'"{revision}"'}


@routes.post("/api/v2/jobs", Role.OPERATOR, status=201, also={200: JobView}, keyed=True, **_PUT)
async def create(context: RequestContext, body: JobBody) -> Reply:
    """Add a job.

    200 if the same job exists already; 409 if another job has its id: PUT changes that one.
    """
    job = await _job_of(context, body, made_id(context) if body.id is None else body.id)
    batcher: JobBatcher = context.request.app.batcher
    put, version = JobPut(job, 0), body.scheduler_version
    result, stops = await batcher.add(context.operations, context.identity.name, put, version)
    written = _result_of(result, body)
    if written.answer is Answer.CONFLICT and written.revision:
        written = replace(written, detail="it exists already with another definition")
    cure = ""
    if written.answer is Answer.CONFLICT:
        [cure] = await _cures(context, [written.job.id], "PUT /api/v2/jobs/{} changes it")
    return await _put_reply(context, written, stops=stops, cure=cure)


@routes.get("/api/v2/jobs", Role.VIEWER)
async def list_jobs(context: RequestContext, query: JobQuery) -> JobList:
    """List jobs by id, a page at a time."""
    state = or_none(query.state) or _OLDER.get(str(or_none(query.status)), or_none(query.status))
    priority = or_none(query.priority)
    where = JobFilter(
        **set_fields(query, "group", "target", "tag", "source", "source_id", "handler", "text", "scheduler_version"),
        priority=None if priority is None else PRIORITIES.get(priority) or int(priority),
    )
    page = await context.operations.listing.job_rows(
        where, state=state, after=or_none(query.cursor), offset=query.offset, limit=query.limit
    )
    views = await each_made(row_view, page.rows)
    unreadable, runs = unreadable_views(page.unreadable), unreadable_views(page.unreadable_runs)
    return JobList(views, page.total, query.limit, query.offset, page.next, unreadable, runs)


@routes.get("/api/v2/jobs/{job_id}", Role.VIEWER, answer=JobView, refuses=(409,))
async def show(context: RequestContext, job_id: str) -> Reply:
    """Show one job: its definition, its state and its last outcomes."""
    row = await context.operations.listing.job_row(job_id)
    return Reply(row_view(row), headers=etag(row.job.revision))


@routes.put("/api/v2/jobs/{job_id}", Role.OPERATOR, also={201: JobView}, matched=True, **_PUT)
async def change(context: RequestContext, job_id: str, body: JobBody) -> Reply:
    """Add or replace the job with this id.

    With `revision` in the body, or `If-Match`, only if that is its current revision: otherwise 409 with both.
    """
    if body.id not in (None, job_id):
        raise InvalidInput(f"the path has the id {job_id!r}", where="id", cure="omit it in the body")
    wanted = _revision(context, body)
    there = await _stored(context, job_id)
    if there is None and (wanted or context.request.headers.get("if-match") == "*"):
        raise NotFound("job", job_id, cure="omit the revision to add it")
    written = await _put(context, body, job_id, revision=wanted)
    if written.answer is Answer.ALREADY and wanted not in (None, written.revision):  # the store has nothing to write
        words = f"revision {wanted} was expected, the stored one is {written.revision}"
        written = replace(written, answer=Answer.CONFLICT, detail=words)
    more = {} if wanted is None else {"expected": wanted}
    cure = "read it again, and send the change with its revision"
    if isinstance(there, Job) and there.source != API_SOURCE:
        cure = _cure_of_owned(there)
    stops = await context.operations.pauses.stops() if there is None else None
    return await _put_reply(context, written, stops=stops, cure=cure, **more)


@routes.delete("/api/v2/jobs/{job_id}", Role.OPERATOR, refuses=(409,))
async def delete(context: RequestContext, job_id: str) -> DoneView:
    """Delete a job; its waiting runs are cancelled, running ones finish.

    Refused (409) for a job of a file or of code while a node that declares it lives, as the node would add it again.
    """
    [there] = await context.operations.jobs.jobs_by_id([job_id])
    try:
        await context.operations.jobs.delete_jobs([job_id])
    except Conflict as error:
        cure = "" if there is None else cure_of(there, _pause(there))
        raise Problem(409, "conflict", error.what, cure=cure) from None
    words = "the job is deleted"
    if there is not None and there.declared and there.source != API_SOURCE:
        words += f"; a node of {there.source} adds it again when it starts"
    return DoneView(words, job_id)


@routes.post("/api/v2/jobs/batch", Role.OPERATOR, keyed=True, body_max=BATCH_BODY_MAX, example={"jobs": [EXAMPLE]})
async def create_batch(context: RequestContext, body: BatchBody) -> BatchAnswer:
    """Add up to 1,000 jobs in one write; each has its own answer."""
    items: list[BatchItem | None] = []
    puts: list[JobPut] = []
    bodies: list[JobBody] = []
    known = await known_handlers(context.operations, ())
    async for number, sent in in_pieces(body.jobs):
        try:
            one = read_body(JobBody, sent)
            job = job_of_body(
                one, made_id(context, number) if one.id is None else one.id, context.operations.jobs.check_params
            )
            if job.handler not in known:
                known = await known_handlers(context.operations, {job.handler})
            check_author(context, job, known)
            _refuse_version(context, one)
        except (PolluxError, Problem) as error:
            items.append(_refused(error, sent.get("id")))
        else:
            items.append(None)
            puts.append(JobPut(job, None if body.overwrite else 0))
            bodies.append(one)
    answers = await context.operations.jobs.put_each(puts)
    refused_ids = [each.job.id for each in answers if isinstance(each, PutResult) and each.answer is Answer.CONFLICT]
    cures = await _cures(context, refused_ids, 'send "overwrite": true to change what is there')
    cure_by_id = dict(zip(refused_ids, cures, strict=True))
    written = iter(zip(answers, bodies, strict=True))
    answered = [_batch_item(*next(written), cure_by_id) if item is None else item for item in items]
    ok, already, refused = (sum(item.answer == word for item in answered) for word in ("ok", "already", "refused"))
    return BatchAnswer(ok, already, refused, answered)


@routes.post("/api/v2/jobs/{job_id}/pause", Role.OPERATOR)
async def pause(context: RequestContext, job_id: str, body: PauseBody) -> PausedView:
    """Stop the firings of a job until it is resumed, or for a while."""
    found = await context.operations.jobs.find_job(job_id)
    key = await context.operations.pauses.pause(job_id, reason=body.reason or "", duration=body.duration)
    stop = next((each for each in await context.operations.pauses.stops() if each.key == key), None)
    until = None if stop is None else moment(stop.expires_ms)
    words = "the job is paused; due times meanwhile are skipped" + _unreadable(found)
    return PausedView(words, job_id, key.removeprefix(STOP), until)


@routes.post("/api/v2/jobs/{job_id}/resume", Role.OPERATOR)
async def resume(context: RequestContext, job_id: str) -> ResumedView:
    """Resume a paused job."""
    found = await context.operations.jobs.find_job(job_id)
    was = await context.operations.pauses.resume(job_id)
    words = ("the job is resumed" if was else "the job was not paused") + _unreadable(found)
    return ResumedView(words, job_id, was)


@routes.post("/api/v2/jobs/{job_id}/cancel", Role.OPERATOR)
async def cancel(context: RequestContext, job_id: str, body: ReasonBody) -> CancelledView:
    """Cancel the live runs of a job: waiting ones at once, running ones by request.  Its schedule stays."""
    found = await context.operations.jobs.find_job(job_id)
    answers = await context.operations.runs.cancel(job_id, reason=body.reason or "")
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
async def force_run(context: RequestContext, job_id: str, body: ForceBody) -> ForcedView:
    """Run a job now, regardless of its schedule and pauses.

    409 with the id of the live run if there is one and the job does not allow overlap, unless `anyway` is set.  Of
    many concurrent requests one starts a run.  A run that is scheduled for later does not count as live.
    """
    job = await context.operations.jobs.get_job(job_id)
    check_asker(context, job, body.params)
    run_id = made_id(context) if context.once else None
    try:
        run = await context.operations.runs.run_now(job, body.params, anyway=body.anyway, id=run_id)
    except Conflict as error:
        raise Conflict(error.what, found=error.found, cure=error.cure.replace(ANYWAY, BY_API)) from None
    drain = await context.operations.workers.drain_here()
    words = "the job runs now" if drain is None else f"the run waits: {drain}; POST /api/v2/scheduler/resume ends it"
    return ForcedView(words, job_id, run_view(run, context.operations.now_ms()))


@routes.get("/api/v2/jobs/{job_id}/why", Role.VIEWER)
async def why(context: RequestContext, job_id: str) -> WhyView:
    """Explain why the job runs or does not run."""
    await context.operations.jobs.find_job(job_id)
    return await why_view(context, job_id)


@routes.get("/api/v2/jobs/{job_id}/runs", Role.VIEWER, beyond=OTHER_CURSOR)
async def runs_of(context: RequestContext, job_id: str, query: RunQuery) -> RunList:
    """List the runs of a job: live ones by due time, then finished ones, newest first."""
    where = replace(run_filter_of(query), job_id=job_id)
    found = await run_list(context, query, where)
    if not found.runs:
        await context.operations.jobs.find_job(job_id)
    return found


async def run_list(context: RequestContext, query: RunQuery, where: RunFilter) -> RunList:
    """The page of runs that a query asks for."""
    states, now_ms = states_of(query), context.operations.now_ms()
    with of_cursor():
        page = await runs_in_state(
            context.operations.runs, states, where, now_ms=now_ms, after=or_none(query.cursor), limit=query.limit
        )
    views = await each_made(partial(run_view, now_ms=now_ms), page.runs)
    return RunList(views, page.next, unreadable_views(page.unreadable))


async def why_view(context: RequestContext, name: str) -> WhyView:
    found = await context.operations.status.why(name)
    return WhyView(name, found.answer, hide(found.reason), moment(found.expected_ms), found.cure)


def _unreadable(job: Job | Unreadable) -> str:
    """The addition to a message about a job that this node cannot read."""
    return f"; this node cannot read it ({hide(job.why)})" if isinstance(job, Unreadable) else ""


async def _stored(context: RequestContext, job_id: str) -> Job | Unreadable | None:
    """The stored job with this id."""
    try:
        return await context.operations.jobs.find_job(job_id)
    except NotFound:
        return None


async def _job_of(context: RequestContext, body: JobBody, job_id: str) -> Job:
    """The job of the body, if the caller may add it."""
    job = job_of_body(body, job_id, context.operations.jobs.check_params)
    check_author(context, job, await known_handlers(context.operations, {job.handler}))
    return job


async def _put(context: RequestContext, body: JobBody, job_id: str, *, revision: int | None) -> PutResult:
    job = await _job_of(context, body, job_id)
    [result] = await context.operations.jobs.put_each([JobPut(job, revision)], version=body.scheduler_version)
    return _result_of(result, body)


def _result_of(result: PutResult | PolluxError, body: JobBody) -> PutResult:
    if isinstance(result, PolluxError):
        raise _named(result, body)
    return result


def _named(error: PolluxError, body: JobBody) -> PolluxError:
    """The error with the field names of the body."""
    if not isinstance(error, InvalidInput):
        return error
    word = word_of_params(body)
    found = [InvalidInput(one.what, where=place_in(one.where, word), cure=one.cure) for one in problems_of(error)]
    return found[0] if len(found) == 1 else InvalidConfig(found)


async def _put_reply(
    context: RequestContext, written: PutResult, *, stops: list[Note] | None, cure: str, **more: Any
) -> Reply:
    """The answer to a put; `stops`: the job is new, and these are the pauses."""
    job = written.job
    if written.answer is Answer.CONFLICT:
        words = f"job {job.id!r}: {written.detail}"
        title = REVISION_CONFLICT if "expected" in more else "conflict"
        raise Problem(409, title, words, cure=cure, revision=written.revision, **more)
    if written.answer is Answer.OK and stops is not None:
        headers = {"Location": f"/api/v2/jobs/{quoted(job.id)}", **etag(written.revision)}
        return Reply(row_view(await context.operations.listing.new_row(job, stops)), 201, headers)
    row = await context.operations.listing.job_row(job.id)
    return Reply(row_view(row), 200, etag(row.job.revision))


def quoted(name: str) -> str:
    return quote(name, safe="")


def _revision(context: RequestContext, body: JobBody) -> int | None:
    """The expected revision, from the header or the body."""
    header = context.request.headers.get("if-match")
    if header is None or header == "*":
        return body.revision
    number = header.removeprefix("W/").strip('"')
    if not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise InvalidInput("invalid revision", where="If-Match", cure='send If-Match: "3", the ETag of the job')
    if body.revision not in (None, int(number)):
        raise InvalidInput("If-Match and revision differ", where="revision", cure="keep one of them")
    return int(number)


def _refuse_version(context: RequestContext, body: JobBody) -> None:
    if body.scheduler_version not in (None, context.operations.scheduler_version):
        what = f"this node serves version {context.operations.scheduler_version}"
        raise InvalidInput(what, where="scheduler_version", cure="send jobs of another version one by one")


def _refused(error: PolluxError | Problem, job_id: object) -> BatchItem:
    problem = error if isinstance(error, Problem) else problem_of(error)
    return BatchItem("refused", job_id if isinstance(job_id, str) else None, problem=problem.document())


def _batch_item(written: PutResult | PolluxError, body: JobBody, cures: Mapping[str, str]) -> BatchItem:
    if isinstance(written, PolluxError):
        return _refused(_named(written, body), body.id)
    match written.answer:
        case Answer.OK | Answer.ALREADY:
            return BatchItem("ok" if written.answer is Answer.OK else "already", written.job.id, written.revision)
        case _:
            words = f"job {written.job.id!r}: {written.detail}"
            cure = cures.get(written.job.id, "")
            problem = Problem(409, "conflict", words, cure=cure, revision=written.revision)
            return BatchItem("refused", written.job.id, problem=problem.document())


async def _cures(context: RequestContext, job_ids: Sequence[str], usual: str) -> list[str]:
    """What helps where a job is there already: `usual`, with its id in it, if the API may change it."""
    there = await context.operations.jobs.jobs_by_id(job_ids) if job_ids else []
    return [
        usual.format(quoted(job_id)) if job is None or job.source == API_SOURCE else _cure_of_owned(job)
        for job_id, job in zip(job_ids, there, strict=True)
    ]


def _cure_of_owned(job: Job) -> str:
    return cure_of(job, _pause(job), do="change it in")


def _pause(job: Job) -> str:
    return f"POST /api/v2/jobs/{quote(job.id)}/pause"
