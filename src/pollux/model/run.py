"""What is one firing of a job?  A run: queued, leased, retried, ended.  `run_of` is the one way it is made."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pollux.ids import firing_id
from pollux.model.job import Job, is_gated
from pollux.model.version import SCHEDULER_VERSION

AT_THE_GATE = "at the gate"
PREVIOUS_RUN = "waits for the previous run"  # the reason of a firing that is not alone
PROGRESS_CHARS_MAX = 200  # of what a handler says of its progress
TRIED_MAX = 5  # earlier attempts that a run remembers
TRIED_CHARS_MAX = 500  # of the error of each


class RunState(StrEnum):
    HELD = "held"
    READY = "ready"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


_TRACE = "\n\x1e"  # between an error and its traceback; errors of attempts hold no control characters
LIVE = frozenset({RunState.HELD, RunState.READY, RunState.LEASED})
FINISHED = frozenset({RunState.DONE, RunState.DEAD, RunState.CANCELLED})


class Cause(StrEnum):
    """Who asked for a run."""

    SCHEDULE = "schedule"
    FORCED = "forced"
    ENQUEUED = "enqueued"


class Tried(Struct, frozen=True, array_like=True):
    """An attempt that failed, or whose lease was lost, and after which the run was to be tried again."""

    fence: int  # which delivery it was; 0: nobody knows any more
    started_ms: int
    ended_ms: int
    error: str  # capped
    traceback: str = ""


class Run(Struct, frozen=True, omit_defaults=True, gc=False):  # gc: a value holds no cycle, and there are many
    """One firing.  Routing (priority, group, target, gated) is copied from the job when the run is made."""

    id: str
    job_id: str
    due_ms: int
    cause: Cause = Cause.SCHEDULE
    key: str | None = None  # at most one live run each
    payload: dict[str, Any] | None = None  # laid over the job's params
    priority: int = 2
    group: str = ""
    target: str = ""
    gated: bool = False
    state: RunState = RunState.READY
    held_reason: str = ""
    visible_ms: int = 0
    attempt: int = 0  # charged failures
    lease_losses: int = 0  # workers that vanished with it
    crashes: int = 0  # proved deaths of an isolated child
    fence: int = 0  # deliveries so far; never goes back
    token: str = ""  # of the current delivery; on a finished run, of the last
    owner: str = ""  # the node that holds the lease
    lease_until_ms: int = 0
    cancel: str = ""  # a request beside the lease, with its reason

    # How it went: of the last attempt that ended, and for good once the run is finished; see `as_it_is`.
    started_ms: int | None = None
    finished_ms: int | None = None
    failed: bool = False
    changed: bool | None = None
    error: str = ""
    result: Any = None
    deaths: int = 1  # how many dead letters of its recurring job this one stands for
    progress: str = ""  # what its handler said last, in this delivery; it stays after the end
    tried: tuple[
        Tried, ...
    ] = ()  # the latest attempts that were in vain, oldest first; the last one's error stands above
    scheduler_version: int = SCHEDULER_VERSION  # its job's as long as it lives; where it ended once it is finished
    traceback: str = ""  # of `error`

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED

    @property
    def dead_letters(self) -> int:
        """For how many dead letters it stands, itself among them; none once it was replaced or cleared."""
        return self.deaths if self.state is RunState.DEAD else 0

    @property
    def failing_since_ms(self) -> int | None:
        """When the first of its failed or lost attempts ended, as far as it remembers them; None: none failed."""
        in_vain = self.tried[-(self.attempt + self.lease_losses) :] if self.attempt else ()
        return in_vain[0].ended_ms if in_vain else None

    def is_retried_at(self, now_ms: int) -> bool:
        """Has it failed, and waits for its next attempt?"""
        return bool(self.attempt) and self.state in {RunState.HELD, RunState.READY} and self.visible_ms > now_ms

    def overlaps_at(self, now_ms: int) -> bool:
        """Does it, live, keep a firing of its job from beginning?

        Every firing does, also one that is to be tried again.  A run that somebody asked for does from when it could
        start: until then, put off by its maker or by a retry, it is in nobody's way.
        """
        return self.cause is Cause.SCHEDULE or self.state is RunState.LEASED or self.visible_ms <= now_ms

    @property
    def is_behind(self) -> bool:
        """Does it wait for other runs of its job to end?"""
        return self.state is RunState.HELD and self.held_reason == PREVIOUS_RUN


def lease_lost(fence: int, owner: str, until_ms: int) -> Tried:
    """What is known of an attempt whose worker was never heard of again."""
    return Tried(fence, until_ms, until_ms, f"its lease ran out: node {owner!r} died or stalled")


def error_text(error: str, traceback: str) -> str:
    """An error and its traceback as one text, for stores that keep them in one place."""
    return f"{error}{_TRACE}{traceback}" if traceback else error


def error_parts(text: str) -> tuple[str, str]:
    """The error and its traceback again; what is no text is refused, as a stored row may hold anything."""
    error, _, traceback = str.partition(text, _TRACE)
    return error, traceback


def tried_again(tried: tuple[Tried, ...], attempt: Tried) -> tuple[Tried, ...]:
    """What a run remembers of its attempts after one more that failed."""
    if len(attempt.error) > TRIED_CHARS_MAX:
        error = f"{attempt.error[: TRIED_CHARS_MAX - 3]}..."
        attempt = Tried(attempt.fence, attempt.started_ms, attempt.ended_ms, error, attempt.traceback)
    return (*tried, attempt)[-TRIED_MAX:]


def as_it_is(run: Run) -> Run:
    """The run as it is shown: with no figure of an earlier attempt as if it were of the present one, or of its end.

    What an attempt leaves stands in the run until the next one ends, and no store knows when that one began.  So of a
    leased run all of it is told as tried before; a run that ended while it waited did not begin with its last attempt.
    """
    if run.state is RunState.LEASED:
        return replace(
            run,
            started_ms=None,
            finished_ms=None,
            failed=False,
            changed=None,
            error="",
            traceback="",
            result=None,
            tried=_all_tried(run),
        )
    if run.is_finished and any(each.started_ms == run.started_ms for each in run.tried):
        return replace(run, started_ms=None)
    return run


def _all_tried(run: Run) -> tuple[Tried, ...]:
    """With what it died of before it was revived, which stands in the run alone."""
    ended_ms = run.finished_ms
    if not run.error or ended_ms is None or any(each.ended_ms == ended_ms for each in run.tried):
        return run.tried
    died = Tried(0, ended_ms, ended_ms, run.error, run.traceback)
    return tuple(sorted((*run.tried, died), key=lambda each: each.ended_ms))


class Transition(NamedTuple):
    before: RunState | None
    after: RunState
    verb: str
    when: str


_S = RunState
TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, _S.READY, "enqueue, advance", "made"),
    Transition(None, _S.HELD, "enqueue, advance", "made, gated or waiting for the previous run"),
    Transition(_S.HELD, _S.READY, "advance", "released"),
    Transition(_S.HELD, _S.CANCELLED, "cancel, delete_jobs, advance", "cancelled while it waited"),
    Transition(_S.READY, _S.LEASED, "claim", "claimed"),
    Transition(_S.READY, _S.CANCELLED, "cancel, delete_jobs, advance", "cancelled while it waited"),
    Transition(_S.LEASED, _S.LEASED, "claim", "lease ran out, claimed again"),
    Transition(_S.LEASED, _S.READY, "settle", "tried again later, or handed back"),
    Transition(_S.LEASED, _S.HELD, "settle", "back to the gate"),
    Transition(_S.LEASED, _S.DONE, "settle", "done"),
    Transition(_S.LEASED, _S.DEAD, "settle, claim", "given up, or too many leases lost"),
    Transition(_S.LEASED, _S.CANCELLED, "settle, claim", "cancelled while it ran, or its job is gone"),
    Transition(_S.DEAD, _S.READY, "revive", "revived"),
    Transition(_S.DEAD, _S.HELD, "revive", "revived, gated"),
)
_ALLOWED = frozenset((t.before, t.after) for t in TRANSITIONS)


def may_become(before: RunState | None, after: RunState) -> bool:
    """Is there an arrow from `before` (None: not yet made) to `after`?"""
    return (before, after) in _ALLOWED


def run_of(
    job: Job,
    due_ms: int,
    cause: Cause,
    payload: dict[str, Any] | None = None,
    *,
    id: str = "",
    key: str | None = None,
    priority: int | None = None,
) -> Run:
    """The run of a job for a due time.  A gated run is held until the leader lets it through."""
    gated = is_gated(job)
    return Run(
        id=id or firing_id(job.id, due_ms),
        job_id=job.id,
        due_ms=due_ms,
        cause=cause,
        key=key,
        payload=payload,
        priority=job.priority if priority is None else priority,
        group=job.group,
        target=job.target,
        gated=gated,
        state=RunState.HELD if gated else RunState.READY,
        held_reason=AT_THE_GATE if gated else "",
        visible_ms=due_ms,
        scheduler_version=job.scheduler_version,
    )
