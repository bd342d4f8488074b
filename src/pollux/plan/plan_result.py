"""Plan result: the answer to a plan, applied to the term state, which changes by a plan only here.

firing       consequence
----------   --------------------------------------------------------------------------------------------------
ok           the job advances; a held run is parked
already      the same, but the first answer (inserted, overlapped or waiting) was lost: the job is read again
waits        the job advances; the run is parked until another one of the job ends
overlapped   the job advances; its memory counts the due time; a waiting run is checked, if this plan did not
unread       the job stays due; the feed, which is read before the next plan, has an end of it
stale        nothing; the job is read again

A release that is answered as waiting is parked likewise: it required that no other run of the job is live.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from pollux.model import PREVIOUS_RUN, Advanced, Answer, Cron, Interval, Once, OnEvent, Overlap, Run, RunState
from pollux.plan.feed_ledger import FeedLedger, JobWork
from pollux.plan.gate import PREVIOUS, previous_key
from pollux.plan.plan_builder import BROKEN, OVERLAP, PlanDraft, PlannedFiring, PlannedUpdate, Skip
from pollux.plan.term_state import TermState

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
    lined: tuple[int, ...] = ()  # the priorities of the runs that became ready


def accept(term: TermState, draft: PlanDraft, advanced: Advanced) -> PlanReport:
    """Apply the answer; consumed entries are dropped, except those whose update was not written."""
    inbox, kept = term.inbox, draft.plan.kept(advanced.updates)
    inbox.receipts.pay(draft.paid)
    inbox.receipts.drop(feed for feed in draft.plan.consumed if feed not in kept)
    term.unreadable.accept(draft.plan)
    term.counting.accept(draft.plan, draft.now_ms, kept)
    term.clock.accept(draft.plan)
    for each in draft.plan.earlier:
        term.held_runs.bring_forward(each.run_id, each.visible_ms)
    skipped: list[Skip] = []
    held: list[tuple[str, str]] = []
    late = []
    kinds: list[tuple[str, int]] = []
    lined: list[int] = []
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
                    lined.append(planned.firing.run.priority)
        if planned.closes:
            inbox.work.pop(planned.slot.job.id, None)
    for change, answer in zip(draft.changes, advanced.updates, strict=True):
        if _changed(term, change, answer) and change.skip is not None:
            skipped.append(change.skip)
    released = _pass_gate(term, draft, advanced.waiting, held)
    lined += [run.priority for run in released]
    term.pace.spend(draft.now_ms, draft.caught_up - unread_late)
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
        lined=tuple(lined),
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


def _owe_again(inbox: FeedLedger, work: JobWork, count: int) -> None:
    """Restore the debt of the job's first `count` entries that stay in the feed, as their update was not written."""
    unpaid = tuple([feed for feed in work.feeds[:count] if feed in inbox.receipts])
    for feed in unpaid:
        inbox.receipts.owe(feed)
    work.feeds = unpaid + work.feeds[count:]


def _changed(term: TermState, change: PlannedUpdate, answer: Answer) -> bool:
    """Apply the answer to an update; False if it was not written and follows once the job has been read again."""
    slot, inbox = change.slot, term.inbox
    job_id = slot.job.id
    work = inbox.work.get(job_id)
    if answer is Answer.STALE:
        _owe_again(inbox, inbox.work_of(job_id), change.feeds)
        inbox.jobs[job_id] = None
        return False
    if work is not None:
        work.feeds = work.feeds[change.feeds :]
    slot.memory = change.update.memory
    if change.skip is not None and change.skip[3] == BROKEN and slot.job.declared:
        term.unreadable.put_schedule(job_id, slot.memory.last_error, term.seen_ms)
    if change.is_first:
        term.taught.add(job_id)
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
