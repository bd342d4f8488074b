"""Bad days, with real processes: a full disk, a file that is deleted under a server.  What is promised holds."""

import re
import tempfile
from pathlib import Path

import pytest

from pollux.errors import StoreFull
from pollux.model import RunState
from pollux.store.sqlite.disk_space import BALLAST_BYTES
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped
from tests.chaos.yard import Yard, started, wait_until
from tests.store.disks import can_mount, small_disk

with tempfile.TemporaryDirectory() as _folder:
    KINDS = ("quota", "tmpfs") if can_mount(Path(_folder) / "try") else ("quota",)


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    with small_disk(tmp_path, request.param) as disk:
        yield disk


@pytest.fixture
async def yard(disk, tmp_path):
    """The ledger lies elsewhere: it must be able to tell."""
    yard = Yard(tmp_path)
    yard.file, yard.store = disk.file, f"sqlite:///{disk.file}"
    try:
        yield yard
    finally:
        await yard.close()


def serve(yard, disk, *options):
    words = ["-m", "tests.store.quota_node", yard.store, str(yard.ledger.path), *options]
    process = started(words, yard.folder / "node.log", disk.variables)
    yard.processes.append(process)
    return process


async def ask(yard, name: str) -> bool:
    """Ask for one run and write down what we heard; false if there was no room."""
    app = await yard.eye()
    yard.ledger.write("ask", name)
    try:
        await app.enqueue("plain", {"ms": 1}, id=name)
    except StoreFull:
        yard.ledger.write("enq", name, "err")
        return False
    yard.ledger.write("enq", name, "ok")
    return True


async def ended(yard, *names: str) -> None:
    async def look() -> bool:
        return {step.run_id for step in yard.told().ends} >= set(names)

    await wait_until(look, f"the end of {names}")


async def recorded(yard, *names: str) -> None:
    async def look() -> bool:
        return {run.id for run in await yard.runs(RunState.DONE)} >= set(names)

    await wait_until(look, f"the recorded outcomes of {names}")


async def test_a_full_disk_refuses_new_work_records_what_runs_and_loses_and_doubles_nothing(yard, disk, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    node = serve(yard, disk, "seats=20", "lease=60s")
    await yard.is_up(node)
    firsts, seconds = [f"first-{n}" for n in range(4)], [f"second-{n}" for n in range(4)]
    for file, names in ((first, firsts), (second, seconds)):
        for name in names:
            await yard.ask("patient", name, file=str(file))
    await yard.started(node, *firsts, *seconds)

    disk.fill()
    asked = 0
    while await ask(yard, f"r{asked}"):
        asked += 1
        assert asked < 100_000, "the disk was never full"
    first.touch()
    await recorded(yard, *firsts)  # through the ballast

    disk.fill()  # and now not even that is left
    second.touch()
    await ended(yard, *seconds)
    disk.make_room()
    await recorded(yard, *seconds)  # kept by the node until there was room

    async def accepted() -> bool:
        nonlocal asked
        asked += 1
        return await ask(yard, f"r{asked}")

    await wait_until(accepted, "new work is taken again")
    assert disk.file.with_name("pollux.db.ballast").stat().st_size == BALLAST_BYTES
    await yard.quiet()
    await yard.fires_on()
    await yard.stop(node)
    await yard.judge()


def test_a_full_disk_is_exit_code_3_with_the_cure(disk, tmp_path):
    """Asked in this process, where the quota holds."""
    (tmp_path / "here").mkdir()
    pollux = SameProcess(tmp_path / "here")
    store = ("--store", f"sqlite:///{disk.file}")
    pollux.write("p.yaml", 'jobs:\n  - {id: asked, python: "work:fine"}\n')
    with Terminal(pollux.folder).started("serve", "-c", "p.yaml", *store) as process:
        eventually(lambda: disk.file.exists() and pollux("jobs", *store).code == 0, "the store is there", process)
        eventually(lambda: "asked" in pollux("jobs", *store).out, "the job is declared", process)
        assert stopped(process).code == 0
    disk.fill()
    answer = pollux("jobs", "run", "asked", *store)

    assert answer.code == 3
    assert re.search(r"pollux: the disk under .* is full: .* make at least 5 MB of room", answer.err), answer
    assert pollux("jobs", *store).code == 0, "looking goes on"


def test_a_server_whose_file_is_deleted_says_so_once_and_makes_no_other(tmp_path):
    pollux = SameProcess(tmp_path)
    pollux.write("p.yaml", 'store: sqlite:///p.db\njobs:\n  - {id: tick, python: "work:fine", interval: 200ms}\n')
    log = tmp_path / "log"
    with log.open("wb") as out, pollux.started("serve", "-c", "p.yaml", "--no-watch", stderr=out) as process:
        done = ("runs", "--state", "done", "-c", "p.yaml", "--json")

        def runs() -> bool:
            answer = pollux(*done)
            return answer.code == 0 and bool(answer.json["runs"])

        eventually(runs, "a run is done", process)
        for file in tmp_path.glob("p.db*"):
            if file.is_file():  # the kept texts of the config lie in a folder beside it
                file.unlink()
        eventually(lambda: "was deleted while it was in use" in log.read_text(), "it is said", process)
        stopped(process)
    said = [line for line in log.read_text().splitlines() if "was deleted while it was in use" in line]
    loops = [re.search(r"loop (\w+)", line)[1] for line in said if "loop " in line]

    assert "pollux store restore" in said[0]
    assert len(loops) == len(set(loops)), "each loop says it once"
    assert not (tmp_path / "p.db").exists(), "an empty one in its place would hide the loss"
