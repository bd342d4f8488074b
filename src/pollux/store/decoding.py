"""Decoding of stored records, and what follows from one that cannot be decoded.

A call that reads many records skips such a one and reports it at its end, with the rest in the same exception
(`Illegible`): the leader continues with the rest, every other caller gets an error.
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
DUE_PAGE = 500  # due jobs that are read where the first ones cannot be decoded
T = TypeVar("T")
Read = TypeVar("Read")
Answered = TypeVar("Answered")


def decode_or_raise(read: Callable[[Read], T], written: Read, what: str) -> T:
    """The decoded record; an error names it by `what`, its kind and name."""
    try:
        return read(written)
    except UNREADABLE as error:
        raise unreadable(what, error) from error


def unreadable(what: str, error: Exception) -> StoreError:
    return StoreError(cannot_be_read(what, error))


class BatchDecoder(Generic[Read, T]):
    """The records of one call: those that cannot be decoded are left out and reported with its answer."""

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
        """Report one that could not be decoded with the answer."""
        self._cause = self._cause or error
        self._unreadable.append(Unreadable(name, why(error), version, due_ms))

    def answer(self, rest: Answered) -> Answered:
        """The answer, if all of it was decoded; else `Illegible` with the rest."""
        if self._unreadable:
            raise Illegible(self._kind, self._unreadable, rest) from self._cause
        return rest


async def readable_part(answer: Awaitable[T]) -> tuple[T, tuple[Unreadable, ...]]:
    """The decoded part of an answer, and the rest."""
    try:
        return await answer, ()
    except Illegible as error:
        rest: T = error.rest
        return rest, error.unreadable


async def readable_stops(answer: Awaitable[list[Note]]) -> tuple[list[Note], tuple[Unreadable, ...]]:
    """Notes as `readable_part` returns them; a pause that cannot be decoded holds all the same."""
    notes, unreadable = await readable_part(answer)
    stops = [unreadable_stop(each.name) for each in unreadable if each.name.startswith(STOP)]
    return [*notes, *stops], unreadable


def unreadable_stop(key: str) -> Note:
    return Note(key, {"reason": CONTENT_UNREADABLE})


class DueJobs(Protocol):
    """The part of a store that `readable_due` reads."""

    async def due(self, *, before_ms: int, limit: int) -> list[Job]: ...


async def readable_due(store: DueJobs, *, before_ms: int, limit: int) -> list[Job]:
    """The most overdue jobs that can be decoded; one that cannot is not fired, and would hide those after it."""
    jobs, unreadable = await readable_part(store.due(before_ms=before_ms, limit=limit))
    if unreadable:
        jobs, _ = await readable_part(store.due(before_ms=before_ms, limit=max(limit, DUE_PAGE)))
    return jobs[:limit]


def why(error: Exception) -> str:
    """The reason as text that can be stored."""
    return _storable(str(error) or type(error).__name__)[:WHY_CHARS_MAX]


def spoilt(error: Exception, written: object) -> Spoilt:
    """A feed entry that cannot be decoded, with the start of its content as printable ASCII."""
    text = written if isinstance(written, bytes) else str(written).encode(errors="replace")
    shown = text[: 2 * TEXT_CHARS_MAX].decode(errors="backslashreplace")
    return Spoilt(why(error), ascii(shown)[1:-1][:TEXT_CHARS_MAX])


def _storable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


REST_MS = 1_000  # after the first delivery; doubled by each one more
REST_MAX_MS = 60_000
REPORT_AGAIN_MS = 60_000  # of one job
REPORTED_MAX = 10_000  # jobs that are remembered as reported; beyond it all may be reported again
_log = logging.getLogger("pollux.store")


class LeasedRow(NamedTuple):
    run_id: str
    token: str
    job_id: str
    fence: int


class HandedBack:
    """Runs that a handle hands back because it cannot decode their job, and the log line about each job."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported_ms: dict[str, float] = {}

    def settlements(
        self, leased: Sequence[LeasedRow], reasons: Mapping[str, str], node: str, now_ms: int
    ) -> list[Settlement]:
        """The settlements that hand them back, uncharged, with the reason as their progress; `reasons` are by job."""
        for job_id in {each.job_id: None for each in leased}:
            self._report(job_id, reasons[job_id])
        words = f"node {node} cannot read its job; another one may"
        return [
            Settlement(each.run_id, each.token, Back(now_ms + rest_ms(each.fence)), progress=words) for each in leased
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
    """Rest of a run before it can be claimed again, by its number of deliveries."""
    return min(REST_MS << min(fence - 1, 9), REST_MAX_MS)
