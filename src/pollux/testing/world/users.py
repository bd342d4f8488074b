"""Users of a world: they call the operations, through a node, and write to the ledger what was answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

from msgspec.structs import replace

from pollux.app import Operations
from pollux.errors import PolluxError, StoreError
from pollux.model import Job, Misfire, Overlap, Retry, Run
from pollux.model.job import Interval
from pollux.testing.world.handlers import HANDLER
from pollux.testing.world.ledger import WorldLedger
from pollux.testing.world.loop import WorldLoop
from pollux.testing.world.script import Operation, ScriptedJob
from pollux.testing.world.trace import WorldTrace

REPEATS = 2


def job_of(scripted: ScriptedJob) -> Job:
    """The job as a user puts it."""
    return Job(
        id=scripted.id,
        handler=HANDLER,
        schedule=scripted.schedule,
        overlap=Overlap(scripted.overlap),
        misfire=Misfire(scripted.misfire),
        priority=scripted.priority,
        target=scripted.target,
        timeout_ms=scripted.timeout_ms,
        retry=Retry(attempts_max=scripted.attempts_max, base_ms=1_000, max_ms=8_000),
    )


class WorldUser:
    """One call, and what it means for the ledger."""

    def __init__(self, loop: WorldLoop, ledger: WorldLedger, trace: WorldTrace, jobs: tuple[ScriptedJob, ...]) -> None:
        self._loop, self._ledger, self._trace = loop, ledger, trace
        self._jobs = {job.id: job for job in jobs}

    async def do(self, operation: Operation, operations: Operations, who: str) -> None:
        """Call a verb.  An error means that the call may or may not have taken effect."""
        words = f"{operation.verb} {operation.job}"
        try:
            answer = await self._call(operation, operations)
        except PolluxError as error:
            answer = type(error).__name__
        self._trace.note(self._loop.us, who, f"{words}: {answer}")
        self._trace.reach(f"user {operation.verb} {answer.split()[0]}")

    async def _call(self, asked: Operation, operations: Operations) -> str:
        verb: Callable[[Random, str, Operations], Awaitable[str]] = getattr(self, f"_{asked.verb}")
        return await verb(Random(asked.seed), asked.job, operations)  # noqa: S311

    async def _run_now(self, dice: Random, job: str, operations: Operations) -> str:
        return self._accepted(await operations.runs.run_now(job, anyway=dice.random() < 0.3))

    async def _resume(self, dice: Random, job: str, operations: Operations) -> str:
        return f"{await operations.pauses.resume(job)}"

    async def _cancel(self, dice: Random, job: str, operations: Operations) -> str:
        return f"{len(await operations.runs.cancel(job))} runs"

    async def _put(self, dice: Random, job: str, operations: Operations) -> str:
        return await self._write(self._jobs[job], operations)

    async def _change(self, dice: Random, job: str, operations: Operations) -> str:
        return await self._write(self._changed(dice, job), operations)

    async def _write(self, scripted: ScriptedJob, operations: Operations) -> str:
        self._ledger.touched.add(scripted.id)
        self._ledger.deleted.discard(scripted.id)
        return f"{(await operations.jobs.put_jobs([job_of(scripted)]))[0].answer}"

    async def _delete(self, dice: Random, job: str, operations: Operations) -> str:
        self._ledger.touched.add(job)
        self._ledger.deleted.add(job)
        await operations.jobs.delete_jobs([job])
        return "ok"

    async def _revive(self, dice: Random, job: str, operations: Operations) -> str:
        return f"{len(await operations.dead_letters.revive(job=job))} runs"

    async def _drop(self, dice: Random, job: str, operations: Operations) -> str:
        self._ledger.touched.add(job)
        self._ledger.dropped.add(job)
        return f"{await operations.dead_letters.drop(job=job)} runs"

    async def _drain(self, dice: Random, job: str, operations: Operations) -> str:
        await operations.workers.drain_workers()
        return "ok"

    async def _undrain(self, dice: Random, job: str, operations: Operations) -> str:
        return f"{await operations.workers.resume_workers()}"

    async def _why(self, dice: Random, job: str, operations: Operations) -> str:
        return f"ok {(await operations.status.why(job)).reason[:60]}"

    async def _health(self, dice: Random, job: str, operations: Operations) -> str:
        return f"{(await operations.status.health()).status}"

    async def _enqueue(self, dice: Random, job: str, operations: Operations) -> str:
        """As clients do: with an id of their own they repeat what was not answered."""
        run_id = f"user-{dice.getrandbits(40):x}" if dice.random() < 0.6 else None
        key = f"key-{dice.randrange(3)}" if dice.random() < 0.2 else None
        delay = dice.choice((None, None, "2s", "30s", "2m"))
        for _ in range(REPEATS if run_id else 0):
            with suppress(StoreError):
                return self._accepted(await operations.runs.enqueue(job, id=run_id, key=key, delay=delay))
        return self._accepted(await operations.runs.enqueue(job, id=run_id, key=key, delay=delay))

    def _accepted(self, run: Run) -> str:
        self._ledger.accepted[run.id] = run.job_id
        return "accepted"

    async def _pause(self, dice: Random, job: str, operations: Operations) -> str:
        duration = dice.choice(("5s", "30s", "2m", None))
        target = self._jobs[job].target if job in self._jobs else ""
        if target and dice.random() < 0.3:
            await operations.pauses.pause(target=target, duration=duration)
        else:
            await operations.pauses.pause(job, duration=duration)
        return "ok"

    def _changed(self, dice: Random, job: str) -> ScriptedJob:
        scripted = self._jobs[job]
        schedule = Interval(dice.choice((7_000, 20_000, 45_000))) if dice.random() < 0.6 else scripted.schedule
        return replace(scripted, schedule=schedule, priority=dice.choice((1, 2, 3)))
