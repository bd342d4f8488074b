"""Verbs of an app: coroutines with the signatures of the operations, and plain calls for synchronous callers."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from pollux.app.operations.contract import GROUPS, Operations
from pollux.errors import PolluxError, StoreTimeout

if TYPE_CHECKING:
    from pollux.app.pollux import Pollux

CALL_SECONDS_MAX = 60.0
P = ParamSpec("P")
R = TypeVar("R")


class AppVerb(Generic[P, R]):
    """An operation as a method of the app: `app.enqueue(...)` is `app.operations.runs.enqueue(...)`."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self._group = next(name for name, kind in GROUPS.items() if vars(kind).get(method.__name__) is method)

    @overload
    def __get__(self, app: None, kind: type[Pollux]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]: ...

    @overload
    def __get__(self, app: Pollux, kind: type[Pollux]) -> Callable[P, Coroutine[Any, Any, R]]: ...

    def __get__(self, app: Pollux | None, kind: type[Pollux]) -> Any:
        return self._method if app is None else self.of(app.operations)

    def of(self, operations: Operations) -> Callable[P, Coroutine[Any, Any, R]]:
        verb: Callable[P, Coroutine[Any, Any, R]] = getattr(getattr(operations, self._group), self._method.__name__)
        return verb


class Blocking:
    """Each verb of the app as a plain call: `app.blocking.enqueue(...)`.

    They run on a loop thread with a store handle of its own.  The thread starts with the first call and ends with
    `close`.  A child of a fork has neither thread nor handle: calls there are refused, unless it was closed before.
    """

    def __init__(self, app: Pollux) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread, Operations] | None = None
        self._pid: int | None = None  # the process of the thread

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = inspect.getattr_static(self._app, name, None)
        if not isinstance(verb, AppVerb):
            raise AttributeError(f"there is no verb {name!r}")  # noqa: TRY004  as of any missing attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            loop, operations = self._started()
            return self._on_loop(loop, verb.of(operations)(*args, **kwargs), name)

        return call

    def close(self) -> None:
        """End the thread and close the store handle; a later call starts anew.  Does nothing in a child of a fork."""
        if self._is_inherited():
            return  # the store handle is the parent's
        with self._lock:
            running, self._running, self._pid = self._running, None, None
        if running is not None:
            loop, thread, operations = running
            self._on_loop(loop, operations.context.store.close(), "close")
            _end(loop, thread)

    def _started(self) -> tuple[asyncio.AbstractEventLoop, Operations]:
        if self._is_inherited():  # and the lock may be held by a thread of the parent
            raise PolluxError(
                f"app.blocking was started by process {self._pid} and cannot be used in its child {os.getpid()}; "
                "call app.blocking.close() before the fork, or make another app after it"
            )
        with self._lock:
            if self._running is None:
                self._pid = os.getpid()
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="pollux-blocking", daemon=True)
                thread.start()
                try:
                    self._running = loop, thread, self._on_loop(loop, self._app.open_twin(), "open")
                except BaseException:
                    _end(loop, thread)
                    self._pid = None
                    raise
            loop, _, operations = self._running
            return loop, operations

    def _is_inherited(self) -> bool:
        """Is this the copy of a fork, without the thread?"""
        return self._pid is not None and self._pid != os.getpid()

    @staticmethod
    def _on_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], name: str) -> Any:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            coroutine.close()
            raise PolluxError("app.blocking was called on its own loop; use `await app.<verb>` there")
        answer = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return answer.result(CALL_SECONDS_MAX)
        except TimeoutError as error:
            if not answer.cancel():  # the call has ended, maybe by a timeout of its own
                return answer.result()
            raise StoreTimeout(
                f"app.blocking.{name}: no answer within {CALL_SECONDS_MAX:g} s; the call was cancelled, and may have "
                "taken effect; look at what it did before you repeat it, and make a large call in smaller parts"
            ) from error


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(CALL_SECONDS_MAX)
    loop.close()
