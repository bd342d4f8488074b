"""How does an app live as a process?  Signals, and the event loop it runs on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

ECHO_SECONDS = 0.3  # a person who wants it to end at once is not quicker
OWNS_PROCESS: ContextVar[bool] = ContextVar("owns_process", default=False)  # an app that is embedded does not
LEAVE_SECONDS = 1.0  # what is left of handlers after the drain has this long to notice that it is cancelled


def listen_for_signals(stop: asyncio.Event) -> None:
    """SIGTERM or SIGINT sets `stop`; the second one ends the process at once (leases then run out by themselves).

    One that comes on the heels of the first is the same wish: shells, supervisors and `timeout` often tell the process
    and then its whole group.
    """
    loop = asyncio.get_running_loop()
    heard: list[float] = []

    def on_signal(number: int) -> None:
        heard.append(loop.time())
        is_echo = len(heard) > 1 and heard[-1] - heard[0] < ECHO_SECONDS
        if stop.is_set() and not is_echo:
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def is_looped() -> bool:
    """Does an event loop run in this thread?"""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop where it is installed (`pip install pollux-scheduler[fast]`), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_to_end(program: Coroutine[Any, Any, None]) -> None:
    """Run a program on a loop of its own, and end with it.

    `asyncio.run` would wait for ever for a handler that ignores its cancellation, or that waits for a thread.  Its run
    was settled or handed back by the drain, so nothing is lost by leaving it behind.
    """
    runner = asyncio.Runner(loop_factory=fast_loop())
    inside = copy_context()
    inside.run(OWNS_PROCESS.set, True)  # noqa: FBT003  of a context variable
    try:
        runner.run(program, context=inside)
    finally:
        loop = runner.get_loop()
        if not runner.run(_cancel_others()):
            loop.set_exception_handler(lambda *_: None)  # the drain has said which run it is
        runner.run(loop.shutdown_asyncgens())
        loop.close()
        asyncio.set_event_loop(None)


async def _cancel_others() -> bool:
    """Cancel whatever still runs on this loop; false if some of it ignores that."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    if not others:
        return True
    _, deaf = await asyncio.wait(others, timeout=LEAVE_SECONDS)
    return not deaf


def program_words() -> str:
    """What was typed to start this process, without its arguments: they may be secrets.

    Nothing if it is not known: of `python -c`, and of a script whose current folder is deleted.
    """
    main, script = sys.modules.get("__main__"), sys.argv[0]
    spec = getattr(main, "__spec__", None)
    more = " ..." if len(sys.argv) > 1 else ""
    if spec is not None:
        return f"python -m {spec.name.removesuffix('.__main__')}{more}"
    if script in ("", "-", "-c"):
        return ""
    path = Path(script)
    if path.suffix != ".py":
        return f"{path.name}{more}"
    try:
        return f"python {os.path.relpath(script)}{more}"
    except OSError:
        return ""


def threads_left() -> list[str]:
    """Threads that would keep the process from ending, after a moment to end by themselves."""
    deadline = time.monotonic() + LEAVE_SECONDS
    ours = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for thread in ours:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in ours if thread.is_alive()]
