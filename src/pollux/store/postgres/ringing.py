"""How often is NOTIFY sent?  With the write that rings, but not again and again: then once for all, a moment later.

A commit that notifies waits for every other one in the database that does; a busy process would make all of them stand
in line.  The first bell goes with its write.  What rings within the next moment is gathered, and sent apart after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

MOMENT_S = 0.01
CLOSE_S = 1.0


class Bells:
    """What one handle rings for others."""

    def __init__(self, send: Callable[[int, frozenset[int]], Awaitable[None]], moment_s: float = MOMENT_S) -> None:
        self._send, self._moment_s = send, moment_s
        self._free_at = 0.0
        self._kinds, self._versions = 0, frozenset[int]()
        self._sender: asyncio.Task[None] | None = None

    def may_go_along(self) -> bool:
        """Whether the bell of a write may be part of it; else it is owed once the write is committed."""
        now = asyncio.get_running_loop().time()
        if self._kinds or now < self._free_at:
            return False
        self._free_at = now + self._moment_s
        return True

    def owe(self, kinds: int, versions: frozenset[int]) -> None:
        self._kinds |= kinds
        self._versions |= versions
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._pay())

    async def _pay(self) -> None:
        while self._kinds:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(max(0.0, self._free_at - loop.time()))
            self._free_at = loop.time() + self._moment_s
            kinds, self._kinds = self._kinds, 0
            versions, self._versions = self._versions, frozenset()
            await self._send(kinds, versions)

    async def close(self) -> None:
        """What is owed is paid before the connections go, if it can be."""
        if self._sender is not None:
            await asyncio.wait([self._sender], timeout=CLOSE_S)
            self._sender.cancel()
