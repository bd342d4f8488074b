"""Forked processes of the tests behave like fresh ones, in all that tests ask of one."""

import os
import signal
import subprocess

import pytest

from tests.acceptance.forked import Forked, can_be_forked
from tests.acceptance.terminal import Terminal, eventually

TELLS = """
import os, sys, threading
from pollux import Pollux
print(os.getcwd(), os.getpid(), os.environ.get("WORD"), sys.argv[1:], sys.stdin.read())
print(sys.path[0] == os.getcwd(), sys.modules["__main__"].__name__, threading.active_count())
sys.stderr.write("complaint")
app = Pollux("memory://")
"""
ENDS = """
import atexit, os, threading
from pollux import Pollux

class Left:
    def __init__(self, word):
        self.word, self.itself = word, self

    def __del__(self):
        os.write(1, self.word + b"\\n")

kept = Left(b"kept by the module")
Left(b"kept by itself")
atexit.register(os.write, 1, b"registered\\n")
threading.Timer(0.2, os.write, (1, b"from a thread\\n")).start()
app = Pollux("memory://")
"""
WORDS = ("check", "-c", "p.yaml")


@pytest.fixture(params=["forked", "fresh"])
def pollux(tmp_path, request):
    terminal = Terminal(tmp_path, fresh=request.param == "fresh")
    terminal.write("tells.py", TELLS)
    terminal.write("p.yaml", "app: tells:app")
    return terminal


def test_it_has_its_own_folder_environment_words_and_pipes(pollux):
    with pollux.started(*WORDS, environ={"WORD": "w"}, stdin=subprocess.PIPE, text=True) as process:
        out, err = process.communicate("given")
    assert isinstance(process, Forked) is not pollux.is_fresh
    first, second = out.splitlines()[:2]
    assert first == f"{pollux.folder} {process.pid} w {list(WORDS)} given"
    assert second == "True __main__ 1"
    assert err.startswith("complaint")


@pytest.mark.parametrize(("words", "code"), [(("--version",), 0), (("nonsense",), 2), (("runs", "show", "x"), 3)])
def test_it_ends_with_its_exit_code(pollux, words, code):
    assert pollux(*words).code == code


def test_what_it_leaves_behind_is_seen_at_its_end(pollux):
    pollux.write("ends.py", ENDS)
    pollux.write("p.yaml", "app: ends:app")
    said = pollux.ok(*WORDS).out.splitlines()
    assert sorted(said)[:4] == [
        "from a thread",
        "kept by itself",
        "kept by the module",
        "p.yaml and ends:app: valid; 0 jobs",
    ]
    assert said.index("from a thread") < said.index("registered") < said.index("kept by the module")


def test_it_hears_signals_and_its_end_is_told(pollux):
    with pollux.started("serve", "--store", "sqlite:///p.db", "--no-watch") as process:
        eventually((pollux.folder / "p.db").exists, "it has begun", process)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        assert process.poll() == -signal.SIGKILL


def test_what_python_reads_when_it_begins_is_read_by_one_that_begins(tmp_path):
    as_ever = Terminal(tmp_path).environ()
    assert can_be_forked(as_ever | {"WORD": "w"})
    for name in ("PYTHONIOENCODING", "LC_ALL", "TZ", "POLLUX_CRASH_AT"):
        assert not can_be_forked(as_ever | {name: "x"}), name
    assert not can_be_forked({name: value for name, value in as_ever.items() if name != "PYTHONWARNINGS"})
