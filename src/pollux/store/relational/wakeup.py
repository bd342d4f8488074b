"""Kinds of wake-ups, and waiters that each wait for some of them."""

from __future__ import annotations

import asyncio

RUNS = 1  # a run became ready
FEED = 2  # an entry was written
WAKE = 4  # all waits end
ASKED = 8  # an owner is asked to stop a run: all waits for runs end
EVERY: frozenset[int] = frozenset()  # the versions that a wake-up is for: all


class Waiter:
    """A call that waits for some kinds of wake-up, and always for the end of all waits."""

    __slots__ = ("event", "heard", "kinds", "version")

    def __init__(self, kinds: int, version: int | None = None) -> None:
        self.kinds, self.version = kinds | WAKE, version
        self.event = asyncio.Event()
        self.heard = 0  # all kinds since it listens

    def hear(self, kinds: int, versions: frozenset[int] = EVERY) -> None:
        """A wake-up in some versions, or in all; a request to stop a run wakes in every version."""
        is_ours = not versions or self.version is None or self.version in versions
        if kinds & self.kinds if is_ours else kinds & self.kinds & (WAKE | ASKED):
            self.heard |= kinds
            self.event.set()
