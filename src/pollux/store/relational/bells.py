"""What can ring, and who hears it?  Four kinds, and waiters that each wait for some of them."""

from __future__ import annotations

import asyncio

RUNS = 1  # a run became ready
FEED = 2  # an entry was written
WAKE = 4  # everybody is to come back
ASKED = 8  # an owner is asked to stop a run: who waits for runs is to come back


class Waiter:
    """Somebody who waits for some kinds of bell, and always hears that all are to come back."""

    __slots__ = ("event", "heard", "kinds")

    def __init__(self, kinds: int) -> None:
        self.kinds = kinds | WAKE
        self.event = asyncio.Event()
        self.heard = 0  # all that rang since it listens

    def hear(self, kinds: int) -> None:
        if kinds & self.kinds:
            self.heard |= kinds
            self.event.set()
