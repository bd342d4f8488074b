"""How does one claim go?  Look, and take in the same statement if nothing comes before; else mend what time did.

look ─▶ the same token before? ─▶ the same runs
  │──▶ the clock came back? leases ended? ─▶ mended, each in a write of its own; look again
  └──▶ ready? ─▶ taken ─▶ room left? ─▶ the next priority
                  └──▶ nothing, though some are visible: others hold them ─▶ wait until they let go, look again
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import asyncpg

from pollux.clock import Clock
from pollux.model import Job, Run
from pollux.store.aside import Aside
from pollux.store.asking import Asking
from pollux.store.contract import Answer, Claimed
from pollux.store.jumps import JumpGuard
from pollux.store.postgres import leases
from pollux.store.postgres.database import Database, Ring, Verb
from pollux.store.postgres.grants import Grants
from pollux.store.postgres.leases import ENDLESS, Look, Step, Taken
from pollux.store.postgres.settle import settle
from pollux.store.relational.settling import prepare
from pollux.store.shelf import JobShelf

LOOKS_MAX = 50
FORGET_EVERY = 64
T = TypeVar("T")


class _Seen:
    """The server's clock beside ours, as they stood when last asked: what the guard against leaps compares."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms, self._mono_ms = 0, clock.mono_ms()

    def see(self, wall_ms: int) -> None:
        self._wall_ms, self._mono_ms = wall_ms, self._clock.mono_ms()

    def now_ms(self) -> int:
        return self._wall_ms

    def mono_ms(self) -> float:
        return self._mono_ms


class Claimer:
    """The claims of one handle, in one version."""

    def __init__(
        self, database: Database, version: int, shelf: JobShelf, grants: Grants, clock: Clock, ring: Ring
    ) -> None:
        self._database, self._version, self._grants = database, version, grants
        self._shelf, self._clock, self._ring = shelf, clock, ring
        self._seen, self._aside = _Seen(clock), Aside(clock)
        self._jumps: JumpGuard | None = None
        self._claims = 0

    async def claim(self, asking: Asking, now_ms: int | None) -> Claimed:
        first = Step(asking.order if asking.limit > 0 else (), max(0, asking.limit), feed_max=asking.feed_max)
        for nth in range(LOOKS_MAX):
            step = first._replace(feed_max=ENDLESS) if nth else first
            try:
                seen, taken = await self._step(asking, step, now_ms)
            except asyncpg.UniqueViolationError:  # the same claim was under way: what it got is ours
                continue
            hold_ms = self._hold_ms(seen.now_ms, asking.lease_ms) if now_ms is None else 0
            if seen.parts:
                same = await self._read(partial(leases.again, shelf=self._shelf, token=asking.token, seen=seen))
                if same is not None:
                    return same
            if nth == 0 and seen.ends > asking.feed_max:  # not for the ends that this call itself found
                return Claimed(Answer.FULL, (), {}, seen.stops, None, seen.now_ms)
            if taken is None and await self._mend(seen, asking.losses_max, hold_ms):
                now_ms = seen.now_ms
                continue
            if not seen.ready(asking) or asking.limit <= 0:
                break
            claimed = await self._take(asking, seen, taken)
            if claimed is not None:
                return claimed
            await self._await(asking, seen)
        first_ms = seen.first_ms(seen.now_ms + hold_ms if hold_ms else None)
        return Claimed(Answer.OK, (), {}, seen.stops, first_ms, seen.now_ms)

    def _hold_ms(self, now_ms: int, lease_ms: int) -> int:
        """For how long no lease may be taken back, because the server's clock has leapt."""
        self._seen.see(now_ms)
        if self._jumps is None:
            self._jumps = JumpGuard(self._seen)
        return self._jumps.hold_ms(lease_ms)

    async def _mend(self, seen: Look, losses_max: int, hold_ms: int) -> bool:
        """What time did to the leases; true if something was there to be done."""
        if seen.clock_ms > seen.now_ms:
            await self._write(lambda tx: leases.come_back(tx, seen.now_ms, seen.clock_ms), seen.now_ms)
            return True
        if hold_ms or seen.ends_ms is None or seen.ends_ms > seen.now_ms:
            return False
        taken = await self._write(lambda tx: leases.take_back(tx, losses_max, seen.now_ms), seen.now_ms)
        return taken > 0

    async def _take(self, asking: Asking, seen: Look, taken: Taken | None) -> Claimed | None:
        """All that is ready, priority by priority; of the first one it may have been taken with the look."""
        runs: list[Run] = []
        jobs: dict[str, Job] = {}
        part = seen.parts
        for priority in seen.ready(asking):
            if len(runs) == asking.limit:
                break
            part += 1
            if taken is None:
                step = Step((priority,), asking.limit - len(runs), part, is_sure=True)
                try:
                    _, taken = await self._step(asking, step, seen.now_ms)
                except asyncpg.UniqueViolationError:
                    return None
            if taken is not None:
                await self._clear(asking, seen, taken)
                self._grants.add(taken.grants)
                runs += taken.runs
                jobs.update(taken.jobs)
            taken = None
        if not runs:
            return None
        self._claims += 1
        if self._claims % FORGET_EVERY == 0:
            await self._read(leases.forget)
        return Claimed(Answer.OK, tuple(runs), jobs, seen.stops, None, seen.now_ms)

    async def _clear(self, asking: Asking, seen: Look, taken: Taken) -> None:
        """What cannot be run goes; what others may be able to run goes back."""
        if taken.orphans:
            sweep = partial(leases.sweep, seqs=taken.orphans, token=asking.token, now_ms=seen.now_ms)
            await self._write(sweep, seen.now_ms)
        if taken.broken:
            bury = partial(leases.bury_broken, broken=taken.broken, token=asking.token, now_ms=seen.now_ms)
            await self._write(bury, seen.now_ms)
        if taken.aside:
            back = self._aside.settlements(taken.aside, taken.reasons, asking.node, seen.now_ms)
            await self._write(partial(settle, items=[prepare(each) for each in back]), seen.now_ms)

    async def _step(self, asking: Asking, step: Step, now_ms: int | None) -> tuple[Look, Taken | None]:
        return await self._read(partial(leases.take, shelf=self._shelf, asking=asking, step=step), now_ms)

    async def _read(self, verb: Verb[T], now_ms: int | None = None) -> T:
        return await self._database.read(verb, self._version, now_ms)

    async def _write(self, verb: Verb[T], now_ms: int) -> T:
        return await self._database.write(verb, self._version, now_ms, self._ring)

    async def _await(self, asking: Asking, seen: Look) -> None:
        priority = seen.ready(asking)[0]
        await self._read(lambda tx: leases.wait_for(tx, priority, seen.now_ms))
