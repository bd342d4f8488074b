"""Decisions of claim: limits by priority, and what becomes of a lost lease."""

from __future__ import annotations

from typing import NamedTuple

from pollux.model import End, RunState, lease_lost, tried_again
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
