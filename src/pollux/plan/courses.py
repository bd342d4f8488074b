"""When will one job fire, if all goes well?  Its course: the due times that are overdue, the next one, and a rule.

    now      heads            tail: a grid (interval) or a line (cron), never listed unless asked
     |  late late   next  |   x     x     x     x     x ...

The same rules as the planner's: a missed due fires at once by its job's misfire rule, due times in a pause are skipped
(but for a once-job, which waits), a job that nobody declares or that is disabled does not fire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from pollux.model import Cron, Event, Interval, Job, Note, Once, stop_key
from pollux.outcome import describe
from pollux.plan.dues import catch_up, place
from pollux.plan.gate import UNDECLARED, stop_words
from pollux.schedule import CompiledCron, compile_cron, interval


class Course(Struct, frozen=True, gc=False):
    """The job fires at the heads (each with its due), then by the tail; a tail begins after the last head."""

    job: Job
    heads: tuple[tuple[int, int], ...] = ()  # (when it fires, what was due)
    first_ms: int | None = None  # of the tail
    every_ms: int = 0  # the tail is a grid
    cron: CompiledCron | None = None  # or a line


class Silent(Struct, frozen=True, gc=False):
    """The job will not fire by itself: why, in a word to count by, and in words."""

    job_id: str
    kind: str
    reason: str


def course_of(job: Job, *, stops: Mapping[str, Note], now_ms: int) -> Course | Silent:
    """The course of a job from `now_ms` on, by its stored next due."""
    if job.schedule is None or isinstance(job.schedule, Event):
        return Silent(job.id, "asked", "runs when asked")
    if not job.enabled:
        return Silent(job.id, "disabled", "is disabled")
    if job.next_due_ms is None:
        reason = "has fired" if isinstance(job.schedule, Once) else f"has no next due: {job.memory.last_error}"
        return Silent(job.id, "over" if isinstance(job.schedule, Once) else "broken", reason.removesuffix(": "))
    if not job.declared:
        return Silent(job.id, "undeclared", UNDECLARED)
    standing = _stops_of(job, stops, now_ms)
    forever = next((stop for stop in standing if stop.expires_ms is None), None)
    if forever is not None:
        return Silent(job.id, "paused", stop_words(forever))
    quiet_ms = max((stop.expires_ms or 0 for stop in standing), default=now_ms)
    try:
        return _course(job, job.next_due_ms, now_ms, quiet_ms)
    except Exception as error:  # noqa: BLE001  one bad job must not hide the others
        return Silent(job.id, "broken", f"its schedule cannot be used: {describe(error)}")


def placed(job: Job, old: Job | None, *, now_ms: int, crowd: int) -> Job:
    """The job with the next due that the leader would give it, were it put now over `old` with `crowd` new ones."""
    known = job if old is None else replace(job, next_due_ms=old.next_due_ms, last_due_ms=old.last_due_ms)
    try:
        next_ms = place(known, old, is_placed=False, now_ms=now_ms, crowd=crowd)
    except Exception as error:  # noqa: BLE001  one bad job must not hide the others
        return replace(known, next_due_ms=None, memory=replace(job.memory, last_error=describe(error)))
    return replace(known, next_due_ms=next_ms, memory=job.memory if old is None else old.memory)


def moments(course: Course, from_ms: int) -> Iterator[tuple[int, int]]:
    """When it fires and what was due, from `from_ms` on, without end."""
    yield from (head for head in course.heads if head[0] >= from_ms)
    due_ms = first_of_tail(course, from_ms)
    while due_ms is not None:
        yield due_ms, due_ms
        due_ms = due_ms + course.every_ms if course.cron is None else course.cron.next_after(due_ms)


def first_of_tail(course: Course, from_ms: int) -> int | None:
    """The first due of the tail at or after `from_ms`."""
    first_ms = course.first_ms
    if first_ms is None or first_ms >= from_ms:
        return first_ms
    if course.cron is not None:
        return course.cron.next_after(from_ms - 1)
    return from_ms + (first_ms - from_ms) % course.every_ms


def _course(job: Job, due_ms: int, now_ms: int, quiet_ms: int) -> Course:
    schedule = job.schedule
    if isinstance(schedule, Once):
        return Course(job, ((max(due_ms, now_ms, quiet_ms), due_ms),))
    assert isinstance(schedule, Interval | Cron)
    cron = compile_cron(schedule.line, schedule.tz, job.id) if isinstance(schedule, Cron) else None
    every_ms = schedule.every_ms if isinstance(schedule, Interval) else 0
    if quiet_ms > now_ms and due_ms < quiet_ms:
        tail = Course(job, (), _following(schedule, cron, job.id, due_ms), every_ms, cron)
        return Course(job, (), first_of_tail(tail, quiet_ms), every_ms, cron)
    if due_ms > now_ms:
        return Course(job, ((due_ms, due_ms),), _following(schedule, cron, job.id, due_ms), every_ms, cron)
    missed = catch_up(job, job.memory, due_ms=due_ms, now_ms=now_ms)
    return Course(job, tuple((now_ms, late_ms) for late_ms in missed.fire), missed.next_ms, every_ms, cron)


def _following(schedule: Interval | Cron, cron: CompiledCron | None, job_id: str, due_ms: int) -> int:
    if isinstance(schedule, Interval):
        return interval.next_due(schedule, job_id, due_ms)
    assert cron is not None
    return cron.next_after(due_ms)


def _stops_of(job: Job, stops: Mapping[str, Note], now_ms: int) -> list[Note]:
    """All pauses that stand against the job now; the last to end counts."""
    if not stops:
        return []
    found: Iterable[Note | None] = (
        stops.get(stop_key("all")),
        stops.get(stop_key("job", job.id)),
        stops.get(stop_key("group", job.group)) if job.group else None,
        stops.get(stop_key("target", job.target)) if job.target else None,
    )
    return [stop for stop in found if stop is not None and (stop.expires_ms is None or stop.expires_ms > now_ms)]
