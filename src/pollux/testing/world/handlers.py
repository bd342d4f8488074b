"""Handlers of a world: each writes to the ledger what it does, and behaves as its job's script says."""

from __future__ import annotations

import asyncio
from random import Random

from pollux.errors import Permanent, Transient
from pollux.registry import Context
from pollux.testing.world.ledger import WorldLedger
from pollux.testing.world.loop import VirtualProcess, WorldLoop
from pollux.testing.world.script import ScriptedJob
from pollux.testing.world.trace import WorldTrace

HANDLER = "work"
STUBBORN_S = 12.0  # how much longer a handler works that ignores requests to stop
DEFAULT = ScriptedJob(id="")


class WorldHandlers:
    """The one handler of all jobs."""

    def __init__(
        self, loop: WorldLoop, seed: int, jobs: tuple[ScriptedJob, ...], ledger: WorldLedger, trace: WorldTrace
    ) -> None:
        self._loop, self._seed, self._ledger, self._trace = loop, seed, ledger, trace
        self._jobs = {job.id: job for job in jobs}

    async def run(self, process: VirtualProcess, ctx: Context) -> str:
        """Work, and return what identifies this delivery."""
        run, loop = ctx.run, self._loop
        habit = self._jobs.get(run.job_id, DEFAULT)
        execution = self._ledger.begin(run.id, run.job_id, run.fence, process.name, loop.us)
        self._trace.add(loop.us, process.name, f"begins {run.id} {run.fence}")
        dice = Random(f"{self._seed} {run.id} {run.fence}")  # noqa: S311
        try:
            await self._work(habit, dice)
            if dice.random() < habit.permanent:
                raise Permanent("scripted: trying again cannot help")
            if dice.random() < habit.fails:
                raise Transient("scripted failure")
            execution.result = f"{run.id}#{run.fence}"
            return execution.result
        finally:
            execution.ended_us = loop.us
            self._trace.add(loop.us, process.name, f"ends {run.id} {run.fence}")

    @staticmethod
    async def _work(habit: ScriptedJob, dice: Random) -> None:
        is_stubborn = dice.random() < habit.stubborn
        left_s = habit.work_ms / 1_000 * (0.5 + dice.random()) * (10 if dice.random() < 0.03 else 1)
        if not left_s:
            return
        try:
            await asyncio.sleep(left_s)
        except asyncio.CancelledError:
            if not is_stubborn:
                raise
            await asyncio.sleep(STUBBORN_S)
