"""Where would a crash hurt most?  Named places in the store where a test may kill the process, and nothing otherwise.

`POLLUX_CRASH_AT=n` ends the process with SIGKILL at the n-th place it comes to, `POLLUX_STOP_AT=n` stops it there with
SIGSTOP; `POLLUX_COUNT_FAILPOINTS=file` writes at exit how many it came to, so that a sweep knows where to stop.
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
    """No test watches."""


class _Counted:
    def __init__(self, signals: dict[int, int], count_in: str) -> None:
        self._numbers = itertools.count(1)  # its next() is one step: safe among threads
        self._signals = signals
        self._seen = 0
        if count_in:
            atexit.register(lambda: Path(count_in).write_text(str(self._seen)))

    def __call__(self) -> None:
        self._seen = next(self._numbers)
        if self._seen in self._signals:
            signal.pthread_kill(threading.get_ident(), self._signals[self._seen])  # to this thread: not a step further


_asked = {"POLLUX_CRASH_AT": signal.SIGKILL, "POLLUX_STOP_AT": signal.SIGSTOP}
_signals = {int(os.environ[name]): int(number) for name, number in _asked.items() if os.environ.get(name)}
_count_in = os.environ.get("POLLUX_COUNT_FAILPOINTS", "")
failpoint = _Counted(_signals, _count_in) if _signals or _count_in else _silent
