"""Counters of what a node fired and ran: lateness, ends of attempts, plans.

Plain integers, a few additions a run.  Lateness is counted in buckets that double, so any number of runs costs a few
integers.  Of job ids and `source_id`s, whose number is not bounded, the first `NAMES_MAX` have counters of their own
and all others share `other`.
"""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct

from pollux.log_format import safe
from pollux.model import Back, Cancelled, Dead, Done, Hold, Job, Outcome, Plan, RetryAt
from pollux.plan import PlanReport
from pollux.store.contract import Settlement

BUCKETS = 32


class LatenessSnapshot(Struct, frozen=True):
    """`buckets[0]` counts 0 ms, `buckets[n]` counts 2**(n-1) up to 2**n - 1 ms."""

    count: int
    sum_ms: int
    max_ms: int
    buckets: tuple[int, ...]

    def at_most_ms(self, share: float) -> int:
        """Return the upper bound of the bucket below which at least this share of all (0.99) lies."""
        wanted, seen = share * self.count, 0
        for n, count in enumerate(self.buckets):
            seen += count
            if seen >= wanted:
                return min(self.max_ms, (1 << n) - 1)
        return self.max_ms


class Lateness:
    """Histogram of lateness, in buckets that double."""

    __slots__ = ("buckets", "count", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.count = self.sum_ms = self.max_ms = 0
        self.buckets = [0] * BUCKETS

    def add(self, late_ms: int) -> None:
        late_ms = max(late_ms, 0)
        self.count += 1
        self.sum_ms += late_ms
        self.max_ms = max(self.max_ms, late_ms)
        self.buckets[min(late_ms.bit_length(), BUCKETS - 1)] += 1

    def seen(self) -> LatenessSnapshot:
        return LatenessSnapshot(self.count, self.sum_ms, self.max_ms, tuple(self.buckets))


NAMES_MAX = 200
NAME_CHARS_MAX = 200
OTHER = "other"
FAILING_MAX = 1_000
BOUNDS_MS = (10, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 60_000, 300_000, 3_600_000)
DONE, FAILED, RETRIED, DEAD, CANCELLED = ("done", "failed", "retried", "dead", "cancelled")
_STATUS = {Done: DONE, RetryAt: RETRIED, Dead: DEAD, Cancelled: CANCELLED}


class EndCounter:
    """Ends of attempts counted under one name."""

    __slots__ = ("buckets", "by_error", "by_status", "failed", "kind", "last_failed", "name", "ok", "sum_ms")

    def __init__(self, name: str, kind: str = "") -> None:
        self.name, self.kind = name, kind
        self.by_status: dict[str, int] = {}
        self.by_error: dict[str, int] = {}
        self.ok = self.failed = self.sum_ms = 0
        self.last_failed: tuple[int, str] | None = None  # when, and of which kind
        self.buckets = [0] * (len(BOUNDS_MS) + 1)

    def add(self, status: str, outcome: Outcome | None) -> None:
        by_status = self.by_status
        by_status[status] = by_status.get(status, 0) + 1
        if outcome is None:
            return
        took_ms = max(0, outcome.ended_ms - outcome.started_ms)
        self.sum_ms += took_ms
        self.buckets[bisect_left(BOUNDS_MS, took_ms)] += 1
        if outcome.fault is None:
            self.ok += 1
        else:
            self.failed += 1
            kind = error_kind(outcome)
            self.by_error[kind] = self.by_error.get(kind, 0) + 1
            self.last_failed = (outcome.ended_ms, kind)


class EndsByName:
    """Ends of attempts by name, each under a name safe to show; `other` counts all names beyond the limit."""

    def __init__(self, limit: int = NAMES_MAX) -> None:
        self.limit = limit
        self.other = EndCounter(OTHER, OTHER)
        self.overflowed = 0  # how often an end was counted under `other` for lack of room
        self._of: dict[str, EndCounter] = {}
        self._shown: dict[str, EndCounter] = {OTHER: self.other}

    def of(self, name: str, job: Job) -> EndCounter:
        found = self._of.get(name)
        return self._admit(name, job) if found is None else found

    def known(self, name: str) -> EndCounter | None:
        """Return the counter of this very name, if it has one."""
        return self._of.get(name)

    def all(self) -> list[EndCounter]:
        """Return the counters with ends, in order of arrival; callable from any thread."""
        return [ends for ends in list(self._shown.values()) if ends.by_status]

    def names(self) -> list[str]:
        """Return the names in order of arrival; callable from any thread."""
        return list(self._of)

    def _admit(self, name: str, job: Job) -> EndCounter:
        """Add a counter; names that are equal once secrets and control characters are removed share one."""
        if len(self._of) >= self.limit:
            self.overflowed += 1
            return self.other
        shown = safe(name, NAME_CHARS_MAX)
        ends = self._shown.get(shown)
        if ends is None:
            ends = self._shown[shown] = EndCounter(shown, safe(kind_of(job), NAME_CHARS_MAX))
        self._of[name] = ends
        return ends


class AttemptStats:
    """Counts of all attempts of a node."""

    def __init__(self) -> None:
        self.by_job = EndsByName()
        self.by_source = EndsByName()
        self.failing: dict[str, None] = {}  # jobs whose latest attempt here was no success, the oldest first
        self.backs = 0  # runs handed back uncharged
        self.holds = 0  # runs handed back to the gate

    def add(self, job: Job, settlement: Settlement) -> None:
        verdict = settlement.verdict
        kind = type(verdict)
        if kind is Done and not verdict.failed:  # type: ignore[union-attr]
            self.failing.pop(job.id, None)
        elif len(self.failing) < FAILING_MAX:
            self.failing[job.id] = None
        if kind is Back:
            self.backs += 1
        elif kind is Hold:
            self.holds += 1
        else:
            status = FAILED if kind is Done and verdict.failed else _STATUS[kind]  # type: ignore[union-attr]
            outcome = None if kind is Cancelled else settlement.outcome  # neither success nor failure
            self.by_job.of(job.id, job).add(status, outcome)
            self.by_source.of(job.source_id, job).add(status, outcome)


class PlanStats:
    """Counts of all plans of a node."""

    def __init__(self) -> None:
        self.fired: dict[tuple[str, int], int] = {}  # by the kind of schedule and the priority
        self.enqueued = [0] * 4  # made ready, by priority
        self.skipped: dict[str, int] = {}  # due times, by why they were not fired
        self.names: dict[str, None] = {}  # the jobs that were fired first

    def add(self, plan: Plan, report: PlanReport) -> None:
        fired = self.fired
        for kind in report.kinds:
            fired[kind] = fired.get(kind, 0) + 1
        for priority in report.enqueued:
            self.enqueued[priority] += 1
        for _, _, count, reason in report.skipped:
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        if len(self.names) < NAMES_MAX:
            self.names.update(dict.fromkeys(firing.run.job_id for firing in plan.firings))


def kind_of(job: Job) -> str:
    """Return the kind of a job: its group, or else its handler."""
    return job.group or job.handler


def error_kind(outcome: Outcome) -> str:
    """Return the kind of a failure: permanent, crash, timeout or transient."""
    if outcome.crashed:
        return "crash"
    if outcome.error.startswith("TimeoutError"):
        return "timeout"
    return "transient" if outcome.fault is None else outcome.fault.value
