"""One poison run of each kind among two hundred harmless ones: it ends dead with its reason, no other run does."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from pollux.model import LIVE, RunState
from tests.chaos.poison_node import POISONS, make_app
from tests.chaos.yard import Process, Yard, wait_until
from tests.leaks import MARK, ours

INNOCENTS = 200
NAMES = [poison.__name__ for poison in POISONS]
REASONS = {
    "segfault": "Crashed: its child was killed by SIGSEGV, 3 times",
    "abort": "Crashed: its child was killed by SIGABRT, 3 times",
    "vanish": "Crashed: its child ended with exit code 3 before its handler did, 3 times",
    "breed": "Crashed: its child was killed by SIGKILL, 3 times",
    "hog": "MemoryError (poison_node.py:",
    "leave": "SystemExit: 5 (poison_node.py:",
}
KILLERS = set(NAMES) - {"leave"}  # these take a node with them


class Ward:
    """Nodes that are started again whenever they die, as a supervisor does."""

    def __init__(self, yard: Yard, *options: str) -> None:
        self.yard, self.options = yard, options
        self.deaths: list[int] = []
        self.nodes: list[Process] = []

    def start(self, count: int) -> None:
        self.nodes += [self.yard._start("poison_node", "plans=0", *self.options) for _ in range(count)]

    def tend(self) -> None:
        for node in [node for node in self.nodes if not node.is_alive]:
            self.deaths.append(node.returncode)
            self.nodes.remove(node)
            self.start(1)


@pytest.fixture
def brood(tmp_path):
    """Whoever was bred in a node lives on; it ends here, whatever the test found."""
    path = tmp_path / "brood"
    yield path
    for line in path.read_text().splitlines() if path.exists() else ():
        pid, where = line.split()
        if where == "node" and is_alive(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists()


async def asked(yard: Yard, brood: Path, isolate: str) -> None:
    """The jobs are there, and the runs: the poison spread among the innocents."""
    app = make_app(yard.store, isolate=isolate)
    await app.open()
    await app.declared.write(app._store)
    each = INNOCENTS // len(NAMES)
    for number, name in enumerate(NAMES):
        await innocents(app, yard, number * each, (number + 1) * each)
        await app.enqueue(name, {"brood": str(brood)} if name == "breed" else {}, id=name)
    await innocents(app, yard, len(NAMES) * each, INNOCENTS)
    await app.close()


async def innocents(app, yard: Yard, first: int, last: int) -> None:
    for number in range(first, last):
        await app.enqueue("innocent", {"ledger": str(yard.ledger.path)}, id=f"i{number}")


async def ended(yard: Yard, ward: Ward) -> None:
    async def look() -> bool:
        ward.tend()
        return not await yard.runs(*sorted(LIVE))

    await wait_until(look, "the end of all runs", seconds=90)


async def judged(yard: Yard) -> dict:
    """No innocent was given up on, and each outcome is that of one handler that ended."""
    runs = {run.id: run for run in await yard.runs()}
    told = yard.told()
    wrong = []
    finished = {(step.run_id, step.pid) for step in told.ends}
    starts = Counter(step.run_id for step in told.runs)
    for number in range(INNOCENTS):
        run = runs[f"i{number}"]
        if run.state is not RunState.DONE or (run.id, run.result) not in finished:
            wrong.append(f"{run.id}: {run.state} {run.error}")
        if starts[run.id] > 1 + run.lease_losses:
            wrong.append(f"{run.id}: {starts[run.id]} starts, {run.lease_losses} lost leases")
    assert not wrong
    poison = {name: runs[name] for name in NAMES}
    for name, run in poison.items():
        assert run.state is RunState.DEAD, name
        assert run.error.startswith(REASONS[name]), (name, run.error)
        assert run.crashes == (3 if "Crashed" in run.error else 0), name
    return poison


def left_of(brood: Path) -> list[str]:
    """Processes of children: bred ones, wardens, interpreters."""
    bred = [line.split()[0] for line in brood.read_text().splitlines() if line.endswith("child")]
    assert bred
    return [pid for pid in bred if is_alive(int(pid))] + [
        process.command for process in ours(os.environ[MARK]) if "process_guard" in process.command
    ]


async def test_poison_that_kills_workers_ends_dead_and_takes_no_innocent_with_it(yard, brood):
    await asked(yard, brood, "suspect")
    planner = yard._start("poison_node", "runs=0")
    ward = Ward(yard)
    ward.start(2)
    await ended(yard, ward)
    await yard.stop(planner, *ward.nodes)
    poison = await judged(yard)
    assert len(ward.deaths) >= len(KILLERS), "each of them has killed a node"
    assert {name for name, run in poison.items() if run.lease_losses} >= KILLERS
    assert len(ward.deaths) <= 2 * len(KILLERS), "and none of them three: it was tried in a child after two"
    assert left_of(brood) == []


async def test_with_isolation_the_worker_never_dies(yard, brood):
    await asked(yard, brood, "process")
    ward = Ward(yard, "isolate=process", "lease=60s")
    ward.start(1)
    [worker] = ward.nodes
    await ended(yard, ward)
    assert ward.deaths == []
    assert worker.is_alive
    await yard.stop(worker)
    poison = await judged(yard)
    assert {run.lease_losses for run in poison.values()} == {0}
    assert {step.pid for step in yard.told().runs} == {worker.pid}, "innocents stay in the node"
    assert left_of(brood) == []


async def test_when_the_node_is_killed_nothing_of_its_children_lives_on(yard, brood):
    app = make_app(yard.store, isolate="process")
    await app.open()
    await app.declared.write(app._store)
    await app.enqueue("breed", {"brood": str(brood), "stay": True}, id="breed")
    await app.close()
    ward = Ward(yard, "isolate=process")
    ward.start(1)

    async def bred() -> bool:
        return brood.exists() and brood.read_text().count("\n") == 2

    await wait_until(bred, "the children of the child")
    assert len(left_of(brood)) == 3, "two of them, and their warden"
    await yard.kill(*ward.nodes)

    async def gone() -> bool:
        return left_of(brood) == []

    await wait_until(gone, "the end of the children")
