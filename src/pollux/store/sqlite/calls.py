"""Calls from a loop to a database thread: a verb with a future, answered in the loop it came from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any


def promise() -> Future[None]:
    """A future that its waiters cannot cancel: the thread sets it in any case."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


class WriterCall:
    """One verb on its way.  `look` may answer it without a transaction; `deadline` is on the monotonic clock.

    `need`: what the call is for, when disk space is short (`disk_space.py`).
    """

    __slots__ = ("deadline", "error", "future", "look", "loop", "need", "result", "verb")

    def __init__(
        self,
        verb: Callable[[Any], Any],
        *,
        loop: asyncio.AbstractEventLoop,
        deadline: float,
        look: Callable[[Any], Any] | None = None,
        need: int = 0,
    ) -> None:
        self.need = need
        self.verb, self.look, self.deadline, self.loop = verb, look, deadline, loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def is_abandoned(self) -> bool:
        """The caller has stopped waiting: a call that has not begun need not begin."""
        return self.future.done() or self.loop.is_closed()


def answer(calls: Iterable[WriterCall]) -> None:
    """Hand the answers over, waking each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WriterCall]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, some)
        except RuntimeError:  # that loop is closed, and its callers with it
            continue


def _resolve(calls: list[WriterCall]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is None:
            call.future.set_result(call.result)
        else:
            call.future.set_exception(call.error)
