"""`python app.py` with `app.run()` behaves as `pollux serve` does: it waits, says what it does, and ends by a line."""

import contextlib
import signal
import subprocess
import sys

import pytest

from tests.acceptance.terminal import PATIENCE_SECONDS, Answer, Terminal, eventually, stopped
from tests.acceptance.test_serve_waits_for_store import WAITS, server  # noqa: F401  a fixture

APP = """
import logging
import os

from pollux import Pollux, every

FIRST
app = Pollux(os.environ["STORE"], name="shop")


@app.job(every("200ms"), params=PARAMS)
async def tick(ctx, word=""):
    logging.getLogger("mine").info("heard as well")
    print("ticked", flush=True)


if __name__ == "__main__":
    app.run()
"""


class Program:
    """`app.py` in a folder of its own."""

    def __init__(self, folder, first="", params="None"):
        self.terminal = Terminal(folder)
        self.terminal.write("app.py", APP.replace("FIRST", first).replace("PARAMS", params))
        self.out, self.err = folder / "out", folder / "err"

    @contextlib.contextmanager
    def started(self, store):
        environ = self.terminal.environ({"STORE": store})
        with self.out.open("wb") as out, self.err.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "app.py"], cwd=self.terminal.folder, env=environ, stdout=out, stderr=err
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def ended(self, store):
        with self.started(store) as process:
            code = process.wait(PATIENCE_SECONDS)
        return Answer(code, self.out.read_text(), self.err.read_text())

    def says(self, words, process):
        eventually(lambda: words in self.err.read_text(), f"it says {words!r}", process)

    def ticks(self, process):
        eventually(lambda: "ticked" in self.out.read_text(), "its job runs", process)


def test_it_waits_for_its_server_and_goes_on(tmp_path, server):  # noqa: F811  the fixture
    server, url = server
    program = Program(tmp_path)
    with program.started(url) as process:
        program.says(WAITS, process)
        server.start()
        program.ticks(process)
        assert stopped(process).code == 0
    said = program.err.read_text()
    assert (said.count(WAITS), "Traceback" in said) == (1, False)


def test_while_it_waits_it_is_stopped_as_always(tmp_path, server):  # noqa: F811  the fixture
    _, url = server
    program = Program(tmp_path)
    with program.started(url) as process:
        program.says(WAITS, process)
        assert stopped(process, signal.SIGINT).code == 0
    assert "Traceback" not in program.err.read_text()


def test_what_waiting_does_not_mend_is_one_line_and_the_code_of_serve(tmp_path, server):  # noqa: F811  the fixture
    server, url = server
    server.start()
    others = url.replace("redis://", "redis://:wrong-one@") if url.startswith("redis") else f"{url}_none"
    answer = Program(tmp_path).ended(others)
    assert answer.code == 3
    [line] = answer.err.splitlines()
    assert line.startswith("pollux: ")
    assert "wrong-one" not in line


def test_what_it_was_told_wrongly_is_bad_usage(tmp_path):
    program = Program(tmp_path, params='{"word": "${env:NOBODY_HAS_SET_IT}"}')
    answer = program.ended("sqlite:///p.db")
    [line] = answer.err.splitlines()
    assert answer.code == 2
    assert "${env:NOBODY_HAS_SET_IT}: the variable is not set" in line


def test_it_says_where_it_works_and_who_leads(tmp_path):
    program = Program(tmp_path)
    with program.started("sqlite:///p.db") as process:
        program.ticks(process)
        program.says("started on sqlite:///p.db", process)
        program.says("leads", process)
        program.says("heard as well", process)
        assert stopped(process).code == 0


@pytest.mark.parametrize(
    "first",
    [
        "logging.basicConfig(filename='own.log', level='INFO')",
        "logging.getLogger('pollux').addHandler(logging.NullHandler())",
        "logging.getLogger('pollux').propagate = False",
    ],
    ids=["a file", "nowhere", "cut off"],
)
def test_logging_that_is_set_up_is_left_alone(tmp_path, first):
    program = Program(tmp_path, first)
    with program.started("sqlite:///p.db") as process:
        program.ticks(process)
        assert stopped(process).code == 0
    assert program.err.read_text() == ""
    own = tmp_path / "own.log"
    assert not own.exists() or "started on sqlite:///p.db" in own.read_text()
