"""`pollux serve` and `pollux worker` in real processes: they run, they drain, they say what is wrong."""

import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.terminal import PATIENCE_SECONDS, Terminal, eventually, read_until, stopped

SLOW = """
store: sqlite:///p.db
jobs: [{id: slow, python: "work:slow", once: true, params: {seconds: %s}}]
"""


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    return Terminal(tmp_path)


def done_runs(pollux, job_id) -> list:
    if not (pollux.folder / "p.db").exists():
        return []
    answer = pollux("runs", "--job", job_id, "--state", "done", "--json", "--store", "sqlite:///p.db")
    return answer.json["runs"] if answer.code == 0 else []


def test_sigterm_lets_a_running_handler_finish_and_ends_with_zero(pollux):
    pollux.write("p.yaml", SLOW % 1.0)
    with pollux.started("serve", "-c", "p.yaml") as process:
        eventually((pollux.folder / "slow.started").exists, "the handler started", process)
        answer = stopped(process)
    assert answer.code == 0
    assert (pollux.folder / "slow.ended").exists()
    assert [run["id"].split("@")[0] for run in done_runs(pollux, "slow")] == ["slow"]


def test_what_does_not_finish_within_the_grace_is_handed_back(pollux):
    pollux.write("p.yaml", SLOW % 600 + "pool: {grace: 100ms}\n")
    with pollux.started("serve", "-c", "p.yaml") as process:
        eventually((pollux.folder / "slow.started").exists, "the handler started", process)
        answer = stopped(process)
    assert answer.code == 0
    [run] = pollux.ok("runs", "--json", "-c", "p.yaml").json["runs"]
    assert (run["state"], run["attempt"], run["lease_losses"]) == ("ready", 1, 0)


def test_a_second_signal_ends_it_at_once(pollux):
    """Though the handler and its grace would go on for ten minutes."""
    pollux.write("p.yaml", "pool: {grace: 10m}\n" + SLOW % 600)
    with pollux.started("serve", "-c", "p.yaml") as process:
        eventually((pollux.folder / "slow.started").exists, "the handler started", process)
        process.send_signal(signal.SIGTERM)
        nodes = ("nodes", "-c", "p.yaml", "--json")
        eventually(lambda: all(n["draining"] for n in pollux.ok(*nodes).json["nodes"]), "it drains", process)

        def is_told_again():
            process.send_signal(signal.SIGTERM)  # one that follows the first too closely is taken for its echo
            return process.poll() is not None

        eventually(is_told_again, "it ended")
    assert process.returncode == 128 + signal.SIGTERM


def test_a_signal_told_twice_at_once_is_one_wish(pollux):
    """`timeout`, shells and supervisors tell the process and then its group."""
    pollux.write("p.yaml", SLOW % 1.0)
    with pollux.started("serve", "-c", "p.yaml") as process:
        eventually((pollux.folder / "slow.started").exists, "the handler started", process)
        process.send_signal(signal.SIGSTOP)  # it hears both when it goes on: however slow we are, they came at once
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert (pollux.folder / "slow.ended").exists()


DEAF = """
import asyncio
import time
from pathlib import Path

async def deaf(ctx):
    Path("deaf.started").touch()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def elsewhere(ctx):
    Path("deaf.started").touch()
    await asyncio.to_thread(time.sleep, 3600)

def thread(ctx):
    Path("deaf.started").touch()
    time.sleep(3600)
"""


@pytest.mark.parametrize("watch", ["--watch", "--no-watch"])
@pytest.mark.parametrize("handler", ["deaf", "elsewhere", "thread"])
def test_a_handler_that_ignores_its_end_does_not_keep_the_process(pollux, handler, watch):
    pollux.write("ears.py", DEAF)
    job = f'{{id: d, python: "ears:{handler}", once: true}}'
    pollux.write("p.yaml", f"store: sqlite:///p.db\npool: {{grace: 0s}}\njobs: [{job}]")
    with pollux.started("serve", "-c", "p.yaml", watch) as process:
        eventually((pollux.folder / "deaf.started").exists, "the handler started", process)
        answer = stopped(process)
    assert answer.code == 0
    assert "destroyed" not in answer.err
    [run] = pollux.ok("runs", "--json", "-c", "p.yaml").json["runs"]
    assert (run["state"], run["attempt"]) == ("ready", 1), "it was handed back"


def test_what_fails_and_what_a_start_changed_is_in_the_log(pollux):
    pollux.write("p.yaml", 'jobs: [{id: a, python: "work:refuse", interval: 100ms}, {id: b, python: "work:fine"}]')
    with pollux.started("serve", "-c", "p.yaml", "--store", "sqlite:///p.db") as process:
        look = ("jobs", "show", "a", "--json", "--store", "sqlite:///p.db")
        eventually((pollux.folder / "p.db").exists, "the store is there", process)
        eventually(lambda: pollux(*look).code == 0, "the store answers", process)
        eventually(lambda: pollux.ok(*look).json["job"]["memory"]["failures"] > 3, "it failed again and again", process)
        answer = stopped(process)
    assert "file:p.yaml: 2 jobs added, 0 changed, 0 removed" in answer.err
    told = [line for line in answer.err.splitlines() if "WARNING job a: run a@" in line]
    assert len(told) == 1, "the same failure is said once a minute"
    assert "failed: Permanent: it never works[31m (work.py:" in told[0]
    assert "in refuse); it is a dead letter, see `pollux dead`" in told[0]


def test_an_empty_config_starts_says_how_to_add_a_job_and_does_not_spin(pollux):
    pollux.write("empty.yaml", "")
    with pollux.started("serve", "-c", "empty.yaml", "--store", "sqlite:///p.db") as process:
        eventually(lambda: leads(pollux), "it leads", process)
        used = min(_used_while_idle(process.pid) for _ in range(2))  # its start may reach into the first
        answer = stopped(process)
    assert answer.code == 0
    assert 'add one to empty.yaml: jobs: [{id: home, python: "checks:home", interval: 30s}]' in answer.err
    assert used < 0.25, f"{used} s of CPU in 1.5 s of idleness"


def _used_while_idle(pid: int) -> float:
    before = cpu_seconds(pid)
    time.sleep(1.5)  # how much it does while it has nothing to do
    return cpu_seconds(pid) - before


def leads(pollux) -> bool:
    if not (pollux.folder / "p.db").exists():
        return False
    answer = pollux("nodes", "--json", "--store", "sqlite:///p.db")
    return answer.code == 0 and any(node["leads"] for node in answer.json["nodes"])


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_without_a_terminal_there_are_log_lines_and_no_table(pollux):
    pollux.write("p.yaml", 'jobs: [{id: a, python: "work:fine", interval: 1h}]')
    with pollux.started("serve", "-c", "p.yaml", "--store", "sqlite:///p.db") as process:
        eventually(lambda: done_runs(pollux, "a"), "the job ran", process)
        answer = stopped(process)
    assert answer.out == ""
    assert re.search(r"^\d{4}-\d\d-\d\d \S+ INFO +1 job on sqlite:///p.db", answer.err, re.MULTILINE)
    assert re.search(r"^\S+ \S+ INFO +node \S+ stopped, drained", answer.err, re.MULTILINE)


def test_on_a_terminal_there_is_a_live_table(pollux):
    pollux.write("p.yaml", 'jobs: [{id: home/a, python: "work:fine", interval: 1h}]')
    ours, theirs = pty.openpty()
    try:
        with pollux.started("serve", "-c", "p.yaml", "--store", "sqlite:///p.db", stdout=theirs) as process:
            seen = read_until(ours, ["home/a", "every 1h", "next due", "changed", "term 1", "pollux jobs --store"])
            answer = stopped(process, signal.SIGINT)
            seen += read_until(ours, ["stopped"])
    finally:
        os.close(ours)
        os.close(theirs)
    assert answer.code == 0
    assert "stop: Ctrl-C" in seen


def test_a_table_can_be_asked_for_in_a_pipe(pollux):
    pollux.write("p.yaml", 'jobs: [{id: home/a, python: "work:fine", interval: 1h}]')
    with pollux.started("serve", "-c", "p.yaml", "--store", "sqlite:///p.db", "--watch") as process:
        eventually(lambda: done_runs(pollux, "home/a"), "the job ran", process)
        answer = stopped(process)
    assert answer.code == 0
    assert "home/a" in answer.out
    assert "\x1b" not in answer.out


def test_a_worker_runs_what_is_asked_for_and_never_leads(pollux):
    pollux.write("p.yaml", 'store: sqlite:///p.db\njobs: [{id: a, python: "work:fine"}]')
    with pollux.started("serve", "-c", "p.yaml") as planner:
        eventually(lambda: leads(pollux), "somebody leads", planner)
        assert stopped(planner).code == 0
    with pollux.started("worker", "-c", "p.yaml", "--seats", "3") as process:
        nodes = ("nodes", "-c", "p.yaml", "--json")
        [node] = eventually(lambda: pollux.ok(*nodes).json["nodes"], "the worker beats", process)
        pollux.ok("jobs", "run", "a", "-c", "p.yaml")
        eventually(lambda: done_runs(pollux, "a"), "the worker ran it", process)
        assert pollux.ok(*nodes).json["nodes"][0]["leads"] == 0
        assert stopped(process).code == 0
    assert (node["seats"], node["pid"], node["handlers"]) == (3, process.pid, ["http", "work:fine"])


def test_an_app_of_ones_own_is_served_by_name(pollux):
    with pollux.started("serve", "--app", "work:app") as process:
        where = ("--store", "sqlite:///app.db", "--json")
        eventually((pollux.folder / "app.db").exists, "the store is there", process)
        eventually(lambda: pollux("runs", "--state", "done", *where).code == 0, "the store answers", process)
        [run] = eventually(lambda: pollux.ok("runs", "--state", "done", *where).json["runs"], "it ran", process)
        assert stopped(process).code == 0
    assert (run["job_id"], run["result"]) == ("tick", "tock")


def test_a_bad_config_gives_every_problem_and_starts_nothing(pollux):
    pollux.write("p.yaml", "store: sqlite:///p.db\njobs:\n  - {id: a}\n  - {id: b, pyton: x}\n  - 5\n")
    answer = pollux("serve", "-c", "p.yaml")
    assert answer.code == 2
    assert answer.err.startswith("pollux: p.yaml:3:5: job 'a'")
    assert answer.err.splitlines()[-1] == "4 problems"
    assert not (pollux.folder / "p.db").exists()


def test_code_that_cannot_be_imported_is_named_with_its_line(pollux):
    pollux.write("broken.py", "import no_such_module_at_all\n")
    pollux.write("p.yaml", 'jobs:\n  - {id: a, python: "broken:f"}\n  - {id: b, python: "work:nothing"}\n')
    answer = pollux("serve", "-c", "p.yaml", "--store", "memory://")
    assert answer.code == 2
    assert "p.yaml:2:21" in answer.err
    assert "no_such_module_at_all" in answer.err
    assert "p.yaml:3:21" in answer.err
    assert "fine" in answer.err, "what is there is not named"


@pytest.mark.parametrize("url", ["sqlite:///work.py/p.db", "sqlite:///work.py", "nonsense://x"])
def test_a_store_that_cannot_be_used_ends_with_one_line(pollux, url):
    answer = pollux("serve", "--store", url, "--no-watch")
    assert answer.code in {2, 3}
    assert len([line for line in answer.err.splitlines() if line.startswith("pollux: ")]) == 1


def test_the_demo_runs(pollux):
    """The file that `make run` starts, in a folder of its own."""
    examples = Path(__file__).parents[2] / "examples"
    for name in ("demo.yaml", "demo.py"):
        (pollux.folder / name).write_text((examples / name).read_text())
    where = ("-c", "demo.yaml", "--json")
    with pollux.started("serve", "-c", "demo.yaml", "--watch") as process:
        eventually((pollux.folder / "pollux-demo.db").exists, "the store is there", process)
        eventually(lambda: pollux("jobs", *where).code == 0, "the store answers", process)
        eventually(lambda: pollux.ok("dead", *where).json["dead"], "something died", process)
        for job_id in ("sensor/wind", "words", "flaky", "import"):
            runs = ("runs", "--job", job_id, "--state", "done")
            eventually(lambda runs=runs: pollux.ok(*runs, *where).json["runs"], f"{job_id} ran", process)
        answer = stopped(process)
    assert answer.code == 0
    assert isinstance(process, subprocess.Popen)
    assert "sweep" in answer.out


def test_every_run_is_logged_if_asked_for(pollux):
    pollux.write("p.yaml", 'jobs: [{id: a, python: "work:fine", interval: 1h}]')
    with pollux.started("serve", "-c", "p.yaml", "--store", "sqlite:///p.db", "--verbose") as process:
        eventually(lambda: done_runs(pollux, "a"), "the job ran", process)
        answer = stopped(process)
    assert re.search(r"DEBUG +run a@\d+ started", answer.err)
