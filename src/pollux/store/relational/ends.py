"""What is the leader told of an attempt that ended?  One `End`, made from the columns of its run."""

from __future__ import annotations

from collections.abc import Container, Iterable

from msgspec import Struct
from msgspec.json import Decoder

from pollux.model import End, Ended, Outcome, RunState
from pollux.store.legible import UNREADABLE
from pollux.store.relational.rows import CAUSES, Row, entry

JOB_GONE = "its job was deleted"


class _Whose(Struct, array_like=True, gc=False):
    """The beginning of an `End`."""

    run_id: str
    job_id: str


class _Ended(Struct, gc=False):
    ends: tuple[_Whose, ...]


_decode = Decoder(_Ended).decode


def jobs_of(body: bytes) -> list[str]:
    """Whose ends an `Ended` entry tells; the rest of it is left unread.  One that cannot be read tells of nobody."""
    try:
        return [end.job_id for end in _decode(body).ends]
    except UNREADABLE:
        return []


def ends_of(bodies: Iterable[bytes], jobs: Container[str]) -> list[End]:
    """The ends of these jobs in entries of a feed, as far as they can be read."""
    entries = [entry(body) for body in bodies]
    return [end for each in entries if isinstance(each, Ended) for end in each.ends if end.job_id in jobs]


def end_unrun(row: Row, state: RunState, now_ms: int, *, failed: bool = False, error: str = "") -> End:
    """The end of an attempt in which no handler code ran to its end, of (id, job_id, due_ms, cause, gated)."""
    return end_of(row, state, None, now_ms, failed=failed, error=error)


def end_of(
    row: Row, state: RunState, outcome: Outcome | None, now_ms: int, *, failed: bool = False, error: str = ""
) -> End:
    """Of (id, job_id, due_ms, cause, gated) and of what its handler left, if it came so far."""
    run_id, job_id, due_ms, cause, gated = row
    if outcome is None:
        ended_ms, duration_ms, changed, fingerprint = now_ms, 0, None, ""
    else:
        ended_ms, changed, fingerprint = outcome.ended_ms, outcome.changed, outcome.fingerprint
        duration_ms = max(0, ended_ms - outcome.started_ms)
    return End(
        run_id,
        job_id,
        state,
        CAUSES[cause]
        if 0 <= cause < len(CAUSES)
        else CAUSES[-1],  # somebody else wrote it: an end is told all the same
        due_ms,
        ended_ms,
        duration_ms,
        failed,
        changed,
        fingerprint,
        error,
        gated == 1,
        outcome is not None,
    )
