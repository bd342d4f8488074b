"""What goes into a store, and what comes out?  The values of its verbs, and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from pollux.model import Answer, AuditLine, FeedItem, Job, NotePut, Outcome, Run, Verdict

A = TypeVar("A")
Audit = Callable[[A], Sequence[AuditLine]]  # what the audit log gets with a write that is answered so

BATCH_MAX = 1_000  # items in one call of a batched verb
PAGE_MAX = 1_000  # rows in one page
FEED_MAX = 100_000  # unread ends before `claim` answers full
READY_MAX = 1_000_000  # waiting runs (ready or held) before `enqueue` answers full
LOSSES_MAX = 10  # lost leases before a run is dead


class Capabilities(Struct, frozen=True):
    """What a store can do.  Nothing else may be asked of a backend's identity."""

    name: str
    waits: bool = True  # claim and feed can wait inside the store
    durable: bool = True  # survives a power cut once answered
    shared: bool = True  # other processes may use it at the same time
    writes_are_cheap: bool = False  # a write costs microseconds: turns need not be saved
    joins: bool = False  # `enqueue_in`: a run can be part of a transaction of the caller's own


class JobPut(Struct, frozen=True, omit_defaults=True):
    """Add or replace a job.  `revision` None: whatever is there; 0: only if there is none; n: only over that one."""

    job: Job
    revision: int | None = None


class JobAnswer(Struct, frozen=True, omit_defaults=True):
    answer: Answer
    id: str
    revision: int = 0
    detail: str = ""  # conflict: what stands against it, in words


class Feed(Struct, frozen=True):
    items: tuple[FeedItem, ...]
    now_ms: int


class RunAnswer(Struct, frozen=True, omit_defaults=True):
    answer: Answer
    id: str
    detail: str = ""  # conflict: the id of the run that holds the key


class Claimed(Struct, frozen=True):
    answer: Answer  # ok, or full (the feed is too far behind)
    runs: tuple[Run, ...]
    jobs: dict[str, Job]  # of the runs, each once
    stops_revision: int  # changes whenever a note that steers does (`model.STEERING`: stops, settings)
    look_again_ms: int | None  # nothing claimed: the earliest visible time or lease end, if there is one
    now_ms: int


class Renewal(Struct, frozen=True, omit_defaults=True):
    run_id: str
    token: str
    progress: str = ""  # what the handler says now; "": nothing new


class Renewed(Struct, frozen=True):
    answer: Answer  # ok or lost
    cancel: str = ""  # the run is asked to stop, and why


class Settlement(Struct, frozen=True, omit_defaults=True, gc=False):
    """An attempt's end: the verdict, and all that becomes true with it or not at all."""

    run_id: str
    token: str
    verdict: Verdict
    outcome: Outcome | None = None  # None: no handler code ran to an end (back, hold, cancelled before start)
    follow_ups: tuple[Run, ...] = ()
    notes: tuple[NotePut, ...] = ()
    progress: str = ""  # what the handler said last; "": nothing new


class Pruning(Struct, frozen=True, omit_defaults=True):
    """What may go.  Each part is independent; `limit` bounds one call."""

    ids: tuple[str, ...] = ()  # these finished runs (dead letters dropped by hand)
    unchanged_before_ms: int | None = None  # successful polls that changed nothing, finished before
    finished_before_ms: int | None = None  # everything but dead letters, finished before
    keep_per_job: int | None = None  # all but the newest n of a job's finished runs, dead letters apart
    once_before_ms: int | None = None  # once-jobs that ended before, with nothing live; remembered as deleted ones are
    dead_before_ms: int | None = None  # dead letters that died before
    dead_max: int | None = None  # all but the newest n dead letters
    log_max: int | None = None  # all but the newest n lines of the audit log (at least the last one stays)
    limit: int = 1_000
