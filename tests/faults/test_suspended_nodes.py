"""A process is suspended past its lease, or a leader past its term with a plan on its way."""

import asyncio
import signal
import time

from pollux.model import RunState
from tests.chaos.checker import unfinished
from tests.chaos.node import INTERVALS
from tests.chaos.stall import sleep_past_a_lease
from tests.chaos.yard import LOOK_SECONDS, wait_until
from tests.faults.bounds import LED_AGAIN_S, TAKEN_UP_S
from tests.faults.pressure import Pressure

REFUSAL_S = 5.0
ARRIVED_S = 0.5  # what had been sent; a lease lasts longer
CYCLES_MAX = 3  # a machine that stalls for ten seconds may make a cycle prove nothing


async def test_a_worker_that_slept_past_its_lease_is_refused_and_the_new_result_stands(far_yard, tmp_path):
    await sleep_past_a_lease(far_yard, tmp_path)


async def test_what_a_sleeper_held_under_load_is_run_by_others_and_awake_it_works_as_before(far_yard):
    yard, pressure = far_yard, Pressure(far_yard)
    sleeper, other = yard.worker(), yard.worker()
    nodes = [yard.serve("runs=0"), sleeper, other]
    await yard.is_up(*nodes)
    first_due = await yard.first_dues()
    async with pressure.on():
        usual = await pressure.usual()
        for _ in range(CYCLES_MAX):
            held = await _freeze_at_work(yard, sleeper)
            slept_ns = time.monotonic_ns()
            await yard.started(other, *held, seconds=TAKEN_UP_S)
            sleeper.signal(signal.SIGCONT)
            if lost := [run.id for run in await yard.runs() if run.id in held and run.lease_losses]:
                break
        print(f"{len(held)} held; {await pressure.works_again(usual)}")
    await yard.quiet()
    await yard.stop(*nodes)

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    assert unfinished(store, but=list(INTERVALS)) == []
    again: dict[str, int] = {}  # when it was taken up; what fails or is lost is started once more, later
    for step in yard.told().runs:
        if step.pid == other.pid and step.run_id in held and step.at_ns > slept_ns:
            again[step.run_id] = min(step.at_ns, again.get(step.run_id, step.at_ns))
    assert again.keys() == {*held}
    assert max(again.values()) - slept_ns <= TAKEN_UP_S * 1e9
    assert lost, "no lease was lost: the test does not bite"


async def _freeze_at_work(yard, process):
    """The runs that it holds when it stands still, and when its last words have arrived."""
    for _ in range(CYCLES_MAX):
        await yard.freeze(process)
        await asyncio.sleep(ARRIVED_S)
        if held := [run.id for run in await yard.runs(RunState.LEASED) if f":{process.pid}:" in run.owner]:
            return held
        process.signal(signal.SIGCONT)
    raise AssertionError("it never held a run: that was no load")


async def test_a_leader_that_slept_past_its_term_is_fenced_and_no_due_fires_twice(far_yard, backend, proxy, far_url):
    """Its plan has left it, but stands before the server's door until another one leads; then it arrives.  When it is
    awake again as much is done as before."""
    yard = far_yard
    sleeper = yard.serve("runs=0", store=far_url)
    await yard.leader(sleeper)
    worker, other = yard.worker(), yard.serve("runs=0")  # who leads is nothing to the one that runs
    await yard.is_up(worker, other)
    first_due = await yard.first_dues()

    async with Pressure(yard).as_before():
        for _ in range(CYCLES_MAX):
            await _sleep_with_a_plan_under_way(yard, backend, proxy, sleeper, other)
            if yard.told().fenced:
                break
            await yard.stop(other)  # the sleeper leads again
            await yard.leader(sleeper)
            other = yard.serve("runs=0")
            await yard.is_up(other)
    await yard.fires_on()
    await yard.quiet()
    await yard.stop(sleeper, other, worker)

    await yard.finish()
    await yard.judge(first_due=first_due)
    told = yard.told()
    terms = {won.term: won.pid for won in told.terms}
    assert told.fenced, "no plan of the sleeper was refused: the test does not bite"
    assert all(terms[term] == pid == sleeper.pid for term, pid in told.fenced)
    assert sorted(terms) == [won.term for won in sorted(told.terms, key=lambda won: won.at_ns)]
    assert "came too late: its term was over" in sleeper.log.read_text()


async def _sleep_with_a_plan_under_way(yard, backend, proxy, sleeper, other):
    proxy.hold(backend.may_plan)

    async def stands_before_the_door():
        return proxy.held >= backend.plans_at

    await wait_until(stands_before_the_door, "a plan on its way")
    sleeper.signal(signal.SIGSTOP)
    await wait_until(sleeper.is_stopped, "a stopped process")
    stopped_ns = time.monotonic_ns()
    await yard.leader(other)
    assert max(yard.told().terms).at_ns - stopped_ns <= LED_AGAIN_S * 1e9
    await yard.fires_on()
    proxy.mend()
    sleeper.signal(signal.SIGCONT)

    until = time.monotonic() + REFUSAL_S
    while not yard.told().fenced and time.monotonic() < until:  # noqa: ASYNC110  the other process writes it down
        await asyncio.sleep(LOOK_SECONDS)
