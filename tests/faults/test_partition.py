"""A node that leads and runs is cut off from all others, goes on by itself, and comes back."""

import time

from pollux.model import RunState
from tests.chaos.yard import wait_until
from tests.faults.bounds import LED_AGAIN_S, TAKEN_UP_S, WORKS_AGAIN_S
from tests.faults.pressure import Pressure

NAMES = ("w0", "w1", "w2")


async def test_a_node_cut_off_loses_its_term_and_its_runs_and_its_late_words_are_refused(
    far_yard, backend, any_partition, tmp_path
):
    """Its handlers are deaf and end while it is cut off; its plan is on its way when the link breaks.  When it is back
    it does, with one beside it that leads, as much as before with another such."""
    yard, partition = far_yard, any_partition
    print(f"cut by {partition.how}")
    first = yard.serve()
    await yard.leader(first)
    first_due = await yard.first_dues()
    lonely = yard.node(f"seats={len(NAMES)}", store=partition.url, before=partition.before)
    await yard.is_up(lonely)
    async with Pressure(yard).as_before():
        await yard.stop(first)  # so that the lonely one leads, and has what is asked for next
        other = await _beside_a_busy_leader(yard, lonely, tmp_path / "gate")
        cut_ns, settled = await _cut_off_and_back(yard, backend, partition, lonely, other, tmp_path / "gate")
    await yard.fires_on()
    await yard.quiet()
    await yard.stop(lonely, other)

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    told = yard.told()
    after = {run.id: run for run in store.runs}
    for name in NAMES:
        assert after[name] == settled[name], "the late result changed the run"
        assert (after[name].fence, after[name].result["pid"], after[name].attempt) == (2, other.pid, 0)
    assert {step.run_id for step in told.ends if step.pid == lonely.pid} >= set(NAMES), "its handlers did end"
    assert told.fenced, "no plan of the one that was cut off was refused: the test does not bite"
    assert {pid for _, pid in told.fenced} == {lonely.pid}
    won = next(won for won in told.terms if won.pid == other.pid)
    assert won.at_ns - cut_ns <= LED_AGAIN_S * 1e9
    again = [step.at_ns for step in told.runs if step.pid == other.pid and step.run_id in NAMES]
    assert max(again) - cut_ns <= TAKEN_UP_S * 1e9


async def _beside_a_busy_leader(yard, leader, gate):
    """Another one, which is up when the leader has all that waits for the gate."""
    await yard.leader(leader)
    for name in NAMES:
        await yard.ask("patient-blocking", name, file=str(gate))
    await yard.started(leader, *NAMES)
    other = yard.serve("lease=60s")  # what it takes up stays with it
    await yard.is_up(other)
    return other


async def _cut_off_and_back(yard, backend, partition, lonely, other, gate):
    """When it was cut off, and how its runs had ended when it came back."""
    partition.proxy.hold(backend.may_plan)
    await wait_until(lambda: _holds(partition.proxy, backend), "a plan on its way")
    partition.cut()
    cut_ns = time.monotonic_ns()
    await yard.leader(other)
    await yard.started(other, *NAMES)
    gate.touch()
    await yard.quiet()
    settled = {run.id: run for run in await yard.runs(RunState.DONE) if run.id in NAMES}
    partition.heal()
    partition.proxy.mend()
    healed_ns = time.monotonic_ns()
    await wait_until(lambda: _is_back(yard, lonely, healed_ns), "its return", seconds=WORKS_AGAIN_S)
    return cut_ns, settled


async def _holds(proxy, backend):
    return proxy.held >= backend.plans_at


async def _is_back(yard, process, since_ns):
    """It has heard that its leases are lost, and runs something new."""
    told = yard.told()
    has_heard = {(name, process.pid) for name in NAMES} <= set(told.lost)
    return has_heard and any(step.pid == process.pid and step.at_ns > since_ns for step in told.runs)
