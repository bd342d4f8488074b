"""A leader on a networked store resigns its term when it drains."""

import signal
import time

from tests.faults.bounds import RESIGNED_S

TTL = "leader_ttl=120s"  # whoever had to wait for the end of a term would wait for 80 s at least


async def test_a_leader_that_is_told_to_go_resigns_and_the_other_plans_on_at_once(far_yard):
    yard = far_yard
    nodes = [yard.serve(TTL), yard.serve(TTL)]
    await yard.is_up(*nodes)
    first_due = await yard.first_dues()
    leader = await yard.leader(*nodes)
    [other] = [node for node in nodes if node is not leader]

    told_ns = time.monotonic_ns()
    leader.signal(signal.SIGTERM)
    await yard.leader(other, seconds=RESIGNED_S)
    assert await leader.exit_code() == 0, leader.said()
    await yard.fires_on()
    await yard.stop(other)

    await yard.finish()
    await yard.judge(first_due=first_due)
    assert max(yard.told().terms).at_ns - told_ns <= RESIGNED_S * 1e9
