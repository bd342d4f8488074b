"""A job's memory of its ends, and the freshness of its last success.

Ends may arrive out of order: counts add up in any order, facts (`last_*`) keep the latest.  Only the leader writes the
memory, and it includes each feed entry once: `Memory.learnt` lists the included entries.

`Memory.recent` holds the latest ends with one character each: how the run ended (unchanged, changed, failed) and
roughly how long it took, in powers of two from a millisecond to nine hours.  It is complete, unlike history, which is
thinned.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from pollux import schedule as when
from pollux.errors import PolluxError
from pollux.model import Cause, Cron, End, Interval, Job, Memory, RunState

RECENT_MAX = 40
_STEPS = 26
_FIRST = ord("#")  # 3 x 26 characters from here on are plain ASCII
_UNCHANGED, _CHANGED, _FAILED = range(3)


class RecentResult(Struct, frozen=True):
    """One end, decoded from its character."""

    failed: bool
    changed: bool
    at_most_ms: int  # upper bound of the duration, which is more than half of it


def remember(recent: str, duration_ms: int, *, failed: bool, changed: bool | None) -> str:
    """The latest ends with this one appended."""
    kind = _FAILED if failed else _CHANGED if changed else _UNCHANGED
    step = min(max(0, duration_ms - 1).bit_length(), _STEPS - 1)
    return f"{recent[1 - RECENT_MAX :]}{chr(_FIRST + kind * _STEPS + step)}"


def marks(recent: str) -> tuple[RecentResult, ...]:
    """The decoded ends, oldest first."""
    codes = (divmod(ord(char) - _FIRST, _STEPS) for char in recent)
    return tuple(RecentResult(kind == _FAILED, kind == _CHANGED, 1 << step) for kind, step in codes)


def within_ms(results: Sequence[RecentResult], share: float) -> int:
    """Upper bound of the duration of the fastest `share` of the results (a quantile)."""
    order = sorted(result.at_most_ms for result in results)
    return order[min(len(order) - 1, int(share * len(order)))] if order else 0


STALE_AFTER = 4  # planned intervals until the score is 0
UNPOLLED = ("overlap", "late", "full")  # skip reasons of due times whose run was wanted
_DONE, _DEAD, _SCHEDULE = RunState.DONE, RunState.DEAD, Cause.SCHEDULE  # an enum member is slow to look up


def learn(memory: Memory, end: End) -> Memory:
    """The memory after one more end.

    An end for which no handler code ran to completion changes nothing, unless the run is dead (it was lost with too
    many workers): that counts as a failure.
    """
    state = end.state
    if not end.ran and state is not _DEAD:
        return memory
    is_latest = memory.last_end_ms is None or end.ended_ms >= memory.last_end_ms
    if state is _DONE and not end.failed:
        return _learn_success(memory, end, is_latest=is_latest)
    if is_latest:
        memory = replace(memory, last_end_ms=end.ended_ms, duration_ms=end.duration_ms)
    return _learn_failure(memory, end) if end.failed or state is _DEAD else memory


def _learn_success(memory: Memory, end: End, *, is_latest: bool) -> Memory:
    """A success resets the failures in a row and clears a scheduled job's dead letter, unless a later end is known."""
    at_ms = end.ended_ms
    recent = remember(memory.recent, end.duration_ms, failed=False, changed=end.changed)
    changed_ms = at_ms if end.changed and _later(at_ms, memory.last_change_ms) else memory.last_change_ms
    if is_latest:
        return replace(
            memory,
            last_end_ms=at_ms,
            duration_ms=end.duration_ms,
            ended=memory.ended + 1,
            failures=0,
            failing_since_ms=None,
            dead=0 if end.cause is _SCHEDULE else memory.dead,
            last_success_ms=at_ms,
            last_change_ms=changed_ms,
            fingerprint=end.fingerprint or memory.fingerprint,
            recent=recent,
        )
    memory = replace(memory, ended=memory.ended + 1, last_change_ms=changed_ms, recent=recent)
    if _later(at_ms, memory.last_success_ms):
        memory = replace(memory, last_success_ms=at_ms, fingerprint=end.fingerprint or memory.fingerprint)
    return memory


def _learn_failure(memory: Memory, end: End) -> Memory:
    """A failed attempt that will be retried ends no run, so only its error is recorded."""
    at_ms = end.ended_ms
    if _later(at_ms, memory.last_error_ms):
        memory = replace(memory, last_error_ms=at_ms, last_error=end.error)
    if end.state is _DEAD:
        memory = replace(memory, dead=max(memory.dead, 1) if end.cause is _SCHEDULE else memory.dead + 1)
    elif end.state is not _DONE:
        return memory
    recent = remember(memory.recent, end.duration_ms, failed=True, changed=None)
    memory = replace(memory, ended=memory.ended + 1, recent=recent)
    if memory.last_success_ms is not None and at_ms < memory.last_success_ms:
        return memory
    since_ms = memory.failing_since_ms
    return replace(
        memory,
        failures=memory.failures + 1,
        failing_since_ms=at_ms if since_ms is None or at_ms < since_ms else since_ms,
    )


def _later(at_ms: int, known_ms: int | None) -> bool:
    return known_ms is None or at_ms >= known_ms


def count_skips(memory: Memory, reason: str, n: int = 1) -> Memory:
    """The memory after `n` more skipped due times with that reason."""
    if n <= 0:
        return memory
    skips = memory.skips
    return replace(memory, skips={**skips, reason: skips.get(reason, 0) + n} if skips else {reason: n})


class Freshness(Struct, frozen=True):
    """Age of the last success, relative to the planned distance: score 1 is fresh, 0 is stale."""

    age_ms: int | None  # None: it never succeeded
    planned_ms: int | None
    score: float
    wanted_ms: int = 0  # of a job without a success: how long one has been due


def freshness(job: Job, now_ms: int) -> Freshness:
    """The freshness: 1 while the last success is no older than planned, falling linearly to 0 at four times that age.

    Without a success the time since one was due counts: a job before its first due time is fresh.
    """
    planned_ms, memory = _planned_ms(job, now_ms), job.memory
    if memory.last_success_ms is not None:
        age_ms = max(0, now_ms - memory.last_success_ms)
        return Freshness(age_ms, planned_ms, _score(age_ms, planned_ms))
    wanted_ms = _wanted_ms(job, planned_ms, now_ms)
    return Freshness(None, planned_ms, 0.0 if memory.failures else _score(wanted_ms, planned_ms), wanted_ms)


def _score(age_ms: int, planned_ms: int | None) -> float:
    if planned_ms is None:
        return 1.0
    left = (STALE_AFTER * planned_ms - age_ms) / ((STALE_AFTER - 1) * planned_ms)
    return min(1.0, max(0.0, left))


def _wanted_ms(job: Job, planned_ms: int | None, now_ms: int) -> int:
    """The time since its first due time, estimated from the latest one and the number of skipped ones."""
    due_ms = job.next_due_ms if job.last_due_ms is None else job.last_due_ms
    if due_ms is None:
        return 0
    skipped = sum(job.memory.skips.get(reason, 0) for reason in UNPOLLED)
    return max(0, now_ms - due_ms, skipped * (planned_ms or 0))


def _planned_ms(job: Job, now_ms: int) -> int | None:
    """The planned distance between two successes; None: no schedule plans any."""
    match job.schedule:
        case Interval(every_ms=every_ms):
            return max(1, every_ms)
        case Cron():
            return _cron_gap_ms(job, now_ms)
        case _:
            return None


def _cron_gap_ms(job: Job, now_ms: int) -> int | None:
    """The distance from the last success to the next due time, which varies: a weekend is longer than a night."""
    assert job.schedule is not None
    start_ms = job.memory.last_success_ms if job.memory.last_success_ms is not None else now_ms
    try:
        first = when.next_due(job.schedule, job.id, start_ms)
        second = None if first is None else when.next_due(job.schedule, job.id, first)
    except (PolluxError, ValueError):
        return None
    if first is None:
        return None
    return max(first - start_ms, (second or first) - first, 1)
