"""How does an app begin as a process?  It waits for its store; what it cannot mend itself is a line and an exit code.

Whole deployments start at once, so a store that does not answer yet may come, and one without room may get some.  All
else that Pollux refuses (a wrong password, a store that was moved, an option) does not become better by waiting, and a
person needs no traceback for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from pollux.app.process import listen_for_signals, run_to_end
from pollux.errors import Conflict, PolluxError, StoreAway, StoreBusy, StoreFull, StoreTimeout, exit_code_of
from pollux.lines import complaint, write_lines

if TYPE_CHECKING:
    from pollux.app.pollux import Pollux

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
    beats: dict[str, int] = {}
    while not stop.is_set():
        try:
            await app.start(replace=replace)
        except (StoreAway, StoreBusy, StoreTimeout, StoreFull, Conflict) as error:
            words, at = str(error), time.monotonic()
            until = "there is room" if isinstance(error, StoreFull) else "it answers"
            if isinstance(error, Conflict):
                living = error.found.get("living", {})
                if not living or any(beat_ms > beats.get(node, beat_ms) for node, beat_ms in living.items()):
                    raise
                beats, until = living | beats, "they beat, or are gone"
            if words != said or at >= said_at + SAY_AGAIN_S:
                say(f"{words}; trying again until {until}, Ctrl-C stops")
                said_at, said = at, words
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), rest_s)
            rest_s = min(2 * rest_s, AWAY_S[1])
        else:
            return True
    return False


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
