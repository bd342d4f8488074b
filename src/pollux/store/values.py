"""Values that the verbs of a store take and answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from msgspec import Struct, json
from msgspec.structs import replace

from pollux.errors import Unreadable
from pollux.model import Answer, AuditLine, FeedItem, Job, NotePut, Outcome, Run, RunState, Verdict

PRIORITIES = (1, 2, 3)


class ClaimRequest(Struct, frozen=True):
    """What one claim asks for."""

    node: str
    token: str
    limit: int
    lease_ms: int
    first: int
    losses_max: int
    feed_max: int

    @property
    def order(self) -> tuple[int, ...]:
        """The priorities in claim order: from `first` on, then the higher ones."""
        return (*PRIORITIES[self.first - 1 :], *PRIORITIES[: self.first - 1])


class JobFilter(Struct, frozen=True, omit_defaults=True):
    group: str | None = None
    target: str | None = None
    tag: str | None = None
    source: str | None = None
    handler: str | None = None
    text: str | None = None  # part of the id or the name
    scheduler_version: int | None = None  # None: any, here and below
    priority: int | None = None
    source_id: str | None = None
    enabled: bool | None = None


class JobPage(Struct, frozen=True, omit_defaults=True):
    jobs: tuple[Job, ...]
    next: str | None  # cursor of the next page
    unreadable: tuple[Unreadable, ...] = ()  # jobs of this page; a store that finds any raises `Illegible`


class RunFilter(Struct, frozen=True, omit_defaults=True):
    states: tuple[RunState, ...] = ()  # none: all
    job_id: str | None = None
    group: str | None = None
    target: str | None = None
    failed: bool | None = None
    finished_after_ms: int | None = None
    error: str | None = None  # part of the error
    scheduler_version: int | None = None


class RunPage(Struct, frozen=True, omit_defaults=True):
    runs: tuple[Run, ...]
    next: str | None
    unreadable: tuple[Unreadable, ...] = ()  # runs of this page; a store that finds any raises `Illegible`


class LogPage(Struct, frozen=True):
    lines: tuple[AuditLine, ...]
    next: int | None


class DumpPage(Struct, frozen=True):
    """Raw records: `kind` is job, run, note, log or term; `data` is JSON-able."""

    records: tuple[tuple[str, Any], ...]
    next: str | None


_decode = json.Decoder().decode

BATCH_MAX = 1_000  # items in one call of a batched verb
PAGE_MAX = 1_000  # rows in one page
FEED_MAX = 100_000  # unread ends before `claim` answers full
READY_MAX = 1_000_000  # waiting runs (ready or held) before `enqueue` answers full
LOSSES_MAX = 10  # lost leases before a run is dead


class Capabilities(Struct, frozen=True):
    """Capabilities of a store.  Callers depend on these and on nothing else of a backend's identity."""

    name: str
    waits: bool = True  # claim and feed can wait inside the store
    rings: bool = True  # a write wakes a waiting call at once; else the call polls for writes
    durable: bool = True  # an answered write survives a power cut
    shared: bool = True  # other processes may use it at the same time
    writes_are_cheap: bool = False  # a write costs microseconds: turns need not be saved
    joins: bool = False  # `enqueue_in`: enqueue inside the caller's own transaction


class JobPut(Struct, frozen=True, omit_defaults=True):
    """Add or replace a job.  `revision` None: unconditionally; 0: only if there is no such job; n: only revision n."""

    job: Job
    revision: int | None = None


class JobAnswer(Struct, frozen=True, omit_defaults=True):
    answer: Answer
    id: str
    revision: int = 0
    detail: str = ""  # conflict: the reason


class Feed(Struct, frozen=True):
    items: tuple[FeedItem, ...]
    now_ms: int


class RunsAlike(Sequence[Run]):
    """Runs of a bulk enqueue, which differ only in their ids and payloads; `one` has the common fields.

    Payloads are checked and kept as the JSON that is stored.  A `Run` is constructed when an element is read: a store
    that reads `one`, `ids` and `bodies` constructs none.
    """

    def __init__(self, one: Run, ids: list[str], bodies: list[bytes | None]) -> None:
        self.one, self.ids, self.bodies = one, ids, bodies

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> Run: ...
    @overload
    def __getitem__(self, at: slice) -> RunsAlike: ...
    def __getitem__(self, at: int | slice) -> Run | RunsAlike:
        if isinstance(at, slice):
            return RunsAlike(self.one, self.ids[at], self.bodies[at])
        return self._made(self.ids[at], self.bodies[at])

    def __iter__(self) -> Iterator[Run]:
        return map(self._made, self.ids, self.bodies)

    def _made(self, run_id: str, body: bytes | None) -> Run:
        payload: Any = None if body is None else _decode(body)
        return replace(self.one, id=run_id, payload=payload)


class RunAnswer(Struct, frozen=True, omit_defaults=True):
    answer: Answer
    id: str
    detail: str = ""  # conflict: the id of the run that holds the key; overlapped: that of the live run


class Claimed(Struct, frozen=True):
    answer: Answer  # ok, or full (the feed is too far behind)
    runs: tuple[Run, ...]
    jobs: dict[str, Job]  # jobs of the runs, by id
    stops_revision: int  # changes with every write of a steering note (`model.STEERING`: stops, settings)
    look_again_ms: int | None  # if nothing was claimed: the earliest visible time or lease end
    now_ms: int


class Audit(Struct, frozen=True):
    """Lines of the audit log that are written in the same transaction as a change.

    If any item of the call was changed, all lines are written, each with the number of changed items.  With `each`,
    line n belongs to item n of the call, and is written if that item was changed.
    """

    lines: tuple[AuditLine, ...]
    each: bool = False

    def of(self, answers: Sequence[Answer | JobAnswer | RunAnswer] | int) -> list[AuditLine]:
        """The lines to write, from the answers to the items, or from the number of changed items."""
        if isinstance(answers, int):
            return [replace(line, count=answers) for line in self.lines] if answers else []
        done = [(each if isinstance(each, Answer) else each.answer) is Answer.OK for each in answers]
        if self.each:
            return [line for line, is_done in zip(self.lines, done, strict=False) if is_done]
        return [replace(line, count=sum(done)) for line in self.lines] if any(done) else []


class Renewal(Struct, frozen=True, omit_defaults=True):
    run_id: str
    token: str
    progress: str = ""  # the handler's current progress; "": unchanged


class Renewed(Struct, frozen=True):
    answer: Answer  # ok or lost
    cancel: str = ""  # reason of a cancel request; "": none


class Settlement(Struct, frozen=True, omit_defaults=True, gc=False):
    """An attempt's end: the verdict, and all that is written in the same transaction."""

    run_id: str
    token: str
    verdict: Verdict
    outcome: Outcome | None = None  # None: no handler code completed (back, hold, cancelled before start)
    follow_ups: tuple[Run, ...] = ()
    notes: tuple[NotePut, ...] = ()
    progress: str = ""  # the handler's last progress; "": unchanged


class Pruning(Struct, frozen=True, omit_defaults=True):
    """What `prune` removes.  Each field is independent; `limit` bounds one call."""

    ids: tuple[str, ...] = ()  # these finished runs (dead letters deleted by a user)
    unchanged_before_ms: int | None = None  # successful polls that changed nothing, finished before
    finished_before_ms: int | None = None  # everything but dead letters, finished before
    keep_per_job: int | None = None  # all but a job's newest n that failed and its newest n others; no dead letters
    once_before_ms: int | None = None  # once-jobs that ended before, with no live run; each leaves a tombstone
    dead_before_ms: int | None = None  # dead letters that died before
    dead_max: int | None = None  # all but the newest n dead letters
    log_max: int | None = None  # all but the newest n lines of the audit log (at least the last one stays)
    version: int | None = None  # that version with its unread feed, if it has no job, live run or leader
    limit: int = 1_000
