"""Verbs of the leader: read the feed, write a plan."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from pollux.model import (
    BEHIND_MAX,
    PREVIOUS_RUN,
    UNREAD_MAX,
    Cause,
    Earlier,
    Ended,
    FeedItem,
    Firing,
    JobUpdate,
    Overlap,
    Plan,
    Run,
)
from pollux.model.leader_notes import CAME_BACK_MS
from pollux.store.contract import Advanced, Answer, Feed
from pollux.store.memory.nodes import is_current
from pollux.store.memory.notes import write_notes
from pollux.store.memory.rows import packed_memory
from pollux.store.memory.state import HELD, LEASED, READY, FeedWrites, VersionState


def feed(state: VersionState, limit: int, now_ms: int) -> Feed:
    items = islice(state.entries.items(), limit)
    return Feed(tuple(FeedItem(entry_id, entry) for entry_id, entry in items), now_ms)


def advance(state: VersionState, term: int, plan: Plan, now_ms: int) -> Advanced:
    if not is_current(state, term):
        return Advanced(Answer.FENCED, now_ms)
    told = FeedWrites()
    unread = _unread(state, plan)
    firings = tuple([_fire(state, firing, unread, told, now_ms) for firing in plan.firings])
    if firings:
        state.clock_ms = max(state.clock_ms, now_ms, *[firing.run.visible_ms for firing in plan.firings])
    for earlier in plan.earlier:
        _bring_forward(state, earlier, now_ms)
    for release in plan.releases:
        if not release.alone:
            _release(state, release.run_id, now_ms)
    alone = [release.run_id for release in plan.releases if release.alone]
    asked = frozenset(alone)
    waiting = tuple([run_id for run_id in alone if not _release_alone(state, run_id, asked, unread, now_ms)])
    for holding in plan.holds:
        _hold(state, holding.run_id, holding.reason)
    for order in plan.cancels:
        _cancel(state, order.run_id, order.reason, now_ms)
    updates = tuple([_update(state, update) for update in plan.updates])
    kept = plan.kept(updates)
    for entry_id in plan.consumed:
        if entry_id not in kept:
            state.consume(entry_id)
    write_notes(state, plan.notes, now_ms, {})
    state.tell_told(told)
    living = (living.node for living in state.nodes.values() if living.until_ms > now_ms)
    seats = sum(node.seats for node in living if node.serves(state.version))
    return Advanced(Answer.OK, now_ms, firings, updates, state.ready, seats, waiting)


def _unread(state: VersionState, plan: Plan) -> dict[str, bool]:
    """Jobs of the plan with ends in the feed that the plan has not read; true once a firing of the job was unread."""
    asked = _asking(state, plan) if state.ends else ()
    if not asked:
        return {}
    known = set(plan.known)
    left = len(state.entries) - sum([entry_id in state.entries for entry_id in known])
    unread: dict[str, bool] = {}
    seen = 0
    for entry_id in reversed(state.entries):  # the newest entries are the unread ones
        if not left or seen >= UNREAD_MAX:
            break
        if entry_id in known:
            continue
        left -= 1
        entry = state.entries[entry_id]
        if type(entry) is Ended:
            seen += len(entry.ends)
            unread |= {end.job_id: False for end in entry.ends if end.job_id in asked}
    return unread


def _asking(state: VersionState, plan: Plan) -> set[str]:
    """Ids of jobs with a firing or an `alone` release in the plan."""
    asked = {firing.run.job_id for firing in plan.firings}
    for release in plan.releases:
        run = state.live.get(release.run_id) if release.alone else None
        if run is not None:
            asked.add(run.job_id)
    return asked


def _fire(state: VersionState, firing: Firing, unread: dict[str, bool], told: FeedWrites, now_ms: int) -> Answer:
    run = firing.run
    row = state.jobs.get(run.job_id)
    if row is None or row.revision != firing.revision or row.version != state.version:
        return Answer.STALE
    if _is_fired(state, row.last_due_ms, run, now_ms):
        return Answer.ALREADY
    if unread.get(run.job_id):
        return Answer.UNREAD
    answer = _overlap(state, firing, unread, told, now_ms)
    if answer is Answer.UNREAD:
        unread[run.job_id] = True
        state.move_job(run.job_id, row, run.due_ms, row.last_due_ms)
        return answer
    state.move_job(run.job_id, row, firing.next_due_ms, run.due_ms)
    if answer is Answer.OVERLAPPED and firing.if_overlapped is not None:
        row.memory = packed_memory(firing.if_overlapped)
    elif answer is Answer.WAITS:
        state.admit(replace(run, state=HELD, held_reason=PREVIOUS_RUN), now_ms)
    elif answer is Answer.OK:
        state.admit(run, now_ms)
    return answer


def _is_fired(state: VersionState, last_due_ms: int | None, run: Run, now_ms: int) -> bool:
    if state.knows(run.id):
        return True
    if last_due_ms is None or last_due_ms > now_ms + CAME_BACK_MS:
        return False
    return run.due_ms <= last_due_ms


def _overlap(state: VersionState, firing: Firing, unread: dict[str, bool], told: FeedWrites, now_ms: int) -> Answer:
    """ok, waits, overlapped or unread.  CANCEL also cancels live runs of the schedule, or requests it if leased."""
    run = firing.run
    if run.key is not None and run.key in state.keys:
        return Answer.OVERLAPPED
    if firing.overlap is Overlap.ALLOW:
        return Answer.OK
    looks = 1 if firing.overlap is Overlap.SKIP else BEHIND_MAX + 1
    mates = list(islice(state.job_runs.overlapping(run.job_id, now_ms), looks))
    if not mates:
        return Answer.UNREAD if run.job_id in unread else Answer.OK
    if firing.overlap is Overlap.SKIP:
        return Answer.OVERLAPPED
    waits = len(mates) <= BEHIND_MAX and not any(mate.is_behind for mate in mates)
    if firing.overlap is Overlap.CANCEL:
        reason = f"replaced by {run.id}"
        for mate in [mate for mate in mates[:BEHIND_MAX] if mate.cause is Cause.SCHEDULE]:
            if mate.state is LEASED:
                state.ask_to_stop(mate, reason)
            elif waits:
                told.end(mate, state.cancel_waiting(mate, reason, now_ms))
    return Answer.WAITS if waits else Answer.OVERLAPPED


def _here(state: VersionState, run_id: str) -> Run | None:
    """The live run, if it is in this version."""
    run = state.live.get(run_id)
    return run if run is not None and run.scheduler_version == state.version else None


def _bring_forward(state: VersionState, earlier: Earlier, now_ms: int) -> None:
    run = _here(state, earlier.run_id)
    if run is not None and run.state is not LEASED and run.visible_ms > earlier.visible_ms:
        state.put_back(replace(run, visible_ms=earlier.visible_ms), now_ms)


def _release(state: VersionState, run_id: str, now_ms: int) -> None:
    run = _here(state, run_id)
    if run is not None and run.state is HELD:
        state.put_back(replace(run, state=READY, held_reason="", visible_ms=max(now_ms, run.visible_ms)), now_ms)


def _release_alone(
    state: VersionState, run_id: str, asked: frozenset[str], unread: dict[str, bool], now_ms: int
) -> bool:
    """False if the run stays held: another live run of its job does not wait behind one, or an end of it is unread.

    Held runs in `asked` do not count as overlapping, whatever their reason, so the first run that may begins.
    """
    run = _here(state, run_id)
    if run is None or run.state is not HELD:
        return True
    others = (mate for mate in state.job_runs.overlapping(run.job_id, now_ms) if mate.id != run_id)
    mates = (mate for mate in others if mate.state is not HELD or mate.id not in asked)
    if run.job_id in unread or any(not mate.is_behind for mate in mates):
        _hold(state, run_id, PREVIOUS_RUN)
        return False
    _release(state, run_id, now_ms)
    return True


def _hold(state: VersionState, run_id: str, reason: str) -> None:
    run = _here(state, run_id)
    if run is not None and run.state is HELD:
        state.live[run_id] = replace(run, held_reason=reason)


def _cancel(state: VersionState, run_id: str, reason: str, now_ms: int) -> None:
    """As `cancel`, without a feed entry, because the leader made the change."""
    run = _here(state, run_id)
    if run is None:
        return
    if run_id in state.leased:
        state.ask_to_stop(run, reason)
    else:
        state.cancel_waiting(run, reason, now_ms)


def _update(state: VersionState, update: JobUpdate) -> Answer:
    row = state.jobs.get(update.job_id)
    if row is None or row.revision != update.revision or row.version != state.version:
        return Answer.STALE
    last_due_ms = row.last_due_ms
    if update.last_due_ms is not None:
        last_due_ms = update.last_due_ms if last_due_ms is None else max(last_due_ms, update.last_due_ms)
    state.move_job(update.job_id, row, update.next_due_ms, last_due_ms)
    row.memory = packed_memory(update.memory)
    return Answer.OK
