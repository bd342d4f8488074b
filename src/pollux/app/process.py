"""How does an app live as a process?  Signals, and the event loop it runs on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


def listen_for_signals(stop: asyncio.Event) -> None:
    """SIGTERM or SIGINT sets `stop`; the second one ends the process at once (leases then run out by themselves)."""

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop where it is installed (`pip install pollux[fast]`), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
