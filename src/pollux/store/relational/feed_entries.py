"""Feed entries of ended attempts: one `End`, made from the columns of its run."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from msgspec import Struct
from msgspec.json import Decoder

from pollux.model import End, Ended, Outcome, RunState
from pollux.store.decoding import UNREADABLE
from pollux.store.relational.rows import CAUSES, Row, entry

JOB_GONE = "its job was deleted"


class _EndKey(Struct, array_like=True, gc=False):
    """The beginning of an `End`."""

    run_id: str
    job_id: str


class _EndEntry(Struct, gc=False):
    ends: tuple[_EndKey, ...]


class _MemoryEntries(Struct, gc=False):
    """Of a memory: the entries that the job has learnt from."""

    learnt: tuple[tuple[int, int], ...] = ()


_decode = Decoder(_EndEntry).decode
_decode_learnt = Decoder(_MemoryEntries).decode


def jobs_of(body: bytes) -> list[str]:
    """The jobs of the ends in an `Ended` entry; nothing else of it is decoded.  None if it cannot be."""
    try:
        return [end.job_id for end in _decode(body).ends]
    except UNREADABLE:
        return []


def unlearnt_ends(entries: Iterable[tuple[int, bytes]], memories: Mapping[str, bytes | None]) -> list[End]:
    """The ends of these jobs that they have not learnt, by their memories, in entries of a feed that can be read."""
    learnt = {job_id: _learnt(memory) for job_id, memory in memories.items()}
    ends: list[End] = []
    for number, body in entries:
        decoded = entry(body)
        if isinstance(decoded, Ended):
            mark = decoded.mark(number)
            ends += [end for end in decoded.ends if mark not in learnt.get(end.job_id, (mark,))]
    return ends


def _learnt(memory: bytes | None) -> Container[tuple[int, int]]:
    try:
        return () if memory is None else _decode_learnt(memory).learnt
    except UNREADABLE:
        return ()


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
        else CAUSES[-1],  # written by hand: an end enters the feed all the same
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
