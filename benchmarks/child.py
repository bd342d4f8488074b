"""What runs in a process of its own?  One function of a bench, named on the command line, with its answer on stdout.

The parent is on the other end of both pipes: a line that begins with a mark is for it, anything else is not.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Coroutine
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

READY, ANSWER = "@ready ", "@answer "
_SET_DEATH_SIGNAL = 1  # of Linux's prctl


def say_ready(value: object = None) -> None:
    """Tell the parent that what it waits for is there."""
    print(READY + json.dumps(value), flush=True)


def wait_for_parent() -> None:
    """Until the parent closes the pipe (also by dying)."""
    sys.stdin.read()


async def parent_is_done() -> None:
    await asyncio.to_thread(wait_for_parent)


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """On the loop that `app.run()` would take: uvloop's where it is installed.  All asyncio systems get the same."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(coroutine)


def loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def rss_mb(field: str = "VmRSS") -> float:
    """Resident memory of this process; `VmHWM` is the most it ever was."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


class Progress:
    """How many came, when the first tenth was there, and when all were.  The first tenth is warm-up."""

    def __init__(self, n: int) -> None:
        self.n, self._numbers = n, count(1)  # a counter that threads may share
        self.warm = max(n // 10, 1)
        self.begun = self.ended = self.cpu_begun = 0.0
        self.all_seen = asyncio.Event()

    def step(self) -> None:
        number = next(self._numbers)
        if number == self.warm:
            self.begun, self.cpu_begun = time.monotonic(), time.process_time()
        if number == self.n:
            self.ended = time.monotonic()
            self.all_seen.set()

    def figures(self, ended: float) -> dict[str, float]:
        counted = self.n - self.warm
        cpu = time.process_time() - self.cpu_begun
        return {"rate": counted / (ended - self.begun), "cpu_us": cpu / counted * 1e6}


class Pace:
    """When were how many done, and by how much CPU?  A mark every so many, for workers that are counted together."""

    EVERY = 100

    def __init__(self) -> None:
        self._numbers = count(1)
        self.marks: list[list[float]] = []

    def step(self) -> None:
        number = next(self._numbers)
        if number % self.EVERY == 0:
            self.marks.append([time.monotonic(), number, time.process_time()])


def die_with(parent: int) -> None:
    """A run that is killed leaves nobody behind, also who does not look at its stdin."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before that held
        sys.exit(1)


def main() -> None:
    parent, where, arguments = sys.argv[1:]
    die_with(int(parent))
    module, _, name = where.partition(":")
    answer = getattr(import_module(module), name)(**json.loads(arguments))
    print(ANSWER + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
