"""Processes that a session of tests left running, found by parentage and by a mark that all descendants inherit.

It reads the process table of Linux; elsewhere there is nothing to read, and nothing is found.
One kind escapes: an orphan forked from this process without exec, for it shares our environment as it was at start.
"""

import os
import select
import signal
import time
from pathlib import Path
from typing import NamedTuple

MARK = "POLLUX_TEST_SESSION"
# Python's own companions, and our guard, live as long as the interpreter that needs them and end with it.
COMPANIONS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "tests.guard")


class Process(NamedTuple):
    pid: int
    parent: int
    command: str
    is_marked: bool


def leftovers(mark: str, *, patience_ms: int) -> list[Process]:
    """The processes that are ours and do not end within `patience_ms`."""
    deadline = time.monotonic() + patience_ms / 1_000
    return [process for process in ours(mark) if not _ends(process.pid, deadline)]


def ours(mark: str) -> list[Process]:
    """Descendants of this process, and processes with the mark: an orphan has lost its parent, not its environment."""
    there = table(mark)
    family = {os.getpid()}
    while more := {process.pid for process in there if process.parent in family} - family:
        family |= more
    return [
        process
        for process in there
        if process.pid != os.getpid()
        and (process.pid in family or process.is_marked)
        and not any(companion in process.command for companion in COMPANIONS)
    ]


def stop(processes: list[Process]) -> None:
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def table(mark: str) -> list[Process]:
    """All processes that can be looked at."""
    return [process for entry in Path("/proc").glob("[0-9]*") if (process := _read(entry, mark)) is not None]


def _read(entry: Path, mark: str) -> Process | None:
    """None if it ended meanwhile, is dead and only waits for its parent to notice, or is not ours to look at."""
    try:
        # `pid (name) state parent ...`: the name may hold anything, also a parenthesis.
        state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        variables = (entry / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return None
    if state == "Z":
        return None
    return Process(int(entry.name), int(parent), command, f"{MARK}={mark}".encode() in variables)


def _ends(pid: int, deadline: float) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)  # readable once the process has ended
        return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1_000))
    finally:
        os.close(handle)
