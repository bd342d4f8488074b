"""Verbs of delivery: claim (which also reclaims ended leases) and renew."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop

from msgspec.structs import replace

from pollux.model import PROGRESS_CHARS_MAX, End, Job, Run, lease_lost, tried_again
from pollux.store.contract import Answer, Claimed, Renewal, Renewed
from pollux.store.memory.rows import job_of
from pollux.store.memory.state import CANCELLED, DEAD, JOB_GONE, LEASED, READY, FeedWrites, VersionState, end_of
from pollux.store.values import PRIORITIES, ClaimRequest

CLAIMS_MIN = 100


def claim(state: VersionState, asking: ClaimRequest, hold_ms: int, now_ms: int) -> Claimed:
    """`hold_ms`: how long no lease may be reclaimed after a jump of the clock."""
    again = _again(state, asking.token, now_ms)
    if again:
        return _claimed(state, again, now_ms)
    if state.ends > asking.feed_max:
        return Claimed(Answer.FULL, (), {}, state.house.stops_revision, None, now_ms)
    told = FeedWrites()
    _take_back(state, asking.losses_max, told, now_ms, can_reclaim=hold_ms == 0)
    runs = _take(state, asking, told, now_ms)
    state.tell_told(told)
    if runs:
        return _claimed(state, runs, now_ms)
    look_again_ms = _look_again(state, now_ms + hold_ms if hold_ms else None)
    return Claimed(Answer.OK, (), {}, state.house.stops_revision, look_again_ms, now_ms)


def _claimed(state: VersionState, runs: Sequence[Run], now_ms: int) -> Claimed:
    jobs: dict[str, Job] = {}
    for run in runs:
        if run.job_id not in jobs:
            row = state.jobs.get(run.job_id)
            if row is not None:
                jobs[run.job_id] = job_of(run.job_id, row)
    return Claimed(Answer.OK, tuple(runs), jobs, state.house.stops_revision, None, now_ms)


def _again(state: VersionState, token: str, now_ms: int) -> list[Run]:
    """The runs of an earlier claim with the same token whose leases are still valid."""
    ids = state.claims.get(token)
    if ids is None:
        return []
    runs = [state.live[run_id] for run_id in ids if _is_of(state, run_id, token)]
    return [run for run in runs if run.lease_until_ms > now_ms]


def _is_of(state: VersionState, run_id: str, token: str) -> bool:
    run = state.live.get(run_id)
    return run is not None and run.state is LEASED and run.token == f"{token}:{run.fence}"


def _take(state: VersionState, asking: ClaimRequest, told: FeedWrites, now_ms: int) -> list[Run]:
    runs: list[Run] = []
    until_ms = now_ms + asking.lease_ms
    for priority in asking.order:
        line = state.lines[priority - 1]
        while line and line[0][0] <= now_ms and len(runs) < asking.limit:
            entry = heappop(line)
            if not state.stands(entry):
                continue
            run = state.live[entry[2]]
            if run.job_id not in state.jobs:
                told.end(run, state.cancel_waiting(run, JOB_GONE, now_ms))
                continue
            fence = run.fence + 1
            run = replace(
                run,
                state=LEASED,
                fence=fence,
                token=f"{asking.token}:{fence}",
                owner=asking.node,
                lease_until_ms=until_ms,
                progress="",
            )
            state.lease(run, asking.lease_ms, now_ms)
            runs.append(run)
    if runs:
        _note_claim(state, asking.token, runs)
        _note_grant(state, until_ms, now_ms, is_first=len(state.leased) == len(runs))
    return runs


def _note_claim(state: VersionState, token: str, runs: list[Run]) -> None:
    if len(state.claims) > 2 * len(state.leased) + CLAIMS_MIN:
        for old in [old for old, ids in state.claims.items() if not any(_is_of(state, i, old) for i in ids)]:
            del state.claims[old]
    state.claims[token] = [run.id for run in runs]


def _note_grant(state: VersionState, until_ms: int, now_ms: int, *, is_first: bool = False) -> None:
    state.first_end_ms = until_ms if is_first else min(state.first_end_ms, until_ms)
    state.last_grant_ms = now_ms if is_first else max(state.last_grant_ms, now_ms)
    state.clock_ms = max(state.clock_ms, now_ms)


def _take_back(state: VersionState, losses_max: int, told: FeedWrites, now_ms: int, *, can_reclaim: bool) -> None:
    """End the expired leases.  Leases are scanned only if one may have expired, or the clock was set back."""
    if now_ms < state.last_grant_ms:
        _cut(state, now_ms)
    if now_ms < state.clock_ms:
        state.show(now_ms)
    if now_ms < state.first_end_ms or not can_reclaim:
        return
    lost = [run for run in map(state.live.__getitem__, state.leased) if run.lease_until_ms <= now_ms]
    for run in lost:
        told.end(run, _lose(state, run, losses_max, now_ms))
    state.first_end_ms = _first_end(state) or now_ms


def _first_end(state: VersionState) -> int | None:
    return min((state.live[run_id].lease_until_ms for run_id in state.leased), default=None)


def _cut(state: VersionState, now_ms: int) -> None:
    """After the clock was set back: cut each lease to its length from now."""
    for run_id, lease_ms in state.leased.items():
        run = state.live[run_id]
        if run.lease_until_ms > now_ms + lease_ms:
            state.live[run_id] = replace(run, lease_until_ms=now_ms + lease_ms)
    state.first_end_ms = _first_end(state) or now_ms
    state.last_grant_ms = now_ms


def _lose(state: VersionState, run: Run, losses_max: int, now_ms: int) -> End:
    """End a lease without a settlement.  The token is cleared, so that a late settlement of its owner is lost."""
    free = replace(
        run, lease_losses=run.lease_losses + 1, token="", owner="", lease_until_ms=0, visible_ms=run.lease_until_ms
    )
    why = run.cancel or (JOB_GONE if run.job_id not in state.jobs else "")
    if why:
        state.finish(replace(free, state=CANCELLED, cancel=why, finished_ms=now_ms))
        return end_of(run, CANCELLED, now_ms, error=why)
    if free.lease_losses >= losses_max:
        error = f"its lease was lost {free.lease_losses} times: its workers died or stalled"
        state.finish(replace(free, state=DEAD, failed=True, error=error, traceback="", finished_ms=now_ms))
        return end_of(run, DEAD, now_ms, failed=True, error=error)
    lost = lease_lost(run.fence, run.owner, run.lease_until_ms)
    state.put_back(replace(free, state=READY, tried=tried_again(run.tried, lost)), now_ms)
    return end_of(run, READY, now_ms)


def _look_again(state: VersionState, not_before_ms: int | None) -> int | None:
    """The earliest visible time or lease end; lease ends count from `not_before_ms` at the earliest."""
    firsts = [state.first_in_line(priority) for priority in PRIORITIES]
    times = [first_ms for first_ms in firsts if first_ms is not None]
    end_ms = _first_end(state)
    if end_ms is not None:
        times.append(end_ms if not_before_ms is None else max(end_ms, not_before_ms))
    return min(times, default=None)


def renew(state: VersionState, renewals: Sequence[Renewal], lease_ms: int, now_ms: int) -> list[Renewed]:
    answers = []
    for renewal in renewals:
        run = state.live.get(renewal.run_id)
        if run is None or run.state is not LEASED or run.token != renewal.token:
            answers.append(Renewed(Answer.LOST))
            continue
        progress = renewal.progress[:PROGRESS_CHARS_MAX] or run.progress
        state.live[run.id] = replace(run, lease_until_ms=now_ms + lease_ms, progress=progress)
        home = state.home(run)
        home.leased[run.id] = lease_ms
        _note_grant(home, now_ms + lease_ms, now_ms)
        answers.append(Renewed(Answer.OK, run.cancel))
    return answers
