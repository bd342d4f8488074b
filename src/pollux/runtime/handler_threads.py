"""Thread pool for blocking handlers, never more threads than seats.

The threads are daemons: a handler that never ends cannot keep the process from ending.  Results are collected in
batches, so that a hundred of them cost one wake-up of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from pollux.runtime.fork_guard import end_copy

Work = Callable[[], Any]
Ended = Callable[[Any, BaseException | None], None]


class HandlerThreads:
    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Work, Ended] | None] = SimpleQueue()
        self._ended: deque[tuple[Ended, Any, BaseException | None]] = deque()
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        self._is_collecting = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def under_way(self) -> int:
        """Calls that run, or whose result is not yet collected."""
        return self._under_way

    def submit(self, work: Work, ended: Ended) -> None:
        """Run `work` in a thread, then call `ended` with its value or its error on the event loop.

        Raises the error of the system if no thread can be started.
        """
        self._loop = self._loop or asyncio.get_running_loop()
        if self._under_way >= len(self._threads):
            name = f"pollux-hand-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            thread.start()  # may be refused: then nothing is under way
            self._threads.append(thread)
        self._under_way += 1
        self._work.put((work, ended))

    def stop(self) -> None:
        """Stop idle threads now, busy ones after their current call."""
        for _ in self._threads:
            self._work.put(None)
        self._threads = []

    def _serve(self) -> None:
        pid = os.getpid()
        while (item := self._work.get()) is not None:
            work, ended = item
            try:
                value, error = work(), None
            except BaseException as raised:  # noqa: BLE001  whatever a handler raises is its outcome
                value, error = None, raised
            if os.getpid() != pid:
                end_copy(error)
            self._ended.append((ended, value, error))
            del item, work, ended, value, error  # an idle thread keeps nothing alive
            if not self._is_collecting:
                self._is_collecting = True
                self._schedule_collection()

    def _schedule_collection(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: the result is not needed any more
            self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._is_collecting = False  # first: results from here on schedule another collection
        while self._ended:
            ended, value, error = self._ended.popleft()
            self._under_way -= 1
            ended(value, error)
