"""Decision about due times: fire, skip and count, or choose one among many that were missed.

A firing and a count cannot share one write (whether the firing overlaps, which is a count of its own, is known only
inside that write), so a series of missed due times takes two: first *choose* the one to fire and count the others, then
fire it.  A crash between the two loses nothing: the chosen due time is the stored one.

All functions are pure functions of a slot and the time.
"""

from __future__ import annotations

from msgspec import Struct

from pollux import schedule as when
from pollux.model import Interval, Job, Memory, Once, Overlap, Schedule
from pollux.model.leader_notes import CAME_BACK_MS
from pollux.plan.timers import DueOrigin, JobSlot
from pollux.schedule import interval
from pollux.schedule.due_times import LATE_AFTER_MAX_MS, LATE_AFTER_MIN_MS, late_after_ms

FIRST_SPREAD_MAX_MS = 60_000  # the first due time of a new job is at most this far ahead, off its grid


class Fire(Struct, frozen=True, gc=False):
    """Fire `due_ms` now."""

    due_ms: int
    next_ms: int | None
    is_missed: bool = False
    fresh_ms: int | None = None  # the job's next due time that is not missed


class FireMissed(Struct, frozen=True, gc=False):
    """Choose `due_ms` to fire in the next plan; `count` others are skipped."""

    due_ms: int
    count: int
    is_missed: bool = False
    fresh_ms: int | None = None


class SkipMissed(Struct, frozen=True, gc=False):
    """Skip `count` due times and fire none."""

    count: int
    next_ms: int | None


def judge(slot: JobSlot, now_ms: int, *, led_since_ms: int | None = None) -> Fire | FireMissed | SkipMissed:
    """The decision about the due times of a slot up to now.  Errors of an unusable schedule are passed on."""
    due_ms, job = slot.next_ms, slot.job
    assert due_ms is not None
    assert job.schedule is not None
    is_chosen = slot.origin is DueOrigin.CHOSEN
    if is_chosen or now_ms - due_ms <= LATE_AFTER_MIN_MS:
        next_ms = _following(slot, job.schedule, due_ms)
        if is_chosen or next_ms is None or next_ms > now_ms:
            return Fire(due_ms, next_ms)
    missed = catch_up(job, slot.memory, due_ms=due_ms, now_ms=now_ms, led_since_ms=led_since_ms)
    if not missed.fire:
        return SkipMissed(missed.skipped, missed.next_ms)
    fire, skipped = missed.fire, missed.skipped
    next_ms = fire[1] if len(fire) > 1 else missed.next_ms
    is_missed = _is_missed(fire[0], next_ms, now_ms)
    if skipped:
        return FireMissed(fire[0], skipped, is_missed, missed.next_ms)
    return Fire(fire[0], next_ms, is_missed, missed.next_ms)


def catch_up(job: Job, memory: Memory, *, due_ms: int, now_ms: int, led_since_ms: int | None = None) -> when.Catchup:
    """The due times from `due_ms` up to now that fire, and the number of skipped ones.

    A catch-up run is expected to take as long as the last run; unless the job's runs may overlap, the next due time
    would overlap with it until then.  A due time that the leader missed in its own term (`led_since_ms`) does not wait
    for the next one: an overloaded leader may be as late for that one, and for all others.
    """
    assert job.schedule is not None
    busy_ms = 0 if job.overlap is Overlap.ALLOW else memory.duration_ms
    is_led = led_since_ms is not None and due_ms >= led_since_ms
    return when.catch_up(
        job.schedule,
        job.id,
        due_ms=due_ms,
        now_ms=now_ms,
        misfire=job.misfire.value,
        soon_ms=0 if is_led else max(LATE_AFTER_MIN_MS, busy_ms),
    )


def pass_all(slot: JobSlot, now_ms: int) -> SkipMissed:
    """Skip all due times up to now."""
    decision = judge(slot, now_ms)
    if isinstance(decision, Fire) and (decision.next_ms is None or decision.next_ms > now_ms):
        return SkipMissed(1, decision.next_ms)
    if isinstance(decision, SkipMissed):
        return decision
    due_ms = slot.next_ms
    assert due_ms is not None
    missed = catch_up(slot.job, slot.memory, due_ms=due_ms, now_ms=now_ms)
    return SkipMissed(missed.skipped + len(missed.fire), missed.next_ms)


def place(job: Job, old: Job | None, *, is_placed: bool, now_ms: int, batch_size: int) -> int | None:
    """The next due time of a job that was put.

    * None if nothing is planned: disabled, no schedule, or a once-job that has fired.
    * A new job, which never fired and has no due time: its first due time.
    * An unchanged schedule (or `is_placed`: this revision has its due time already): the stored due time.
    * A changed schedule takes effect with the next firing: its due time after now, never at once.
    """
    schedule, due_ms = job.schedule, job.next_due_ms
    if schedule is None or not job.enabled:
        return None
    if type(schedule) is Once:
        return _place_once(job, schedule, now_ms)
    if due_ms is None:
        if job.last_due_ms is None:
            return when.first_due(schedule, job.id, now_ms=now_ms, batch_size=batch_size)
        return when.next_due(schedule, job.id, _from_ms(job, now_ms))
    if is_placed or (old is not None and old.schedule == schedule):
        return due_ms
    if old is None and _fits(schedule, job, due_ms, now_ms):
        return due_ms
    return when.next_due(schedule, job.id, _from_ms(job, now_ms))


def lies_ahead(job: Job, now_ms: int) -> bool:
    """Whether the next due time is further ahead than the schedule allows: it was computed before a jump back."""
    schedule, due_ms = job.schedule, job.next_due_ms
    if schedule is None or due_ms is None or due_ms <= now_ms:
        return False
    if type(schedule) is Once:
        return schedule.at_ms is None
    try:
        latest_ms = when.next_due(schedule, job.id, _from_ms(job, now_ms))
    except Exception:  # noqa: BLE001  the plan handles an unusable schedule
        return False
    if type(schedule) is Interval:
        latest_ms = max(latest_ms or 0, now_ms + min(schedule.every_ms, FIRST_SPREAD_MAX_MS))
    return latest_ms is None or due_ms > latest_ms


def follow_back(slot: JobSlot, now_ms: int) -> int | None:
    """After a large jump back: the due time after now if the planned one is later; None: no change.

    The planned one was computed before the jump.  The store refuses to fire a due time again that fired before it.
    """
    job, planned_ms, last_ms = slot.job, slot.next_ms, slot.last_ms
    if planned_ms is None or job.schedule is None:
        return None
    if type(job.schedule) is Once:
        return now_ms if job.schedule.at_ms is None and planned_ms > now_ms else None
    is_near = last_ms is not None and now_ms < last_ms <= now_ms + CAME_BACK_MS
    from_ms = last_ms if is_near and last_ms is not None else now_ms
    if type(job.schedule) is Interval:
        next_ms: int | None = interval.next_after(job.schedule, job.id, from_ms)
    else:
        next_ms = when.next_due(job.schedule, job.id, from_ms)
    return next_ms if next_ms is not None and next_ms < planned_ms else None


def _place_once(job: Job, schedule: Once, now_ms: int) -> int | None:
    if job.last_due_ms is not None:
        return None
    if schedule.at_ms is None and job.next_due_ms is not None:
        return job.next_due_ms
    return when.first_due(schedule, job.id, now_ms=now_ms)


def _fits(schedule: Schedule, job: Job, due_ms: int, now_ms: int) -> bool:
    """Whether the stored due time may come from this schedule, if the old one is unknown."""
    if type(schedule) is Interval and job.last_due_ms is None:
        return due_ms - now_ms <= min(schedule.every_ms, FIRST_SPREAD_MAX_MS) or due_ms == schedule.start_ms
    next_ms = when.next_due(schedule, job.id, _from_ms(job, now_ms))
    if next_ms is None or due_ms > next_ms:
        return False
    if type(schedule) is Interval:
        return when.next_due(schedule, job.id, due_ms) == due_ms + schedule.every_ms
    return when.next_due(schedule, job.id, due_ms - 1) == due_ms


def _from_ms(job: Job, now_ms: int) -> int:
    """Now, or the last due time if that is slightly ahead: after a small jump back no due time fires twice."""
    last_ms = job.last_due_ms
    return last_ms if last_ms is not None and now_ms < last_ms <= now_ms + CAME_BACK_MS else now_ms


def _following(slot: JobSlot, schedule: Schedule, due_ms: int) -> int | None:
    if slot.origin is not DueOrigin.ANYWHERE and type(schedule) is Interval:
        return due_ms + schedule.every_ms
    return when.next_due(schedule, slot.job.id, due_ms)


def _is_missed(due_ms: int, next_ms: int | None, now_ms: int) -> bool:
    late_ms = LATE_AFTER_MAX_MS if next_ms is None else late_after_ms(next_ms - due_ms)
    return now_ms - due_ms > late_ms
