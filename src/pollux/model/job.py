"""Job: what to run, its schedule and params, and the leader's memory of its outcomes.

`pollux.schedule` computes with the schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from pollux.errors import InvalidInput
from pollux.model.results import SCHEDULER_VERSION
from pollux.units import format_size

INTERVAL_MIN_MS = 100


class Interval(Struct, frozen=True, tag="interval", omit_defaults=True):
    """A fixed interval without drift: due times are `phase + k * every_ms` on the wall clock."""

    every_ms: int
    start_ms: int | None = None  # the origin of the phase, and the earliest due time
    spread: bool = True  # False: the phase is zero (on the minute, on the hour)


class Cron(Struct, frozen=True, tag="cron", omit_defaults=True):
    """The times of a cron line in a time zone."""

    line: str
    tz: str = "UTC"


class Once(Struct, frozen=True, tag="once", omit_defaults=True):
    """A single time: now (`at_ms` is None), or at `at_ms`."""

    at_ms: int | None = None


class OnEvent(Struct, frozen=True, tag="event"):
    """No due times: runs are requested by a trigger or a person."""


Schedule = Interval | Cron | Once | OnEvent


TIMEOUT_MS = 3_600_000
API_SOURCE = "api"  # source of jobs that no file and no code declares
ERROR_CHARS_MAX = 8_000
_Part = TypeVar("_Part", bound=Struct)


class Overlap(StrEnum):
    """Policy for a firing while an earlier run of its job is live."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"
    ALLOW = "allow"


class Misfire(StrEnum):
    """Policy for due times that were not fired in time."""

    ONE = "one"
    SKIP = "skip"
    ALL = "all"


class Isolate(StrEnum):
    """The process in which a user's handler runs."""

    SUSPECT = "suspect"  # in the node; in a child process once two workers were lost with the run
    PROCESS = "process"  # always in a child process
    NEVER = "never"  # always in the node


class Retry(Struct, frozen=True, omit_defaults=True):
    """Retry policy: delays of `base * factor ** n` up to `max_ms`, +-`jitter`."""

    attempts_max: int = 5
    base_ms: int = 5_000
    factor: float = 2.0
    max_ms: int = 300_000
    jitter: float = 0.2


class Memory(Struct, frozen=True, omit_defaults=True, gc=False):
    """Statistics of a job's outcomes, written by the leader only."""

    ended: int = 0  # runs that ended by an outcome (done or dead)
    failures: int = 0  # failed ends in a row
    failing_since_ms: int | None = None  # end of the first of them
    last_end_ms: int | None = None
    last_success_ms: int | None = None
    last_error_ms: int | None = None
    last_change_ms: int | None = None
    last_error: str = ""
    duration_ms: int = 0  # of the last end
    fingerprint: str = ""  # of the last result, to detect changes
    dead: int = 0  # dead letters of this job that the leader has read of
    recent: str = ""  # the latest ends, a character each, oldest first; decoded by `outcome.freshness`
    skips: dict[str, int] = field(default_factory=dict)  # reason -> due times not fired
    learnt: tuple[tuple[int, int], ...] = ()  # included feed entries that may still be in the feed: see `Ended.mark`


class Job(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):  # gc: a value holds no cycle
    """What to run and when.  Fields down to `declared` are the definition; the store and the leader write the rest."""

    id: str
    handler: str
    schedule: Schedule | None = None  # None: it runs on request only
    name: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    priority: int = 2
    group: str = ""
    target: str = ""
    timeout_ms: int = TIMEOUT_MS
    retry: Retry = Retry()
    overlap: Overlap = Overlap.SKIP
    misfire: Misfire = Misfire.ONE
    isolate: Isolate = Isolate.SUSPECT
    enabled: bool = True
    tags: tuple[str, ...] = ()
    source_id: str = ""
    source: str = API_SOURCE  # file:<name>, code:<app> or api
    release: int = 0
    declared: bool = True  # False: a code job that no living node declares

    scheduler_version: int = SCHEDULER_VERSION  # set by the handle that puts it, and by `move_jobs`
    revision: int = 0  # counts changes of the definition, and moves
    next_due_ms: int | None = None
    last_due_ms: int | None = None
    memory: Memory = Memory()

    @property
    def is_recurring(self) -> bool:
        return recurs(self.schedule)


def recurs(schedule: Schedule | None) -> bool:
    """Whether the schedule has a next firing after each one."""
    return type(schedule).__name__ in {"Interval", "Cron"}


_DEFAULT = Job(id="", handler="")


def definition(job: Job) -> Job:
    """The job without the fields of the store and the leader; two jobs are the same if their definitions are equal.

    Equal definitions also have equal JSON.  msgspec omits a default by identity, not by equality, so values that equal
    their default are replaced by the default object.
    """
    changes: dict[str, Any] = {}
    if job.memory is not _DEFAULT.memory:
        changes["memory"] = _DEFAULT.memory
    if job.timeout_ms == TIMEOUT_MS and job.timeout_ms is not TIMEOUT_MS:
        changes["timeout_ms"] = TIMEOUT_MS
    if job.source == API_SOURCE and job.source is not API_SOURCE:
        changes["source"] = API_SOURCE
    if job.retry is not _DEFAULT.retry:
        changes["retry"] = _DEFAULT.retry if job.retry == _DEFAULT.retry else _with_defaults(job.retry)
    if isinstance(job.schedule, Cron):
        changes["schedule"] = _with_defaults(job.schedule)
    is_new = job.revision == 0 and job.next_due_ms is None and job.last_due_ms is None
    if is_new and job.scheduler_version == SCHEDULER_VERSION and not changes:
        return job
    return msgspec.structs.replace(
        job, scheduler_version=SCHEDULER_VERSION, revision=0, next_due_ms=None, last_due_ms=None, **changes
    )


def _with_defaults(part: _Part) -> _Part:
    """The same value with the default objects in place of their equals."""
    defaults = part.__struct_defaults__
    named = zip(part.__struct_fields__[-len(defaults) :], defaults, strict=True)
    changed = {name: default for name, default in named if getattr(part, name) == default}
    return msgspec.structs.replace(part, **changed) if changed else part


def is_gated(job: Job) -> bool:
    """Whether each run of this job must pass the leader's gate; decided once, when the run is made.

    A job with a target is gated: targets can be paused, and limits and breakers apply to them.
    """
    return bool(job.target)


PAYLOAD_BYTES_MAX = 256_000
RESULT_BYTES_MAX = 64_000
PRIORITIES = {"high": 1, "normal": 2, "low": 3}
_TEXTS = frozenset({str})
_FLAT = frozenset({str, int, bool, type(None)})  # types that JSON returns unchanged
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def priority_of(value: object) -> int:
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 3:
        return value
    raise InvalidInput(f"{value!r} is not a priority", cure="write high, normal or low (1, 2 or 3)")


def check_params(value: object) -> dict[str, Any]:
    """A copy of the params as plain data; refused if they are not a mapping of names to JSON, or too big."""
    return params_and_json(value)[0]


def params_and_json(value: object) -> tuple[dict[str, Any], bytes]:
    """The result of `check_params`, and its JSON."""
    flat: dict[str, Any] | None = None
    if type(value) is not dict or not _TEXTS.issuperset(map(type, value)):
        _check_names(value)
    elif _FLAT.issuperset(map(type, value.values())):
        flat = value.copy()
    try:
        encoded = _encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"params are no JSON: {error}", cure="use dicts, lists, text, numbers") from error
    if len(encoded) > PAYLOAD_BYTES_MAX:
        raise InvalidInput(
            f"params of {format_size(len(encoded))} are too big",
            cure=f"at most {format_size(PAYLOAD_BYTES_MAX)}; keep the bulk elsewhere and pass its name",
        )
    return _decode(encoded) if flat is None else flat, encoded


def _check_names(value: object) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(
            f"params are {type(value).__name__}, not a mapping of names", cure="write {url: ..., depth: 2}"
        )
