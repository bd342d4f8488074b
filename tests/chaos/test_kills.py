"""Does anything get lost, or happen twice, when processes are killed at any moment?"""

import os

from tests.chaos.storm import kill_at_random

KILLS = int(os.environ.get("POLLUX_CHAOS_KILLS", "60"))
SEED = int(os.environ.get("POLLUX_CHAOS_SEED", "20261"))
LEASE_MS, LEADER_TTL_MS = 2_000, 3_000  # as in `node.OPTIONS`
SLACK_MS = 10_000  # that a busy machine gets; in virtual time it is none


async def test_sixty_kills_under_load_lose_nothing_and_double_nothing(yard):
    await kill_at_random(yard, kills=KILLS, seed=SEED)


async def test_a_killed_worker_s_runs_are_taken_up_by_another_within_the_lease_and_two_seconds(yard, tmp_path):
    gate, names = tmp_path / "gate", ["p0", "p1", "p2"]
    serve, first = yard.serve("runs=0"), yard.worker()
    await yard.is_up(serve, first)
    for name in names:
        await yard.ask("patient", name, file=str(gate))
    await yard.started(first, *names)
    second = yard.worker("lease=60s")  # what it took up stays with it
    await yard.is_up(second)

    assert await yard.kill(first) >= len(names)
    await yard.started(second, *names)
    gate.touch()
    await yard.quiet()
    await yard.stop(serve, second)

    await yard.judge()
    again = [step for step in yard.told().runs if step.pid == second.pid and step.run_id in names]
    assert max(step.at_ns for step in again) - yard.told().kills[0].at_ns <= (LEASE_MS + 2_000 + SLACK_MS) * 1_000_000
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
    assert won.at_ns - yard.told().kills[0].at_ns <= (LEADER_TTL_MS + 3_000 + SLACK_MS) * 1_000_000
