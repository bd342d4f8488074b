"""Failpoints: named places in the store where a test may kill the process.

`POLLUX_CRASH_AT=n` ends the process with SIGKILL at the n-th place it comes to, `POLLUX_STOP_AT=n` stops it there
with SIGSTOP; `POLLUX_COUNT_FAILPOINTS=file` writes at exit how many it came to, so that a sweep knows where to stop.
Without them `failpoint()` does nothing.
"""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import threading
from pathlib import Path


def _silent() -> None:
    """No failpoint is set."""


class _Countdown:
    def __init__(self, crash_at: int, stop_at: int, count_in: str) -> None:
        self._numbers = itertools.count(1)  # its next() is one step: safe among threads
        self._crash_at, self._stop_at = crash_at, stop_at
        self._seen = 0
        if count_in:
            atexit.register(lambda: Path(count_in).write_text(str(self._seen)))

    def __call__(self) -> None:
        self._seen = next(self._numbers)
        if self._seen == self._crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._seen == self._stop_at:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # to this thread: not a step further


_crash_at = int(os.environ.get("POLLUX_CRASH_AT") or 0)
_stop_at = int(os.environ.get("POLLUX_STOP_AT") or 0)
_count_in = os.environ.get("POLLUX_COUNT_FAILPOINTS", "")
failpoint = _Countdown(_crash_at, _stop_at, _count_in) if _crash_at or _stop_at or _count_in else _silent
