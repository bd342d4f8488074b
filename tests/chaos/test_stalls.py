"""Who wins when a process sleeps through its lease or its term, and wakes up believing that nothing happened?"""

import signal

from pollux.model import RunState
from tests.chaos.yard import wait_until


async def test_a_worker_that_slept_past_its_lease_is_refused_and_the_new_result_stands(yard, tmp_path):
    """Its handlers sit in threads and are deaf: they do end, late, under the old fence, and change nothing."""
    early, late = tmp_path / "early", tmp_path / "late"
    names = [f"p{n}" for n in range(4)]
    serve, sleeper = yard.serve("runs=0"), yard.worker()
    await yard.is_up(serve, sleeper)
    for name in names:
        await yard.ask("patient-blocking", name, file=str(early))
    await yard.started(sleeper, *names)

    await yard.freeze(sleeper)
    other = yard.worker("lease=60s")  # what it takes up stays with it
    await yard.started(other, *names)
    early.touch()
    await yard.quiet()
    settled = {run.id: run for run in await yard.runs(RunState.DONE)}
    sleeper.signal(signal.SIGCONT)
    await _ended_late(yard, sleeper, names)
    await yard.ask("patient", "after", file=str(late))
    late.touch()
    await yard.quiet()
    await yard.stop(serve, sleeper, other)

    store = await yard.judge()
    after = {run.id: run for run in store.runs}
    for name in names:
        assert after[name] == settled[name], "the late result changed the run"
        assert (after[name].fence, after[name].result["pid"]) == (2, other.pid)
        assert after[name].attempt == 0
    told = yard.told()
    assert {(name, sleeper.pid) for name in names} <= set(told.lost), "the sleeper never heard that it lost the leases"
    assert {(step.run_id, step.fence) for step in told.ends if step.pid == sleeper.pid} >= {(n, 1) for n in names}


async def test_a_leader_that_slept_past_its_term_writes_nothing_more(yard):
    """The other one takes the term; whatever the sleeper had planned is refused, and it becomes a follower."""
    nodes = [yard.serve(), yard.serve()]
    await yard.is_up(*nodes)
    first_due = await yard.first_dues()
    for _ in range(2):
        leader = await yard.leader(*nodes)
        [other] = [node for node in nodes if node is not leader]
        await yard.freeze(leader)
        await yard.leader(other)
        await yard.fires_on()
        leader.signal(signal.SIGCONT)
        await yard.fires_on()
    await yard.stop(*nodes)

    await yard.judge(first_due=first_due)
    terms = [won.term for won in yard.told().terms]
    assert terms == sorted(set(terms))
    assert len(terms) >= 3


async def _ended_late(yard, process, names):
    async def look():
        ended = {step.run_id for step in yard.told().ends if step.pid == process.pid}
        return set(names) <= ended and {run_id for run_id, pid in yard.told().lost if pid == process.pid} >= set(names)

    await wait_until(look, "the late ends of the sleeper's handlers")
