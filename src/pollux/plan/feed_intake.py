"""What has happened since the last plan?  Feed entries and what was read because of them, taken into the memory.

An entry names things; what they are now is read from the store, because entries may come out of order and the store is
the truth.  So a put, a deletion and an arrival only ask, and the answer is learnt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pollux.errors import Unreadable
from pollux.model import (
    AT_THE_GATE,
    PREVIOUS_RUN,
    STOP,
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
    Run,
    RunState,
    Spoilt,
)
from pollux.outcome import describe
from pollux.plan.due_decision import lies_ahead, place
from pollux.plan.feed_ledger import Mark
from pollux.plan.gate import declared_key, handler_key, handlers_of, previous_key, unreadable_key
from pollux.plan.job_slots import JobSlot
from pollux.plan.term_state import TermState

_DONE, _DEAD, _CANCELLED = RunState.DONE, RunState.DEAD, RunState.CANCELLED  # an enum in a set is slow to find
UNREADABLE_KIND = unreadable_key("").partition(":")[0]
HANDED_BACK_REST_MS = 500  # a node that cannot run a run may claim it again: not at once


def apply(term: TermState, item: FeedItem) -> None:
    """Take one feed entry in; one that is there already (it was not consumed yet) is left out."""
    inbox, feed = term.inbox, item.id
    if feed in inbox.receipts:
        return
    mark = item.entry.mark(feed) if isinstance(item.entry, Ended) else (feed, 0)
    inbox.receipts.open(mark)
    match item.entry:
        case Ended(ends):
            term.counting.read(feed, ends)
            term.clock.saw(max([end.ended_ms for end in ends], default=0))
            for end in ends:
                _apply_end(term, mark, end)
        case JobsPut() | JobsDeleted() | JobsMoved() | Spoilt():
            _apply_jobs(term, feed, item.entry)
        case Arrived(run_ids):
            for run_id in run_ids:
                inbox.ask_run(run_id, feed)
        case NotesChanged(keys):
            if any(key.startswith(STOP) for key in keys):
                inbox.ask_notes(feed)
        case NodeSeen():
            inbox.ask_nodes(feed)


def _apply_jobs(term: TermState, feed: int, entry: JobsPut | JobsDeleted | JobsMoved | Spoilt) -> None:
    if isinstance(entry, Spoilt):  # it may have told of any job; all else was read when this planner began
        term.aside.entries[feed] = entry
        term.inbox.ask_all_jobs(feed)
        return
    for job_id in entry.ids:
        work = term.inbox.work_of(job_id, feed)
        term.inbox.jobs[job_id] = None
        if isinstance(entry, JobsPut):
            work.is_put, work.crowd = True, max(work.crowd, entry.added)
        if isinstance(entry, JobsMoved):
            work.is_moved = True
            work.leave(feed)


def _apply_end(term: TermState, mark: Mark, end: End) -> None:
    inbox, gatehouse, state, feed = term.inbox, term.gatehouse, end.state, mark[0]
    is_over = state is _DONE or state is _DEAD or state is _CANCELLED
    if is_over and gatehouse.is_open:
        inbox.receipts.pay(gatehouse.forget(end.run_id))
    if (
        is_over or end.cause is not Cause.SCHEDULE
    ) and gatehouse.is_open:  # else it is to be tried again, and in the way
        inbox.receipts.owe(feed, gatehouse.wake(previous_key(end.job_id), feed))
    if end.ran or state is _DEAD:
        slot = term.slots.get(end.job_id)
        if slot is None:
            inbox.jobs[end.job_id] = None
        elif mark in slot.memory.learnt:
            return
        inbox.work_of(end.job_id, feed).add(feed, end)


# what was read


def learn_timers(term: TermState, found: Sequence[Job | Unreadable]) -> None:
    """The next page of due jobs.  What the planner knows already it knows better."""
    window, term.window = term.window, None
    if window is None:
        return
    term.timers.reach(window, len(found), max(filter(None, map(_place_of, found)), default=None))
    for job in found:
        if isinstance(job, Unreadable):
            learn_unreadable(term, job)
            continue
        slot = term.slots.get(job.id) or term.slots.add(job)
        if slot.next_ms is not None and job.id not in term.due and job.id not in term.late:
            term.timers.put(job.id, slot.next_ms)


def _place_of(found: Job | Unreadable) -> tuple[int, str] | None:
    due_ms, name = (found.due_ms, found.name) if isinstance(found, Unreadable) else (found.next_due_ms, found.id)
    return None if due_ms is None else (due_ms, name)


def learn_unreadable(term: TermState, job: Unreadable) -> None:
    """A job that cannot be read is left alone, as it stands; what the feed told of it is over."""
    term.inbox.jobs.pop(job.name, None)
    term.disarm(job.name)
    term.slots.drop(job.name)
    term.inbox.finish(job.name)
    term.aside.put(job.name, job.why, term.seen_ms)


def learn_all_jobs(term: TermState, found: Sequence[Job | Unreadable], after: str | None) -> None:
    """A page of all jobs, each as if it had just been put: one whose due stands already is left as it is."""
    inbox, survey = term.inbox, term.inbox.survey
    assert survey is not None
    jobs = [job for job in found if isinstance(job, Job)]
    if term.clock.is_looking:
        _follow_clock(term, jobs)
    if survey.is_ahead:
        jobs = []
    crowd = sum([job.next_due_ms is None and job.last_due_ms is None for job in jobs])
    for job in jobs:
        work = inbox.work_of(job.id)
        for feed in survey.feeds[:1]:  # as long as one of them stays, the next leader looks at all jobs again
            inbox.work_of(job.id, feed)
        work.is_put, work.crowd = True, max(work.crowd, crowd)
        learn_job(term, job.id, job)
    for each in found:
        if isinstance(each, Unreadable):
            learn_unreadable(term, each)
    survey.after = after
    if after is None:
        inbox.receipts.pay(survey.feeds)
        inbox.survey = None
    term.trim()


def _follow_clock(term: TermState, jobs: Iterable[Job]) -> None:
    """The clock came back: of these jobs, as they are stored, those due further ahead than they may be follow it."""
    ahead = [job for job in jobs if lies_ahead(job, term.seen_ms)]
    for job in ahead:
        term.follow_back(job.id, term.slots.get(job.id) or term.slots.add(job), term.seen_ms)
    term.clock.put_right(len(ahead))


def learn_job(term: TermState, job_id: str, job: Job | Unreadable | None) -> None:
    """What a job is now."""
    inbox = term.inbox
    inbox.jobs.pop(job_id, None)
    if isinstance(job, Unreadable):
        learn_unreadable(term, job)
        return
    term.aside.drop(job_id)
    if job is None:
        term.aside.drop_schedule(job_id)
        term.forget_job(job_id)
        return
    slot = term.slots.get(job_id)
    work = inbox.work_of(job_id)
    if slot is None:
        slot = term.slots.add(job)
        if work.is_put or (work.is_moved and job.next_due_ms is None):  # its due stands, if it has one
            _place(term, slot, job, None, is_placed=False)
    else:
        _read_again(term, slot, job)
    _wake(term, declared_key(job_id) if job.declared else handler_key(job.handler), work.feeds)
    if term.gatehouse.held.get(UNREADABLE_KIND):
        _wake(term, unreadable_key(job_id), work.feeds)
    inbox.skip_learnt(work, slot.memory)
    work.is_put, work.is_moved, work.crowd = False, False, 1
    term.arm(job_id, slot)
    if work.is_idle():
        inbox.finish(job_id)


def _read_again(term: TermState, slot: JobSlot, job: Job) -> None:
    """The store's word stands, but for a due that waits to be written and one that was fired already."""
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
    """Give a put job its next due; one with a bad schedule gets none, and says why."""
    work = term.inbox.work_of(job.id)
    try:
        next_ms = place(job, old, is_placed=is_placed, now_ms=term.seen_ms, crowd=work.crowd)
    except Exception as error:  # noqa: BLE001  one bad job must not stop the others
        next_ms = None
        _set_schedule_aside(term, slot, job, describe(error))
    else:
        term.aside.drop_schedule(job.id)
    slot.placed = job.revision
    if next_ms != slot.next_ms:
        slot.place(next_ms)
        work.writes = True


def _set_schedule_aside(term: TermState, slot: JobSlot, job: Job, why: str) -> None:
    """Its job says so, once: looked at again, it is written only if that is news."""
    is_known = slot.next_ms is None and why in (term.aside.schedules.get(job.id), slot.memory.last_error)
    if not is_known:
        term.inbox.work_of(job.id).error = why
    if job.declared:
        term.aside.put_schedule(job.id, why, term.seen_ms)
    else:
        term.aside.drop_schedule(job.id)


def learn_run(term: TermState, run_id: str, run: Run | None) -> None:
    """What has become of a run that came to the gate."""
    inbox, gatehouse = term.inbox, term.gatehouse
    feeds = inbox.answered(run_id)
    if run is None or run.state is not RunState.HELD:
        inbox.receipts.pay([*feeds, *gatehouse.forget(run_id)])
        return
    if run.job_id not in term.slots:
        inbox.jobs[run.job_id] = None
    at_ms = run.visible_ms
    if run.held_reason not in {"", AT_THE_GATE, PREVIOUS_RUN}:
        at_ms = max(at_ms, term.seen_ms + HANDED_BACK_REST_MS)
        inbox.ask_nodes()
    if at_ms > term.seen_ms and not run.is_behind:
        inbox.receipts.pay([*feeds, *gatehouse.forget(run_id)])
        gatehouse.admit_later(run, at_ms)
    else:
        gatehouse.admit(run, feeds)


def learn_notes(term: TermState, notes: Iterable[Note]) -> None:
    """The notes as they are now: what a pause held that is gone is looked at again."""
    feeds, term.inbox.notes = term.inbox.notes or [], None
    for key in term.set_stops(note for note in notes if note.key.startswith(STOP)):
        _wake(term, key, feeds)
    term.inbox.receipts.pay(feeds)


def learn_nodes(term: TermState, nodes: Iterable[Node]) -> None:
    """The living nodes: what waited for one of their handlers is looked at again."""
    feeds, term.inbox.nodes = term.inbox.nodes or [], None
    term.handlers = handlers_of(nodes)
    for name in sorted(term.handlers):
        _wake(term, handler_key(name), feeds)
    term.inbox.receipts.pay(feeds)


def _wake(term: TermState, key: str, feeds: Sequence[int]) -> None:
    """Look again at what waits for the key; the latest entry that asked for it owes the result."""
    feed = feeds[-1] if feeds else None
    woken = term.gatehouse.wake(key, feed)
    if feed is not None:
        term.inbox.receipts.owe(feed, woken)


def learn_aside(term: TermState, notes: Iterable[Note]) -> None:
    """What the leader before could not read or plan is looked at as if it had just been put: perhaps we can."""
    for found in term.aside.recall(notes):
        for job_id in found.named:
            term.inbox.work_of(job_id).is_put = True
            term.inbox.jobs[job_id] = None
        if found.count > len(found.named):
            term.inbox.ask_all_jobs()


def learn_held(term: TermState, runs: Iterable[Run]) -> None:
    """The runs that are held when a term begins: all stand at the gate, each is looked at when its time has come.

    Also one that waits for the previous run: that may have ended where nobody told it (a store that was moved).  It is
    looked at now: its time had come when it was made, whatever the clock says since.
    """
    for run in runs:
        if run.visible_ms > term.seen_ms and not run.is_behind:
            term.gatehouse.admit_later(run, run.visible_ms)
        else:
            term.gatehouse.admit(run, ())
            if run.job_id not in term.slots:
                term.inbox.jobs[run.job_id] = None
