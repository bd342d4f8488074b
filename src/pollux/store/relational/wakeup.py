"""Kinds of wake-ups, and waiters that each wait for some of them."""

from __future__ import annotations

import asyncio

RUNS = 1  # a run became ready
FEED = 2  # an entry was written
WAKE = 4  # everybody is to come back
ASKED = 8  # an owner is asked to stop a run: who waits for runs is to come back
EVERY: frozenset[int] = frozenset()  # the versions that it rings for: no matter which


class Waiter:
    """Somebody who waits for some kinds of bell, and always hears that all are to come back."""

    __slots__ = ("event", "heard", "kinds", "version")

    def __init__(self, kinds: int, version: int | None = None) -> None:
        self.kinds, self.version = kinds | WAKE, version
        self.event = asyncio.Event()
        self.heard = 0  # all that rang since it listens

    def hear(self, kinds: int, versions: frozenset[int] = EVERY) -> None:
        """What rings in some versions, or in all; that an owner is asked to stop concerns whoever it is."""
        is_ours = not versions or self.version is None or self.version in versions
        if kinds & self.kinds if is_ours else kinds & self.kinds & (WAKE | ASKED):
            self.heard |= kinds
            self.event.set()
