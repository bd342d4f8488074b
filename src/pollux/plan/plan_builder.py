"""Plan builder: the next plan from the term state, and the answer to a plan applied to it.

`compose` changes no state (but for reads it requests); by a plan the term state changes only in `accept`.

The plan is one atomic write and limited.  Half of its room for firings and releases is for held runs, then come due
times, then missed ones within the catch-up rate; the rest goes into the next plan.  A draft is the plan together with
its consequences for the term state once it is answered.

A run is delivered with its job's memory.  So, unless its runs may overlap, a job's memory is updated with the end of
the previous run before the job fires: ends that the planner has read are written in an earlier plan, the store finds
those that it has not.

    firing       consequence of its answer
    ----------   ----------------------------------------------------------------------------------------------
    ok           the job advances; a held run is parked
    already      the same, but the first answer (inserted, overlapped or waiting) was lost: the job is read again
    waits        the job advances; the run is parked until another one of the job ends
    overlapped   the job advances; its memory counts the due time; a waiting run is checked, if this plan did not
    unread       the job stays due; the feed, which is read before the next plan, has an end of it
    stale        nothing; the job is read again

A release that is answered as waiting is parked likewise: it required that no other run of the job is live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from pollux.model import (
    FIRINGS_MAX,
    PREVIOUS_RUN,
    UPDATES_MAX,
    Advanced,
    Answer,
    CancelOrder,
    Cause,
    Cron,
    End,
    Firing,
    Holding,
    Interval,
    JobUpdate,
    Memory,
    NotePut,
    Once,
    OnEvent,
    Overlap,
    Plan,
    Release,
    Run,
    RunState,
    run_of,
)
from pollux.outcome import count_skips, describe, learn
from pollux.plan.due_decision import Fire, SkipMissed, judge, pass_all
from pollux.plan.gate import (
    PREVIOUS,
    RETIRED,
    UNDECLARED,
    UNREADABLE,
    GateState,
    Held,
    HeldRun,
    begins_alone,
    declared_key,
    gate,
    is_over,
    previous_key,
    stop_words,
    unreadable_key,
)
from pollux.plan.term_state import EntryRefs, FeedLedger, JobWork, TermState
from pollux.plan.timers import JobSlot

HOLDS_MAX = 100
CHECKS_MAX = 1_000  # held runs that one plan checks
DUE_UPDATES_MAX = UPDATES_MAX // 2

PAUSED, LATE, FULL, OVERLAP, BROKEN = "paused", "late", "full", "overlap", "broken"
NOT_DECLARED = "undeclared"

Skip = tuple[str, int, int, str]  # job, first due time, number, reason


class PlannedFiring:
    """A firing of the plan: its slot, and the gate's answer if its run is held."""

    __slots__ = ("closes", "firing", "held", "slot")

    def __init__(self, slot: JobSlot, firing: Firing, held: Held | None) -> None:
        self.slot, self.firing, self.held = slot, firing, held
        self.closes = False  # it also completes the job's pending work of the feed


class PlannedUpdate:
    """An update of the plan: its slot, how much of the job's pending work it carries, and the due times it skips."""

    __slots__ = ("ends", "feeds", "is_chosen", "is_due", "is_first", "skip", "slot", "update")

    def __init__(self, slot: JobSlot, update: JobUpdate, *, is_due: bool, is_chosen: bool, skip: Skip | None) -> None:
        self.slot, self.update, self.skip = slot, update, skip
        self.is_due, self.is_chosen = is_due, is_chosen
        self.ends = self.feeds = 0
        self.is_first = False  # written before a firing of the job, which follows in the next plan


class PlanDraft:
    """A plan under construction, with what `accept` needs once it is answered."""

    def __init__(self, now_ms: int, gate_state: GateState, queue_room: int) -> None:
        self.now_ms = now_ms
        self.gate_state = gate_state
        self.queue_room = queue_room  # how many more runs may become ready
        self.firings: list[PlannedFiring] = []
        self.releases: list[HeldRun] = []
        self.alone: set[str] = set()  # releases that require that no other run of their job is live
        self.asked: set[str] = set()  # jobs whose waiting runs are released again together with a due time
        self.holds: list[tuple[HeldRun, Held]] = []
        self.cancels: list[HeldRun] = []  # scheduled runs of jobs that are no longer declared
        self.changes: list[PlannedUpdate] = []
        self.done: list[int] = []  # feed entries, once for each effect that is written
        self.touched: set[str] = set()  # jobs that are written
        self.updates_max = DUE_UPDATES_MAX  # for due times: the rest is for work of the feed
        self.caught_up = 0  # missed due times that count against the catch-up rate
        self.plan = Plan()

    @property
    def room(self) -> int:
        return FIRINGS_MAX - len(self.firings) - len(self.releases)

    @property
    def stays(self) -> int:
        """The number of held runs that are written without being released."""
        return len(self.holds) + len(self.cancels)


def compose(term: TermState, now_ms: int, *, ready_max: int) -> PlanDraft:
    """The next plan.  The same term state and time give the same plan."""
    draft, here = PlanDraft(now_ms, term.gate_state(), ready_max - term.ready), term.held_runs.to_check
    held_runs = iter(list(islice(here.values(), CHECKS_MAX)) if here else ())
    if here:
        _check_gate(term, draft, held_runs, room=FIRINGS_MAX // 2)
        draft.updates_max += len(draft.changes)
    if term.due:
        _take_due(term, draft)
    if term.late:
        _take_late(term, draft)
    if here:
        _check_gate(term, draft, held_runs, room=FIRINGS_MAX)
    if draft.firings and term.held_runs.held.get(PREVIOUS):
        _ask_again(term, draft)
    if term.inbox.work:
        _take_work(term, draft)
    if len(draft.alone) > 1:  # of several runs of a job the store releases the first
        draft.releases.sort(key=lambda held: held.run.due_ms if held.run.id in draft.alone else 0)
    consumed = term.inbox.refs.without(draft.done)
    draft.plan = Plan(
        consumed=consumed,
        spoilt=term.unreadable.spoilt(consumed),
        read=term.inbox.refs.others(consumed) if draft.firings or draft.alone else (),
        firings=tuple([planned.firing for planned in draft.firings]),
        releases=tuple([Release(each.run.id, each.run.id in draft.alone) for each in draft.releases]),
        holds=tuple([Holding(each.run.id, held.reason) for each, held in draft.holds]),
        earlier=term.clock.next_earlier() if term.clock.earlier else (),
        cancels=tuple([CancelOrder(each.run.id, RETIRED) for each in draft.cancels]),
        updates=tuple([change.update for change in draft.changes]),
        notes=(*_unreadable_notes(term, consumed, now_ms), *term.counting.notes(consumed, len(draft.cancels), now_ms)),
    )
    if term.clock.is_scanning or not draft.plan.is_empty():  # the clock note alone causes no write
        _note_clock(term, draft)
    return draft


def _unreadable_notes(term: TermState, consumed: tuple[int, ...], now_ms: int) -> list[NotePut]:
    """The notes of what cannot be decoded or planned; those about jobs stay as they are during a scan of all jobs."""
    unreadable = term.unreadable
    is_scanned = unreadable.requests_scan and term.inbox.is_scanned
    jobs = [] if term.inbox.scan_all is not None else unreadable.job_notes()
    return jobs + unreadable.feed_note(consumed, now_ms, is_scanned=is_scanned)


def _note_clock(term: TermState, draft: PlanDraft) -> None:
    notes = term.clock.notes(draft.now_ms, is_written=term.inbox.is_scanned)
    if notes:
        draft.plan = replace(draft.plan, notes=draft.plan.notes + notes)


# held runs


def _check_gate(term: TermState, draft: PlanDraft, held_runs: Iterator[HeldRun], *, room: int) -> None:
    while len(draft.releases) < min(room, len(draft.releases) + draft.room) and draft.stays < HOLDS_MAX:
        held_run = next(held_runs, None)
        if held_run is None:
            return
        run = held_run.run
        slot = term.slots.get(run.job_id)
        if slot is None:
            if run.job_id in term.unreadable.jobs:
                _hold(term, draft, held_run, Held(UNREADABLE, unreadable_key(run.job_id)))
            else:
                term.inbox.jobs[run.job_id] = None  # its slot was evicted
            continue
        held = gate(run, slot.job, draft.gate_state)
        if held is not None and is_over(run, slot.job):
            draft.cancels.append(held_run)
            draft.done += held_run.feeds
        elif held is not None:
            _hold(term, draft, held_run, held)
        elif _learn_before(term, draft, slot):  # else in the next plan
            draft.releases.append(held_run)
            draft.done += held_run.feeds
            if begins_alone(run, slot.job):
                draft.alone.add(run.id)


def _ask_again(term: TermState, draft: PlanDraft) -> None:
    """Release waiting runs of a job again when it fires: the end that they wait for may be in no feed.

    They go last, into a plan that is written anyway.
    """
    for planned in draft.firings:
        job = planned.slot.job
        waiting = term.held_runs.waiting(previous_key(job.id))
        if not waiting or len(waiting) > draft.room:
            continue
        if all(begins_alone(run, job) and gate(run, job, draft.gate_state) is None for run in waiting):
            draft.asked.add(job.id)
            draft.releases += [HeldRun(run) for run in waiting]
            draft.alone.update(run.id for run in waiting)


def _hold(term: TermState, draft: PlanDraft, held_run: HeldRun, held: Held) -> None:
    if held.reason != held_run.run.held_reason:
        draft.holds.append((held_run, held))
        draft.done += held_run.feeds
    else:  # the stored reason is the same: nothing to write
        term.inbox.refs.done(held_run.feeds)
        term.held_runs.park(held_run.run, held.key)


def _learn_before(term: TermState, draft: PlanDraft, slot: JobSlot) -> bool:
    """Add the ends read of the job to the plan that releases its run; False if they do not fit into this plan."""
    work = term.inbox.work.get(slot.job.id)
    if work is None or not work.ends or slot.job.overlap is Overlap.ALLOW or slot.job.id in draft.touched:
        return True
    if len(draft.changes) >= UPDATES_MAX or slot.job.id in term.inbox.jobs:
        return False
    _change(term, draft, slot, slot.next_ms, skip=None, is_due=False)
    return True


# due times


def _take_due(term: TermState, draft: PlanDraft) -> None:
    firings_max = FIRINGS_MAX - len(draft.releases)
    for job_id in term.due:
        if len(draft.firings) >= firings_max or len(draft.changes) >= draft.updates_max:
            return
        _take(term, draft, job_id)


def _take_late(term: TermState, draft: PlanDraft) -> None:
    left = term.catch_up.left(draft.now_ms)
    for job_id in term.late:
        if draft.caught_up + 1 > left or draft.room <= 0 or len(draft.changes) >= draft.updates_max:
            return
        firings = len(draft.firings)
        if _take(term, draft, job_id) and (len(draft.firings) > firings or draft.changes[-1].is_chosen):
            draft.caught_up += 1  # skipped due times do not count against the rate


def _take(term: TermState, draft: PlanDraft, job_id: str) -> bool:
    """Decide about one due job; False if nothing was decided."""
    slot = term.slots.get(job_id)
    if slot is None or slot.next_ms is None or job_id in term.inbox.jobs or job_id in draft.touched:
        return False  # it will be read again, or is in this plan already
    if _learns_first(term, slot):
        _change(term, draft, slot, slot.next_ms, skip=None, is_due=False)
        draft.changes[-1].is_first = True
        return False
    try:
        if term.stops or not slot.job.declared or len(draft.firings) >= draft.queue_room:
            _decide_forbidden(term, draft, slot)
        else:
            _decide(term, draft, slot)
    except Exception as error:  # noqa: BLE001  one bad job must not stop the others
        _change(term, draft, slot, None, skip=(job_id, slot.next_ms, 1, BROKEN), error=describe(error))
    return True


def _learns_first(term: TermState, slot: JobSlot) -> bool:
    """Whether ends must be written before this due time fires; once per due time, as ends may keep arriving."""
    job, work = slot.job, term.inbox.work.get(slot.job.id)
    return work is not None and bool(work.ends) and job.overlap is not Overlap.ALLOW and job.id not in term.ends_written


def _decide(term: TermState, draft: PlanDraft, slot: JobSlot, held: Held | None = None) -> None:
    decision = judge(slot, draft.now_ms, led_since_ms=term.begun_ms)
    if isinstance(decision, Fire):
        _fire(term, draft, slot, decision, held)
    elif isinstance(decision, SkipMissed):
        _pass(term, draft, slot, decision, LATE)
    else:
        skip = (slot.job.id, slot.next_ms or 0, decision.count, LATE)
        _change(term, draft, slot, decision.due_ms, skip=skip, is_chosen=True)


def _decide_forbidden(term: TermState, draft: PlanDraft, slot: JobSlot) -> None:
    """Skip and count due times in a pause, of a job that is no longer declared, or before a full queue.

    The only due time of a once-job is held at the gate instead, and ignores the limit of the queue.
    """
    stop = term.stop_of(slot)
    held, reason = None, FULL if len(draft.firings) >= draft.queue_room else ""
    if stop is not None:
        held, reason = Held(stop_words(stop), stop.key), PAUSED
    elif not slot.job.declared:
        held, reason = Held(UNDECLARED, declared_key(slot.job.id)), NOT_DECLARED
    if not reason or type(slot.job.schedule) is Once:
        _decide(term, draft, slot, held)
    else:
        _pass(term, draft, slot, pass_all(slot, draft.now_ms), reason)


def _fire(term: TermState, draft: PlanDraft, slot: JobSlot, fire: Fire, held: Held | None) -> None:
    job = slot.job
    run: Run = run_of(job, fire.due_ms, Cause.SCHEDULE)
    if run.gated and held is None:
        held = gate(run, job, draft.gate_state)
        if held is None:
            run = replace(run, state=RunState.READY, held_reason="")
    if held is not None:
        run = replace(run, state=RunState.HELD, held_reason=held.reason)
    overlapped = None if job.overlap is Overlap.ALLOW else count_skips(slot.memory, OVERLAP)
    planned = PlannedFiring(slot, Firing(run, job.revision, fire.next_ms, job.overlap, overlapped), held)
    work = term.inbox.work.get(job.id)
    if work is not None and not work.ends and not work.error:
        planned.closes = True
        draft.done += work.feeds
    draft.firings.append(planned)
    draft.touched.add(job.id)


def _pass(term: TermState, draft: PlanDraft, slot: JobSlot, passed: SkipMissed, reason: str) -> None:
    skip = (slot.job.id, slot.next_ms or 0, passed.count, reason)
    _change(term, draft, slot, passed.next_ms, skip=skip)


# work of the feed


def _take_work(term: TermState, draft: PlanDraft) -> None:
    for job_id, work in term.inbox.work.items():
        if len(draft.changes) >= UPDATES_MAX:
            return
        slot = term.slots.get(job_id)
        if slot is None or job_id in draft.touched or job_id in term.inbox.jobs:
            continue  # in the next plan
        broken: Skip | None = (job_id, draft.now_ms, 1, BROKEN) if work.error else None
        _change(term, draft, slot, slot.next_ms, skip=broken, error=work.error, is_due=False)


def _learn_all(memory: Memory, ends: Iterable[tuple[int, End]], refs: EntryRefs) -> Memory:
    """The memory after these ends, with the marks of their entries and of earlier ones that may be in the feed."""
    learnt, latest = refs.may_be_in_feed(memory.learnt), 0
    for feed, end in ends:
        memory = learn(memory, end)
        if feed != latest:
            learnt, latest = (*learnt, refs.marks[feed]), feed
    return replace(memory, learnt=learnt)


def _change(
    term: TermState,
    draft: PlanDraft,
    slot: JobSlot,
    next_ms: int | None,
    *,
    skip: Skip | None,
    error: str = "",
    is_due: bool = True,
    is_chosen: bool = False,
) -> None:
    """Add an update of the leader's columns of a job to the plan, with all pending ends of the job."""
    job, memory = slot.job, slot.memory
    work = term.inbox.work.get(job.id)
    if work is not None and work.ends:
        memory = _learn_all(memory, work.ends, term.inbox.refs)
    if skip is not None:
        memory = count_skips(memory, skip[3], skip[2])
    if error:
        memory = replace(memory, last_error=error, last_error_ms=draft.now_ms)
    update = JobUpdate(job.id, job.revision, next_ms, memory)
    change = PlannedUpdate(slot, update, is_due=is_due, is_chosen=is_chosen, skip=skip)
    if work is not None:
        change.ends, change.feeds = len(work.ends), len(work.feeds)
        draft.done += work.feeds
    draft.changes.append(change)
    draft.touched.add(job.id)


# The kinds of schedules, as older schedulers name them.
_KINDS = {Interval: "interval", Cron: "cron", Once: "immediate", OnEvent: "event", type(None): "event"}


class PlanReport(Struct, frozen=True):
    """The effects of a plan, for events and metrics."""

    fired: int = 0
    late_ms_max: int = 0
    skipped: tuple[tuple[str, int, int, str], ...] = ()  # job, first due time, number, reason
    held: tuple[tuple[str, str], ...] = ()  # run, reason
    released: int = 0
    kinds: tuple[tuple[str, int], ...] = ()  # of each firing: the kind of schedule, and the priority
    enqueued: tuple[int, ...] = ()  # the priorities of the runs that became ready


def accept(term: TermState, draft: PlanDraft, advanced: Advanced) -> PlanReport:
    """Apply the answer; consumed entries are dropped, except those whose update was not written."""
    inbox, kept = term.inbox, draft.plan.kept(advanced.updates)
    inbox.refs.done(draft.done)
    inbox.refs.drop(feed for feed in draft.plan.consumed if feed not in kept)
    term.unreadable.accept(draft.plan, draft.now_ms)
    term.counting.accept(draft.plan, draft.now_ms, kept)
    term.clock.accept(draft.plan)
    for each in draft.plan.earlier:
        term.held_runs.bring_forward(each.run_id, each.visible_ms)
    skipped: list[Skip] = []
    held: list[tuple[str, str]] = []
    late = []
    kinds: list[tuple[str, int]] = []
    enqueued: list[int] = []
    unread_late = 0
    for planned, answer in zip(draft.firings, advanced.firings, strict=True):
        if answer is Answer.STALE or answer is Answer.UNREAD:
            unread_late += _not_fired(term, planned.slot.job.id, answer)
        else:
            _fired(term, draft, planned, answer, held)
            due_ms = planned.firing.run.due_ms
            if answer is Answer.OVERLAPPED:
                skipped.append((planned.slot.job.id, due_ms, 1, OVERLAP))
            else:
                late.append(draft.now_ms - due_ms)
                kinds.append((_KINDS[type(planned.slot.job.schedule)], planned.firing.run.priority))
                if answer is Answer.OK and planned.held is None:
                    enqueued.append(planned.firing.run.priority)
        if planned.closes:
            inbox.work.pop(planned.slot.job.id, None)
    for change, answer in zip(draft.changes, advanced.updates, strict=True):
        if _changed(term, change, answer) and change.skip is not None:
            skipped.append(change.skip)
    released = _pass_gate(term, draft, advanced.waiting, held)
    enqueued += [run.priority for run in released]
    term.catch_up.spend(draft.now_ms, draft.caught_up - unread_late)
    term.ready = advanced.ready
    term.trim()
    inbox.tidy()
    return PlanReport(
        fired=len(late),
        late_ms_max=max(late, default=0),
        skipped=tuple(skipped),
        held=tuple(held),
        released=len(released),
        kinds=tuple(kinds),
        enqueued=tuple(enqueued),
    )


def _not_fired(term: TermState, job_id: str, answer: Answer) -> int:
    """Requeue a job that was not fired; returns 1 for a missed due time, which then costs no catch-up rate."""
    if answer is Answer.STALE:
        term.inbox.jobs[job_id] = None
    elif job_id in term.late:
        return 1
    elif job_id in term.due:
        term.due[job_id] = term.due.pop(job_id)
    return 0


def _pass_gate(term: TermState, draft: PlanDraft, waiting: tuple[str, ...], held: list[tuple[str, str]]) -> list[Run]:
    """Remove released and cancelled runs from the gate and park the others; returns the released ones."""
    released: list[Run] = []
    for run in [each.run for each in draft.releases]:
        if run.id not in waiting:
            term.held_runs.forget(run.id)
            released.append(run)
            continue
        if not run.is_behind:
            held.append((run.id, PREVIOUS_RUN))
        _wait_for_previous(term, run)
    for each, answer in draft.holds:
        term.held_runs.park(replace(each.run, held_reason=answer.reason), answer.key)
        held.append((each.run.id, answer.reason))
    for each in draft.cancels:
        term.held_runs.forget(each.run.id)
    return released


def _fired(
    term: TermState, draft: PlanDraft, planned: PlannedFiring, answer: Answer, held: list[tuple[str, str]]
) -> None:
    slot, firing = planned.slot, planned.firing
    job_id, run = slot.job.id, firing.run
    slot.last_ms = run.due_ms
    slot.move(firing.next_due_ms)
    term.arm(job_id, slot)
    if answer is Answer.OK:
        if planned.held is not None:
            term.held_runs.park(run, planned.held.key)
            held.append((run.id, planned.held.reason))
    elif answer is Answer.OVERLAPPED:
        if firing.if_overlapped is not None:
            slot.memory = firing.if_overlapped
        if term.held_runs.held.get(PREVIOUS) and job_id not in draft.asked:
            term.held_runs.wake(previous_key(job_id))
    elif answer is Answer.WAITS:
        _wait_for_previous(term, run)
        held.append((run.id, PREVIOUS_RUN))
    else:
        _fired_before(term, planned)


def _fired_before(term: TermState, planned: PlannedFiring) -> None:
    """Read the run and the job again: the first answer to this plan was lost, and with it the overlap's decision.

    Or the plan was not written before, and the due time fired before the clock jumped back.  Then the stored next due
    time must be corrected.
    """
    run, overlap = planned.firing.run, planned.firing.overlap
    term.inbox.work_of(run.job_id).writes = True  # reset by the read if the stored job has advanced
    term.inbox.jobs[run.job_id] = None
    if planned.held is not None:
        term.held_runs.park(run, planned.held.key)
    elif overlap is Overlap.QUEUE or overlap is Overlap.CANCEL:
        _wait_for_previous(term, run)
    if planned.held is not None or overlap is Overlap.QUEUE or overlap is Overlap.CANCEL:
        term.inbox.ask_run(run.id)


def _wait_for_previous(term: TermState, run: Run) -> None:
    waiting = replace(run, state=RunState.HELD, held_reason=PREVIOUS_RUN)
    term.held_runs.park(waiting, previous_key(run.job_id))


def _add_refs_again(inbox: FeedLedger, work: JobWork, count: int) -> None:
    """Restore the debt of the job's first `count` entries that stay in the feed, as their update was not written."""
    unpaid = tuple([feed for feed in work.feeds[:count] if feed in inbox.refs])
    for feed in unpaid:
        inbox.refs.add(feed)
    work.feeds = unpaid + work.feeds[count:]


def _changed(term: TermState, change: PlannedUpdate, answer: Answer) -> bool:
    """Apply the answer to an update; False if it was not written and follows once the job has been read again."""
    slot, inbox = change.slot, term.inbox
    job_id = slot.job.id
    work = inbox.work.get(job_id)
    if answer is Answer.STALE:
        _add_refs_again(inbox, inbox.work_of(job_id), change.feeds)
        inbox.jobs[job_id] = None
        return False
    if work is not None:
        work.feeds = work.feeds[change.feeds :]
    slot.memory = change.update.memory
    if change.skip is not None and change.skip[3] == BROKEN and slot.job.declared:
        term.unreadable.schedules[job_id] = slot.memory.last_error
    if change.is_first:
        term.ends_written.add(job_id)
    if work is not None:
        work.ends = work.ends[change.ends :]
        work.writes, work.error = False, ""
        if not (work.ends or work.feeds or work.is_put):
            del inbox.work[job_id]
    if change.is_due:
        slot.move(change.update.next_due_ms, is_chosen=change.is_chosen)
        term.arm(job_id, slot)
        if change.is_chosen:
            term.timers.drop(job_id)
            term.due[job_id] = None
    elif job_id not in term.due and job_id not in term.late and slot.next_ms is not None:
        term.timers.put(job_id, slot.next_ms)
    return True
