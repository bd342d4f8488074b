"""Guard against forks in handlers: a forked copy of a node ends when it comes back to the node's own code.

Whoever forks, works and leaves without coming back (`multiprocessing`, `os._exit`) is left alone.  A copy that returns
from its handler, or lets its event loop go on, would be a second node with the sockets and the runs of the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Generator
from typing import Any, NoReturn

EXIT_CODE = 70  # a mistake in the program
_TOLD = (
    b"pollux: a handler forked, and its copy came back to the node; the copy ends here. "
    b"Let it end with os._exit(), or use subprocess or multiprocessing instead of os.fork()\n"
)
_loops: list[tuple[int, asyncio.AbstractEventLoop]] = []  # of running nodes, by the thread that they run in


def guard(loop: asyncio.AbstractEventLoop) -> None:
    """From here on a copy of this thread does not go on with this loop."""
    _loops.append((threading.get_ident(), loop))


def unguard(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(ValueError):
        _loops.remove((threading.get_ident(), loop))


def end_copy(error: BaseException | None = None) -> NoReturn:
    """End this process, a copy: with the code that it asks for (`sys.exit`), else with a complaint."""
    if isinstance(error, SystemExit):
        code = error.code
        os._exit(code if isinstance(code, int) else int(code is not None))
    with contextlib.suppress(OSError):
        os.write(2, _TOLD)
    os._exit(EXIT_CODE)


def guarded(call: Awaitable[Any]) -> Awaitable[Any]:
    """The call of an async handler, whose copy ends where it leaves a step of this call.

    On asyncio's own loop the queue of the loop ends copies, wherever they come from.  Other loops (uvloop) keep theirs
    where Python does not reach it, so the steps of the handler are looked at.
    """
    return call if hasattr(asyncio.get_running_loop(), "_ready") else _Steps(call)


class _Steps(Generator[Any, Any, Any]):
    """What an awaitable does step by step, with a look at the process after each."""

    def __init__(self, call: Awaitable[Any]) -> None:
        self._steps, self._pid = call.__await__(), os.getpid()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def send(self, value: Any) -> Any:
        try:
            return self._steps.send(value)
        finally:
            self._look()

    def throw(self, *error: Any) -> Any:
        try:
            return self._steps.throw(*error)
        finally:
            self._look()

    def close(self) -> None:
        self._steps.close()

    def _look(self) -> None:
        if os.getpid() != self._pid:
            end_copy(sys.exception())


class _LastSteps(deque[Any]):
    """What is ready on the loop of a copy: the first step ends it."""

    def popleft(self) -> NoReturn:
        end_copy()


def _after_fork_in_child() -> None:
    for thread, loop in _loops:
        if thread == threading.get_ident():
            with contextlib.suppress(AttributeError):  # a loop that is not asyncio's own
                loop._ready = _LastSteps([None])  # type: ignore[attr-defined]  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork_in_child)
