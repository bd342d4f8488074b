"""Clean-up of a benchmark that is killed: it leaves no child process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 60
PARENT = """
import signal, sys
from benchmarks.session import Child
from tests.unit.test_benchmark_children import stays

child = Child(stays, {}, timeout_s=60)
child.ready()
print(child.pid, flush=True)
signal.pause()
"""


def stays():
    """What runs in the child: it says that it is there, and looks at nothing more."""
    from benchmarks.child import say_ready

    say_ready()
    signal.pause()


def is_alive(pid):
    """One that nobody has fetched yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_child_dies_with_a_parent_that_is_killed():
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        try:
            pid = int(parent.stdout.readline())
            assert is_alive(pid)
        finally:
            parent.kill()
    deadline = time.monotonic() + PATIENCE_S
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = is_alive(pid)
    if left:
        os.kill(pid, signal.SIGKILL)
    assert not left
