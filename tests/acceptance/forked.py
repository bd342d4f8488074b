"""Real processes without the cost of their start: forked from one that has everything imported.

    the tests ── words, folder, environment, pipes ──▶ the nursery ──▶ a keeper ──▶ `python -m pollux ...`
        ▲                                                                │ waits
        └────────────────────── how it ended ────────────────────────────┘

Of a process that answers one question, most is spent on importing.  The nursery has done that once.  What it forks is
a process of its own, in its own folder and environment, with its own pid, signals and exit code; it runs what
`python -m pollux` runs.

What it cannot show: its command line, when things are imported, what Python reads from the environment when it begins,
and how modules are taken apart when it ends: those that all share are left as they are, for to copy and clear them
takes three times as long as to answer a question.  A process that is tested for these is started afresh.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
REQUEST_MAX = 1 << 20
READ_AT_THE_BEGINNING = ("PYTHON", "LD_", "LC_", "LANG", "TZ")
READ_WITH_AN_IMPORT = {"POLLUX_CRASH_AT", "POLLUX_STOP_AT", "POLLUX_COUNT_FAILPOINTS"}
BEAT = "POLLUX_TEST_BEAT_MS"  # read by a forked process alone
STORES = ("pollux.store.memory", "pollux.store.sqlite.store", "pollux.store.redis", "pollux.store.postgres.store")
USUAL = (True, None, None, None, -1, False, -1)  # signals as usual, no other user, no session or group of its own
NODE = ("pollux.app", "pollux.config", "pollux.server", "pollux.server.gateway", "uvicorn", "rich.live", "watchfiles")


class Forked(subprocess.Popen):
    """A process of `pollux` with these arguments, in the eyes of a test like any other."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        unusual = (preexec_fn, tuple(pass_fds), rest[9:]) != (None, (), USUAL)
        assert not unusual, "what a fork cannot have is started afresh"
        pipes = rest[3:9]
        ends = [there if there != -1 else ours for ours, there in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._end, told = os.pipe()
        try:
            self.pid = _nursery().fork(list(args), str(cwd), env, [*ends, told])
        finally:
            os.close(told)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, _deadstate=None):
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, wait_flags):
        if wait_flags & os.WNOHANG and not select.select([self._end], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._end, 100)
        os.close(self._end)
        return self.pid, int(status)


def can_be_forked(env: dict[str, str]) -> bool:
    """Would it see nothing else if it were started afresh?"""
    there = _nursery().env
    names = {name for name in env.keys() | there.keys() if name.startswith(READ_AT_THE_BEGINNING)}
    return all(env.get(name) == there.get(name) for name in names) and not READ_WITH_AN_IMPORT & env.keys()


class Nursery:
    """The process that forks, seen from the tests."""

    def __init__(self) -> None:
        self.env = {**os.environ, "PYTHONWARNINGS": "error"}
        self._turn = threading.Lock()
        self._line, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.acceptance.forked", str(there.fileno())]
        with there:
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, env=self.env, stdin=subprocess.DEVNULL, pass_fds=[there.fileno()]
            )

    def fork(self, words: list[str], folder: str, env: dict[str, str], ends: list[int]) -> int:
        """The pid of the new process; its keeper writes to the last of the ends how it ended."""
        with self._turn:
            socket.send_fds(self._line, [json.dumps([words, folder, env]).encode()], ends)
            said = self._line.recv(REQUEST_MAX)
        assert said, f"the nursery has ended ({self._process.poll()})"
        return int(said)

    def end(self) -> None:
        self._line.close()
        self._process.wait()


_nurseries: list[Nursery] = []


def _nursery() -> Nursery:
    if not _nurseries:
        _nurseries.append(Nursery())
    return _nurseries[0]


def stop_nursery() -> None:
    while _nurseries:
        _nurseries.pop().end()


# in the nursery


def main() -> None:
    from pollux.cli.command_table import ENTRIES

    shared: set[str] = set()
    atexit.register(_leave, shared)  # the first one that is registered is called last
    begun_with = {*sys.modules}
    for name in sorted({*STORES, *NODE, *(entry.home.partition(":")[0] for entry in ENTRIES.values())}):
        importlib.import_module(name)
    shared |= sys.modules.keys() - begun_with
    assert threading.active_count() == 1, "a thread would not be forked"
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    with socket.socket(fileno=int(sys.argv[1])) as line:
        said, ends, _, _ = socket.recv_fds(line, REQUEST_MAX, 4)
        while said:
            if os.fork() == 0:
                _keep(line, said, ends)
                return
            for end in ends:
                os.close(end)
            said, ends, _, _ = socket.recv_fds(line, REQUEST_MAX, 4)


def _keep(line: socket.socket, said: bytes, ends: list[int]) -> None:
    """Returns in the new process alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        for here, there in enumerate(ends[:3]):
            os.dup2(there, here)
        os.closerange(3, max(*ends, line.detach()) + 1)
        _live(*json.loads(said))
        return
    for end in ends[:3]:
        os.close(end)
    line.send(str(pid).encode())
    line.close()
    os.write(ends[3], str(os.waitpid(pid, 0)[1]).encode())
    os._exit(0)


def _live(words: list[str], folder: str, env: dict[str, str]) -> None:
    """What `python -m pollux` does; what comes after it is what comes after a program."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.stdin = sys.__stdin__ = open(0, encoding=sys.stdin.encoding, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _written(1, "strict", line_by_line=os.isatty(1))
    sys.stderr = sys.__stderr__ = _written(2, "backslashreplace", line_by_line=True)
    sys.path[0] = folder
    sys.argv[1:] = words
    if beat_ms := os.environ.pop(BEAT, ""):
        _beat_every(int(beat_ms))
    runpy.run_module("pollux", run_name="__main__", alter_sys=True)


def _beat_every(beat_ms: int) -> None:
    """Nodes of this process, whose usual interval would have a test wait a quarter of a minute for a heartbeat."""
    from msgspec.structs import replace

    from pollux.app import pollux

    usual = pollux.options_of
    pollux.options_of = lambda **given: replace(usual(**given), beat_ms=beat_ms)


def _leave(shared: set[str]) -> None:
    """What Python does not find it does not clear; all else is ended and cleared as ever."""
    for name in shared:
        sys.modules.pop(name, None)


def _written(end: int, errors: str, *, line_by_line: bool) -> io.TextIOWrapper:
    raw = io.FileIO(end, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), sys.stdin.encoding, errors, line_buffering=line_by_line)


if __name__ == "__main__":
    main()
