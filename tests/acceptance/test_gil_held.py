"""A handler that holds the lock of the interpreter: nothing else runs in its process, another node takes over."""

import os
import signal
import subprocess
import sys
import time

from pollux import Pollux

PATIENCE_SECONDS = 60
PROGRAM = """
import ctypes, os, sys
from pathlib import Path
from pollux import Pollux

app = Pollux("sqlite:///p.db", lease="1s", seats=1)
libc = ctypes.PyDLL(None)  # its calls keep the lock


@app.job
def hold(ctx):
    if ctx.delivery == 1:
        sys.setswitchinterval(3600)
        Path("held").touch()
        while libc.access(b"go", 0) != 0:
            libc.usleep(1000)
        sys.setswitchinterval(0.005)
        return "late"
    Path("go").touch()
    return os.getpid()


if __name__ == "__main__":
    app.run()
"""


def until(look, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_run_whose_handler_holds_the_lock_is_taken_over_and_its_late_answer_dropped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holds.py").write_text(PROGRAM)
    nodes = []

    def start():
        nodes.append(subprocess.Popen([sys.executable, "holds.py"], cwd=tmp_path, start_new_session=True))
        return nodes[-1]

    app = Pollux("sqlite:///p.db")
    try:
        first = start()
        until((tmp_path / "p.db").exists, "the first node made its store")
        until(lambda: app.blocking.list_jobs().jobs, "it declared its job")
        run = app.blocking.enqueue("hold")
        until((tmp_path / "held").exists, "the handler holds the lock")
        second = start()
        until(lambda: app.blocking.get_run(run.id).is_finished, "the other node took the run over")
        ended = app.blocking.get_run(run.id)
        assert ended.state == "done"
        assert ended.fence >= 2, "a slow machine may deliver it again"
        assert ended.lease_losses >= 1
        assert ended.result == second.pid
        for node in (first, second):
            assert node.poll() is None, "it lives on"
            node.send_signal(signal.SIGTERM)
            assert node.wait(PATIENCE_SECONDS) == 0
        assert app.blocking.get_run(run.id).result == second.pid, "what came late was dropped"
    finally:
        app.blocking.close()
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()
