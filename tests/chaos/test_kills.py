"""Does anything get lost, or happen twice, when processes are killed at any moment?"""

import asyncio
import os
from random import Random

from pollux.model import RunState
from tests.chaos.checker import repeats_count, unfinished
from tests.chaos.node import INTERVALS

KILLS = int(os.environ.get("POLLUX_CHAOS_KILLS", "60"))
SEED = int(os.environ.get("POLLUX_CHAOS_SEED", "20261"))
LOAD = 1_000  # runs asked for; follow-ups and firings come on top
PACE_MS = (20, 220)  # a node lives so long after it came up
LEASE_MS, LEADER_TTL_MS = 2_000, 3_000  # as in `node.OPTIONS`
LOST_SHARE_MAX = 0.02  # leases that a busy machine may cost us by stalling, of all starts


async def test_sixty_kills_under_load_lose_nothing_and_double_nothing(yard):
    """Workers, the planner and both are killed with SIGKILL at random moments and started again at once."""
    dice = Random(SEED)
    print(f"seed {SEED}, {KILLS} kills")
    crew = {"serve": yard.serve(), "worker": yard.worker()}
    await yard.is_up(*crew.values())
    first_due = await yard.first_dues()
    client = yard.client(seed=SEED, count=LOAD, seconds=KILLS * 0.2)
    kills = held = 0
    while kills < KILLS:
        names = dice.choice([["worker"], ["serve"], ["worker", "serve"]])
        await yard.is_up(*(crew[name] for name in names))
        await asyncio.sleep(dice.randint(*PACE_MS) / 1_000)  # the moment of the fault, not a hope
        held += await yard.kill(*(crew[name] for name in names))
        kills += len(names)
        crew |= {name: getattr(yard, name)() for name in names}
    assert await client.exit_code() == 0, client.said()
    await yard.is_up(*crew.values())
    await yard.quiet()
    await yard.stop(*crew.values())

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    told = yard.told()
    lost = len(told.lost)
    print(f"{kills} kills, {held} leases held by the killed, {repeats_count(told)} repeated starts, {lost} leases lost")
    print(f"{len(store.runs)} runs, {len(told.runs)} starts")
    assert unfinished(store, but=list(INTERVALS)) == []
    assert len(told.asked) == LOAD
    assert all(run.state is RunState.DONE for run in store.runs if run.job_id not in INTERVALS)
    assert held > 0, "no kill hit a running handler: the test does not bite"
    assert lost <= len(told.runs) * LOST_SHARE_MAX


async def test_a_killed_worker_s_runs_are_taken_up_by_another_within_the_lease_and_two_seconds(yard, tmp_path):
    gate, names = tmp_path / "gate", ["p0", "p1", "p2"]
    serve, first = yard.serve("runs=0"), yard.worker()
    await yard.is_up(serve, first)
    for name in names:
        await yard.ask("patient", name, file=str(gate))
    await yard.started(first, *names)
    second = yard.worker()
    await yard.is_up(second)

    assert await yard.kill(first) >= len(names)
    await yard.started(second, *names)
    gate.touch()
    await yard.quiet()
    await yard.stop(serve, second)

    await yard.judge()
    again = [step for step in yard.told().runs if step.pid == second.pid and step.run_id in names]
    assert max(step.at_ns for step in again) - yard.told().kills[0].at_ns <= (LEASE_MS + 2_000) * 1_000_000
    assert {step.fence for step in again} == {2}


async def test_a_killed_leader_is_replaced_within_its_ttl_and_three_seconds(yard):
    """Two nodes plan; the other one fires on, and no due is left out."""
    nodes = [yard.serve(), yard.serve()]
    await yard.is_up(*nodes)
    first_due = await yard.first_dues()
    leader = await yard.leader(*nodes)
    [other] = [node for node in nodes if node is not leader]

    await yard.kill(leader)
    await yard.leader(other)
    await yard.fires_on()
    await yard.stop(other)

    await yard.judge(first_due=first_due)
    won = max(yard.told().terms)
    assert won.at_ns - yard.told().kills[0].at_ns <= (LEADER_TTL_MS + 3_000) * 1_000_000
