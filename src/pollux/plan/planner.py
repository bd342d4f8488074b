"""The planner of one term, without I/O, clock or randomness.

    begin ─▶ ( apply* ─▶ (wants ─▶ learn)* ─▶ plan ─▶ … the store … ─▶ accept )*

* `apply` takes feed entries; an entry is consumed by the plan that carries the last of its effects.
* `wants` returns the reads that the next plan needs, `learn` takes their results.
* `plan` changes no state: a second call returns an equal plan.  A plan whose answer was lost is sent again unchanged.
* `accept` takes the answer and advances the state.  If a plan is refused as a whole, discard the planner: a new one
  begins from the state in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from pollux.errors import Unreadable
from pollux.model import SCHEDULER_VERSION, Advanced, FeedItem, Job, Node, Note, Plan, Run
from pollux.plan import feed_intake
from pollux.plan.job_slots import IDLE_MAX, JobSlots
from pollux.plan.plan_builder import PlanDraft, compose
from pollux.plan.plan_result import PlanReport, accept
from pollux.plan.run_counts import UnreportedCounts
from pollux.plan.term_state import TermState
from pollux.plan.timers import TIMERS_MAX, WINDOW_MS, Timers, TimerWindow

READS_MAX = 1_000  # jobs, and runs, in one read
CATCH_UP_PER_SEAT_S = 2
SOON_MAX = 1_000


class JobsAfter(Struct, frozen=True):
    """A page of all jobs: those after that id, or from the first one."""

    after: str | None


class RunsAfter(Struct, frozen=True):
    """A page of all held and ready runs: those after that cursor, or from the first one."""

    after: str | None


class ReadRequest(Struct, frozen=True):
    """The reads that the next plan needs; false if there are none."""

    jobs: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    timers: TimerWindow | None = None
    notes: bool = False
    nodes: bool = False
    all_jobs: JobsAfter | None = None
    waiting_runs: RunsAfter | None = None

    def __bool__(self) -> bool:
        asks = self.timers is not None or self.all_jobs is not None or self.waiting_runs is not None
        return bool(self.jobs or self.runs or asks or self.notes or self.nodes)


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
        feed_intake.learn_nodes(self._term, nodes)
        feed_intake.learn_notes(self._term, notes)
        feed_intake.recheck_unreadable(self._term, notes)
        self._term.counting.recall(notes, now_ms, left)
        self._term.clock.recall(notes)
        feed_intake.learn_held(self._term, held)

    def apply(self, item: FeedItem) -> None:
        """Apply one feed entry; its id is consumed by the plan that carries the last of its effects."""
        feed_intake.apply(self._term, item)

    def wants(self, now_ms: int) -> ReadRequest:
        """The reads that the next plan needs.  A second call before `learn` returns the same."""
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
            all_jobs=None if inbox.survey is None or self._is_loaded() else JobsAfter(inbox.survey.after),
            waiting_runs=RunsAfter(term.clock.runs_after) if term.clock.has_runs_left else None,
        )

    def _is_loaded(self) -> bool:
        """Whether the scan of all jobs waits until its earlier corrections are written."""
        inbox = self._term.inbox
        return inbox.survey is not None and inbox.survey.is_ahead and len(inbox.work) > READS_MAX

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
            feed_intake.learn_timers(term, timers)
        if notes is not None:
            feed_intake.learn_notes(term, notes)
        if nodes is not None:
            feed_intake.learn_nodes(term, nodes)
        for job_id, job in jobs:
            feed_intake.learn_job(term, job_id, job)
        if all_jobs is not None:
            feed_intake.learn_all_jobs(term, *all_jobs)
        if waiting_runs is not None:
            term.clock.look_at(*waiting_runs, term.seen_ms)
        for run_id, run in runs:
            feed_intake.learn_run(term, run_id, run)

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
            self._term.pace.per_s = float(CATCH_UP_PER_SEAT_S * advanced.seats)
        return accept(self._term, draft, advanced)

    def leave(self, doubtful: Plan | None) -> UnreportedCounts:
        """The counts for the next planner that are in no store; `doubtful`: a plan whose answer is unknown."""
        return self._term.counting.leave(doubtful)

    def farewell(self) -> Plan:
        """The last plan of a leader that resigns: counts that no note has yet."""
        return Plan(notes=self._term.counting.unreported())

    def next_ms(self) -> int | None:
        """The next time with work to do: a due time, a held run's time, a pause's end, a refill; None: never."""
        return self._term.next_ms()

    def is_due(self, now_ms: int) -> bool:
        """Whether a job is due or a held run is to be checked."""
        return self._term.is_due(now_ms)

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
            held=dict(held_runs.held) | {"gate": len(held_runs.here), "later": held_runs.later},
        )

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
