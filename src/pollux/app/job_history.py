"""How did a job go, lately?  Its latest ends, counted and measured."""

from __future__ import annotations

from msgspec import Struct

from pollux.model import Job
from pollux.outcome import RecentResult, marks, within_ms


class JobHistory(Struct, frozen=True):
    """The latest ends of a job, oldest first, and what they have in common.  Durations are at most so long."""

    marks: tuple[RecentResult, ...]
    succeeded: int
    changed: int
    failures: int  # in a row, up to now
    p50_ms: int
    p95_ms: int

    @property
    def success_rate(self) -> float:
        return self.succeeded / len(self.marks) if self.marks else 0.0


def history_of(job: Job) -> JobHistory:
    seen = marks(job.memory.recent)
    return JobHistory(
        marks=seen,
        succeeded=sum(not mark.failed for mark in seen),
        changed=sum(mark.changed for mark in seen),
        failures=job.memory.failures,
        p50_ms=within_ms(seen, 0.5),
        p95_ms=within_ms(seen, 0.95),
    )
