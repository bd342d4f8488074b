"""Routes of jobs: add, list, show, change, delete, batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from pollux.app.operations.jobs import PutResult, cure_of
from pollux.app.operations.status import JobState
from pollux.errors import Conflict, InvalidConfig, InvalidInput, NotFound, PolluxError, Unreadable, problems_of
from pollux.model import API_SOURCE, VERSION_MAX, Answer, Job, Note
from pollux.model.job import PRIORITIES
from pollux.server.authorization import check_author, known_handlers
from pollux.server.cooperative import each_made, in_pieces
from pollux.server.job_batching import JobBatcher
from pollux.server.limits import BATCH_BODY_MAX
from pollux.server.problems import Problem, problem_of
from pollux.server.roles import Role
from pollux.server.routing import Reply, RequestContext, Routes
from pollux.server.schemas.job_input import also_wrong, job_of_body, place_in, word_of_params
from pollux.server.schemas.jobs import ID_PATTERN, JobBody, JobView, StateWord, view_of
from pollux.server.schemas.reading import read_body
from pollux.server.schemas.runs import Limit, Text, UnreadableView, given, unreadable_views
from pollux.store.contract import JobFilter, JobPut

ITEMS_MAX = 1_000
REVISION_CONFLICT = "revision conflict"
EXAMPLE = {"id": "home", "url": "https://example.com", "cron": "0 */6 * * *", "timeout": "10s", "priority": "high"}
BEYOND = "an invalid cron line, time zone, URL, handler or params, and fields that contradict each other"
_OLDER = {"scheduled": "active", "completed": "done", "pending": "waiting"}  # words of older clients

routes = Routes("jobs")


class JobList(Struct, frozen=True, omit_defaults=True):
    jobs: list[JobView]
    total: int | None  # of all that fit; null: it would cost too much to count them
    limit: int
    offset: int
    next: str | None
    unreadable: list[UnreadableView] = []  # that should be among them; left out if there is none
    unreadable_runs: list[UnreadableView] = []  # live ones, which `state` leaves out; left out if there is none


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
    """Up to 1,000 jobs, each as it is sent alone."""

    jobs: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=ITEMS_MAX)]
    overwrite: bool = False  # also change those that are there


class BatchItem(Struct, frozen=True, omit_defaults=True):
    answer: Literal["ok", "already", "refused"]
    id: str | None = None
    revision: int = 0
    problem: dict[str, Any] | None = None


class BatchAnswer(Struct, frozen=True):
    """An answer for each, in the order of the request."""

    ok: int
    already: int
    refused: int
    items: list[BatchItem]


class DoneView(Struct, frozen=True):
    message: str
    job_id: str


def made_id(desk: RequestContext, number: int = 0) -> str:
    """The id of a thing that was sent without; with an idempotency key the same every time."""
    return f"{desk.once[:20]}{number:08x}" if desk.once else desk.operations.new_id()


def row_view(row: JobState) -> JobView:
    return view_of(row.job, row.state, row.held, row.failing_since_ms)  # type: ignore[arg-type]


def etag(revision: int) -> dict[str, str]:
    return {"ETag": f'"{revision}"'}


@routes.post(
    "/api/v2/jobs",
    Role.OPERATOR,
    status=201,
    answer=JobView,
    also={200: JobView},
    keyed=True,
    refuses=(409,),
    needs_body=True,
    also_wrong=also_wrong,
    example=EXAMPLE,
    beyond=BEYOND,
)
async def create(desk: RequestContext, body: JobBody) -> Reply:
    """Add a job.

    200 if the same job exists already; 409 if another job has its id: PUT changes that one.
    """
    job = await _given(desk, body, made_id(desk) if body.id is None else body.id)
    together: JobBatcher = desk.request.app.state.together
    said, stops = await together.add(desk.operations, desk.identity.name, JobPut(job, 0), body.scheduler_version)
    written = _sure(said, body)
    if written.answer is Answer.CONFLICT and written.revision:
        written = replace(written, detail="it exists already with another definition")
    cure = ""
    if written.answer is Answer.CONFLICT:
        [cure] = await _cures(desk, [written.job.id], "PUT /api/v2/jobs/{} changes it")
    return await _put_reply(desk, written, stops=stops, cure=cure)


@routes.get("/api/v2/jobs", Role.VIEWER)
async def list_jobs(desk: RequestContext, query: JobQuery) -> JobList:
    """List jobs by id, a page at a time."""
    state = given(query.state) or _OLDER.get(str(given(query.status)), given(query.status))
    priority = given(query.priority)
    where = JobFilter(
        group=given(query.group),
        target=given(query.target),
        tag=given(query.tag),
        source=given(query.source),
        handler=given(query.handler),
        text=given(query.text),
        scheduler_version=given(query.scheduler_version),
        priority=None if priority is None else PRIORITIES.get(priority) or int(priority),
        source_id=given(query.source_id),
    )
    page = await desk.operations.listing.job_rows(
        where, state=state, after=given(query.cursor), offset=query.offset, limit=query.limit
    )
    views = await each_made(row_view, page.rows)
    unreadable, runs = unreadable_views(page.unreadable), unreadable_views(page.unreadable_runs)
    return JobList(views, page.total, query.limit, query.offset, page.next, unreadable, runs)


@routes.get("/api/v2/jobs/{job_id}", Role.VIEWER, answer=JobView, refuses=(409,))
async def show(desk: RequestContext, job_id: str) -> Reply:
    """Show one job: its definition, its state and its last outcomes."""
    row = await desk.operations.listing.job_row(job_id)
    return Reply(row_view(row), headers=etag(row.job.revision))


@routes.put(
    "/api/v2/jobs/{job_id}",
    Role.OPERATOR,
    answer=JobView,
    also={201: JobView},
    matched=True,
    refuses=(409,),
    needs_body=True,
    also_wrong=also_wrong,
    example=EXAMPLE,
    beyond=BEYOND,
)
async def change(desk: RequestContext, job_id: str, body: JobBody) -> Reply:
    """Add or replace the job with this id.

    With `revision` in the body, or `If-Match`, only if that is its current revision: otherwise 409 with both.
    """
    if body.id not in (None, job_id):
        raise InvalidInput(f"the path has the id {job_id!r}", where="id", cure="omit it in the body")
    wanted = _revision(desk, body)
    there = await _there(desk, job_id)
    if there is None and (wanted or desk.request.headers.get("if-match") == "*"):
        raise NotFound("job", job_id, cure="omit the revision to add it")
    written = await _put(desk, body, job_id, revision=wanted)
    if written.answer is Answer.ALREADY and wanted not in (None, written.revision):  # the store has nothing to write
        words = f"revision {wanted} was expected, the stored one is {written.revision}"
        written = replace(written, answer=Answer.CONFLICT, detail=words)
    more = {} if wanted is None else {"expected": wanted}
    cure = "read it again, and send the change with its revision"
    if isinstance(there, Job) and there.source != API_SOURCE:
        cure = _cure_of_owned(there)
    stops = await desk.operations.pauses.stops() if there is None else None
    return await _put_reply(desk, written, stops=stops, cure=cure, **more)


@routes.delete("/api/v2/jobs/{job_id}", Role.OPERATOR, refuses=(409,))
async def delete(desk: RequestContext, job_id: str) -> DoneView:
    """Delete a job; its waiting runs are cancelled, running ones finish.

    Refused (409) for a job of a file or of code while a node that declares it lives, as the node would add it again.
    """
    [there] = await desk.operations.jobs.jobs_by_id([job_id])
    try:
        await desk.operations.jobs.delete_jobs([job_id])
    except Conflict as error:
        cure = "" if there is None else cure_of(there, _pause(there))
        raise Problem(409, "conflict", error.what, cure=cure) from None
    words = "the job is deleted"
    if there is not None and there.declared and there.source != API_SOURCE:
        words += f"; a node of {there.source} adds it again when it starts"
    return DoneView(words, job_id)


@routes.post("/api/v2/jobs/batch", Role.OPERATOR, keyed=True, body_max=BATCH_BODY_MAX, example={"jobs": [EXAMPLE]})
async def create_batch(desk: RequestContext, body: BatchBody) -> BatchAnswer:
    """Add up to 1,000 jobs in one write; each has its own answer."""
    items: list[BatchItem | None] = []
    puts: list[JobPut] = []
    bodies: list[JobBody] = []
    known = await known_handlers(desk.operations, ())
    async for number, sent in in_pieces(body.jobs):
        try:
            one = read_body(JobBody, sent)
            job = job_of_body(
                one, made_id(desk, number) if one.id is None else one.id, desk.operations.jobs.check_params
            )
            if job.handler not in known:
                known = await known_handlers(desk.operations, {job.handler})
            check_author(desk, job, known)
            _refuse_version(desk, one)
        except (PolluxError, Problem) as error:
            items.append(_refused(error, sent.get("id")))
        else:
            items.append(None)
            puts.append(JobPut(job, None if body.overwrite else 0))
            bodies.append(one)
    answers = await desk.operations.jobs.put_each(puts)
    refused_ids = [each.job.id for each in answers if isinstance(each, PutResult) and each.answer is Answer.CONFLICT]
    cures = await _cures(desk, refused_ids, 'send "overwrite": true to change what is there')
    cure_by_id = dict(zip(refused_ids, cures, strict=True))
    written = iter(zip(answers, bodies, strict=True))
    told = [_batch_item(*next(written), cure_by_id) if item is None else item for item in items]
    ok, already, refused = (sum(item.answer == word for item in told) for word in ("ok", "already", "refused"))
    return BatchAnswer(ok, already, refused, told)


# inside


async def _there(desk: RequestContext, job_id: str) -> Job | Unreadable | None:
    """The job in whose place another is put."""
    try:
        return await desk.operations.jobs.find_job(job_id)
    except NotFound:
        return None


async def _given(desk: RequestContext, body: JobBody, job_id: str) -> Job:
    """The job that the body means, if they may put it."""
    job = job_of_body(body, job_id, desk.operations.jobs.check_params)
    check_author(desk, job, await known_handlers(desk.operations, {job.handler}))
    return job


async def _put(desk: RequestContext, body: JobBody, job_id: str, *, revision: int | None) -> PutResult:
    job = await _given(desk, body, job_id)
    [said] = await desk.operations.jobs.put_each([JobPut(job, revision)], version=body.scheduler_version)
    return _sure(said, body)


def _sure(said: PutResult | PolluxError, body: JobBody) -> PutResult:
    if isinstance(said, PolluxError):
        raise _named(said, body)
    return said


def _named(error: PolluxError, body: JobBody) -> PolluxError:
    """With the words of the body."""
    if not isinstance(error, InvalidInput):
        return error
    word = word_of_params(body)
    found = [InvalidInput(one.what, where=place_in(one.where, word), cure=one.cure) for one in problems_of(error)]
    return found[0] if len(found) == 1 else InvalidConfig(found)


async def _put_reply(
    desk: RequestContext, written: PutResult, *, stops: list[Note] | None, cure: str, **more: Any
) -> Reply:
    """`stops`: it is a new one, and this is what stands still."""
    job = written.job
    if written.answer is Answer.CONFLICT:
        words = f"job {job.id!r}: {written.detail}"
        title = REVISION_CONFLICT if "expected" in more else "conflict"
        raise Problem(409, title, words, cure=cure, revision=written.revision, **more)
    if written.answer is Answer.OK and stops is not None:
        headers = {"Location": f"/api/v2/jobs/{quoted(job.id)}", **etag(written.revision)}
        return Reply(row_view(await desk.operations.listing.new_row(job, stops)), 201, headers)
    row = await desk.operations.listing.job_row(job.id)
    return Reply(row_view(row), 200, etag(row.job.revision))


def quoted(name: str) -> str:
    return quote(name, safe="")


def _revision(desk: RequestContext, body: JobBody) -> int | None:
    """The one that is to be changed, from the header or the body."""
    said = desk.request.headers.get("if-match")
    if said is None or said == "*":
        return body.revision
    number = said.removeprefix("W/").strip('"')
    if not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise InvalidInput("invalid revision", where="If-Match", cure='send If-Match: "3", the ETag of the job')
    if body.revision not in (None, int(number)):
        raise InvalidInput("If-Match and revision differ", where="revision", cure="keep one of them")
    return int(number)


def _refuse_version(desk: RequestContext, body: JobBody) -> None:
    if body.scheduler_version not in (None, desk.operations.scheduler_version):
        what = f"this node serves version {desk.operations.scheduler_version}"
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


async def _cures(desk: RequestContext, job_ids: Sequence[str], usual: str) -> list[str]:
    """What helps where a job is there already: `usual`, with its id in it, if the API may change it."""
    there = await desk.operations.jobs.jobs_by_id(job_ids) if job_ids else []
    return [
        usual.format(quoted(job_id)) if job is None or job.source == API_SOURCE else _cure_of_owned(job)
        for job_id, job in zip(job_ids, there, strict=True)
    ]


def _cure_of_owned(job: Job) -> str:
    return cure_of(job, _pause(job), do="change it in")


def _pause(job: Job) -> str:
    return f"POST /api/v2/jobs/{quote(job.id)}/pause"
