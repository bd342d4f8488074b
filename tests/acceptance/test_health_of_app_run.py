"""`python app.py` with `app.run()`: what holds it up is known to `pollux health`, by handler and line."""

import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.acceptance.terminal import PATIENCE_SECONDS, Terminal, eventually, stopped

APP = """
import asyncio
import time
from pathlib import Path

from msgspec.structs import replace
from pollux import Pollux, every

app = Pollux("sqlite:///shop.db", name="shop", seats=2, grace="100ms")
app.options = replace(app.options, beat_ms=500, leader_ttl_ms=120_000)  # health is what a beat says, of a leader


def busy(name):
    Path("began-" + name).touch()
    while not Path("end").exists():
        time.sleep(0.01)  # the line of busy


@app.job()
async def blocking(ctx):
    busy("blocking")  # the line of blocking


@app.job(timeout="1s")
def deaf(ctx):
    busy("deaf")


@app.job()
async def slow(ctx):
    Path("began-slow").touch()
    while not Path("end").exists():
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    app.run()
"""
LINE = next(number for number, line in enumerate(APP.splitlines(), 1) if "the line of busy" in line)


class Program(Terminal):
    """`app.py` in a folder of its own, and commands beside it."""

    def __init__(self, folder, text=APP, *, listens=False):
        super().__init__(folder)
        self.write("app.py", text)
        self.own = {"POLLUX_SERVER": "true"} if listens else {}

    def environ(self, extra=None):
        return super().environ(self.own | (extra or {}))

    @contextmanager
    def running(self):
        log = (self.folder / "log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "app.py"], cwd=self.folder, env=self.environ(), stdout=log, stderr=log
        )
        try:
            eventually(lambda: "leads" in (self.folder / "log").read_text(), "it leads", process)
            yield process
        finally:
            (self.folder / "end").touch()
            process.kill()
            process.wait(PATIENCE_SECONDS)
            log.close()

    def began(self, name, process):
        eventually((self.folder / f"began-{name}").exists, f"{name} began", process)

    def diagnosis(self, about, *where):
        """What doctor says of it: level, what was seen and the cure in one line."""
        found = self("doctor", "--json", *where).json["findings"]
        [line] = [f"{each['level']} {each['seen']}; {each['cure']}" for each in found if each["about"] == about] or [""]
        return line

    def finding(self, name, *where):
        told = self("health", *where)
        [line] = [line for line in told.out.splitlines() if line.startswith(f"{name} ")] or [""]
        return line


STORE = ("--store", "sqlite:///shop.db")


def test_a_blocked_loop_is_told_while_it_is_blocked_with_the_handler_and_the_line(tmp_path):
    program = Program(tmp_path)
    with program.running() as process:
        assert program("enqueue", "blocking", *STORE).code == 0
        program.began("blocking", process)
        words = rf"degraded .*blocked for \S+ by handler blocking, app.py:{LINE} in busy"
        eventually(lambda: re.search(words, program.finding("loop", *STORE)), "health tells it", process)
        log = rf"WARNING .*event loop of node \S+ is blocked by handler blocking, app.py:{LINE} in busy"
        eventually(lambda: re.search(log, (tmp_path / "log").read_text()), "the log does, while it is blocked", process)


def test_a_handler_that_does_not_stop_is_told_with_its_line(tmp_path):
    program = Program(tmp_path)
    with program.running() as process:
        assert program("enqueue", "deaf", *STORE).code == 0
        program.began("deaf", process)
        words = rf"1 handler of node \S+ did not stop at the timeout, .*: handler deaf, app.py:{LINE} in busy"
        eventually(lambda: re.search(words, program.finding("handlers", *STORE)), "health tells it", process)
        assert re.search(rf"warn {words}", program.diagnosis("handlers", *STORE))


def test_full_seats_are_told_with_their_handlers(tmp_path):
    program = Program(tmp_path, APP.replace("@app.job()\nasync def slow", '@app.job(overlap="allow")\nasync def slow'))
    with program.running() as process:
        assert program("enqueue", "slow", *STORE).code == program("enqueue", "slow", *STORE).code == 0
        words = r"2 of 2 seats busy by slow \(2\)"
        eventually(lambda: re.search(words, program.finding("handlers", *STORE)), "health tells it", process)
        assert re.search(rf"ok {words}", program.diagnosis("handlers", *STORE))


@pytest.mark.parametrize(
    "where", [(), ("--app", "app:app"), STORE], ids=["from its folder", "by its name", "the store"]
)
def test_doctor_names_what_holds_the_loop_and_blames_it_for_what_is_late(tmp_path, where):
    """Also for a node that cannot answer meanwhile: the seats are those of the node that was found."""
    late = '@app.job(every("1s"))\nasync def late(ctx):\n    pass\n\n\nif __name__'
    program = Program(tmp_path, APP.replace("if __name__", late), listens=True)
    by = rf"blocked for \S+ by handler blocking, app.py:{LINE} in busy"
    with program.running() as process:
        assert program("enqueue", "blocking", *STORE).code == 0
        program.began("blocking", process)
        loop = rf"warn the event loop of node \S+ was {by}; a handler computes or blocks on it: "
        eventually(lambda: re.search(loop, program.diagnosis("loop", *where)), "doctor tells it", process)
        due = rf"job late was due \S+ ago and has not fired; the event loop of the leader, node \S+, was {by}: `loop`"
        eventually(lambda: re.search(due, program.diagnosis("due times", *where)), "it is blamed", process)
        assert "enough for 2 seats" in program.diagnosis("open files", *where)
        assert re.search(
            rf"due .*; the event loop of the leader, node \S+, was {by}", program("why", "late", *STORE).out
        )
        health = rf"due but not fired: job late for .* the event loop of the leader, node \S+, was {by}: a handler"
        assert re.search(health, program.finding("due", *STORE))


def test_once_it_is_gone_its_store_is_named_to_whoever_names_none(tmp_path):
    program = Program(tmp_path)
    program.write("other.db", "no store of anybody")
    nothing = program("runs")
    assert "start one with `pollux serve --store sqlite:///pollux.db`" in nothing.err
    assert "name the one that is meant with --store, --app MODULE:ATTRIBUTE or -c" in nothing.err
    with program.running() as process:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
    told = program("runs")
    assert (told.code, told.out) == (3, "")
    assert "there is no store sqlite:///pollux.db" in told.err
    assert "this folder has sqlite:///shop.db: name it with --store sqlite:///shop.db" in told.err
    assert "other.db" not in told.err
    assert "this folder has" not in program("runs", "--store", "sqlite:///none.db").err, "it was named"


def test_the_cure_names_how_this_app_is_started(tmp_path):
    """Once it is gone: a program of one's own, and a file."""
    program = Program(tmp_path, APP.replace("@app.job()\nasync def slow", '@app.job(every("1h"))\nasync def slow'))
    with program.running() as process:
        eventually(lambda: "put just now" not in program("why", "slow", *STORE).out, "the leader planned it", process)
        process.terminate()
        process.wait(PATIENCE_SECONDS)
    how = f"start one: `python app.py` (in {tmp_path} on "
    assert how in program.finding("nodes", *STORE)
    assert f"start a node: `python app.py` (in {tmp_path} on " in program("why", "slow", *STORE).out
    assert "start one with `python app.py` (in " in program("nodes", *STORE).err


def test_the_cure_for_a_file_names_the_file(tmp_path):
    pollux = Terminal(tmp_path)
    pollux.write("shop.yaml", "store: sqlite:///shop.db\njobs: [{id: fine, python: 'work:fine', interval: 1h}]\n")
    with pollux.started("serve", "-c", "shop.yaml") as process:
        eventually(lambda: "term 1" in pollux("nodes", *STORE).out, "it leads", process)
        assert stopped(process).code == 0
    told = pollux("health", *STORE).out
    assert f"start one: `pollux serve -c shop.yaml` (in {tmp_path} on " in told
    assert "`pollux serve -c shop.yaml`" in pollux("why", "fine", *STORE).out


# by its own socket


def answered(program, process, *command):
    """What the running program answers, once it is asked itself: the first to ask waits for what answers."""

    def look():
        told = program(*command, "--verbose")
        return told if "a node is asked: the socket" in told.err else None

    return eventually(look, "it is asked itself", process)


@pytest.mark.parametrize("where", [(), ("--app", "app:app")], ids=["from its folder", "by its name"])
def test_a_running_program_is_found_and_tells_of_itself(tmp_path, where):
    """On a store that is not the usual one, and nobody named it."""
    program = Program(tmp_path, listens=True)
    with program.running() as process:
        told = answered(program, process, "health", *where)
        assert re.search(r"polling +healthy +\d+ loops turn", told.out)
        assert re.search(r"handlers +healthy +0 of 2 seats busy", told.out)
        options = {each["option"]: each for each in program.ok("config", "--json", *where).json["options"]}
        assert (options["store"]["value"], options["store"]["origin"]) == ("sqlite:///shop.db", "code")
        assert (options["pool.seats"]["value"], options["pool.seats"]["origin"]) == ("2", "code")
        assert (options["pool.grace"]["value"], options["pool.lease"]["origin"]) == ("100ms", "default")
        assert "it has no schedule and runs when asked" in program.ok("why", "slow", *where).out
        findings = {each["about"]: each for each in program("doctor", "--json", *where).json["findings"]}
        assert "commands ask the socket" in findings["asked"]["seen"]
        assert "version" in findings["schema"]["seen"], "it looked at the store of the app"
        assert re.search(r"\d+ loops turn", findings["polling"]["seen"]), "it asked the node, as health does"
        assert "ms at most in the last minute" in findings["loop"]["seen"]
        assert findings["handlers"]["seen"] == "0 of 2 seats busy"
        assert "enough for 2 seats" in findings["open files"]["seen"]
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    assert not [*tmp_path.glob("*.sock"), *(tmp_path / "state" / "pollux").iterdir()], "nothing is left behind"


def test_the_environment_may_name_the_app_and_a_memory_store_has_only_its_node(tmp_path):
    program = Program(tmp_path, APP.replace("sqlite:///shop.db", "memory://"), listens=True)
    program.own["POLLUX_APP"] = "app:app"
    assert "no node of it runs from this folder" in program("jobs").err
    with program.running() as process:
        told = answered(program, process, "health")
        assert "the store answers; 3 jobs" in told.out
        assert "slow" in program.ok("jobs").out


def test_a_store_of_the_usual_name_is_what_is_meant_and_a_node_on_another_one_is_hinted_at(tmp_path):
    program = Program(tmp_path, listens=True)
    program.write("make.py", "import asyncio\nfrom pollux import Pollux\nasyncio.run(Pollux().open())\n")
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, env=program.environ(), check=True)
    with program.running():
        told = program("jobs")
        assert told.err.splitlines()[0].startswith("pollux: a node here works on another store (pid ")
        assert "on sqlite:///shop.db); this is about sqlite:///pollux.db" in told.err


def test_an_unknown_param_is_refused_by_the_node_that_is_asked_and_a_dead_letter_on_the_store_itself(tmp_path):
    """The node has the code; a command that goes past it imports none."""
    program = Program(tmp_path, listens=True)
    with program.running() as process:
        answered(program, process, "health")
        refused = program("enqueue", "slow", "nam=Ada")
        assert (refused.code, "unknown nam" in refused.err) == (2, True), refused
        assert program.ok("enqueue", "slow", "nam=Ada", "--id", "past", *STORE).out
        eventually(lambda: "unknown nam" in program("dead", "show", "past", *STORE).out, "it is dead", process)


def test_a_blocked_loop_is_told_after_it_was_blocked_too(tmp_path):
    """By the node itself, which answers again."""
    program = Program(tmp_path, listens=True)
    with program.running() as process:
        answered(program, process, "health")
        assert program("enqueue", "blocking", *STORE).code == 0
        program.began("blocking", process)
        words = rf"blocked for \S+ by handler blocking, app.py:{LINE} in busy"
        eventually(lambda: re.search(words, program.finding("loop", *STORE)), "the store tells it", process)
        (tmp_path / "end").touch()
        told = answered(program, process, "health")
        assert re.search(rf"loop +degraded +the event loop was {words}", told.out)


@pytest.mark.parametrize("said", [(), ("--id", "mine")], ids=["an id is made", "an id is given"])
def test_a_run_that_holds_the_loop_of_the_node_that_took_it_is_told_while_it_does(tmp_path, said):
    """Its answer may come too late, or not at all: the store is asked for the same run."""
    program = Program(tmp_path, listens=True)
    with program.running() as process:
        answered(program, process, "health")
        told = program.ok("enqueue", "blocking", "--json", *said)
        assert not (tmp_path / "end").exists(), "the loop is still held"
        run = told.json["run"]
        assert run["job_id"] == "blocking"
        assert run["id"] == (said[-1] if said else run["id"])
        assert [each["id"] for each in program.ok("runs", "--json").json["runs"]] == [run["id"]], "there is but one"


def test_it_can_be_turned_off(tmp_path):
    program = Program(tmp_path)
    with program.running():
        assert not list(tmp_path.glob("*.sock"))
        assert "there is no store sqlite:///pollux.db" in program("health").err
