"""Decoding of stored records, and the handling of unreadable ones.

A call that reads many records skips an unreadable one, and raises `Illegible` at its end, which has the names of the
unreadable records and the rest of the answer: the leader continues with the rest, other callers get an error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from pollux.clock import Clock
from pollux.errors import Illegible, StoreError, Unreadable, cannot_be_read
from pollux.model import STOP, Back, Job, Note, Spoilt
from pollux.store.contract import Settlement

UNREADABLE = (msgspec.MsgspecError, LookupError, TypeError, ValueError)  # what decoding may raise
CONTENT_UNREADABLE = "what it says cannot be read"
WHY_CHARS_MAX = 300
TEXT_CHARS_MAX = 600
DUE_PAGE = 500  # due jobs that are read if one of the first is unreadable
T = TypeVar("T")
Read = TypeVar("Read")
Answered = TypeVar("Answered")


def decode_or_raise(read: Callable[[Read], T], written: Read, what: str) -> T:
    """The decoded record; a `StoreError` names it by `what`, its kind and name."""
    try:
        return read(written)
    except UNREADABLE as error:
        raise unreadable(what, error) from error


def unreadable(what: str, error: Exception) -> StoreError:
    return StoreError(cannot_be_read(what, error))


class BatchDecoder(Generic[Read, T]):
    """Decoder of the records of one call: unreadable ones are skipped, and reported with the answer."""

    def __init__(self, kind: str, read: Callable[[Read], T]) -> None:
        self._kind, self._read = kind, read
        self._unreadable: list[Unreadable] = []
        self._cause: Exception | None = None

    def __call__(self, written: Read, name: str) -> T | None:
        try:
            return self._read(written)
        except UNREADABLE as error:
            self.report(error, name)
            return None

    def report(self, error: Exception, name: str, version: int | None = None, due_ms: int | None = None) -> None:
        """Add an unreadable record to the report."""
        self._cause = self._cause or error
        self._unreadable.append(Unreadable(name, why(error), version, due_ms))

    def answer(self, rest: Answered) -> Answered:
        """The answer, if all records were decoded; else raise `Illegible` with the rest."""
        if self._unreadable:
            raise Illegible(self._kind, self._unreadable, rest) from self._cause
        return rest


async def readable_part(answer: Awaitable[T]) -> tuple[T, tuple[Unreadable, ...]]:
    """The decoded part of an answer, and its unreadable records."""
    try:
        return await answer, ()
    except Illegible as error:
        rest: T = error.rest
        return rest, error.unreadable


async def readable_stops(answer: Awaitable[list[Note]]) -> tuple[list[Note], tuple[Unreadable, ...]]:
    """As `readable_part` for notes; an unreadable pause stays in effect, as a note without its reason."""
    notes, unreadable = await readable_part(answer)
    stops = [unreadable_stop(each.name) for each in unreadable if each.name.startswith(STOP)]
    return [*notes, *stops], unreadable


def unreadable_stop(key: str) -> Note:
    return Note(key, {"reason": CONTENT_UNREADABLE})


class DueJobs(Protocol):
    """The part of a store that `readable_due` reads."""

    async def due(self, *, before_ms: int, limit: int) -> list[Job]: ...


async def readable_due(store: DueJobs, *, before_ms: int, limit: int) -> list[Job]:
    """The most overdue readable jobs.  Unreadable ones are never fired, and would otherwise fill the first page."""
    jobs, unreadable = await readable_part(store.due(before_ms=before_ms, limit=limit))
    if unreadable:
        jobs, _ = await readable_part(store.due(before_ms=before_ms, limit=max(limit, DUE_PAGE)))
    return jobs[:limit]


def why(error: Exception) -> str:
    """The error as text that can be stored."""
    return _storable(str(error) or type(error).__name__)[:WHY_CHARS_MAX]


def spoilt(error: Exception, written: object) -> Spoilt:
    """A feed entry that cannot be decoded, with the start of its content as printable ASCII."""
    text = written if isinstance(written, bytes) else str(written).encode(errors="replace")
    shown = text[: 2 * TEXT_CHARS_MAX].decode(errors="backslashreplace")
    return Spoilt(why(error), ascii(shown)[1:-1][:TEXT_CHARS_MAX])


def _storable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


REST_MS = 1_000  # after the first delivery; doubled with each further one
REST_MAX_MS = 60_000
REPORT_AGAIN_MS = 60_000  # between two reports of one job
REPORTED_MAX = 10_000  # jobs that are kept as reported; the full set is cleared
_log = logging.getLogger("pollux.store")


class LeasedRow(NamedTuple):
    run_id: str
    token: str
    job_id: str
    fence: int


class HandedBack:
    """Returns runs whose job this handle cannot decode, and logs each such job."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported_ms: dict[str, float] = {}

    def settlements(
        self, leased: Sequence[LeasedRow], reasons: Mapping[str, str], node: str, now_ms: int
    ) -> list[Settlement]:
        """Settlements that return the runs, uncharged, with the reason as their progress; `reasons` are by job id."""
        for job_id in {each.job_id: None for each in leased}:
            self._report(job_id, reasons[job_id])
        progress = f"node {node} cannot read its job; another one may"
        return [
            Settlement(each.run_id, each.token, Back(now_ms + rest_ms(each.fence)), progress=progress)
            for each in leased
        ]

    def _report(self, job_id: str, reason: str) -> None:
        now_ms = self._clock.mono_ms()
        reported_ms = self._reported_ms.get(job_id)
        if reported_ms is not None and now_ms - reported_ms < REPORT_AGAIN_MS:
            return
        if len(self._reported_ms) >= REPORTED_MAX:
            self._reported_ms.clear()
        self._reported_ms[job_id] = now_ms
        _log.warning(
            "job %r cannot be read here (%s): its runs are held back, seconds at first and up to %d s at a time, for a "
            "node of a newer release; if there is none, another program wrote it: put it again, or delete it",
            job_id,
            reason,
            REST_MAX_MS // 1000,
        )


def rest_ms(fence: int) -> int:
    """Delay until a run can be claimed again, by its number of deliveries."""
    return min(REST_MS << min(fence - 1, 9), REST_MAX_MS)
