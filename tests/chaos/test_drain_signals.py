"""A node drains in order on SIGTERM, also in the middle of its work."""

import signal
import time

from pollux.model import RunState
from tests.chaos.checker import repeats_count, unfinished
from tests.chaos.node import INTERVALS
from tests.chaos.yard import wait_until

LOAD = 300
STEADY = "lease=60s"  # where nobody is killed none runs out, however long the machine stands still
TRIES = 3  # for what is to be quick: a machine may stand still just then, but not each time


async def test_sigterm_under_load_leaves_no_lease_charges_nothing_and_repeats_nothing(yard):
    """Every node is told to leave three times, in the middle of the load, and replaced; handlers are shorter than
    the grace, so each of them is run exactly once for each of its attempts."""
    crew = {"serve": yard.serve(STEADY), "worker": yard.worker(STEADY)}
    await yard.is_up(*crew.values())
    first_due = await yard.first_dues()
    client = yard.client(seed=7, count=LOAD, seconds=6)
    for name in ("worker", "serve") * 3:
        await _busy(yard, crew[name])
        leaving = crew[name]
        await yard.stop(leaving)
        leased = [run.id for run in await yard.runs(RunState.LEASED) if f":{leaving.pid}:" in run.owner]
        assert leased == [], "it left and kept leases"
        crew[name] = getattr(yard, name)(STEADY)
        await yard.is_up(crew[name])
    assert await client.exit_code() == 0, client.said()
    await yard.quiet()
    await yard.stop(*crew.values())

    store = await yard.judge(first_due=first_due)
    assert unfinished(store, but=list(INTERVALS)) == []
    assert repeats_count(yard.told()) == 0
    assert [run.id for run in store.runs if run.lease_losses] == []


async def test_a_resigning_leader_is_replaced_within_a_second(yard):
    nodes = [yard.serve(), yard.serve()]
    await yard.is_up(*nodes)
    first_due = await yard.first_dues()
    took_ms = []
    for _ in range(TRIES):
        leader = await yard.leader(*nodes)
        [other] = [node for node in nodes if node is not leader]
        told_ns = time.monotonic_ns()
        leader.signal(signal.SIGTERM)
        await yard.leader(other)
        assert await leader.exit_code() == 0
        took_ms.append((max(yard.told().terms).at_ns - told_ns) / 1_000_000)
        await yard.fires_on()
        if took_ms[-1] <= 1_000:
            break
        nodes = [other, yard.serve()]
        await yard.is_up(*nodes)
    await yard.stop(other)

    await yard.judge(first_due=first_due)
    assert min(took_ms) <= 1_000, took_ms


async def test_a_handler_longer_than_the_grace_is_handed_back_uncharged(yard, tmp_path):
    gate = tmp_path / "gate"
    serve, worker = yard.serve("runs=0"), yard.worker("grace=300ms")
    await yard.is_up(serve, worker)
    await yard.ask("patient", "p", file=str(gate))
    await yard.started(worker, "p")

    begun = time.monotonic()
    await yard.stop(worker)
    assert time.monotonic() - begun < 10, "as long as the others' grace"
    [run] = [run for run in await yard.runs() if run.id == "p"]
    assert (run.state, run.attempt, run.lease_losses, run.owner) == (RunState.READY, 0, 0, "")

    second = yard.worker()
    gate.touch()
    await yard.quiet()
    await yard.stop(serve, second)
    store = await yard.judge()
    [run] = [run for run in store.runs if run.id == "p"]
    assert (run.state, run.attempt, run.fence) == (RunState.DONE, 0, 2)


async def test_a_second_sigterm_ends_the_node_at_once(yard, tmp_path):
    """The grace is ten minutes and the handler waits for ever: the first signal would take all of it."""
    worker, serve = yard.worker("grace=10m"), yard.serve("runs=0")
    await yard.is_up(worker, serve)
    await yard.ask("patient-blocking", "p", file=str(tmp_path / "never"))
    await yard.started(worker, "p")

    worker.signal(signal.SIGTERM)
    await _drains(yard, worker)
    assert worker.is_alive, "it did not wait for its handler"

    async def told_again():
        worker.signal(signal.SIGTERM)  # one that follows the first too closely is taken for its echo
        return not worker.is_alive

    await wait_until(told_again, "the end of a node that was told twice")
    assert await worker.exit_code() == 128 + signal.SIGTERM


async def _busy(yard, process):
    async def look():
        told = yard.told()
        over = {(s.run_id, s.fence) for steps in (told.ends, told.fails, told.cuts) for s in steps}
        return any(s.pid == process.pid and (s.run_id, s.fence) not in over for s in told.runs)

    await wait_until(look, f"a handler running in pid {process.pid}")


async def _drains(yard, process):
    """It has heard the signal: it says so in its beat."""
    app = await yard.eye()

    async def look():
        return any(node.pid == process.pid and node.draining for node in await app.operations.status.nodes())

    await wait_until(look, "the node says that it drains")
