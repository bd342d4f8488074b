"""Settle loop: outcomes go to the store in batches, without lingering.

While one settle is under way the next batch collects, so a batch is as large as the store is slow.  A batch that got
no answer is sent again unchanged, with the same tokens, until it is answered: the token decides, not the clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.clock import Clock
from pollux.errors import StoreError
from pollux.events import Events, LeaseWasLost, RunFailed, RunSettled
from pollux.model import Dead
from pollux.outcome import describe
from pollux.runtime.loop import Loop, Rest
from pollux.runtime.stats import AttemptStats
from pollux.secrets import hide
from pollux.store.contract import Answer, Settlement, Store

if TYPE_CHECKING:
    from pollux.runtime.attempt import Attempt

SETTLE_MAX = 100  # settlements in one call
UNRECORDED = "its outcome cannot be recorded: "

Item = tuple["Attempt", Settlement]


class Settler(Loop):
    """Record ends of attempts.  The seat was freed before; the lease is renewed until the settle is answered."""

    def __init__(
        self, store: Store, *, clock: Clock, events: Events, backlog_max: int = 40, batch_max: int = SETTLE_MAX
    ) -> None:
        super().__init__("settler", clock=clock, events=events, backoff_ms=(50, 2_000))
        self.store = store
        self.backlog_max, self.batch_max = backlog_max, batch_max
        self.on_room: Callable[[], None] | None = None
        self.settled = 0
        self.discarded = 0  # outcomes that came after their lease was lost
        self.refused = 0  # settlements that the store cannot take
        self.stats = AttemptStats()
        self.is_empty = asyncio.Event()
        self.is_empty.set()
        self._waiting: deque[Item] = deque()
        self._under_way: list[Item] = []
        self._one_by_one = 0

    @property
    def backlog(self) -> int:
        return len(self._waiting) + len(self._under_way)

    @property
    def has_room(self) -> bool:
        return len(self._waiting) + len(self._under_way) < self.backlog_max

    def put(self, attempt: Attempt, settlement: Settlement) -> None:
        if new_progress := attempt.new_progress:  # the last progress
            settlement = replace(settlement, progress=new_progress)
        self._waiting.append((attempt, settlement))
        if self.is_empty.is_set():
            self.is_empty.clear()
        self.nudge()

    async def flush(self, timeout_ms: float) -> bool:
        """Wait until all are answered; false if time ran out."""
        return await self.clock.wait(self.is_empty, timeout_ms)

    async def turn(self) -> Rest:
        batch = self._under_way = self._under_way or self._next_batch()
        if not batch:
            self.is_empty.set()
            return Rest.UNTIL_WOKEN
        try:
            answers = await self.store.settle([settlement for _, settlement in batch])
        except StoreError:
            raise  # the same batch again
        except Exception as error:
            self._find_rejected(batch, error)
            raise
        was_full = not self.has_room
        self._under_way = []
        self._answered(batch, answers)
        if was_full and self.has_room and self.on_room is not None:
            self.on_room()
        if self._waiting:
            return Rest.NONE
        self.is_empty.set()
        return Rest.UNTIL_WOKEN

    def _next_batch(self) -> list[Item]:
        size = 1 if self._one_by_one else self.batch_max
        self._one_by_one = max(0, self._one_by_one - 1)
        return [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]

    def _find_rejected(self, batch: list[Item], error: Exception) -> None:
        """Find the settlement that the store rejects: the batch is sent again one by one.

        The rejected one is settled as dead with the reason: its handler has run, and must not run again and again.
        """
        self._under_way = []
        if len(batch) > 1:
            self._one_by_one = len(batch)
            self._waiting.extendleft(reversed(batch))
            return
        [(attempt, settlement)] = batch
        self.refused += 1
        if _is_burial(settlement):
            attempt.drop_lease()  # the store rejects this, too: the lease ends by itself, and the store counts the loss
            return
        burial = Settlement(settlement.run_id, settlement.token, Dead(f"{UNRECORDED}{describe(error, hide)}"))
        self._waiting.appendleft((attempt, burial))

    def _answered(self, batch: list[Item], answers: Sequence[Answer]) -> None:
        wants, wants_failed = self.events.wants(RunSettled), self.events.wants(RunFailed)
        for (attempt, settlement), answer in zip(batch, answers, strict=True):
            attempt.drop_lease()
            if answer is Answer.LOST:
                self.discarded += 1
                run = attempt.run
                self.events.emit(LeaseWasLost(run.id, run.job_id, "its outcome came too late and was dropped"))
            else:
                self.settled += 1
                self.stats.add(attempt.job, settlement)
            if wants:
                self.events.emit(_settled(attempt, settlement, answer))
            if wants_failed and (error := _error_of(settlement)):
                verdict = type(settlement.verdict).__name__.lower()
                traceback = "" if settlement.outcome is None else settlement.outcome.traceback
                self.events.emit(RunFailed(settlement.run_id, attempt.run.job_id, verdict, error, traceback))


def _settled(attempt: Attempt, settlement: Settlement, answer: Answer) -> RunSettled:
    outcome, run, settled_ms = settlement.outcome, attempt.run, attempt.worker.time.now_ms()
    return RunSettled(
        run_id=settlement.run_id,
        job_id=run.job_id,
        verdict=type(settlement.verdict).__name__.lower(),
        answer=answer.value,
        duration_ms=0 if outcome is None else outcome.ended_ms - outcome.started_ms,
        error=_error_of(settlement) or getattr(settlement.verdict, "reason", ""),
        fence=run.fence,
        attempt=run.attempt + 1,
        due_ms=run.due_ms,
        started_ms=attempt.started_ms,
        ended_ms=settled_ms if outcome is None else outcome.ended_ms,
        settled_ms=settled_ms,
        has_outcome=outcome is not None,
        follow_ups=tuple(run.id for run in settlement.follow_ups),
    )


def _error_of(settlement: Settlement) -> str:
    """Return the error of the attempt, or an empty string."""
    if settlement.outcome is not None:
        return settlement.outcome.error
    return settlement.verdict.reason if isinstance(settlement.verdict, Dead) else ""


def _is_burial(settlement: Settlement) -> bool:
    return isinstance(settlement.verdict, Dead) and settlement.verdict.reason.startswith(UNRECORDED)
