"""What does systemd want to know?  That we are ready, that we still live, and that we are leaving: `sd_notify`.

It names a socket in NOTIFY_SOCKET and, with `WatchdogSec=`, how often it wants to hear of us.  Without these nothing
happens here.  The watchdog is fed from the event loop itself, and only while every loop of the node is alive: a process
that hangs is ended and started anew.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, MutableMapping

from pollux.clock import Clock
from pollux.events import Events
from pollux.runtime.loop import Loop, Rest

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Supervisor:
    """The line to whoever supervises this process."""

    def __init__(self, address: str, watchdog_ms: float | None) -> None:
        self.address, self.watchdog_ms = address, watchdog_ms

    def tell(self, *words: str) -> None:
        """One datagram; nobody there is nobody's fault."""
        where = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto("\n".join(words).encode(), socket.MSG_DONTWAIT, where)


def supervisor_of(environ: MutableMapping[str, str]) -> Supervisor | None:
    """Whoever the environment names.  The names are taken out: no child of ours speaks for us."""
    address, usec, pid = (environ.pop(name, "") for name in _VARIABLES)
    if not address.startswith(("/", "@")):
        return None
    is_watched = usec.isdecimal() and int(usec) > 0 and pid in ("", str(os.getpid()))
    return Supervisor(address, int(usec) / 1000 if is_watched else None)


class Watchdog(Loop):
    """Say that we live, three times as often as it is asked for."""

    def __init__(
        self, supervisor: Supervisor, lives: Callable[[], bool], *, every_ms: float, clock: Clock, events: Events
    ) -> None:
        super().__init__("watchdog", clock=clock, events=events, rest_max_ms=every_ms)
        self.supervisor, self.lives, self.every_ms = supervisor, lives, every_ms

    async def turn(self) -> Rest:
        if self.lives():
            self.supervisor.tell(ALIVE)
        return Rest(self.every_ms)
