"""Calls from a loop to a database thread: a verb with a future, answered in the loop it came from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import apsw

from pollux.errors import InvalidInput, PolluxError, StoreBusy, StoreError, StoreFull, StoreRefused, StoreTimeout


def promise() -> Future[None]:
    """A future that whoever waits for it cannot cancel: what a thread has to say it says, heard or not."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


class WriterCall:
    """One verb on its way.  `look` may answer it without a transaction; `deadline` is on the monotonic clock.

    `need` says what it is for, when room is short (`room.py`).
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
    def is_given_up(self) -> bool:
        """Nobody waits for the answer any more, so what has not begun need not begin."""
        return self.future.done() or self.loop.is_closed()


def answer(calls: Iterable[WriterCall]) -> None:
    """Hand the answers over, waking each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WriterCall]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, theirs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, theirs)
        except RuntimeError:  # that loop is closed: nobody is there to be told
            continue


def _resolve(calls: list[WriterCall]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is None:
            call.future.set_result(call.result)
        else:
            call.future.set_exception(call.error)


def in_our_words(error: Exception) -> Exception:
    """SQLite's errors as ours; what is no error of the store stays what it is."""
    if isinstance(error, PolluxError):
        return error
    ours: PolluxError
    if isinstance(error, UnicodeEncodeError):
        ours = InvalidInput("text with characters that cannot be written down", cure="use whole Unicode characters")
    elif getattr(error, "extendedresult", None) == apsw.SQLITE_CONSTRAINT_DATATYPE:
        ours = InvalidInput(f"a value of another kind than its column's ({error})", cure="use the kinds of the model")
    else:
        found = [(kind, words) for theirs, kind, words in _WORDS if isinstance(error, theirs)]
        if not found:
            return error
        kind, words = found[0]
        ours = kind(words.format(error=error))
    ours.__cause__ = error
    return ours


_WORDS: tuple[tuple[tuple[type[Exception], ...], type[StoreError], str], ...] = (
    (
        (apsw.BusyError, apsw.LockedError),
        StoreBusy,
        "busy: another program holds the database; nothing was changed; try again",
    ),
    ((apsw.FullError,), StoreFull, "the disk is full; nothing was changed; make room"),
    (
        (apsw.NotADBError, apsw.CorruptError),
        StoreRefused,
        "the database is damaged ({error}); see `pollux store check`, then stop all processes and restore a backup",
    ),
    (
        (apsw.InterruptError,),
        StoreTimeout,
        "reading took longer than its deadline and was cut off; ask for less at once",
    ),
    (
        (apsw.ReadOnlyError,),
        StoreError,
        "the database cannot be written any more ({error}); nothing was changed; is its file system read-only now?",
    ),
    (
        (apsw.IOError, apsw.CantOpenError, OSError),
        StoreError,
        "the disk failed ({error}): the call may have taken effect; look at the disk; repeat it with the same ids",
    ),
    ((apsw.Error,), StoreError, "the database said no ({error}); nothing was changed"),
)


def is_everybodys(error: Exception) -> bool:
    """Is this the disk's or another program's fault, so that trying the calls one by one would only ask it again?"""
    return isinstance(error, apsw.IOError | apsw.CantOpenError | apsw.ReadOnlyError | apsw.BusyError | OSError)


def is_sickening(error: Exception) -> bool:
    """After this nothing that the connection remembers is to be trusted.

    A sync that failed is never asked again: the kernel has forgotten what it could not write, and would say yes.
    """
    return isinstance(error, apsw.IOError | apsw.CantOpenError | apsw.ReadOnlyError | apsw.CorruptError)
