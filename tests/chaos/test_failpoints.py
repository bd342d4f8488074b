"""A kill at every failpoint of the store: no crash leaves a write half done."""

import json
from random import Random

from pollux.model import RunState
from tests.chaos.checker import unfinished
from tests.chaos.node import INTERVALS
from tests.chaos.yard import started

SEED = 4711
LIVES = 16  # of a node, each ended at a failpoint
POINTS = (5, 160)  # so many failpoints into its life
LOAD = 200


async def test_a_crash_at_any_failpoint_and_the_same_call_again_is_as_if_nothing_happened(tmp_path):
    """Every writing verb, killed at every failpoint on its way: its effects are there whole or not at all, and the
    same call again leaves what there would have been anyway."""
    process = started(["-m", "tests.chaos.script", str(tmp_path)], tmp_path / "sweep.log")
    try:
        assert await process.exit_code(seconds=280) == 0, process.said()
    finally:
        process.end()
    told = json.loads(process.said().splitlines()[-1])
    print(told)

    assert told["wrong"] == []
    assert told["never"] == [], "no kill hit these steps: they have no failpoint"
    assert told["kills"] >= 3 * told["steps"]


async def test_nodes_that_die_at_failpoints_lose_nothing_and_double_nothing(yard):
    """The whole engine, killed inside the store again and again, a different number of failpoints into each life."""
    dice = Random(SEED)
    points = [dice.randint(*POINTS) for _ in range(LIVES)]
    print(f"seed {SEED}: {points}")
    first = yard.serve()
    await yard.is_up(first)
    first_due = await yard.first_dues()
    client = yard.client(seed=SEED, count=LOAD, seconds=5)
    await yard.stop(first)
    for point in points:
        await yard.died(yard.node(variables={"POLLUX_CRASH_AT": str(point)}))
    assert await client.exit_code() == 0, client.said()
    last = yard.serve()
    await yard.is_up(last)
    await yard.quiet()
    await yard.stop(last)

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    assert unfinished(store, but=list(INTERVALS)) == []
    assert all(run.state is RunState.DONE for run in store.runs if run.job_id not in INTERVALS)
