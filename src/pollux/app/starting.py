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
                say(f"gone: {conflicting.names}; this start takes the place, and the jobs are those that it declares")
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
