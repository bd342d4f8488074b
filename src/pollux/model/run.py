"""Run: one firing of a job, its states and their transitions; the outcome of an attempt, and the verdict on it.

`run_of` constructs every run of a job.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pollux.ids import firing_id
from pollux.model.job import Job, is_gated
from pollux.model.results import SCHEDULER_VERSION

AT_THE_GATE = "at the gate"
PREVIOUS_RUN = "waits for the previous run"  # held reason of a firing behind another run of its job
PROGRESS_CHARS_MAX = 200
TRIED_MAX = 5  # earlier attempts that a run keeps
TRIED_CHARS_MAX = 500  # of the error of each


class RunState(StrEnum):
    HELD = "held"
    READY = "ready"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


_TRACE = "\n\x1e"  # separates an error from its traceback; errors of attempts contain no control characters
SCHEDULED = "scheduled"  # shown for a held or ready run that is not visible yet; no store has it
LIVE = frozenset({RunState.HELD, RunState.READY, RunState.LEASED})
FINISHED = frozenset({RunState.DONE, RunState.DEAD, RunState.CANCELLED})


class Cause(StrEnum):
    """Why a run was made."""

    SCHEDULE = "schedule"
    FORCED = "forced"
    ENQUEUED = "enqueued"


class Tried(Struct, frozen=True, array_like=True):
    """A failed attempt, or one that lost its lease, after which the run was to be retried."""

    fence: int  # the number of its delivery; 0: unknown
    started_ms: int
    ended_ms: int
    error: str  # capped
    traceback: str = ""


class Run(Struct, frozen=True, omit_defaults=True, gc=False):  # gc: a value holds no cycle, and there are many
    """One firing.  Routing fields (priority, group, target, gated) are copied from the job when the run is made."""

    id: str
    job_id: str
    due_ms: int
    cause: Cause = Cause.SCHEDULE
    key: str | None = None  # unique among live runs
    payload: dict[str, Any] | None = None  # overrides the job's params by name
    priority: int = 2
    group: str = ""
    target: str = ""
    gated: bool = False
    state: RunState = RunState.READY
    held_reason: str = ""
    visible_ms: int = 0
    attempt: int = 0  # counted failures
    lease_losses: int = 0  # workers that died or stalled while they held it
    crashes: int = 0  # confirmed deaths of an isolated child
    fence: int = 0  # deliveries so far; never decreases
    token: str = ""  # of the current delivery; of the last one once the run is finished
    owner: str = ""  # the node that holds the lease
    lease_until_ms: int = 0
    cancel: str = ""  # reason of a requested cancellation of a leased run

    # Result of the last attempt that ended, final once the run is finished; see `as_it_is`.
    started_ms: int | None = None
    finished_ms: int | None = None
    failed: bool = False
    changed: bool | None = None
    error: str = ""
    result: Any = None
    deaths: int = 1  # number of dead letters of its recurring job that this one represents
    progress: str = ""  # latest progress of its handler in this delivery; kept after the end
    tried: tuple[Tried, ...] = ()  # the latest failed attempts, oldest first; the error of the last one is `error`
    scheduler_version: int = SCHEDULER_VERSION  # its job's while it is live; the one it ended in once it is finished
    traceback: str = ""  # of `error`

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED

    @property
    def dead_letters(self) -> int:
        """The number of dead letters it represents, itself included; 0 if it is not dead."""
        return self.deaths if self.state is RunState.DEAD else 0

    @property
    def failing_since_ms(self) -> int | None:
        """The end of its first failed or lost attempt, among those kept in `tried`; None: none failed."""
        failed = self.tried[-(self.attempt + self.lease_losses) :] if self.attempt else ()
        return failed[0].ended_ms if failed else None

    def shown_state(self, now_ms: int) -> str:
        """The state as tables and filters name it: `scheduled` for a waiting run whose time is still to come."""
        is_waiting = self.state is RunState.HELD or self.state is RunState.READY
        return SCHEDULED if is_waiting and self.visible_ms > now_ms else self.state.value

    def is_retried_at(self, now_ms: int) -> bool:
        """Whether it has failed and waits for its next attempt."""
        return bool(self.attempt) and self.state in {RunState.HELD, RunState.READY} and self.visible_ms > now_ms

    def overlaps_at(self, now_ms: int) -> bool:
        """Whether this live run blocks the start of a firing of its job.

        A scheduled run always does, also between its attempts.  A requested run does from when it can start, not while
        it is delayed by its caller or by a retry.
        """
        return self.cause is Cause.SCHEDULE or self.state is RunState.LEASED or self.visible_ms <= now_ms

    @property
    def is_behind(self) -> bool:
        """Whether it waits for other runs of its job to end."""
        return self.state is RunState.HELD and self.held_reason == PREVIOUS_RUN


def lease_lost(fence: int, owner: str, until_ms: int) -> Tried:
    """The record of an attempt whose lease expired."""
    return Tried(fence, until_ms, until_ms, f"its lease ran out: node {owner!r} died or stalled")


def error_text(error: str, traceback: str) -> str:
    """An error and its traceback as one text, for stores that keep them in one column."""
    return f"{error}{_TRACE}{traceback}" if traceback else error


def error_parts(text: str) -> tuple[str, str]:
    """The inverse of `error_text`; anything but text raises TypeError, as a stored row may contain anything."""
    error, _, traceback = str.partition(text, _TRACE)
    return error, traceback


def tried_again(tried: tuple[Tried, ...], attempt: Tried) -> tuple[Tried, ...]:
    """The kept attempts after one more failed attempt."""
    if len(attempt.error) > TRIED_CHARS_MAX:
        error = f"{attempt.error[: TRIED_CHARS_MAX - 3]}..."
        attempt = Tried(attempt.fence, attempt.started_ms, attempt.ended_ms, error, attempt.traceback)
    return (*tried, attempt)[-TRIED_MAX:]


def as_it_is(run: Run) -> Run:
    """The run as it is shown, without values of an earlier attempt in the fields of the current one or of its end.

    The result of an attempt stays in the run until the next one ends, and no store records when that one started.  So
    the values of a leased run are shown in `tried` only, and a run that ended while it waited shows no start.
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
    """The kept attempts and the death before a revival, which is recorded in the run's own fields only."""
    ended_ms = run.finished_ms
    if not run.error or ended_ms is None or any(each.ended_ms == ended_ms for each in run.tried):
        return run.tried
    died = Tried(0, ended_ms, ended_ms, run.error, run.traceback)
    return tuple(sorted((*run.tried, died), key=lambda each: each.ended_ms))


class Transition(NamedTuple):
    """An allowed change of state, the store verbs that make it, and when."""

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
    Transition(_S.LEASED, _S.DEAD, "settle, claim", "out of attempts, or too many leases lost"),
    Transition(_S.LEASED, _S.CANCELLED, "settle, claim", "cancelled while it ran, or its job was deleted"),
    Transition(_S.DEAD, _S.READY, "revive", "revived"),
    Transition(_S.DEAD, _S.HELD, "revive", "revived, gated"),
)
_ALLOWED = frozenset((t.before, t.after) for t in TRANSITIONS)


def may_become(before: RunState | None, after: RunState) -> bool:
    """Whether there is a transition from `before` (None: not yet made) to `after`."""
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
    """The run of a job for a due time.  A gated run is held until the leader releases it."""
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


class Fault(StrEnum):
    TRANSIENT = "transient"
    PERMANENT = "permanent"


class Outcome(Struct, frozen=True, omit_defaults=True, gc=False):  # gc: a value holds no cycle, and there are many
    """How one attempt ended."""

    started_ms: int
    ended_ms: int
    fault: Fault | None = None
    error: str = ""  # "ConnectionError: refused", capped
    result: Any = None  # JSON
    changed: bool | None = None  # None: unknown
    fingerprint: str = ""
    retry_after_ms: int | None = None  # earliest retry that the target asked for
    crashed: bool = False  # its child process died without a result; the run's `crashes` is incremented
    traceback: str = ""  # lines: the last frames of the user's code, capped


class Done(Struct, frozen=True, tag="done", omit_defaults=True, gc=False):
    """The run is finished.  `failed`: it failed, and the next firing of its job serves as the retry."""

    failed: bool = False
    clears: bool = False  # a success that deletes its recurring job's dead letter


class RetryAt(Struct, frozen=True, tag="retry"):
    """Retry, not before `at_ms`; counted as a failure."""

    at_ms: int


class Dead(Struct, frozen=True, tag="dead", omit_defaults=True):
    """Becomes a dead letter.  `sole`: it replaces the job's earlier dead letter and continues its count."""

    reason: str
    sole: bool = False


class Cancelled(Struct, frozen=True, tag="cancelled"):
    reason: str


class Back(Struct, frozen=True, tag="back", omit_defaults=True):
    """Handed back without counting a failure, ready at once (drain) or not before `at_ms` (a suspect run)."""

    at_ms: int = 0


class Hold(Struct, frozen=True, tag="hold"):
    """Handed back to the gate without counting a failure, with the reason as text (stopped, unknown handler)."""

    reason: str


Verdict = Done | RetryAt | Dead | Cancelled | Back | Hold
