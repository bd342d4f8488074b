"""Nodes killed at random under load, and the invariants afterwards: the same test over every store."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from random import Random

from pollux.model import RunState
from tests.chaos.checker import repeats_count, unfinished
from tests.chaos.node import INTERVALS
from tests.chaos.yard import Process, Yard

LOAD = 17  # runs asked for a kill, in the time that it takes; follow-ups and firings come on top
PACE_MS = (20, 220)  # a node lives so long after it came up
SHORT_TERM = "leader_ttl=1s"  # or the planner would be killed before it may lead
LED_SHARE_MIN = 0.08  # of those that were killed
LOST_SHARE_MAX = 0.02  # leases that a busy machine may cost us by stalling, of all starts


async def kill_at_random(
    yard: Yard, *, kills: int, seed: int, around: AbstractAsyncContextManager[object] | None = None
) -> None:
    """Workers, the planner and both are killed with SIGKILL at random moments and started again at once; `around` is
    entered when they are up, and left when the last ones are."""
    print(f"seed {seed}, {kills} kills")
    crew = {name: _started(yard, name) for name in ("serve", "worker")}
    await yard.is_up(*crew.values())
    first_due = await yard.first_dues()
    async with around or nullcontext():
        before = len(yard.told().runs)
        held = await _kill(yard, crew, kills=kills, seed=seed)
        starts = len(yard.told().runs) - before
    await yard.quiet()
    await yard.stop(*crew.values())

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    told = yard.told()
    lost = len(told.lost)
    print(f"{len(told.kills)} kills, {held} leases held by them, {repeats_count(told)} repeated starts, {lost} lost")
    leaders = {won.pid for won in told.terms} & {kill.pid for kill in told.kills}
    print(f"{len(store.runs)} runs, {starts} starts meanwhile, {len(leaders)} of those that were killed led")
    assert unfinished(store, but=list(INTERVALS)) == []
    assert sum(run_id.startswith(f"r{seed}.") for run_id in told.asked) == LOAD * kills
    assert all(run.state is RunState.DONE for run in store.runs if run.job_id not in INTERVALS)
    assert held > 0, "no kill hit a running handler: the test does not bite"
    assert len(leaders) >= kills * LED_SHARE_MIN, "hardly a kill hit a leader: the test does not bite"
    assert lost <= starts * LOST_SHARE_MAX


async def _kill(yard: Yard, crew: dict[str, Process], *, kills: int, seed: int) -> int:
    """Under load; answers how many leases they held.  In the end new ones are up, and all is asked for."""
    dice = Random(seed)
    client = yard.client(seed=seed, count=LOAD * kills, seconds=kills * 0.2)
    killed = held = 0
    while killed < kills:
        names = dice.choice([["worker"], ["serve"], ["worker", "serve"]])
        await yard.is_up(*(crew[name] for name in names))
        await asyncio.sleep(dice.randint(*PACE_MS) / 1_000)  # the moment of the fault, not a hope
        held += await yard.kill(*(crew[name] for name in names))
        killed += len(names)
        crew |= {name: _started(yard, name) for name in names}
    assert await client.exit_code() == 0, client.said()
    await yard.is_up(*crew.values())
    return held


def _started(yard: Yard, name: str) -> Process:
    return yard.serve(SHORT_TERM) if name == "serve" else yard.worker()
