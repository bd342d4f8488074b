"""Synchronous bridge: `app.blocking.enqueue(...)` runs the verbs of the app on a loop thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from pollux.app.operations import Operations
from pollux.errors import PolluxError

CALL_SECONDS_MAX = 60.0
VERBS = {  # and the group of operations that each belongs to
    **dict.fromkeys(("enqueue", "enqueue_many", "run_now", "cancel", "get_run"), "runs"),
    **dict.fromkeys(("put_jobs",), "jobs"),
    **dict.fromkeys(("pause", "resume"), "pauses"),
    **dict.fromkeys(("why",), "status"),
}


class Blocking:
    """Each verb of `VERBS` as a plain call.  The thread starts with the first call and ends with `close`."""

    def __init__(
        self, make: Callable[[], Coroutine[Any, Any, tuple[Operations, Callable[[], Coroutine[Any, Any, None]]]]]
    ) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._operations: Operations | None = None
        self._close_store: Callable[[], Coroutine[Any, Any, None]] | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in VERBS:
            raise AttributeError(f"there is no verb {name!r}")

        def call(*args: Any, **kwargs: Any) -> Any:
            loop, operations = self._started()
            return self._on_loop(loop, getattr(getattr(operations, VERBS[name]), name)(*args, **kwargs))

        return call

    def close(self) -> None:
        """End the thread and let go of the store; a later call starts anew."""
        with self._lock:
            loop, thread, close_store = self._loop, self._thread, self._close_store
            self._loop = self._thread = self._operations = self._close_store = None
        if loop is None or thread is None:
            return
        if close_store is not None:
            self._on_loop(loop, close_store())
        _end(loop, thread)

    def _started(self) -> tuple[asyncio.AbstractEventLoop, Operations]:
        with self._lock:
            if self._loop is None or self._operations is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="pollux-blocking", daemon=True)
                thread.start()
                try:
                    self._operations, self._close_store = self._on_loop(loop, self._make())
                except BaseException:
                    _end(loop, thread)
                    raise
                self._loop, self._thread = loop, thread
            return self._loop, self._operations

    @staticmethod
    def _on_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            coroutine.close()
            raise PolluxError("app.blocking was called on its own loop; use `await app.<verb>` there")
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(CALL_SECONDS_MAX)


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(CALL_SECONDS_MAX)
    loop.close()
