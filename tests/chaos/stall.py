"""A worker that is suspended past its leases and resumed: the same test over every store."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from pollux.model import RunState
from tests.chaos.yard import Process, Yard, wait_until


async def sleep_past_a_lease(yard: Yard, folder: Path) -> None:
    """Its handlers sit in threads and are deaf: they do end, late, under the old fence, and change nothing."""
    early, late = folder / "early", folder / "late"
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


async def _ended_late(yard: Yard, process: Process, names: Sequence[str]) -> None:
    async def look() -> bool:
        ended = {step.run_id for step in yard.told().ends if step.pid == process.pid}
        return set(names) <= ended and {run_id for run_id, pid in yard.told().lost if pid == process.pid} >= set(names)

    await wait_until(look, "the late ends of the sleeper's handlers")
