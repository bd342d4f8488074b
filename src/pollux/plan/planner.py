"""The planner of one term, without I/O, clock or randomness.

    begin ─▶ ( apply* ─▶ (wants ─▶ learn)* ─▶ plan ─▶ … the store … ─▶ accept )*

* `apply` takes feed entries; an entry is consumed by the plan that carries the last of its effects.
* `wants` returns the reads that the next plan needs, `learn` takes their results.
* `plan` changes no state: a second call returns an equal plan.  A plan whose answer was lost is sent again unchanged.
* `accept` takes the answer and advances the state.  If a plan is refused as a whole, discard the planner: a new one
  begins from the state in the store.

An entry names jobs and runs; their current state is read from the store, because entries may arrive out of order.  So a
put, a deletion and an arrival only request a read, whose result is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from pollux.errors import Unreadable
from pollux.model import (
    AT_THE_GATE,
    PREVIOUS_RUN,
    SCHEDULER_VERSION,
    STOP,
    Advanced,
    Arrived,
    Cause,
    End,
    Ended,
    FeedItem,
    Job,
    JobsDeleted,
    JobsMoved,
    JobsPut,
    Node,
    NodeSeen,
    Note,
    NotesChanged,
    Plan,
    Run,
    RunState,
    Spoilt,
)
from pollux.model.leader_notes import FEED
from pollux.outcome import describe
from pollux.plan.due_decision import lies_ahead, place
from pollux.plan.gate import declared_key, handler_key, handlers_of, previous_key, unreadable_key
from pollux.plan.leader_notes import UnreportedCounts
from pollux.plan.plan_builder import PlanDraft, PlanReport, accept, compose
from pollux.plan.term_state import Mark, TermState
from pollux.plan.timers import IDLE_MAX, TIMERS_MAX, WINDOW_MS, JobSlot, JobSlots, Timers, TimerWindow

READS_MAX = 1_000  # jobs, and runs, in one read
CATCH_UP_PER_SEAT_S = 2
SOON_MAX = 1_000


class ReadRequest(Struct, frozen=True):
    """The reads that the next plan needs; false if there are none."""

    jobs: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    timers: TimerWindow | None = None
    notes: bool = False
    nodes: bool = False
    all_jobs: str | None = None  # a page of all jobs, after that id; "": from the first one
    waiting_runs: str | None = None  # a page of all held and ready runs, after that cursor; "": from the first one

    def __bool__(self) -> bool:
        return self != ReadRequest()


class PlannerStats(Struct, frozen=True):
    """A snapshot of the planner, for metrics and health."""

    timers: int  # due times in memory
    due_soon: int  # counted up to SOON_MAX
    late: int  # jobs whose missed due times wait for the catch-up rate
    held: dict[
        str, int
    ]  # runs at the gate by what they wait for: stop, previous, declared, handler, unreadable, gate, later


class Planner:
    def __init__(
        self,
        *,
        seats: int = 10,
        ready_max: int = 1_000_000,
        window_ms: int = WINDOW_MS,
        timers_max: int = TIMERS_MAX,
        idle_max: int = IDLE_MAX,
        scheduler_version: int = SCHEDULER_VERSION,
    ) -> None:
        self._version = scheduler_version
        self._seats, self._ready_max = max(1, seats), ready_max
        self._window_ms, self._timers_max, self._idle_max = window_ms, timers_max, idle_max
        self._term = self._blank(0, 0)
        self._draft: PlanDraft | None = None

    def begin(
        self,
        now_ms: int,
        *,
        notes: Sequence[Note],
        held: Sequence[Run],
        nodes: Sequence[Node],
        ready: int,
        left: UnreportedCounts | None = None,
    ) -> None:
        """Begin a term from the state in the store; `left`: the counts of the previous planner of this process."""
        self._term, self._draft = self._blank(now_ms, ready), None
        learn_nodes(self._term, nodes)
        learn_notes(self._term, notes)
        recheck_unreadable(self._term, notes)
        self._term.counting.recall(notes, now_ms, left)
        self._term.clock.recall(notes)
        learn_held(self._term, held)

    def apply(self, item: FeedItem) -> None:
        """Apply one feed entry; its id is consumed by the plan that carries the last of its effects."""
        _apply_entry(self._term, item)

    def wants(self, now_ms: int, *, scans: bool = True) -> ReadRequest:
        """The reads that the next plan needs.  A second call before `learn` returns the same.

        `scans`: with the next pages of scans, of which there should be one a turn: firings go on meanwhile.
        """
        term = self._term
        term.tick(now_ms)
        inbox = term.inbox
        term.window = term.timers.window(now_ms) if term.timers.needs_refill(now_ms, busy=term.busy) else None
        return ReadRequest(
            jobs=tuple(islice(inbox.jobs, READS_MAX)),
            runs=tuple(islice(inbox.runs, READS_MAX)),
            timers=term.window,
            notes=inbox.notes is not None,
            nodes=inbox.nodes is not None,
            all_jobs=inbox.scan_all.after if scans and inbox.scan_all is not None and not self._is_loaded() else None,
            waiting_runs=term.clock.runs_after if scans else None,
        )

    def _is_loaded(self) -> bool:
        """Whether the scan of all jobs waits until its earlier corrections are written."""
        inbox = self._term.inbox
        return inbox.scan_all is not None and inbox.scan_all.is_ahead and len(inbox.work) > READS_MAX

    def learn(
        self,
        *,
        jobs: Sequence[tuple[str, Job | Unreadable | None]] = (),
        runs: Sequence[tuple[str, Run | None]] = (),
        timers: Sequence[Job | Unreadable] | None = None,
        notes: Sequence[Note] | None = None,
        nodes: Sequence[Node] | None = None,
        all_jobs: tuple[Sequence[Job | Unreadable], str | None] | None = None,
        waiting_runs: tuple[Sequence[Run], str | None] | None = None,
    ) -> None:
        """Apply the results of the reads of the last `wants`; a page comes with the begin of the next one."""
        term = self._term
        if timers is not None:
            learn_timers(term, timers)
        if notes is not None:
            learn_notes(term, notes)
        if nodes is not None:
            learn_nodes(term, nodes)
        for job_id, job in jobs:
            learn_job(term, job_id, job)
        if all_jobs is not None:
            learn_all_jobs(term, *all_jobs)
        if waiting_runs is not None:
            term.clock.scan(*waiting_runs, term.seen_ms)
        for run_id, run in runs:
            learn_run(term, run_id, run)

    def plan(self, now_ms: int) -> Plan:
        """The plan to write now.  No state changes: a second call returns an equal plan."""
        self._term.tick(now_ms)
        self._draft = compose(self._term, now_ms, ready_max=self._ready_max)
        return self._draft.plan

    def accept(self, plan: Plan, advanced: Advanced) -> PlanReport:
        """Apply the answer to the latest plan, which was written."""
        draft, self._draft = self._draft, None
        assert draft is not None, "accept follows plan"
        assert plan is draft.plan or plan == draft.plan, "only the latest plan can be accepted"
        if advanced.seats > 0:
            self._term.catch_up.per_s = float(CATCH_UP_PER_SEAT_S * advanced.seats)
        return accept(self._term, draft, advanced)

    def leave(self, doubtful: Plan | None) -> UnreportedCounts:
        """The counts for the next planner that are in no store; `doubtful`: a plan whose answer is unknown."""
        return self._term.counting.leave(doubtful)

    def unreported(self) -> Plan:
        """The last plan of a leader that resigns: counts that no note has yet."""
        return Plan(notes=self._term.counting.unreported())

    def next_ms(self) -> int | None:
        """The next time with work to do: a due time, a held run's time, a pause's end, a refill; None: never."""
        return self._term.next_ms()

    @property
    def seen_ms(self) -> int:
        """The time of the latest call."""
        return self._term.seen_ms

    def look(self, *, soon_ms: int) -> PlannerStats:
        """A snapshot for metrics and health; `soon_ms`: how far ahead due times are counted."""
        term = self._term
        held_runs = term.held_runs
        return PlannerStats(
            timers=len(term.timers) + term.busy,
            due_soon=len(term.due) + term.timers.count_before(term.seen_ms + soon_ms, SOON_MAX),
            late=len(term.late),
            held=dict(held_runs.held) | {"gate": len(held_runs.to_check), "later": held_runs.later},
        )

    def is_outdated(self, now_ms: int) -> bool:
        """Whether a new planner must begin: entries that could not be decoded were consumed, which may report anything.

        A scan of all jobs ends first: else each such entry would restart it.
        """
        rebuild_ms = self._term.unreadable.rebuild_ms
        return rebuild_ms is not None and now_ms >= rebuild_ms and self._term.inbox.scan_all is None

    @property
    def left_over(self) -> bool:
        """Whether another plan could do more right now."""
        return self._term.is_left_over()

    def _blank(self, now_ms: int, ready: int) -> TermState:
        timers = Timers(limit=self._timers_max, window_ms=self._window_ms)
        slots = JobSlots(idle_max=self._idle_max)
        per_s = CATCH_UP_PER_SEAT_S * self._seats
        version = self._version
        return TermState(now_ms=now_ms, catch_up_per_s=per_s, ready=ready, timers=timers, slots=slots, version=version)


_DONE, _DEAD, _CANCELLED = RunState.DONE, RunState.DEAD, RunState.CANCELLED  # an enum in a set is slow to find
UNREADABLE_KIND = unreadable_key("").partition(":")[0]
HANDED_BACK_REST_MS = 500  # delay before a node that cannot run a run may claim it again


def _apply_entry(term: TermState, item: FeedItem) -> None:
    """Apply one feed entry, unless it is open already (applied and not consumed yet)."""
    inbox, feed = term.inbox, item.id
    if feed in inbox.refs:
        return
    mark = item.entry.mark(feed) if isinstance(item.entry, Ended) else (feed, 0)
    inbox.refs.open(mark)
    match item.entry:
        case Ended(ends):
            _apply_ends(term, mark, ends)
        case JobsPut() | JobsDeleted() | JobsMoved():
            _apply_jobs(term, feed, item.entry)
        case Spoilt():
            term.unreadable.entries[feed] = item.entry
        case Arrived(run_ids):
            for run_id in run_ids:
                inbox.ask_run(run_id, feed)
        case NotesChanged(keys):
            if any(key.startswith(STOP) for key in keys):
                inbox.ask_notes(feed)
        case NodeSeen():
            inbox.ask_nodes(feed)


def _apply_jobs(term: TermState, feed: int, entry: JobsPut | JobsDeleted | JobsMoved) -> None:
    for job_id in entry.ids:
        work = term.inbox.work_of(job_id, feed)
        term.inbox.jobs[job_id] = None
        if isinstance(entry, JobsPut):
            work.is_put, work.batch_size = True, max(work.batch_size, entry.added)
        if isinstance(entry, JobsMoved):
            work.is_moved = True
            work.leave(feed)


def _apply_ends(term: TermState, mark: Mark, ends: Sequence[End]) -> None:
    term.counting.read(mark[0], ends)
    term.clock.saw(max([end.ended_ms for end in ends], default=0))
    for end in ends:
        _apply_end(term, mark, end)


def _apply_end(term: TermState, mark: Mark, end: End) -> None:
    inbox, held_runs, state, feed = term.inbox, term.held_runs, end.state, mark[0]
    is_over = state is _DONE or state is _DEAD or state is _CANCELLED
    if is_over and held_runs.is_open:
        inbox.refs.done(held_runs.forget(end.run_id))
    if (
        is_over or end.cause is not Cause.SCHEDULE
    ) and held_runs.is_open:  # else it is to be tried again, and in the way
        inbox.refs.add(feed, held_runs.wake(previous_key(end.job_id), feed))
    if end.ran or state is _DEAD:
        slot = term.slots.get(end.job_id)
        if slot is None:
            inbox.jobs[end.job_id] = None
        elif mark in slot.memory.learnt:
            return
        inbox.work_of(end.job_id, feed).add(feed, end)


# results of reads


def learn_timers(term: TermState, found: Sequence[Job | Unreadable]) -> None:
    """Apply the next page of due jobs.  Slots that exist are newer than the page and stay."""
    window, term.window = term.window, None
    if window is None:
        return
    term.timers.reach(window, len(found), max(filter(None, map(_due_key, found)), default=None))
    for job in found:
        if isinstance(job, Unreadable):
            learn_unreadable(term, job)
            continue
        slot = term.slots.get(job.id) or term.slots.add(job)
        if slot.next_ms is not None and job.id not in term.due and job.id not in term.late:
            term.timers.put(job.id, slot.next_ms)


def _due_key(found: Job | Unreadable) -> tuple[int, str] | None:
    due_ms, name = (found.due_ms, found.name) if isinstance(found, Unreadable) else (found.next_due_ms, found.id)
    return None if due_ms is None else (due_ms, name)


def learn_unreadable(term: TermState, job: Unreadable) -> None:
    """Apply a job that cannot be decoded: it is not planned or written, and its feed entries are done."""
    term.inbox.jobs.pop(job.name, None)
    term.disarm(job.name)
    term.slots.drop(job.name)
    term.inbox.finish(job.name)
    term.unreadable.schedules.pop(job.name, None)
    term.unreadable.jobs[job.name] = job.why


def learn_all_jobs(term: TermState, found: Sequence[Job | Unreadable], after: str | None) -> None:
    """Apply a page of all jobs, each as if it had just been put; a due time that is correct does not change."""
    inbox, scan = term.inbox, term.inbox.scan_all
    assert scan is not None
    jobs = [job for job in found if isinstance(job, Job)]
    if term.clock.is_scanning:
        _follow_clock(term, jobs)
    if scan.is_ahead:
        jobs = []
    batch_size = sum([job.next_due_ms is None and job.last_due_ms is None for job in jobs])
    for job in jobs:
        work = inbox.work_of(job.id)
        work.is_put, work.batch_size = True, max(work.batch_size, batch_size)
        learn_job(term, job.id, job)
    for each in found:
        if isinstance(each, Unreadable):
            learn_unreadable(term, each)
    if after is None:
        inbox.scan_all = None
    else:
        scan.after = after
    term.trim()


def _follow_clock(term: TermState, jobs: Iterable[Job]) -> None:
    """After a jump back of the clock: correct the stored jobs whose due time is too far ahead."""
    ahead = [job for job in jobs if lies_ahead(job, term.seen_ms)]
    for job in ahead:
        term.follow_back(job.id, term.slots.get(job.id) or term.slots.add(job), term.seen_ms)
    term.clock.count_corrected(len(ahead))


def learn_job(term: TermState, job_id: str, job: Job | Unreadable | None) -> None:
    """Apply the current state of a job; None: it was deleted."""
    inbox = term.inbox
    inbox.jobs.pop(job_id, None)
    if isinstance(job, Unreadable):
        learn_unreadable(term, job)
        return
    term.unreadable.jobs.pop(job_id, None)
    if job is None:
        term.unreadable.schedules.pop(job_id, None)
        term.forget_job(job_id)
        return
    slot = term.slots.get(job_id)
    work = inbox.work_of(job_id)
    if slot is None:
        slot = term.slots.add(job)
        if work.is_put or (work.is_moved and job.next_due_ms is None):  # a moved job keeps its due time
            _place(term, slot, job, None, is_placed=False)
    else:
        _read_again(term, slot, job)
    _wake(term, declared_key(job_id) if job.declared else handler_key(job.handler), work.feeds)
    if term.held_runs.held.get(UNREADABLE_KIND):
        _wake(term, unreadable_key(job_id), work.feeds)
    inbox.skip_learnt(work, slot.memory)
    work.is_put, work.is_moved, work.batch_size = False, False, 1
    term.arm(job_id, slot)
    if work.is_idle():
        inbox.finish(job_id)


def _read_again(term: TermState, slot: JobSlot, job: Job) -> None:
    """Set the slot from the stored job, but keep a due time that is not yet written, or if the stored one has fired."""
    work = term.inbox.work_of(job.id)
    old, next_ms, last_ms, placed = slot.job, slot.next_ms, slot.last_ms, slot.placed
    slot.read(job)
    was_fired = job.next_due_ms is not None and last_ms is not None and job.next_due_ms <= last_ms
    if work.writes or was_fired:
        slot.place(next_ms)
        work.writes = next_ms != job.next_due_ms
        job = replace(job, next_due_ms=next_ms)
    if work.is_put or job.revision != old.revision:
        known = old if old.revision < job.revision else None
        _place(term, slot, job, known, is_placed=placed == job.revision)


def _place(term: TermState, slot: JobSlot, job: Job, old: Job | None, *, is_placed: bool) -> None:
    """Compute the next due time of a put job; with an unusable schedule it gets none, and the error is recorded."""
    work = term.inbox.work_of(job.id)
    try:
        next_ms = place(job, old, is_placed=is_placed, now_ms=term.seen_ms, batch_size=work.batch_size)
    except Exception as error:  # noqa: BLE001  one bad job must not stop the others
        next_ms = None
        _record_bad_schedule(term, slot, job, describe(error))
    else:
        term.unreadable.schedules.pop(job.id, None)
    slot.placed = job.revision
    if next_ms != slot.next_ms:
        slot.place(next_ms)
        work.writes = True


def _record_bad_schedule(term: TermState, slot: JobSlot, job: Job, why: str) -> None:
    """Record an unusable schedule in the job's memory, once: a recheck writes it only if the error is new."""
    is_known = slot.next_ms is None and why in (term.unreadable.schedules.get(job.id), slot.memory.last_error)
    if not is_known:
        term.inbox.work_of(job.id).error = why
    if job.declared:
        term.unreadable.schedules[job.id] = why
    else:
        term.unreadable.schedules.pop(job.id, None)


def learn_run(term: TermState, run_id: str, run: Run | None) -> None:
    """Apply the current state of a run that arrived at the gate."""
    inbox, held_runs = term.inbox, term.held_runs
    feeds = inbox.answered(run_id)
    if run is None or run.state is not RunState.HELD:
        inbox.refs.done([*feeds, *held_runs.forget(run_id)])
        return
    if run.job_id not in term.slots:
        inbox.jobs[run.job_id] = None
    at_ms = run.visible_ms
    if run.held_reason not in {"", AT_THE_GATE, PREVIOUS_RUN}:
        at_ms = max(at_ms, term.seen_ms + HANDED_BACK_REST_MS)
        inbox.ask_nodes()
    if at_ms > term.seen_ms and not run.is_behind:
        inbox.refs.done([*feeds, *held_runs.forget(run_id)])
        held_runs.admit_later(run, at_ms)
    else:
        held_runs.admit(run, feeds)


def learn_notes(term: TermState, notes: Iterable[Note]) -> None:
    """Apply the current notes: runs held by a pause that has ended are checked again."""
    feeds, term.inbox.notes = term.inbox.notes or [], None
    for key in term.set_stops(note for note in notes if note.key.startswith(STOP)):
        _wake(term, key, feeds)
    term.inbox.refs.done(feeds)


def learn_nodes(term: TermState, nodes: Iterable[Node]) -> None:
    """Apply the living nodes: runs that waited for one of their handlers are checked again."""
    feeds, term.inbox.nodes = term.inbox.nodes or [], None
    term.handlers = handlers_of(nodes)
    for name in sorted(term.handlers):
        _wake(term, handler_key(name), feeds)
    term.inbox.refs.done(feeds)


def _wake(term: TermState, key: str, feeds: Sequence[int]) -> None:
    """Check the runs parked under the key again; the latest of the entries that caused it owes the result."""
    feed = feeds[-1] if feeds else None
    woken = term.held_runs.wake(key, feed)
    if feed is not None:
        term.inbox.refs.add(feed, woken)


def recheck_unreadable(term: TermState, notes: Iterable[Note]) -> None:
    """Recheck, as if just put, the jobs that the previous leader could not decode or plan, or did not hear of."""
    for found in term.unreadable.recall(notes, term.seen_ms):
        if found.kind == FEED:
            if found.requests_scan:
                term.inbox.ask_all_jobs()
            continue
        for job_id in found.named:
            term.inbox.work_of(job_id).is_put = True
            term.inbox.jobs[job_id] = None
        if found.count > len(found.named):
            term.inbox.ask_all_jobs()


def learn_held(term: TermState, runs: Iterable[Run]) -> None:
    """Apply the runs that are held when a term begins: each is checked when it becomes visible.

    A run that waits for the previous run is checked at once: the end of that one may be in no feed (after a move of
    the store), and its own time had come when it was made.
    """
    for run in runs:
        if run.visible_ms > term.seen_ms and not run.is_behind:
            term.held_runs.admit_later(run, run.visible_ms)
        else:
            term.held_runs.admit(run, ())
            if run.job_id not in term.slots:
                term.inbox.jobs[run.job_id] = None
