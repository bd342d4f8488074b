"""Schemas of jobs: the fields of the config file, and older names of them, in requests and answers.

`JobBody` is a request, `JobView` an answer.  An answer may be sent back as a request: its read-only fields are ignored.
A body becomes a job by the same rules as in a config file.  Two names of one field may both be sent if their values are
equal.  Features that this version lacks are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from pollux.app.operations.status import last_outcome
from pollux.errors import InvalidConfig, InvalidInput, problems_of
from pollux.job_builder import job_of
from pollux.model import API_SOURCE, VERSION_MAX, Cron, Interval, Job, Once, OnEvent, Retry, Schedule
from pollux.schedule import builders, validate
from pollux.secrets import HIDDEN, hide
from pollux.server.schemas.reading import UnfitBody
from pollux.units import DURATION_MAX_MS, SECOND_MS, format_moment, format_ms

ID_PATTERN = r"^[A-Za-z0-9._:/\-]{1,200}$"
PRINTED = r"^([^\p{C}\p{Z}]| )*$"  # what `str.isprintable` allows
PrintedText = Annotated[str, Meta(max_length=200)]
JobId = Annotated[  # `check_id` reports an invalid one
    str, Meta(extra_json_schema={"pattern": ID_PATTERN}, description="1 to 200 letters, digits and . _ : / -")
]
JobRef = Annotated[str, Meta(pattern=ID_PATTERN, description="1 to 200 letters, digits and . _ : / -")]
# The schema covers what it can express; `duration_ms` reports an invalid duration.
_DIGITS = {"w": 2, "d": 3, "h": 4, "m": 6, "s": 7}  # all of them together stay below ten years
_UNITS = "".join(rf"([0-9]{{1,{digits}}}(\.[0-9]{{1,3}})?{unit})?" for unit, digits in _DIGITS.items())
DURATION_SCHEMA = {
    "pattern": rf"^([0-9]{{1,8}}(\.[0-9]{{1,3}})?|{_UNITS}([0-9]{{1,10}}ms)?)$",
    "minLength": 1,
    "maxLength": 64,
    "minimum": 0,
    "maximum": DURATION_MAX_MS // SECOND_MS,
    "not": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.0005},  # it would be no millisecond
}
Duration = Annotated[
    str | int | float,
    Meta(
        description='"30s", "5m", "1h30m", "250ms", or a number of seconds',
        examples=["30m"],
        extra_json_schema=DURATION_SCHEMA,
    ),
]
Moment = Annotated[
    str,
    Meta(
        max_length=64,
        examples=["2030-01-31T09:00:00Z"],
        extra_json_schema={"format": "date-time", "pattern": "^(19[7-9]|[2-9][0-9])"},
    ),
]
_OLDER = {"deprecated": True}  # fields of older schedulers, still accepted
PriorityWord = Literal["high", "normal", "low", 1, 2, 3]
URL_HANDLER = "http"
NOT_YET = ("depends_on", "trigger_webhook", "trigger_channel")
_PLAIN = ("name", "priority", "group", "target", "overlap", "misfire", "isolate", "tags", "source_id")
_KINDS = {  # schedule field -> values of `schedule_type`
    "interval": ("interval",),
    "cron": ("cron",),
    "at": ("once",),
    "once": ("immediate", "once"),
    "event": ("event",),
}
_SCHEDULE = ("schedule_type", "cron_expression", "cron", "tz", "interval", "start", "spread", "at", "once", "event")
CheckParams = Callable[
    [str, Mapping[str, Any]], None
]  # raises `InvalidInput` for params that a handler does not accept
_BELONGS = {"tz": "cron", "start": "interval", "spread": "interval"}
StateWord = Literal["active", "running", "waiting", "paused", "disabled", "undeclared", "done"]


class RetryBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Number and delays of the attempts of a failed run."""

    attempts: Annotated[int, Meta(ge=1, le=100)] | None = None
    base: Duration | None = None
    factor: Annotated[float, Meta(ge=1, le=100)] | None = None
    max: Duration | None = None
    jitter: Annotated[float, Meta(ge=0, le=1)] | None = None


class JobBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job in a request.

    It needs what to run (`url`, `http`, `handler` or `exec`), and may have a schedule (`interval`, `cron`, `at`,
    `once`); without one it runs on demand.
    """

    id: JobId | None = None
    name: PrintedText | None = None
    # what
    url: Annotated[str, Meta(max_length=4_096, description="poll this; the same as `http: {url: ...}`")] | None = None
    http: str | dict[str, Any] | None = None
    exec: str | list[str] | dict[str, Any] | None = None
    handler: (
        Annotated[PrintedText, Meta(description="the name of a handler that a live node has registered")] | None
    ) = None
    params: dict[str, Any] | None = None
    # when
    schedule_type: Annotated[
        Literal["cron", "interval", "immediate", "once", "event", "manual"] | None,
        Meta(
            description="an older way to name which of `cron`, `interval`, `at`, ... is used", extra_json_schema=_OLDER
        ),
    ] = None
    cron_expression: Annotated[
        Annotated[str, Meta(max_length=200)] | None,
        Meta(description="an older name of `cron`", extra_json_schema=_OLDER),
    ] = None
    cron: Annotated[str, Meta(max_length=200, examples=["0 */6 * * *"])] | None = None
    tz: Annotated[str, Meta(max_length=64, examples=["Europe/Berlin"])] | None = None
    interval: Duration | None = None
    start: Moment | None = None
    spread: bool | None = None
    at: Moment | None = None
    once: bool | None = None
    event: bool | None = None
    schedule_enabled: Annotated[
        bool | None, Meta(description="an older name of `enabled`", extra_json_schema=_OLDER)
    ] = None
    enabled: bool | None = None
    # how
    priority: PriorityWord | None = None
    timeout_seconds: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="an older name of `timeout`", extra_json_schema=_OLDER)
    ] = None
    timeout: Duration | None = None
    retry: bool | int | RetryBody | None = None
    overlap: Literal["skip", "queue", "cancel", "allow"] | None = None
    misfire: Literal["one", "skip", "all"] | None = None
    isolate: Literal["suspect", "process", "never"] | None = None
    # where it belongs
    group: Annotated[str, Meta(max_length=200)] | None = None
    target: PrintedText | None = None
    tags: Annotated[list[PrintedText], Meta(max_length=50)] | None = None
    source_id: PrintedText | None = None
    scheduler_version: Annotated[int, Meta(ge=1, le=VERSION_MAX)] | None = None
    # not in this version
    depends_on: list[str] | None = None
    trigger_webhook: str | None = None
    trigger_channel: str | None = None
    revision: Annotated[
        int | None, Meta(description="PUT: change the job only if this is its revision; default: any")
    ] = None
    # read-only: of an answer, ignored
    state: str | None = None
    held: str | None = None
    schedule: str | None = None
    next_due_at: str | None = None
    last_due_at: str | None = None
    last: dict[str, Any] | None = None
    source: str | None = None
    release: int | None = None
    declared: bool | None = None


class LastView(Struct, frozen=True, gc=False):
    """The last outcomes of a job."""

    outcome: str  # ok, changed, retrying, failing, failed, dead, cancelled, or empty
    ended_at: str | None
    success_at: str | None
    change_at: str | None
    error_at: str | None
    error: str
    duration_ms: int
    runs: int
    failures: int  # in a row
    failing_since: str | None  # when the first of them ended
    dead: int
    skips: dict[str, int]


class JobView(Struct, frozen=True, kw_only=True, gc=False):
    """A job."""

    id: str
    name: str
    source_id: str
    url: str | None
    handler: str
    params: dict[str, Any]
    schedule: str
    schedule_type: Literal["cron", "interval", "immediate", "once", "event", "manual"]
    cron_expression: str | None
    tz: str | None
    interval: str | None
    start: str | None
    spread: bool | None
    at: str | None
    schedule_enabled: bool
    enabled: bool
    priority: int
    timeout_seconds: int | float
    retry: RetryBody
    overlap: str
    misfire: str
    isolate: str
    group: str
    target: str
    tags: list[str]
    depends_on: list[str]
    trigger_webhook: str
    trigger_channel: str
    scheduler_version: int
    revision: int
    source: str
    release: int
    declared: bool
    state: StateWord
    held: str  # why a due job does not run
    next_due_at: str | None
    last_due_at: str | None
    last: LastView


@lru_cache(maxsize=1_000)  # many jobs are due at the same time
def moment(ms: int | None) -> str | None:
    return None if ms is None else format_moment(max(0, ms))


def seconds(ms: int) -> int | float:
    return ms // SECOND_MS if ms % SECOND_MS == 0 else ms / SECOND_MS


# Fields of a view that have the same name and value in the job.
_SAME = (
    *("id", "name", "source_id", "handler", "enabled", "priority", "overlap", "misfire", "isolate", "group", "target"),
    *("scheduler_version", "revision", "source", "release", "declared"),
)


def view_of(job: Job, state: StateWord, held: str, failing_since_ms: int | None) -> JobView:
    params = HIDDEN.hide_in(job.params)
    url = params.get("url") if job.handler == "http" else None
    return JobView(
        url=url if isinstance(url, str) else None,
        params=params,
        schedule=builders.describe_schedule(job.schedule),
        schedule_enabled=job.enabled,
        timeout_seconds=seconds(job.timeout_ms),
        retry=_retry_view(job.retry),
        tags=list(job.tags),
        depends_on=[],
        trigger_webhook="",
        trigger_channel="",
        state=state,
        held=hide(held),
        next_due_at=moment(job.next_due_ms),
        last_due_at=moment(job.last_due_ms),
        last=_last_view(job, failing_since_ms),
        **{name: getattr(job, name) for name in _SAME},
        **_schedule_view(job),
    )


def _schedule_view(job: Job) -> dict[str, Any]:
    words: dict[str, Any] = dict.fromkeys(("cron_expression", "tz", "interval", "start", "spread", "at"))
    match job.schedule:
        case Cron(line=line, tz=tz):
            words |= {"schedule_type": "cron", "cron_expression": line, "tz": tz}
        case Interval(every_ms=every_ms, start_ms=start_ms, spread=spread):
            start = moment(start_ms)
            words |= {"schedule_type": "interval", "interval": format_ms(every_ms), "start": start, "spread": spread}
        case Once(at_ms=at_ms):
            words |= {"schedule_type": "immediate" if at_ms is None else "once", "at": moment(at_ms)}
        case OnEvent():
            words |= {"schedule_type": "event"}
        case None:
            words |= {"schedule_type": "manual"}
    return words


@lru_cache(maxsize=1_000)
def _retry_view(retry: Retry) -> RetryBody:
    return RetryBody(
        attempts=retry.attempts_max,
        base=format_ms(retry.base_ms),
        factor=retry.factor,
        max=format_ms(retry.max_ms),
        jitter=retry.jitter,
    )


def _last_view(job: Job, failing_since_ms: int | None) -> LastView:
    memory = job.memory
    return LastView(
        outcome=last_outcome(job),
        ended_at=moment(memory.last_end_ms),
        success_at=moment(memory.last_success_ms),
        change_at=moment(memory.last_change_ms),
        error_at=moment(memory.last_error_ms),
        error=hide(memory.last_error),
        duration_ms=memory.duration_ms,
        runs=memory.ended,
        failures=memory.failures,
        failing_since=moment(failing_since_ms),
        dead=memory.dead,
        skips=dict(memory.skips),
    )


class _Reading:
    """One body and the list of its problems."""

    def __init__(self, body: JobBody) -> None:
        self.body = body
        self.problems: list[InvalidInput] = []
        self.words = {"params": word_of_params(body)}  # our name of a field -> the name in the body

    def refuse(self, where: str, what: str, cure: str = "") -> None:
        self.problems.append(InvalidInput(what, where=where, cure=cure))

    def tell(self, error: InvalidInput, where: str = "") -> None:
        """Add the problems of an error, with the field names of the body."""
        for one in problems_of(error):
            path = (one.at(where) if where else one).where.split(".")
            if path[0] == "schedule" and path[-1] in _BELONGS:
                path = path[-1:]
            elif path[0] == "schedule":
                path = [self.words.get("schedule", "")]
            elif path[0] == "params":
                path = [place_in(".".join(path), self.words["params"])]
            else:
                path[0] = self.words.get(path[0], path[0])
            self.problems.append(InvalidInput(one.what, where=".".join(path), cure=one.cure))

    def same(self, ours: str, theirs: str) -> Any:
        """The value of a field that has two names."""
        mine, other = getattr(self.body, ours), getattr(self.body, theirs)
        if mine is not None and other is not None and mine != other:
            self.refuse(theirs, f"{theirs} and {ours} differ", "keep one of them")
        self.words[ours] = theirs if mine is None else ours
        return other if mine is None else mine


def job_of_body(body: JobBody, job_id: str, check: CheckParams) -> Job:
    """The job, or `InvalidInput`, or `InvalidConfig` with every problem.

    The put itself checks the params against the handler; here they are checked only if there are other problems.
    """
    reading = _Reading(body)
    for name in NOT_YET:
        if getattr(body, name):
            reading.refuse(name, "not supported in this version", "omit it")
    handler, params = _handler(reading)
    schedule = _schedule(reading)
    given: dict[str, Any] = {name: value for name in _PLAIN if (value := getattr(body, name)) is not None}
    given["params"] = params
    if (enabled := reading.same("enabled", "schedule_enabled")) is not None:
        given["enabled"] = enabled
    if (timeout := reading.same("timeout", "timeout_seconds")) is not None:
        given["timeout"] = timeout
    if (retry := _retry(body.retry)) is not None:
        given["retry"] = retry
    try:
        job = job_of(id=job_id, handler=handler or "x", schedule=schedule, source=API_SOURCE, **given)
    except InvalidInput as error:
        reading.tell(error)
    if reading.problems:
        _check_params(reading, handler, params, check)
        raise reading.problems[0] if len(reading.problems) == 1 else InvalidConfig(reading.problems)
    return job


def also_wrong(unfit: UnfitBody) -> list[InvalidInput]:
    """Problems of the decoded fields that do not follow from the undecoded ones."""
    bad = {problem.where.partition(".")[0] for problem in unfit.problems}
    try:
        job_of_body(unfit.partial, unfit.partial.id or "x", lambda *_: None)
    except InvalidInput as error:
        found = problems_of(error)
    else:
        return []
    doubted = {"handler"} if bad & {"url", "http", "exec", "handler"} else set()
    doubted |= set(_SCHEDULE) if bad & set(_SCHEDULE) else set()
    return [problem for problem in found if problem.where.partition(".")[0] not in bad | doubted]


def word_of_params(body: JobBody) -> str:
    """The field of the body that has the params."""
    if body.http is not None or body.exec is not None:
        return "http" if body.http is not None else "exec"
    return "url" if body.url is not None and not body.params else "params"


def place_in(where: str, word: str) -> str:
    """The place `where` in the params, with the field name `word` of the body."""
    rest = where.removeprefix("params").removeprefix(".")
    return word if word == "url" and rest in {"", "url"} else ".".join(part for part in (word, rest) if part)


def _handler(reading: _Reading) -> tuple[str | None, dict[str, Any]]:
    """The handler and its params."""
    body = reading.body
    if body.http is not None and body.exec is not None:
        reading.refuse("exec", "http and exec exclude each other", "keep one of them")
        return None, {}
    if body.http is not None:
        return _built_in(reading, URL_HANDLER, {"url": body.http} if isinstance(body.http, str) else body.http)
    if body.exec is not None:
        return _built_in(reading, "exec", body.exec if isinstance(body.exec, dict) else {"argv": body.exec})
    handler = body.handler or (URL_HANDLER if body.url is not None else None)
    if handler is None:
        cure = 'send "url": "https://...", or "handler": the name of one that a node has'
        reading.refuse("handler", "nothing to run is named", cure)
        return None, {}
    params = dict(body.params or {})
    if body.url is not None and handler != URL_HANDLER:
        reading.refuse("url", f"handler {handler!r} has no url", 'send it in "params"')
    elif body.url is not None and params.setdefault("url", body.url) != body.url:
        reading.refuse("url", "url and params.url differ", "keep one of them")
    return handler, params


def _built_in(reading: _Reading, name: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    body = reading.body
    if body.handler not in (None, name):
        reading.refuse("handler", f"handler {body.handler!r} contradicts {name}", "keep one of them")
    for other in ("params", "url"):
        if getattr(body, other) is not None:
            reading.refuse(other, f"{other} is not allowed with {name}", f"send it inside {name}")
    return name, dict(params)


def _check_params(reading: _Reading, handler: str | None, params: Mapping[str, Any], check: CheckParams) -> None:
    try:
        if handler is not None:
            check(handler, params)
    except InvalidInput as error:
        reading.tell(error, "params")


def _kinds(body: JobBody) -> list[str]:
    cron = body.cron_expression if body.cron is None else body.cron
    said: Mapping[str, Any] = {
        "interval": body.interval,
        "cron": cron,
        "at": body.at,
        "once": body.once or None,
        "event": body.event or None,
    }
    named = [name for name, value in said.items() if value is not None]
    by_type = {"immediate": "once", "event": "event"}.get(body.schedule_type or "")
    return named or ([by_type] if by_type else [])


def _schedule(reading: _Reading) -> Schedule | None:
    body = reading.body
    line = reading.same("cron", "cron_expression")
    kinds = _kinds(body)
    if len(kinds) > 1:
        reading.refuse(kinds[1], f"{' and '.join(kinds)} exclude each other", "keep one of them")
        for each in kinds:
            _judge(reading, each, line)
        return None
    kind = kinds[0] if kinds else ""
    if not _fits_type(reading, kind):
        _judge(reading, kind, line)
        return None
    for modifier, owner in _BELONGS.items():
        if getattr(body, modifier) is not None and kind != owner:
            reading.refuse(modifier, f"it needs {owner}", f"omit it, or send {owner}")
    reading.words["schedule"] = reading.words.get(kind, kind)
    try:
        return _made(kind, body, line)
    except InvalidInput as error:
        reading.tell(error, "schedule")
        return None


def _judge(reading: _Reading, kind: str, line: str) -> None:
    """Check a schedule field that is refused anyway, for its own problems."""
    reading.words["schedule"] = reading.words.get(kind, kind)
    try:
        made = _made(kind, reading.body, line)
        if made is not None:
            validate(made, reading.body.id or "x")
    except InvalidInput as error:
        reading.tell(error, "schedule")


def _made(kind: str, body: JobBody, line: str) -> Schedule | None:
    match kind:
        case "interval":
            return builders.every(body.interval or 0, start=body.start, spread=body.spread is not False)
        case "cron":
            return builders.cron(line, tz=body.tz or "UTC")
        case "at":
            return builders.once(body.at)
        case "once":
            return builders.once()
        case "event":
            return builders.on_event()
    return None


def _fits_type(reading: _Reading, kind: str) -> bool:
    """Does `schedule_type`, if sent, match the other fields?"""
    said = reading.body.schedule_type
    if said is None or (said == "manual" and not kind) or said in _KINDS.get(kind, ()):
        return True
    if said == "manual":
        reading.refuse("schedule_type", f"it is manual, but {kind} is a schedule", f"omit {kind}")
    elif kind:
        reading.refuse("schedule_type", f"it is {said}, but {kind} is sent", "keep one of them")
    else:
        missing = {"cron": "cron_expression", "interval": "interval", "once": "at"}.get(said, said)
        reading.refuse(missing, f"schedule_type is {said}, but {missing} is missing", f"send {missing}")
    return False


def _retry(retry: bool | int | RetryBody | None) -> Any:  # noqa: FBT001  as it came
    if isinstance(retry, RetryBody):
        return msgspec.to_builtins(retry)
    return None if retry is True else retry
