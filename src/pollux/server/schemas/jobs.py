"""Schemas of jobs: the fields of the config file, and older names of them, in requests and answers.

`JobBody` is a request, `JobView` an answer.  An answer may be sent back as a request: its read-only fields are ignored.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from pollux.app.operations.status import last_outcome
from pollux.model import VERSION_MAX, Cron, Interval, Job, Once, OnEvent, Retry
from pollux.schedule.builders import describe_schedule
from pollux.secrets import HIDDEN, hide
from pollux.units import DURATION_MAX_MS, SECOND_MS, format_moment, format_ms

ID_PATTERN = r"^[A-Za-z0-9._:/\-]{1,200}$"
NOT_READ = frozenset(  # read-only fields of an answer; a body may have them and they are ignored
    {"state", "held", "schedule", "next_due_at", "last_due_at", "last", "source", "release", "declared"}
)
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

    outcome: str  # ok, changed, retrying, failed, dead, cancelled, or empty
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


def view_of(job: Job, state: StateWord, held: str, failing_since_ms: int | None) -> JobView:
    params = HIDDEN.hide_in(job.params)
    url = params.get("url") if job.handler == "http" else None
    return JobView(
        id=job.id,
        name=job.name,
        source_id=job.source_id,
        url=url if isinstance(url, str) else None,
        handler=job.handler,
        params=params,
        schedule=describe_schedule(job.schedule),
        schedule_enabled=job.enabled,
        enabled=job.enabled,
        priority=job.priority,
        timeout_seconds=seconds(job.timeout_ms),
        retry=_retry(job.retry),
        overlap=job.overlap,
        misfire=job.misfire,
        isolate=job.isolate,
        group=job.group,
        target=job.target,
        tags=list(job.tags),
        depends_on=[],
        trigger_webhook="",
        trigger_channel="",
        scheduler_version=job.scheduler_version,
        revision=job.revision,
        source=job.source,
        release=job.release,
        declared=job.declared,
        state=state,
        held=hide(held),
        next_due_at=moment(job.next_due_ms),
        last_due_at=moment(job.last_due_ms),
        last=_last(job, failing_since_ms),
        **_schedule(job),
    )


def _schedule(job: Job) -> dict[str, Any]:
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
def _retry(retry: Retry) -> RetryBody:
    return RetryBody(
        attempts=retry.attempts_max,
        base=format_ms(retry.base_ms),
        factor=retry.factor,
        max=format_ms(retry.max_ms),
        jitter=retry.jitter,
    )


def _last(job: Job, failing_since_ms: int | None) -> LastView:
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
