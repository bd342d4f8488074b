"""A distant server costs time and nothing else."""

from tests.chaos.checker import unfinished
from tests.chaos.node import INTERVALS
from tests.chaos.storm import LOST_SHARE_MAX
from tests.faults.pressure import Pressure

AWAY_S = 0.015  # each way: a server on another continent's coast
WINDOWS = 3


async def test_a_node_far_from_its_server_keeps_its_term_and_its_leases(far_yard, proxy, far_url):
    yard, pressure = far_yard, Pressure(far_yard)
    node = yard.serve(store=far_url)
    await yard.leader(node)
    first_due = await yard.first_dues()
    proxy.delay(AWAY_S)
    async with pressure.on():
        done = sum([await pressure.window() for _ in range(WINDOWS)])
    proxy.mend()
    await yard.fires_on()
    await yard.quiet()
    await yard.stop(node)

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    assert unfinished(store, but=list(INTERVALS)) == []
    told = yard.told()
    assert done > 0
    assert len(told.terms) <= 2
    assert len(told.lost) <= len(told.runs) * LOST_SHARE_MAX
