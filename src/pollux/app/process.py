"""Life of an app as a process: signals, the event loop, and the wait for a store that is down.

`serve` and `app.run()` share it.  A store that does not answer yet is waited for; a configuration that cannot work ends
the process with its cure.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollux.errors import Conflict, PolluxError, StoreAway, StoreBusy, StoreFull, StoreTimeout, exit_code_of
from pollux.log_format import complaint, write_lines

if TYPE_CHECKING:
    from pollux.app.pollux import Pollux


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


AWAY_S = (0.5, 3.0)  # between two looks for a store that does not answer: at first, at most
SAY_AGAIN_S = 60.0

log = logging.getLogger("pollux")


async def has_started(
    app: Pollux, stop: asyncio.Event, say: Callable[[str], None] = log.warning, *, replace: bool = False
) -> bool:
    """Started, or told to stop while the store was away or had no room; that is said once a minute.

    Nodes that declare other jobs of our sources may be dead: whether they beat again is waited for.
    """
    rest_s, said_at, said = AWAY_S[0], 0.0, ""
    conflicting = _ConflictingNodes(app.options.beat_ttl_ms / 1000 + AWAY_S[1])
    while not stop.is_set():
        try:
            await app.start(replace=replace)
        except (StoreAway, StoreBusy, StoreTimeout, StoreFull, Conflict) as error:
            words, at = str(error), time.monotonic()
            if isinstance(error, Conflict):
                until = conflicting.wait_for(error, at)
            else:
                until = f"trying again until {'there is room' if isinstance(error, StoreFull) else 'it answers'}"
            if words != said or at >= said_at + SAY_AGAIN_S:
                say(f"{words}; {until}, Ctrl-C stops")
                said_at, said = at, words
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), rest_s)
            rest_s = min(2 * rest_s, AWAY_S[1])
        else:
            if conflicting.beats:
                say(
                    f"no longer there: {conflicting.names}; this start takes the place, "
                    "and the jobs are those that it declares"
                )
            return True
    return False


class _ConflictingNodes:
    """Nodes that declare other jobs of our sources.  One that beats again lives; the others are gone before long."""

    def __init__(self, patience_s: float) -> None:
        self.beats: dict[str, int] = {}  # the first beat that was seen of each
        self._patience_s, self._until = patience_s, 0.0

    @property
    def names(self) -> str:
        return f"{'node' if len(self.beats) == 1 else 'nodes'} {', '.join(self.beats)}"

    def wait_for(self, error: Conflict, at: float) -> str:
        """What is waited for, in words; raises the refusal where a node lives, or the time for it is over."""
        living = error.found.get("living", {})
        self._until = self._until if self.beats else at + self._patience_s
        has_beaten = any(beat_ms > self.beats.get(node, beat_ms) for node, beat_ms in living.items())
        if not living or has_beaten or at >= self._until:
            raise error
        self.beats = living | self.beats
        return (
            f"waiting up to {self._until - at:.0f} s for a beat of {self.names}: if one comes, this start ends; "
            "if none does, or all stop, it takes their place"
        )


def run_alone(app: Pollux, *, replace: bool = False) -> None:
    """Be the whole program, until SIGTERM or SIGINT: `SystemExit` with a line on stderr for what Pollux refuses."""
    if not _is_logged():
        colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        write_lines(logging.StreamHandler(), "text", logging.INFO, colours=colours)
    try:
        run_to_end(_until_signalled(app, replace=replace))
    except PolluxError as error:
        sys.stderr.write(f"{complaint(str(error))}\n")
        raise SystemExit(exit_code_of(error)) from error


def _is_logged() -> bool:
    """Has the program said where our lines go, or that they go nowhere?  Then that is how it is."""
    return log.hasHandlers() or not log.propagate


async def _until_signalled(app: Pollux, *, replace: bool) -> None:
    """Started, until it is told to stop; commands on this machine may ask it by a socket meanwhile."""
    server = import_module("pollux.server")  # decision 0041: by name, since the server is built on the app
    stop = asyncio.Event()
    listen_for_signals(stop)
    nearby = server.nearby_options(app.store_url, os.environ)
    async with server.served(app, nearby, stop=stop, replace=replace):
        await stop.wait()
