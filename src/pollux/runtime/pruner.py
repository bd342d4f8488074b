"""Pruning loop: the leader's node deletes old history, a bounded number of rows at a time."""

from __future__ import annotations

from msgspec import Struct

from pollux.clock import Clock
from pollux.events import Events
from pollux.runtime.leader import Leader
from pollux.runtime.loop import Loop, Rest
from pollux.runtime.store_clock import StoreClock
from pollux.store.contract import Pruning, Store

PRUNE_MS = 60_000
MORE_MS = 100  # pause between two calls: other writers need the store
DEAD_MAX = 10_000  # dead letters that are kept, the newest,
DEAD_MS = 90 * 86_400_000  # and for how long
LOG_MAX = 100_000  # lines of the audit log


class PruneOptions(Struct, frozen=True):
    unchanged_ms: int = 120_000  # polls that changed nothing
    keep_ms: int = 7 * 86_400_000  # everything that is finished, dead letters apart
    keep_per_job: int = 100
    dead_max: int = DEAD_MAX
    dead_ms: int = DEAD_MS
    log_max: int = LOG_MAX
    limit: int = 1_000  # rows in one call


class Pruner(Loop):
    def __init__(
        self,
        store: Store,
        leader: Leader,
        time: StoreClock,
        *,
        clock: Clock,
        events: Events,
        options: PruneOptions | None = None,
    ) -> None:
        super().__init__("pruner", clock=clock, events=events, rest_max_ms=PRUNE_MS)
        self.store, self.leader, self.time = store, leader, time
        self.options = options or PruneOptions()
        self.pruned = 0

    async def turn(self) -> Rest:
        if self.leader.term is None:
            return Rest.STANDBY
        options, now_ms = self.options, self.time.now_ms()
        gone = await self.store.prune(
            Pruning(
                unchanged_before_ms=now_ms - options.unchanged_ms,
                finished_before_ms=now_ms - options.keep_ms,
                keep_per_job=options.keep_per_job,
                once_before_ms=now_ms - options.keep_ms,
                dead_before_ms=now_ms - options.dead_ms,
                dead_max=options.dead_max,
                log_max=options.log_max,
                limit=options.limit,
            )
        )
        self.pruned += gone
        return Rest(MORE_MS if gone >= options.limit else PRUNE_MS)
