"""Who wins when a process sleeps through its lease, or a leader through its term with a plan on its way?"""

import asyncio
import signal
import time

from tests.chaos.stall import sleep_past_a_lease
from tests.chaos.yard import LOOK_SECONDS, wait_until

REFUSAL_S = 5.0
CYCLES_MAX = 3  # a machine that stalls for ten seconds may make a cycle prove nothing


async def test_a_worker_that_slept_past_its_lease_is_refused_and_the_new_result_stands(far_yard, tmp_path):
    await sleep_past_a_lease(far_yard, tmp_path)


async def test_a_leader_that_slept_past_its_term_is_fenced_and_no_due_fires_twice(far_yard, backend, proxy, far_url):
    """Its plan has left it, but stands before the server's door until another one leads; then it arrives."""
    yard = far_yard
    sleeper = yard.serve("runs=0", store=far_url)
    await yard.leader(sleeper)
    other = yard.serve()
    await yard.is_up(other)
    first_due = await yard.first_dues()

    for _ in range(CYCLES_MAX):
        await _sleep_with_a_plan_under_way(yard, backend, proxy, sleeper, other)
        if yard.told().fenced:
            break
        await yard.stop(other)  # the sleeper leads again
        await yard.leader(sleeper)
        other = yard.serve()
        await yard.is_up(other)
    await yard.fires_on()
    await yard.stop(sleeper, other)

    await yard.finish()
    await yard.judge(first_due=first_due)
    told = yard.told()
    terms = {won.term: won.pid for won in told.terms}
    assert told.fenced, "no plan of the sleeper was refused: the test does not bite"
    assert all(terms[term] == pid == sleeper.pid for term, pid in told.fenced)
    assert sorted(terms) == [won.term for won in sorted(told.terms, key=lambda won: won.at_ns)]
    assert "came too late: another node leads" in sleeper.log.read_text()


async def _sleep_with_a_plan_under_way(yard, backend, proxy, sleeper, other):
    proxy.hold(backend.may_plan)

    async def stands_before_the_door():
        return proxy.held >= backend.plans_at

    await wait_until(stands_before_the_door, "a plan on its way")
    sleeper.signal(signal.SIGSTOP)
    await wait_until(sleeper.is_stopped, "a stopped process")
    await yard.leader(other)
    await yard.fires_on()
    proxy.mend()
    sleeper.signal(signal.SIGCONT)

    until = time.monotonic() + REFUSAL_S
    while not yard.told().fenced and time.monotonic() < until:  # noqa: ASYNC110  the other process writes it down
        await asyncio.sleep(LOOK_SECONDS)
