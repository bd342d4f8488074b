"""Processes on a networked store are killed at any moment: nothing is lost, and nothing happens twice."""

import os

from tests.chaos.storm import kill_at_random
from tests.faults.bounds import LED_AGAIN_S, TAKEN_UP_S
from tests.faults.pressure import Pressure

KILLS = int(os.environ.get("POLLUX_CHAOS_KILLS", "30"))
SEED = int(os.environ.get("POLLUX_CHAOS_SEED", "20264"))


async def test_kills_under_load_lose_nothing_and_double_nothing(far_yard):
    """Those that were started in the place of the last ones do at least 70 % of what the first ones did."""
    await kill_at_random(far_yard, kills=KILLS, seed=SEED, around=Pressure(far_yard).as_before())


async def test_what_a_killed_leader_ran_and_planned_is_taken_over_within_its_lease_and_its_term(far_yard, tmp_path):
    """It leads and runs; the other one has both within the bounds, and no due is left out."""
    yard, gate, names = far_yard, tmp_path / "gate", ["p0", "p1", "p2"]
    first = yard.serve("seats=3")
    await yard.leader(first)
    first_due = await yard.first_dues()
    for name in names:
        await yard.ask("patient", name, file=str(gate))
    await yard.started(first, *names)
    second = yard.serve("lease=60s")  # what it takes up stays with it
    await yard.is_up(second)

    assert await yard.kill(first) >= len(names)
    await yard.leader(second)
    await yard.started(second, *names)
    gate.touch()
    await yard.fires_on()
    await yard.quiet()
    await yard.stop(second)

    await yard.finish()
    await yard.judge(first_due=first_due)
    told = yard.told()
    killed_ns = told.kills[0].at_ns
    again = [step for step in told.runs if step.pid == second.pid and step.run_id in names]
    assert {step.fence for step in again} == {2}
    assert max(step.at_ns for step in again) - killed_ns <= TAKEN_UP_S * 1e9
    assert max(told.terms).at_ns - killed_ns <= LED_AGAIN_S * 1e9
