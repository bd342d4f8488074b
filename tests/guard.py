"""Guard process of a test session: what the tests start ends with the session, however that ends.

    pytest (or a worker of it) ── pids, "end" ──▶ the guard, in a session of its own
        ✗ killed, interrupted                        │ kills what is left, removes the session's folder

An interrupted or killed run tears nothing down.  The guard checks five times a second that its parent lives.
Processes are found by the mark in their environment (`tests/leaks.py`); servers write their title over it, and their
pids are sent to the guard when they start.  It removes one folder for each session, in which the servers have theirs.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.leaks import MARK, Process, table

REPOSITORY = Path(__file__).parents[1]
LOOK_S = 0.2
PATIENCE_S = 10.0  # for a PostgreSQL to end its own processes and give its memory back
GIVE_UP_S = 60.0
DEAF = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Guard:
    """The guard as the session sees it."""

    def __init__(self, mark: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pollux-tests-"))
        self.folder.chmod(0o711)  # a PostgreSQL runs as another user where we are root
        words = [sys.executable, "-m", "tests.guard", mark, str(os.getpid()), str(self.folder)]
        self._process = subprocess.Popen(
            words, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, start_new_session=True
        )

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def end(self) -> None:
        """Nothing is left running; the folder goes."""
        self.tell("end")
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(GIVE_UP_S)


_guards: list[Guard] = []


def begin(mark: str) -> None:
    _guards.append(Guard(mark))


def end() -> None:
    _guards.pop().end()


def watch(pid: int) -> None:
    """End this server with the session; outside of a session the caller does so."""
    if _guards:
        _guards[-1].tell(str(pid))


def new_folder(kind: str) -> Path:
    """A folder for a server, in that of the session if there is one."""
    return Path(tempfile.mkdtemp(prefix=f"pollux-{kind}-", dir=_guards[-1].folder if _guards else None))


# in the guard


def main(mark: str, parent: int, folder: Path) -> None:
    for number in DEAF:
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
    watched, rest, is_over = {}, b"", False
    while not is_over:
        is_orphan = os.getppid() != parent  # also from the start; the pids in the pipe are read all the same
        if not select.select([0], [], [], 0 if is_orphan else LOOK_S)[0]:
            is_over = is_orphan
            continue
        more = os.read(0, 65_536)
        *lines, rest = (rest + more).split(b"\n")
        is_over = not more or b"end" in lines
        watched |= {int(line): _began(int(line)) for line in lines if line != b"end"}
    _end_all(mark, {pid: began for pid, began in watched.items() if began})
    shutil.rmtree(folder, ignore_errors=True)


def _end_all(mark: str, watched: dict[int, str]) -> None:
    begun = time.monotonic()
    while (left := _left(mark, watched)) and time.monotonic() - begun < GIVE_UP_S:
        is_patient = time.monotonic() - begun < PATIENCE_S
        for process in left:
            is_postgres = Path(process.command.partition(" ")[0]).name.startswith("postgres")
            try:
                os.kill(process.pid, signal.SIGQUIT if is_postgres and is_patient else signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(LOOK_S)


def _left(mark: str, watched: dict[int, str]) -> list[Process]:
    """Processes with the mark, the watched ones, and all their descendants."""
    there = [process for process in table(mark) if process.pid != os.getpid()]
    family = {process.pid for process in there if process.is_marked}
    family |= {pid for pid, began in watched.items() if _began(pid) == began}
    while more := {process.pid for process in there if process.parent in family} - family:
        family |= more
    return [process for process in there if process.pid in family]


def _began(pid: int) -> str:
    """Start time of a process, which tells it from a later one with the same pid; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


if __name__ == "__main__":
    assert MARK not in os.environ or os.environ[MARK] != sys.argv[1], "it would end itself"
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
