"""Test bed for nodes behind a server: that of the chaos tests, on a networked store."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

from pollux.model import RunState
from pollux.store.urls import open_store
from tests.chaos.yard import LOOK_SECONDS, Yard
from tests.faults.backends import POSTGRES, Backend, asked_of

STUCK_MS = 300  # a transaction that idles for so long belongs to a stopped process
IDLE = """
    SELECT count(*) FROM pg_stat_activity
    WHERE state = 'idle in transaction' AND clock_timestamp() - state_change > $1 * interval '1 ms'
"""


class FarYard(Yard):
    def __init__(self, folder: Path, backend: Backend, url: str) -> None:
        super().__init__(folder, url)
        self.backend = backend

    async def is_unlocked(self) -> bool:
        """Redis has no locks; in PostgreSQL a process that is stopped inside a transaction keeps its locks."""
        if self.backend is not POSTGRES:
            return True
        until = time.monotonic() + 2 * STUCK_MS / 1000
        async with asked_of(self.store) as connection:
            while time.monotonic() < until:
                if await connection.fetchval(IDLE, STUCK_MS):
                    return False
                await asyncio.sleep(LOOK_SECONDS)
        return True

    async def integrity(self) -> str:
        """What was counted on the way is what is there: nothing was counted twice, or done and not counted."""
        there = Counter(run.state for run in await self.runs())
        await self._leave()
        store = open_store(self.store)
        await store.open()
        try:
            counts = await store.counts()
        finally:
            await store.close()
        counted = {RunState.HELD: counts.held, RunState.READY: counts.ready, RunState.LEASED: counts.leased}
        counted[RunState.DEAD] = counts.dead
        wrong = [f"{n} {state} counted, {there[state]} there" for state, n in counted.items() if n != there[state]]
        return ", ".join(wrong) or "ok"
