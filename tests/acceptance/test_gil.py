"""A handler that holds the lock of the interpreter: nothing else runs in its process, another node takes over.

The hold is one call into C that keeps the lock (`PyDLL`) and waits for a file lock, which the test holds meanwhile.
Before it, the thread that writes stands at a known place: outside the store's write lock, or inside.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from pollux import Pollux
from pollux.errors import NotFound, StoreBusy
from tests.acceptance.terminal import Terminal

PATIENCE_SECONDS = 60
PROGRAM = """
import ctypes, fcntl, os, threading
from pathlib import Path
from pollux import Pollux
from pollux.store.sqlite.lock import WriteLock

NAME, PLACE = os.environ["NAME"], os.environ.get("PLACE")
app = Pollux("sqlite:///p.db", lease=os.environ["LEASE"], seats=1)
libc = ctypes.PyDLL(None)  # its calls keep the lock
wanted, standing, go_on = threading.Event(), threading.Event(), threading.Event()
acquire = WriteLock.acquire


def stand(place):
    if place == PLACE and wanted.is_set():
        standing.set()
        go_on.wait()


def stand_and_acquire(lock, deadline):
    stand("outside")
    acquire(lock, deadline)
    stand("inside")


WriteLock.acquire = stand_and_acquire


@app.job
def hold(ctx):
    if NAME == "first":
        gate = os.open("gate", os.O_RDWR)
        wanted.set()
        standing.wait()
        Path("held").write_text(str(ctx.delivery))
        libc.flock(gate, fcntl.LOCK_EX)
        os.close(gate)  # a later delivery finds it open
        go_on.set()
    return NAME


if __name__ == "__main__":
    app.run()
"""


def until(look, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class World:
    """The nodes, and the gate that the handler of the first one waits at."""

    def __init__(self, folder):
        self.folder, self.nodes = folder, []
        (folder / "holds.py").write_text(PROGRAM)
        self.gate = os.open(folder / "gate", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.gate, fcntl.LOCK_EX)
        self.app = Pollux("sqlite:///p.db")

    def start(self, name, **environ):
        environ = os.environ | {"NAME": name} | environ
        command = [sys.executable, "holds.py"]
        self.nodes.append(subprocess.Popen(command, cwd=self.folder, start_new_session=True, env=environ))
        return self.nodes[-1]

    def hold(self, place):
        """Start a node whose handler holds the lock of the interpreter while its writer stands at that place."""
        first = self.start("first", LEASE="2s", PLACE=place)
        until((self.folder / "p.db").exists, "the first node made its store")
        until(self.is_declared, "it declared its job")
        run = self.app.blocking.enqueue("hold")
        until((self.folder / "held").exists, "the handler holds the lock")
        return first, run

    def is_declared(self):
        try:
            return bool(self.app.blocking.why("hold"))
        except NotFound:
            return False

    def drop_lease(self):
        fcntl.flock(self.gate, fcntl.LOCK_UN)

    def end(self):
        for node in self.nodes:
            assert node.poll() is None, "it lives on"
            node.send_signal(signal.SIGTERM)
            assert node.wait(PATIENCE_SECONDS) == 0

    def close(self):
        os.close(self.gate)
        for node in self.nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()
        self.app.blocking.close()


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    yield world
    world.close()


def test_a_run_whose_handler_holds_the_lock_is_taken_over_and_its_late_answer_dropped(world):
    _, run = world.hold("outside")
    deliveries = int((world.folder / "held").read_text())
    world.start("second", LEASE="10m")
    until(lambda: world.app.blocking.get_run(run.id).is_finished, "the other node took the run over")
    ended = world.app.blocking.get_run(run.id)
    assert (ended.state, ended.result) == ("done", "second")
    assert ended.fence == deliveries + 1
    assert ended.lease_losses == deliveries
    world.drop_lease()
    world.end()
    assert world.app.blocking.get_run(run.id) == ended, "what came late was dropped"


def test_a_handler_that_holds_the_lock_in_the_middle_of_a_write_is_named_and_work_goes_on_after_it(world):
    """The bad moment: another thread of its process holds the store's write lock, and no node can write."""
    first, run = world.hold("inside")
    with pytest.raises(StoreBusy, match=f"busy: process {first.pid} holds the write lock"):
        world.app.blocking.enqueue("hold")
    pollux = Terminal(world.folder)
    health = pollux("health", "--store", "sqlite:///p.db")
    assert health.code == 3
    assert f"busy: process {first.pid} holds the write lock" in health.err
    doctor = pollux("doctor", "--store", "sqlite:///p.db", "--json")
    [lock] = [each for each in doctor.json["findings"] if each["about"] == "lock"]
    assert lock["level"] == "warn"
    assert f"process {first.pid} has held the write lock for " in lock["seen"]
    assert "isolate: process" in lock["cure"]
    world.drop_lease()
    again = world.app.blocking.enqueue("hold")
    until(lambda: world.app.blocking.get_run(run.id).is_finished, "the run that held the lock ended")
    until(lambda: world.app.blocking.get_run(again.id).is_finished, "so did the one that came after")
    world.end()
