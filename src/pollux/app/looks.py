"""Who has just asked the same?  One look at the store serves all who ask before it begins.

It begins in the next round of the loop, so nobody who shares it is told what was true before they asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Looks:
    """Of one app, whoever acts through it."""

    def __init__(self) -> None:
        self._next: dict[str, asyncio.Task[Any]] = {}  # by what they look for: those that have not begun

    def share(self, what: str, look: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """What the look finds.  Whoever gives up takes it from nobody else."""
        task = self._next.get(what)
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._next[what] = asyncio.ensure_future(self._begin(what, look))
            task.add_done_callback(_heard)
        return asyncio.shield(task)

    async def _begin(self, what: str, look: Callable[[], Coroutine[Any, Any, T]]) -> T:
        del self._next[what]
        return await look()


def _heard(task: asyncio.Task[Any]) -> None:
    """An error that nobody waits for any more is nobody's."""
    if not task.cancelled():
        task.exception()
