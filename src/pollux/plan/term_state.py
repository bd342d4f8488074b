"""Term state: everything the planner keeps between two plans of one term, and how time moves it.

    timers ──due──▶ due    jobs to decide about in the next plan
              └───▶ late   jobs whose due time was missed: they wait for the catch-up rate (and for their next due
                           time, which is fresh)

Nothing here writes to the store: `plan_builder.accept` applies the effects of a plan after it was answered.

The feed ledger holds the open feed entries, and the work they leave for jobs and runs.  An entry may be consumed only
in the plan that carries the last of its effects; if the leader dies before, its successor reads the entry again.  So
every entry *owes* the effects it has started, each effect is *paid* when it is written (or needs no write), and an
entry that owes nothing is consumed.  When a successor reads an entry again, the memory of some of its jobs includes it
already.  So the memory of a job lists the entries it includes, by their *mark*, while they may be in the feed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from math import ceil

from pollux.model import SCHEDULER_VERSION, End, Memory, Note
from pollux.model.leader_notes import CAME_BACK_MS
from pollux.plan.due_decision import Fire, FireMissed, follow_back, judge
from pollux.plan.gate import GateState, HeldRuns, stop_of
from pollux.plan.leader_notes import RunCounter, TermClock, UnreadableState
from pollux.plan.timers import JobSlot, JobSlots, Timers, TimerWindow
from pollux.schedule.due_times import LATE_AFTER_MIN_MS

Mark = tuple[int, int]  # of an entry: see `Ended.mark`


class EntryRefs:
    """Number of unpaid effects of each open feed entry."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.marks: dict[int, Mark] = {}
        self._latest = 0

    def __contains__(self, feed: int) -> bool:
        return feed in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def open(self, mark: Mark) -> None:
        feed = mark[0]
        self._counts[feed] = 0
        self._latest = max(self._latest, feed)
        self.marks[feed] = mark

    def may_be_in_feed(self, marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
        """The marks of entries that may still be in the feed: open ones, and those behind the latest read one."""
        owed, latest = self._counts, self._latest
        return tuple([mark for mark in marks if mark[0] in owed or mark[0] > latest]) if marks else ()

    def add(self, feed: int, count: int = 1) -> None:
        self._counts[feed] += count

    def done(self, feeds: Iterable[int]) -> None:
        for feed in feeds:
            self._counts[feed] -= 1

    def without(self, done: Iterable[int]) -> tuple[int, ...]:
        """The entries that owe nothing once these are paid."""
        if not self._counts:
            return ()
        paying = Counter(done)
        return tuple(sorted(feed for feed, owed in self._counts.items() if owed == paying[feed]))

    def others(self, feeds: Collection[int]) -> tuple[int, ...]:
        """The open entries other than these."""
        return () if len(feeds) == len(self._counts) else tuple(sorted(self._counts.keys() - set(feeds)))

    def drop(self, feeds: Iterable[int]) -> None:
        """Remove consumed entries."""
        for feed in feeds:
            self._counts.pop(feed, None)
            self.marks.pop(feed, None)


class JobWork:
    """Pending work of the feed for one job."""

    __slots__ = ("batch_size", "ends", "error", "feeds", "is_moved", "is_put", "writes")

    def __init__(self) -> None:
        self.feeds: tuple[int, ...] = ()  # mostly one, shared by the jobs of one put
        self.ends: list[tuple[int, End]] | tuple[tuple[int, End], ...] = ()  # by entry; a shared () while there is none
        self.is_put = False
        self.is_moved = False
        self.batch_size = 1
        self.writes = False  # the slot's next due time differs from the stored one
        self.error = ""  # why the job has no next due time, if its schedule is unusable

    def add(self, feed: int, end: End) -> None:
        if isinstance(self.ends, list):
            self.ends.append((feed, end))
        else:
            self.ends = [(feed, end)]

    def leave(self, feed: int) -> None:
        """Drop the ends in entries older than `feed`, by which the job was moved: they moved with it."""
        self.ends = [each for each in self.ends if each[0] > feed]

    def is_idle(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.ends or self.writes or self.error)


class JobScan:
    """Scan of all jobs, a page at a time, because of an undecodable entry or a jump back of the clock."""

    __slots__ = ("after", "is_ahead")

    def __init__(self) -> None:
        self.after = ""  # the page begins behind that id
        self.is_ahead = True  # only jobs whose due time is too far ahead


class FeedLedger:
    """Open feed entries, pending work by job, and the reads that entries request."""

    def __init__(self) -> None:
        self.refs = EntryRefs()
        self.work: dict[str, JobWork] = {}
        self.jobs: dict[str, None] = {}  # to be read
        self.runs: dict[str, list[int]] = {}  # to be read, with the requesting entries
        self.notes: list[int] | None = None  # to be read, with the requesting entries
        self.nodes: list[int] | None = None
        self.scan_all: JobScan | None = None
        self._entry: tuple[int, ...] = ()  # the latest one

    def work_of(self, job_id: str, feed: int | None = None) -> JobWork:
        """The work of a job, which the entry `feed` then owes too."""
        work = self.work.get(job_id)
        if work is None:
            work = self.work[job_id] = JobWork()
        if feed is not None and (not work.feeds or work.feeds[-1] != feed):
            work.feeds = (*work.feeds, feed) if work.feeds else self._alone(feed)
            self.refs.add(feed)
        return work

    def _alone(self, feed: int) -> tuple[int, ...]:
        """The tuple of one entry, the same object for all its jobs."""
        if self._entry != (feed,):
            self._entry = (feed,)
        return self._entry

    def ask_run(self, run_id: str, feed: int | None = None) -> None:
        feeds = self.runs.setdefault(run_id, [])
        if feed is not None:
            feeds.append(feed)
            self.refs.add(feed)

    def answered(self, run_id: str) -> list[int]:
        """Mark a run as read; returns the entries that requested it."""
        return self.runs.pop(run_id, [])

    def ask_notes(self, feed: int) -> None:
        self.notes = [*(self.notes or ()), feed]
        self.refs.add(feed)

    def ask_nodes(self, feed: int | None = None) -> None:
        self.nodes = self.nodes or []
        if feed is not None:
            self.nodes.append(feed)
            self.refs.add(feed)

    def ask_all_jobs(self, *, ahead: bool = False) -> None:
        """Request a scan of all jobs from the first one; `ahead`: only of due times that are too far ahead."""
        self.scan_all = self.scan_all or JobScan()
        self.scan_all.after = ""
        self.scan_all.is_ahead = self.scan_all.is_ahead and ahead

    @property
    def is_scanned(self) -> bool:
        """Whether no scan of all jobs is under way, and all due times that it corrected are written."""
        return self.scan_all is None and not any(work.writes for work in self.work.values())

    def skip_learnt(self, work: JobWork, memory: Memory) -> None:
        """Drop the ends of entries that the memory includes already; it includes all ends of an entry or none."""
        if work.ends and memory.learnt:
            work.ends = [each for each in work.ends if self.refs.marks[each[0]] not in memory.learnt]

    def tidy(self) -> None:
        """Replace emptied dicts, which would keep the size of their largest content."""
        if not self.jobs:
            self.jobs = {}
        if not self.work:
            self.work = {}

    def finish(self, job_id: str) -> None:
        """Remove the work of a job, as paid."""
        work = self.work.pop(job_id, None)
        if work is not None:
            self.refs.done(work.feeds)


BURST_S = 0.1


class CatchUpRate:
    """Token bucket for missed due times, against a burst after a downtime: `per_s` a second, one token at the start."""

    def __init__(self, now_ms: int, per_s: float) -> None:
        self.per_s = per_s
        self._left, self._at_ms = 1.0, now_ms

    def left(self, now_ms: int) -> float:
        """The number of tokens now."""
        filled = self._left + max(0, now_ms - self._at_ms) * self.per_s / 1000.0
        return min(filled, max(1.0, self.per_s * BURST_S))

    def spend(self, now_ms: int, count: int) -> None:
        self._left, self._at_ms = self.left(now_ms) - count, now_ms

    def ready_ms(self) -> int:
        """The time of the next token."""
        missing = max(0.0, 1.0 - self._left)
        return self._at_ms + ceil(missing * 1000.0 / max(self.per_s, 0.001))


POPPED_MAX = 10_000  # timers taken from the heap at once


class TermState:
    def __init__(
        self,
        *,
        now_ms: int,
        catch_up_per_s: float,
        ready: int,
        timers: Timers,
        slots: JobSlots,
        version: int = SCHEDULER_VERSION,
    ) -> None:
        self.seen_ms = now_ms  # the time of the latest tick
        self.begun_ms = now_ms  # when the term began; lowered if the clock is set back
        self.timers, self.slots = timers, slots
        self.inbox = FeedLedger()
        self.held_runs = HeldRuns()
        self.unreadable = UnreadableState(version)
        self.counting = RunCounter(version, now_ms)
        self.clock = TermClock(version)
        self.due: dict[str, None] = {}  # jobs, in the order in which they became due
        self.late: dict[str, bool] = {}  # job -> whether it has a timer for its next fresh due time
        self._untimed = 0  # number of late jobs without one
        self.ends_written: set[str] = set()  # due jobs whose ends were written before the firing
        self.stops: dict[str, Note] = {}
        self.stops_end_ms: int | None = None
        self.handlers: frozenset[str] | None = None
        self.ready = ready
        self.catch_up = CatchUpRate(now_ms, catch_up_per_s)
        self.window: TimerWindow | None = None  # the requested one

    # time

    def tick(self, now_ms: int) -> None:
        """Advance the time to `now_ms`.  Idempotent."""
        if now_ms < self.seen_ms:
            self.begun_ms = min(self.begun_ms, now_ms)
            self._rewind()
            if now_ms < self.seen_ms - CAME_BACK_MS:
                self._follow_back(now_ms)
        if self.clock.begins_scan(now_ms, self.seen_ms):
            self.inbox.ask_all_jobs(ahead=True)
        self.seen_ms = now_ms
        if self.stops_end_ms is not None and self.stops_end_ms <= now_ms:
            self._end_stops(now_ms)
        if self.unreadable.is_time(now_ms):
            self._request_recheck()
        self.held_runs.come_due(now_ms)
        slot_of, due, late = self.slots.get, self.due, self.late
        for job_id in self.timers.pop_due(now_ms, POPPED_MAX):
            slot = slot_of(job_id)
            if slot is None or slot.next_ms is None:
                continue
            if now_ms - slot.next_ms <= LATE_AFTER_MIN_MS and job_id not in late:
                due[job_id] = None
            elif job_id not in due:
                self._set_late(job_id, slot, now_ms)

    def _request_recheck(self) -> None:
        """Request a read of all jobs that could not be decoded or planned."""
        for job_id in (*self.unreadable.jobs, *self.unreadable.schedules):
            self.inbox.work_of(job_id).is_put = True
            self.inbox.jobs[job_id] = None

    def _set_late(self, job_id: str, slot: JobSlot, now_ms: int) -> None:
        self._drop_late(job_id)
        missed = self._missed(slot, now_ms)
        if missed is None:
            self.due[job_id] = None
            return
        self.late[job_id] = missed.fresh_ms is not None
        if missed.fresh_ms is not None:
            self.timers.put(job_id, missed.fresh_ms, anyway=True)
        else:
            self._untimed += 1

    def _drop_late(self, job_id: str) -> None:
        if self.late.pop(job_id, None) is False:
            self._untimed -= 1

    def _missed(self, slot: JobSlot, now_ms: int) -> Fire | FireMissed | None:
        """The missed firing that must wait for the catch-up rate; None if there is none."""
        if not slot.job.declared or self.stop_of(slot) is not None:
            return None
        try:
            decision = judge(slot, now_ms, led_since_ms=self.begun_ms)
        except Exception:  # noqa: BLE001  the plan handles an unusable schedule
            return None
        return decision if isinstance(decision, Fire | FireMissed) and decision.is_missed else None

    def _rewind(self) -> None:
        """Set all timers again after a jump back: due jobs may no longer be due."""
        for job_id in (*self.due, *self.late):
            slot = self.slots.get(job_id)
            if slot is not None and slot.next_ms is not None:
                self.timers.put(job_id, slot.next_ms, anyway=True)
        self.due.clear()
        self.late.clear()
        self._untimed = 0

    def _follow_back(self, now_ms: int) -> None:
        """After a large jump back, bring due times forward: recurring jobs must not wait until the clock catches up."""
        for job_id in self.slots:
            slot = self.slots.get(job_id)
            if slot is not None:
                self.follow_back(job_id, slot, now_ms)

    def follow_back(self, job_id: str, slot: JobSlot, now_ms: int) -> None:
        """Correct the due time of one job after a jump back."""
        try:
            next_ms = follow_back(slot, now_ms)
        except Exception:  # noqa: BLE001  the plan handles an unusable schedule
            return
        if next_ms is not None:
            slot.place(next_ms)
            self.inbox.work_of(job_id).writes = True
            self.arm(job_id, slot)

    # stops

    def set_stops(self, stops: Iterable[Note]) -> list[str]:
        """Replace the pauses; returns the keys of those that ended or whose text changed."""
        before, self.stops = self.stops, {stop.key: stop for stop in stops}
        self._find_next_end()
        return [key for key, stop in before.items() if key not in self.stops or self.stops[key].value != stop.value]

    def stop_of(self, slot: JobSlot) -> Note | None:
        if not self.stops:
            return None
        job = slot.job
        return stop_of(self.stops, job_id=job.id, group=job.group, target=job.target, now_ms=self.seen_ms)

    def _end_stops(self, now_ms: int) -> None:
        over = [key for key, stop in self.stops.items() if stop.expires_ms is not None and stop.expires_ms <= now_ms]
        for key in over:
            del self.stops[key]
            self.held_runs.wake(key)
        self._find_next_end()

    def _find_next_end(self) -> None:
        self.stops_end_ms = min((s.expires_ms for s in self.stops.values() if s.expires_ms is not None), default=None)

    def gate_state(self) -> GateState:
        return GateState(stops=self.stops, handlers=self.handlers, now_ms=self.seen_ms)

    # jobs

    def arm(self, job_id: str, slot: JobSlot) -> None:
        """Reset the timer of a job from its slot."""
        self.disarm(job_id)
        if slot.next_ms is not None:
            self.timers.put(job_id, slot.next_ms)

    def disarm(self, job_id: str) -> None:
        self.due.pop(job_id, None)
        self._drop_late(job_id)
        self.ends_written.discard(job_id)
        self.timers.drop(job_id)

    def forget_job(self, job_id: str) -> None:
        """Remove a deleted job; its waiting runs were cancelled with it."""
        self.disarm(job_id)
        self.slots.drop(job_id)
        self.inbox.finish(job_id)
        cancelled = [held.run.id for held in self.held_runs.to_check.values() if held.run.job_id == job_id]
        for run_id in cancelled:
            self.inbox.refs.done(self.held_runs.forget(run_id))

    def trim(self) -> None:
        """Evict idle job slots if there are too many."""
        self.slots.trim(self._is_needed, needed=len(self.timers) + self.busy)

    def _is_needed(self, job_id: str) -> bool:
        return job_id in self.timers or job_id in self.due or job_id in self.late or job_id in self.inbox.work

    # what next

    @property
    def busy(self) -> int:
        """The number of jobs in memory without a timer in the heap."""
        return len(self.due) + self._untimed

    def is_left_over(self) -> bool:
        """Whether another plan could do more right now."""
        inbox = self.inbox
        if self.due or self.held_runs.to_check or inbox.work or inbox.jobs or inbox.runs:
            return True
        if inbox.notes is not None or inbox.nodes is not None or inbox.scan_all is not None or self.clock.is_scanning:
            return True
        if (
            self.unreadable.requests_scan
            or self.unreadable.job_notes()
            or (self.late and self.catch_up.left(self.seen_ms) >= 1)
        ):
            return True
        next_ms = self.timers.next_due_ms()
        return (next_ms is not None and next_ms <= self.seen_ms) or self.timers.needs_refill(
            self.seen_ms, busy=self.busy
        )

    def next_ms(self) -> int | None:
        """The next time with work to do; None: never."""
        if self.is_left_over():
            return self.seen_ms
        times = [
            self.timers.next_due_ms(),
            self.timers.refill_ms(busy=self.busy),
            self.held_runs.next_ms(),
            self.stops_end_ms,
            self.unreadable.again_ms,
            self.unreadable.rebuild_ms,
            self.counting.again_ms,
            self.catch_up.ready_ms() if self.late else None,
        ]
        return min((time for time in times if time is not None), default=None)
