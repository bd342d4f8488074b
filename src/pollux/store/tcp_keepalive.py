"""Is the other end still there?  The kernel asks, so that a line on which we only listen is not deaf for ever.

A server that lost its power, or a firewall that forgot us, says no word.  Whoever sends notices by the deadline of its
call; whoever only waits for a ring would not, for as long as it waits.  So an idle line is probed: after 5 s, and given
up when three probes, 2 s apart, were not answered.  It costs no round trip of ours.
"""

from __future__ import annotations

import socket
from typing import Protocol

IDLE_S, EVERY_S, TIMES = 5, 2, 3
_NAMES = {"TCP_KEEPIDLE": IDLE_S, "TCP_KEEPINTVL": EVERY_S, "TCP_KEEPCNT": TIMES}  # not every system has all of them
PROBES: dict[int, int] = {getattr(socket, name): value for name, value in _NAMES.items() if hasattr(socket, name)}


class KeptSocket(Protocol):
    @property
    def family(self) -> int: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def keep_alive(line: KeptSocket) -> None:
    """Let the kernel probe that line; one inside the machine needs it not."""
    if line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES.items():
        line.setsockopt(socket.IPPROTO_TCP, option, value)
