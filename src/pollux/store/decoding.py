"""Decoding of stored records, and what follows from one that cannot be decoded.

A call that reads many records skips such a one and reports it at its end, with the rest in the same exception
(`Illegible`): the leader continues with the rest, every other caller gets an error.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from pollux.clock import Clock
from pollux.errors import Illegible, StoreError, Unreadable, cannot_be_read
from pollux.model import STOP, Back, Job, Note, Spoilt
from pollux.store.contract import Settlement

UNREADABLE = (msgspec.MsgspecError, LookupError, TypeError, ValueError)  # what reading it may raise
ILLEGIBLE = "what it says cannot be read"
WHY_CHARS_MAX = 300
TEXT_CHARS_MAX = 600
BEHIND_PAGE, BEHIND_PAGES = 500, 4  # due jobs that are looked at behind those that cannot be read
T = TypeVar("T")
Read = TypeVar("Read")
Answered = TypeVar("Answered")


def legible(read: Callable[[Read], T], written: Read, what: str) -> T:
    """As it is read, or told which one cannot be: `what` says it by its kind and name."""
    try:
        return read(written)
    except UNREADABLE as error:
        raise unreadable(what, error) from error


def unreadable(what: str, error: Exception) -> StoreError:
    return StoreError(cannot_be_read(what, error))


class BatchDecoder(Generic[Read, T]):
    """One call that reads many of a kind: what cannot be read is left out, and told of with the answer."""

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

    @property
    def count(self) -> int:
        """Of those that could not be read so far."""
        return len(self._unreadable)

    def answer(self, rest: Answered, *, first: int | None = None) -> Answered:
        """The answer itself, if all of it could be read; who read past its end tells of the `first` so many alone."""
        told = self._unreadable[:first]
        if told:
            raise Illegible(self._kind, told, rest) from self._cause
        return rest


async def as_far(answer: Awaitable[T]) -> tuple[T, tuple[Unreadable, ...]]:
    """What of an answer can be read, and what cannot."""
    try:
        return await answer, ()
    except Illegible as error:
        rest: T = error.rest
        return rest, error.unreadable


async def stops_as_far(answer: Awaitable[list[Note]]) -> tuple[list[Note], tuple[Unreadable, ...]]:
    """Notes as far as they can be read; a pause that cannot be is one all the same."""
    notes, unreadable = await as_far(answer)
    stops = [illegible_stop(each.name) for each in unreadable if each.name.startswith(STOP)]
    return [*notes, *stops], unreadable


def illegible_stop(key: str) -> Note:
    return Note(key, {"reason": ILLEGIBLE})


class AsksDue(Protocol):
    async def due(self, *, after: tuple[int, str] | None = None, before_ms: int, limit: int) -> list[Job]: ...


async def due_as_far(store: AsksDue, *, before_ms: int, limit: int) -> list[Job]:
    """The most overdue jobs that can be read.

    Nobody here fires one that cannot be, so it stays the most overdue: who asked for the first alone would never hear
    of those behind it.
    """
    found, after, many = list[Job](), None, limit
    for _ in range(1 + BEHIND_PAGES):
        jobs, unreadable = await as_far(store.due(after=after, before_ms=before_ms, limit=many))
        found += jobs
        places = [(job.next_due_ms, job.id) for job in jobs] + [(each.due_ms, each.name) for each in unreadable]
        known = [(due_ms, name) for due_ms, name in places if due_ms is not None]
        if len(found) >= limit or len(places) < many or not known:
            break
        after, many = max(known), max(limit, BEHIND_PAGE)
    return found[:limit]


def why(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:WHY_CHARS_MAX]


def spoilt(error: Exception, written: object) -> Spoilt:
    """An entry of the feed that cannot be read, as it can be shown: letters and marks, the rest as numbers."""
    text = written if isinstance(written, bytes) else str(written).encode(errors="replace")
    shown = text[: 2 * TEXT_CHARS_MAX].decode(errors="backslashreplace")
    return Spoilt(why(error), ascii(shown)[1:-1][:TEXT_CHARS_MAX])


REST_MS = 1_000  # after the first delivery, or up to twice as long; doubled by each one more
REST_EACH_MS = 2  # at least, for each run of the job that this handle met since it was said: so many have their turn
REST_MAX_MS = 60_000
SAY_AGAIN_MS = 60_000  # of one job
SAID_MAX = 10_000  # jobs of which that is remembered; beyond it all may be named anew
_log = logging.getLogger("pollux.store")


class LeasedRow(NamedTuple):
    run_id: str
    token: str
    job_id: str
    fence: int


class HandedBack:
    """The runs that a handle hands back, and what it says of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._dice = clock, Random()  # noqa: S311  a rest, no secret
        self._said_ms: dict[str, float] = {}
        self._met: Counter[str] = Counter()  # runs of each job, since that was said

    def settlements(
        self, leased: Sequence[LeasedRow], reasons: Mapping[str, str], node: str, now_ms: int
    ) -> list[Settlement]:
        """What hands them back, uncharged; their progress says why until somebody has them.  Reasons are by job."""
        met = Counter([each.job_id for each in leased])
        for job_id in met:
            self._say(job_id, reasons[job_id])
        self._met.update(met)
        roll, words = self._dice.random(), f"node {node} cannot read its job; another one may"
        rests = [rest_ms(each.fence, self._met[each.job_id], roll=roll) for each in leased]
        return [
            Settlement(each.run_id, each.token, Back(now_ms + rest), progress=words)
            for each, rest in zip(leased, rests, strict=True)
        ]

    def _say(self, job_id: str, reason: str) -> None:
        now_ms = self._clock.mono_ms()
        said_ms = self._said_ms.get(job_id)
        if said_ms is not None and now_ms - said_ms < SAY_AGAIN_MS:
            return
        if len(self._said_ms) >= SAID_MAX:
            self._said_ms.clear()
            self._met.clear()
        self._said_ms[job_id] = now_ms
        self._met.pop(job_id, None)
        _log.warning(
            "job %r cannot be read here (%s): its runs are held back, seconds at first and up to %d s at a time, for a "
            "node of a newer release; if there is none, somebody else wrote it: put it anew, or delete it",
            job_id,
            reason,
            REST_MAX_MS // 1000,
        )


def rest_ms(fence: int, met: int, *, roll: float) -> int:
    """Until it may be had again; `met` are the runs of its job, `roll` in [0, 1) is thrown by the caller."""
    rest = max(REST_MS << min(fence - 1, 9), REST_EACH_MS * met)
    return int(min(rest, REST_MAX_MS // 2) * (1 + roll))
