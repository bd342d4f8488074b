"""Decisions of claim: when there is something to claim, and what becomes of lost leases and undecodable rows.

A claimed run that cannot be decoded ends dead; one whose job cannot be decoded goes back, for a node that can.  The
dead letter keeps the record unchanged: `pollux store check` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pollux.model import Dead, End, Job, Run, RunState, lease_lost, tried_again
from pollux.store.contract import Settlement
from pollux.store.decoding import UNREADABLE, LeasedRow
from pollux.store.relational.feed_entries import JOB_GONE, end_unrun
from pollux.store.relational.rows import CANCELLED, DEAD, HISTORY_DEAD, HISTORY_PLAIN, READY, Row, encode, tried_before

LOST_MAX = 1_000  # leases taken back by one claim
CLAIMS_MAX = 1_000  # claims that can be repeated


def first_of(visible_ms: tuple[int | None, ...], ends_ms: int | None, hold_until_ms: int | None) -> int | None:
    """The earliest visible time or lease end; leases not before they may be taken back."""
    times = [at for at in visible_ms if at is not None]
    if ends_ms is not None:
        times.append(ends_ms if hold_until_ms is None else max(ends_ms, hold_until_ms))
    return min(times, default=None)


class LostLease(NamedTuple):
    """What becomes of a run whose lease ran out; `history_class` is None if it is ready again."""

    seq: int
    state: int
    history_class: int | None
    losses: int
    until_ms: int
    cancel: str
    error: str
    tried: bytes | None
    end: End


def lose(row: Row, losses_max: int, now_ms: int) -> LostLease:
    """A lease ended without a settlement.  Rows are those of `lost`."""
    seq, *about, cancel, losses, until_ms, fence, owner, tried, has_job = row
    losses += 1
    why = cancel or ("" if has_job else JOB_GONE)
    if why:
        end = end_unrun(tuple(about), RunState.CANCELLED, now_ms, error=why)
        return LostLease(seq, CANCELLED, HISTORY_PLAIN, losses, until_ms, why, "", tried, end)
    if losses >= losses_max:
        error = f"its lease was lost {losses} times: its workers died or stalled"
        end = end_unrun(tuple(about), RunState.DEAD, now_ms, failed=True, error=error)
        return LostLease(seq, DEAD, HISTORY_DEAD, losses, until_ms, "", error, tried, end)
    tried = encode(tried_again(tried_before(tried), lease_lost(fence, owner, until_ms)))
    return LostLease(seq, READY, None, losses, until_ms, "", "", tried, end_unrun(tuple(about), RunState.READY, now_ms))


HandBack = Callable[[list[LeasedRow], dict[str, str]], list[Settlement]]


class DecodedRows(NamedTuple):
    """What of a claim can be decoded, and the settlements of the rest."""

    runs: list[Run]
    jobs: dict[str, Job]
    settlements: list[Settlement]


def decode_claim(
    leased: Iterable[tuple[LeasedRow, Row]],
    run_of: Callable[[Row], Run],
    job_rows: Mapping[str, Row],
    job_of: Callable[[Row], Job],
    hand_back: HandBack,
) -> DecodedRows:
    """Decode the rows one by one; `hand_back` settles runs whose job cannot be decoded, for these reasons by job."""
    runs, jobs, dead = list[Run](), dict[str, Job](), list[Settlement]()
    back, reasons = list[LeasedRow](), dict[str, str]()
    for job_id, row in job_rows.items():
        try:
            jobs[job_id] = job_of(row)
        except UNREADABLE as error:
            reasons[job_id] = str(error)
    for each, row in leased:
        if each.job_id in reasons:
            back.append(each)
            continue
        try:
            runs.append(run_of(row))
        except UNREADABLE as error:
            dead.append(Settlement(each.run_id, each.token, Dead(f"it cannot be read ({error})")))
    return DecodedRows(runs, jobs, dead + (hand_back(back, reasons) if back else []))
