"""What should run, and when?  A job: a definition that lives until it is deleted, and what it has learnt."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from pollux.model.schedule import Cron, Schedule
from pollux.model.version import SCHEDULER_VERSION

TIMEOUT_MS = 3_600_000
API_SOURCE = "api"  # of jobs that no file and no code declares
RETRY_LIMIT = 100
ERROR_CHARS_MAX = 8_000
_Part = TypeVar("_Part", bound=Struct)


class Overlap(StrEnum):
    """What a firing does while an earlier run of its job is still live."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"
    ALLOW = "allow"


class Misfire(StrEnum):
    """What becomes of due times that nobody fired in time."""

    ONE = "one"
    SKIP = "skip"
    ALL = "all"


class Isolate(StrEnum):
    """Where a handler of one's own runs."""

    SUSPECT = "suspect"  # in the node; after two workers vanished with the run, in a child process
    PROCESS = "process"  # always in a child process
    NEVER = "never"  # always in the node


class Retry(Struct, frozen=True, omit_defaults=True):
    """How often and how soon a failed run is tried again: `base * factor ** n` up to `max_ms`, +-`jitter`."""

    attempts_max: int = 5
    base_ms: int = 5_000
    factor: float = 2.0
    max_ms: int = 300_000
    jitter: float = 0.2


class Memory(Struct, frozen=True, omit_defaults=True, gc=False):
    """What outcomes taught the leader about a job.  Only the leader writes it."""

    ended: int = 0  # runs that ended by an outcome (done or dead)
    failures: int = 0  # failed ends in a row
    failing_since_ms: int | None = None  # when the first of them ended
    last_end_ms: int | None = None
    last_success_ms: int | None = None
    last_error_ms: int | None = None
    last_change_ms: int | None = None
    last_error: str = ""
    duration_ms: int = 0  # of the last end
    fingerprint: str = ""  # of the last result: changed or not
    dead: int = 0  # dead letters of this job as far as the leader knows
    recent: str = ""  # the latest ends, a character each, oldest first; `outcome.recent` reads them
    skips: dict[str, int] = field(default_factory=dict)  # reason -> due times not fired
    learnt: tuple[tuple[int, int], ...] = ()  # entries that taught it and may still be in the feed: see `Ended.mark`


class Job(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):  # gc: a value holds no cycle
    """What to run and when.  Down to `declared` it is the definition; the rest belongs to the store and the leader."""

    id: str
    handler: str
    schedule: Schedule | None = None  # None: it runs when asked
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
    source: str = API_SOURCE  # file:<name>, code:<app> or that
    release: int = 0
    declared: bool = True  # False: a code job that no living node declares

    scheduler_version: int = SCHEDULER_VERSION  # where it is: the handle that put it says so, and `move_jobs`
    revision: int = 0  # counts changes of the definition, and moves
    next_due_ms: int | None = None
    last_due_ms: int | None = None
    memory: Memory = Memory()

    @property
    def is_recurring(self) -> bool:
        return recurs(self.schedule)


def recurs(schedule: Schedule | None) -> bool:
    """Will there be another firing by the clock after this one?"""
    return type(schedule).__name__ in {"Interval", "Cron"}


_USUAL = Job(id="", handler="")


def definition(job: Job) -> Job:
    """The job without what the store and the leader keep beside it; two jobs are the same if these are equal.

    So are their texts: a value that equals its default is left out of a text only if it is the very default.
    """
    given: dict[str, Any] = {}
    if job.memory is not _USUAL.memory:
        given["memory"] = _USUAL.memory
    if job.timeout_ms == TIMEOUT_MS and job.timeout_ms is not TIMEOUT_MS:
        given["timeout_ms"] = TIMEOUT_MS
    if job.source == API_SOURCE and job.source is not API_SOURCE:
        given["source"] = API_SOURCE
    if job.retry is not _USUAL.retry:
        given["retry"] = _USUAL.retry if job.retry == _USUAL.retry else _plain(job.retry)
    if isinstance(job.schedule, Cron):
        given["schedule"] = _plain(job.schedule)
    is_new = job.revision == 0 and job.next_due_ms is None and job.last_due_ms is None
    if is_new and job.scheduler_version == SCHEDULER_VERSION and not given:
        return job
    return msgspec.structs.replace(
        job, scheduler_version=SCHEDULER_VERSION, revision=0, next_due_ms=None, last_due_ms=None, **given
    )


def _plain(part: _Part) -> _Part:
    """The same, with the very defaults in the places of their equals."""
    defaults = part.__struct_defaults__
    named = zip(part.__struct_fields__[-len(defaults) :], defaults, strict=True)
    changed = {name: usual for name, usual in named if getattr(part, name) == usual}
    return msgspec.structs.replace(part, **changed) if changed else part


def is_gated(job: Job) -> bool:
    """Must the leader let each run of this job through the gate?  Decided when a run is made, by this function only.

    A job with a target is: targets can be paused, and limits and breakers go by them.
    """
    return bool(job.target)
