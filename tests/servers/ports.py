"""Free ports for servers of tests, which no other process is given before the server binds them.

A port that the kernel names (`bind` to 0) is free only until it is let go: then whoever asks next may get it, and the
tests ask all the time.  So ours lie below those that the kernel hands out, every process of a test run has its own
share of them, and none is named twice.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

FIRST, LAST = 18_000, 32_767
SHARES = 16  # of one test run; another program that chooses from these ports is met by chance only
TRIES_MAX = 1_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

_dice = SystemRandom()
_named: set[int] = set()


def free_port() -> int:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    share = int(worker) % SHARES if worker.isdecimal() else _dice.randrange(SHARES)
    for _ in range(TRIES_MAX):
        port = _dice.randrange(FIRST + share, _last(), SHARES)
        if port not in _named and _is_free(port):
            _named.add(port)
            return port
    raise OSError(f"no port between {FIRST} and {_last()} is free")


@contextmanager
def nobodys_port() -> Iterator[int]:
    """Nothing answers there, and no other process can take it before the end of the block."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and never listens
        yield held.getsockname()[1]


def _last() -> int:
    try:
        lowest = int(RANGE.read_text().split()[0])
    except OSError:
        return LAST
    return min(LAST, lowest) if lowest > FIRST + SHARES else LAST


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
