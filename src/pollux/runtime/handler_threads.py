"""Threads for blocking handlers, and the guard against forks in handlers.

`HandlerThreads` is a pool of daemon threads, never more than seats: a handler that never ends cannot keep the process
from ending.  Results are collected in batches, so that a hundred of them cost one wake-up of the event loop.

The guard makes a forked copy of a node exit when it returns to the node's own code.  A child that works and exits
without returning (`multiprocessing`, `os._exit`) is left alone.  A copy that returns from its handler, or lets its
event loop go on, would be a second node with the sockets and the runs of the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from queue import SimpleQueue
from typing import Any, NoReturn

Work = Callable[[], Any]
Ended = Callable[[Any, BaseException | None], None]


class HandlerThreads:
    """Pool of daemon threads for blocking handlers."""

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
            name = f"pollux-handler-{len(self._threads) + 1}"
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


EXIT_CODE = 70  # EX_SOFTWARE: an error in the program
_MESSAGE = (
    b"pollux: a handler forked, and its copy came back to the node; the copy ends here. "
    b"Let it end with os._exit(), or use subprocess or multiprocessing instead of os.fork()\n"
)
_loops: list[tuple[int, asyncio.AbstractEventLoop]] = []  # of running nodes, with the thread that each runs in


def guard(loop: asyncio.AbstractEventLoop) -> None:
    """Make a forked copy of this thread exit before it runs another step of this loop."""
    _loops.append((threading.get_ident(), loop))


def unguard(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(ValueError):
        _loops.remove((threading.get_ident(), loop))


def end_copy(error: BaseException | None = None) -> NoReturn:
    """End this process, a copy: with the code of `sys.exit`, else with a message and `EXIT_CODE`."""
    if isinstance(error, SystemExit):
        code = error.code
        os._exit(code if isinstance(code, int) else int(code is not None))
    with contextlib.suppress(OSError):
        os.write(2, _MESSAGE)
    os._exit(EXIT_CODE)


def guarded(call: Awaitable[Any]) -> Awaitable[Any]:
    """Wrap the call of an async handler so that a forked copy ends where it leaves a step of the call.

    On asyncio's own loop the replaced ready queue ends copies at any point.  Other loops (uvloop) keep theirs out of
    Python's reach, so the process id is checked after each step of the handler.
    """
    return call if hasattr(asyncio.get_running_loop(), "_ready") else _Steps(call)


class _Steps(Generator[Any, Any, Any]):
    """An awaitable that checks the process id after each step."""

    def __init__(self, call: Awaitable[Any]) -> None:
        self._steps, self._pid = call.__await__(), os.getpid()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def send(self, value: Any) -> Any:
        try:
            return self._steps.send(value)
        finally:
            self._check_process()

    def throw(self, *error: Any) -> Any:
        try:
            return self._steps.throw(*error)
        finally:
            self._check_process()

    def close(self) -> None:
        self._steps.close()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            end_copy(sys.exception())


class _LastSteps(deque[Any]):
    """The ready queue of the loop in a copy: taking the first step ends the process."""

    def popleft(self) -> NoReturn:
        end_copy()


def _after_fork_in_child() -> None:
    for thread, loop in _loops:
        if thread == threading.get_ident():
            with contextlib.suppress(AttributeError):  # a loop that is not asyncio's own
                loop._ready = _LastSteps([None])  # type: ignore[attr-defined]  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork_in_child)
