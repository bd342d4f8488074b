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
        """The priorities as they are asked: from `first` on, then the higher ones."""
        return (*PRIORITIES[self.first - 1 :], *PRIORITIES[: self.first - 1])


class JobFilter(Struct, frozen=True, omit_defaults=True):
    group: str | None = None
    target: str | None = None
    tag: str | None = None
    source: str | None = None
    handler: str | None = None
    text: str | None = None  # part of the id or the name
    scheduler_version: int | None = None  # None: whatever it is, here and below
    priority: int | None = None
    source_id: str | None = None
    enabled: bool | None = None


class JobPage(Struct, frozen=True, omit_defaults=True):
    jobs: tuple[Job, ...]
    next: str | None  # cursor of the next page
    unreadable: tuple[Unreadable, ...] = ()  # jobs that should be among them; where a store finds any, it raises


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
    unreadable: tuple[Unreadable, ...] = ()  # runs that should be among them; where a store finds any, it raises


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
    """What a store can do.  Nothing else may be asked of a backend's identity."""

    name: str
    waits: bool = True  # claim and feed can wait inside the store
    rings: bool = True  # who waits there is rung at once; else it asks now and then whether anybody wrote
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


class RunsAlike(Sequence[Run]):
    """Runs that differ only in their ids and payloads, as many are made at once; `one` stands for all.

    A payload is here as the JSON that it was checked as, and as which it is stored.  A run is made when somebody looks
    at it: a store that takes them as they are makes none.
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
    jobs: dict[str, Job]  # of the runs, each once
    stops_revision: int  # changes whenever a note that steers does (`model.STEERING`: stops, settings)
    look_again_ms: int | None  # nothing claimed: the earliest visible time or lease end, if there is one
    now_ms: int


class Audit(Struct, frozen=True):
    """Lines of the audit log that go with a write: there is neither without the other.

    All of them if anything was done, each with the number of items that were.  With `each`, line n goes with item n of
    the call alone, if that was done.
    """

    lines: tuple[AuditLine, ...]
    each: bool = False

    def of(self, answers: Sequence[Answer | JobAnswer | RunAnswer] | int) -> list[AuditLine]:
        """The lines as they are written, given the answers to the items, or how many were done."""
        if isinstance(answers, int):
            return [replace(line, count=answers) for line in self.lines] if answers else []
        done = [(each if isinstance(each, Answer) else each.answer) is Answer.OK for each in answers]
        if self.each:
            return [line for line, is_done in zip(self.lines, done, strict=False) if is_done]
        return [replace(line, count=sum(done)) for line in self.lines] if any(done) else []


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
    keep_per_job: int | None = None  # all but a job's newest n that failed and its newest n others; no dead letters
    once_before_ms: int | None = None  # once-jobs that ended before, with nothing live; remembered as deleted ones are
    dead_before_ms: int | None = None  # dead letters that died before
    dead_max: int | None = None  # all but the newest n dead letters
    log_max: int | None = None  # all but the newest n lines of the audit log (at least the last one stays)
    version: int | None = None  # that version, with what is unread in its feed: if no job, live run or leader is there
    limit: int = 1_000
