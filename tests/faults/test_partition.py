"""What if a node that leads and runs is cut off from everybody, goes on for itself, and comes back?"""

import time

from pollux.model import RunState
from tests.chaos.yard import wait_until

LEASE_S, LEADER_TTL_S = 2.0, 3.0  # as in `node.OPTIONS`
BACKOFF_S, SLACK_S = 3.0, 10.0


async def test_a_node_cut_off_loses_its_term_and_its_runs_and_its_late_words_are_refused(
    far_yard, backend, any_partition, tmp_path
):
    """Its handlers are deaf and end while it is cut off; its plan is on its way when the link breaks."""
    yard, partition, gate, names = far_yard, any_partition, tmp_path / "gate", ["p0", "p1", "p2"]
    print(f"cut by {partition.how}")
    lonely = yard.node("seats=3", store=partition.url, before=partition.before)
    await yard.leader(lonely)
    first_due = await yard.first_dues()
    for name in names:
        await yard.ask("patient-blocking", name, file=str(gate))
    await yard.started(lonely, *names)
    other = yard.serve("lease=60s")  # what it takes up stays with it
    await yard.is_up(other)

    partition.proxy.hold(backend.may_plan)
    await wait_until(lambda: _holds(partition.proxy, backend), "a plan on its way")
    partition.cut()
    cut_ns = time.monotonic_ns()
    await yard.leader(other)
    await yard.started(other, *names)
    gate.touch()
    await yard.quiet()
    settled = {run.id: run for run in await yard.runs(RunState.DONE) if run.id in names}
    partition.heal()
    partition.proxy.mend()
    healed_ns = time.monotonic_ns()
    await wait_until(lambda: _is_back(yard, lonely, names, healed_ns), "its return", seconds=BACKOFF_S + SLACK_S)
    await yard.fires_on()
    await yard.stop(lonely, other)

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    told = yard.told()
    after = {run.id: run for run in store.runs}
    for name in names:
        assert after[name] == settled[name], "the late result changed the run"
        assert (after[name].fence, after[name].result["pid"], after[name].attempt) == (2, other.pid, 0)
    assert {step.run_id for step in told.ends if step.pid == lonely.pid} >= set(names), "its handlers did end"
    assert told.fenced, "no plan of the one that was cut off was refused: the test does not bite"
    assert {pid for _, pid in told.fenced} == {lonely.pid}
    won = next(won for won in told.terms if won.pid == other.pid)
    assert won.at_ns - cut_ns <= (LEADER_TTL_S + BACKOFF_S + SLACK_S) * 1e9
    again = [step.at_ns for step in told.runs if step.pid == other.pid and step.run_id in names]
    assert max(again) - cut_ns <= (LEASE_S + BACKOFF_S + SLACK_S) * 1e9


async def _holds(proxy, backend):
    return proxy.held >= backend.plans_at


async def _is_back(yard, process, names, since_ns):
    """It has heard that its leases are lost, and runs something new."""
    told = yard.told()
    has_heard = {(name, process.pid) for name in names} <= set(told.lost)
    return has_heard and any(step.pid == process.pid and step.at_ns > since_ns for step in told.runs)
