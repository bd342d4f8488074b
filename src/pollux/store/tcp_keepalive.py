"""TCP keep-alive options, so that a connection that only listens notices a dead peer.

A server that lost its power, or a firewall that dropped the connection, sends nothing.  A sender notices by the
deadline of its call; a connection that only waits for a wake-up would not.  So the kernel probes an idle connection
after 5 s, and closes it when three probes, 2 s apart, were not answered.  This costs Pollux no round trip.
"""

from __future__ import annotations

import socket
from typing import Protocol

IDLE_S, EVERY_S, TIMES = 5, 2, 3
_NAMES = {"TCP_KEEPIDLE": IDLE_S, "TCP_KEEPINTVL": EVERY_S, "TCP_KEEPCNT": TIMES}  # not every system has all of them
PROBES: dict[int, int] = {getattr(socket, name): value for name, value in _NAMES.items() if hasattr(socket, name)}


class KeepaliveSocket(Protocol):
    @property
    def family(self) -> int: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def keep_alive(connection: KeepaliveSocket) -> None:
    """Enable keep-alive probes on a TCP socket; unix sockets need none."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
