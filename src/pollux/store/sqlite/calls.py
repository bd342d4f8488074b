"""How does a verb get to a thread and its answer back?  As a call with a future, answered in the loop it came from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import apsw

from pollux.errors import InvalidInput, PolluxError, StoreBusy, StoreError, StoreFull, StoreRefused


def promise() -> Future[None]:
    """A future that whoever waits for it cannot cancel: what a thread has to say it says, heard or not."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


class Call:
    """One verb on its way.  `look` may answer it without a transaction; `deadline` is on the monotonic clock."""

    __slots__ = ("deadline", "error", "future", "look", "loop", "result", "verb")

    def __init__(
        self,
        verb: Callable[[Any], Any],
        *,
        loop: asyncio.AbstractEventLoop,
        deadline: float,
        look: Callable[[Any], Any] | None = None,
    ) -> None:
        self.verb, self.look, self.deadline, self.loop = verb, look, deadline, loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def is_given_up(self) -> bool:
        """Nobody waits for the answer any more, so what has not begun need not begin."""
        return self.future.done()


def answer(calls: Iterable[Call]) -> None:
    """Hand the answers over, waking each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, theirs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, theirs)
        except RuntimeError:  # that loop is closed: nobody is there to be told
            continue


def _resolve(calls: list[Call]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is None:
            call.future.set_result(call.result)
        else:
            call.future.set_exception(call.error)


def in_our_words(error: Exception) -> Exception:
    """SQLite's errors as ours; what is no error of the store stays what it is."""
    match error:
        case PolluxError():
            return error
        case UnicodeEncodeError():
            refused = InvalidInput(
                "text with characters that cannot be written down", cure="use whole Unicode characters"
            )
            refused.__cause__ = error
            return refused
        case apsw.BusyError() | apsw.LockedError():
            ours: StoreError = StoreBusy("busy: another program holds the database; nothing was changed; try again")
        case apsw.FullError():
            ours = StoreFull("the disk is full; nothing was changed; make room")
        case apsw.NotADBError() | apsw.CorruptError():
            ours = StoreRefused(f"the database is damaged ({error}); stop all processes and restore a backup")
        case apsw.Error():
            ours = StoreError(f"the database said no ({error}); nothing was changed")
        case _:
            return error
    ours.__cause__ = error
    return ours
