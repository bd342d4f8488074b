"""Judge of a world at its end, and of what the product says about itself on the way.

It asks only what users can ask: the operations, and the ledger of what handlers and callers saw.
"""

from __future__ import annotations

from msgspec import Struct

from pollux.app import Operations
from pollux.errors import NotFound
from pollux.model import Job, Run, RunState
from pollux.model.job import Interval
from pollux.observe.health import Health
from pollux.schedule import next_due
from pollux.store.contract import Counts, RunFilter
from pollux.testing.world.audit import StoreAuditor
from pollux.testing.world.ledger import WorldLedger
from pollux.testing.world.loop import WorldLoop

STILL_MS = 150_000  # a schedule that has not moved for so long stands still; health reports it within a minute
STILL_SHORTEST = 4  # ... and for so many intervals
BOUND_MS = 8_000  # how late anything may be once it has been calm
PAGE = 1_000
PLANNING = frozenset({"store", "nodes", "leader", "due", "clock", "schedules", "polling", "records"})


class _Place(Struct, frozen=True):
    """Where a schedule is, and since when."""

    next_due_ms: int | None
    skips: dict[str, int]
    since_us: int


class WorldJudge:
    """Collects broken promises in the ledger."""

    def __init__(self, loop: WorldLoop, ledger: WorldLedger, auditor: StoreAuditor) -> None:
        self._loop, self._ledger, self._auditor = loop, ledger, auditor
        self._places: dict[str, _Place] = {}

    # on the way

    def look(self, jobs: list[Job]) -> None:
        """Note where each schedule is."""
        us = self._loop.us
        for job in jobs:
            before = self._places.get(job.id)
            if before is None or (before.next_due_ms, before.skips) != (job.next_due_ms, job.memory.skips):
                self._places[job.id] = _Place(job.next_due_ms, dict(job.memory.skips), us)

    def standing_still(self, jobs: list[Job]) -> str:
        """A job whose schedule has not moved, though nothing was asked of it; empty: none."""
        for job in jobs:
            if isinstance(job.schedule, Interval) and job.id not in self._ledger.touched and job.id in self._places:
                still_ms = (self._loop.us - self._places[job.id].since_us) // 1_000
                if still_ms > max(STILL_MS, STILL_SHORTEST * job.schedule.every_ms):
                    return job.id
        return ""

    def hear(self, node: str, health: Health, still: str) -> None:
        """Health that finds nothing wrong with planning while a schedule stands still is a lie."""
        if still and all(each.name not in PLANNING for each in health.worries()):
            found = "; ".join(each.seen for each in health.worries()) or "nothing"
            self._breaks("health says well", f"job {still} stands still, and health of {node} finds {found}")

    # at the end

    async def conclude(self, operations: Operations, now_ms: int) -> None:
        """All faults have ended, and it has been calm."""
        jobs, runs = await _all_jobs(operations), await _all_runs(operations)
        counts = await operations.status.counts()
        by_id = {run.id: run for run in runs}
        await self._accepted(operations, by_id)
        for run in runs:
            self._judge_run(run, now_ms, {job.id for job in jobs})
        for job in jobs:
            self._judge_job(job, now_ms)
            self._judge_counts(job, runs)
            self._judge_memory(job, counts.ends)
        self._judge_totals(counts, runs)

    async def _accepted(self, operations: Operations, by_id: dict[str, Run]) -> None:
        """No accepted run is lost."""
        for run_id, job_id in self._ledger.accepted.items():
            if run_id in by_id or job_id in self._ledger.dropped:
                continue
            try:
                await operations.runs.get_run(run_id)
            except NotFound:
                self._breaks("lost run", f"run {run_id} of {job_id} was accepted, and is not there")

    def _judge_run(self, run: Run, now_ms: int, jobs: set[str]) -> None:
        executions = self._ledger.executions.get(run.id, [])
        is_success = run.state is RunState.DONE and not run.failed
        if is_success and run.result not in [each.result for each in executions]:
            self._breaks("false result", f"run {run.id} has the result {run.result!r}, which no handler returned")
        charged = run.attempt + run.lease_losses + self._auditor.handed_back.get(run.id, 0)
        if run.id not in self._auditor.revived and len(executions) > 1 + charged:
            self._breaks("ran too often", f"run {run.id} ran {len(executions)} times, and {charged} ends are recorded")
        if run.state is RunState.LEASED and run.lease_until_ms < now_ms - BOUND_MS:
            self._breaks("stale lease", f"the lease of run {run.id} ended {now_ms - run.lease_until_ms} ms ago")
        if run.state is RunState.READY and max(run.visible_ms, run.due_ms) < now_ms - 3 * BOUND_MS:
            self._breaks("waits for nothing", f"run {run.id} has been ready for {now_ms - run.visible_ms} ms")
        if run.state is RunState.HELD and run.visible_ms < now_ms - 60_000 and not run.held_reason:
            self._breaks("held for nothing", f"run {run.id} is held without a reason")
        if run.state not in (RunState.DONE, RunState.DEAD, RunState.CANCELLED) and run.job_id not in jobs:
            self._breaks("orphan", f"run {run.id} is {run.state}, and its job was deleted")

    def _judge_job(self, job: Job, now_ms: int) -> None:
        if job.enabled and job.next_due_ms is not None and job.next_due_ms < now_ms - BOUND_MS:
            self._breaks("not fired", f"job {job.id} was due {now_ms - job.next_due_ms} ms ago")
        if job.is_recurring and job.enabled:
            assert job.schedule is not None
            expected = next_due(job.schedule, job.id, now_ms)
            if job.next_due_ms is None or (expected is not None and job.next_due_ms > expected + 60_000):
                self._breaks(
                    "due too late", f"job {job.id} is due at {job.next_due_ms}, and its schedule at {expected}"
                )

    def _judge_counts(self, job: Job, runs: list[Run]) -> None:
        """Every due time of a job that nothing was asked of was fired or counted."""
        if job.id in self._ledger.touched or not isinstance(job.schedule, Interval) or self._auditor.clock_was_wrong:
            return
        fired = {run.due_ms for run in runs if run.job_id == job.id and run.cause == "schedule"}
        if job.next_due_ms is None or not fired:
            return
        first_ms = min(fired)
        due_ms: int | None = first_ms
        expected = 0
        while due_ms is not None and due_ms < job.next_due_ms:
            expected += 1
            due_ms = next_due(job.schedule, job.id, due_ms)
        before = (first_ms - self._auditor.start_ms) // job.schedule.every_ms  # may have been skipped before the first
        counted = len(fired) + sum(job.memory.skips.values())
        if not expected <= counted <= expected + before:
            words = f"{len(fired)} fired, counted are {job.memory.skips}"
            self._breaks("miscounted", f"job {job.id} had {expected} due times: {words}")

    def _judge_memory(self, job: Job, unread: int) -> None:
        """Each end of a run is learnt once, at most `unread` of them later."""
        ended = self._auditor.ended.get(job.id, 0)
        if job.id not in self._ledger.touched and not 0 <= ended - job.memory.ended <= unread:
            self._breaks("learnt", f"{ended} runs of job {job.id} ended, and {job.memory.ended} are counted")

    def _judge_totals(self, counts: Counts, runs: list[Run]) -> None:
        for state in (RunState.HELD, RunState.READY, RunState.LEASED, RunState.DEAD):
            counted, there = getattr(counts, state.value), sum(run.state is state for run in runs)
            if counted != there:
                self._breaks("counts", f"{counted} runs are counted as {state.value}, {there} are listed")

    def _breaks(self, kind: str, words: str) -> None:
        self._ledger.breaks(kind, words, self._loop.us)


async def _all_jobs(operations: Operations) -> list[Job]:
    jobs: list[Job] = []
    after: str | None = None
    while True:
        page = await operations.jobs.list_jobs(after=after, limit=PAGE)
        jobs += page.jobs
        after = page.next
        if after is None:
            return jobs


async def _all_runs(operations: Operations) -> list[Run]:
    runs: list[Run] = []
    after: str | None = None
    while True:
        page = await operations.runs.list_runs(RunFilter(), after=after, limit=PAGE)
        runs += page.runs
        after = page.next
        if after is None:
            return runs
