"""How does a waiter learn that there is something to do?  From its own handle at once, from others by NOTIFY.

LISTEN has a connection of its own, made when the first call waits and made anew when it is lost.  Notifications are
hints: whoever waits also looks again now and then, and everybody looks once after the connection was made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from asyncpg import Connection

from pollux.errors import PolluxError
from pollux.store.postgres.faults import THEIRS
from pollux.store.relational.bells import EVERY, FEED, RUNS, WAKE, Waiter

STAND_S = 2.0
LISTEN_S = 10.0
BACKOFF_S = 0.1
BACKOFF_MAX_S = 3.0


class Ear:
    """The waiters of one handle, and its connection that listens."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]] | None, channel: str, sender: str) -> None:
        self._connect, self._channel, self._sender = connect, channel, sender
        self._waiters: set[Waiter] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._standing = asyncio.Event()

    @property
    def is_standing(self) -> bool:
        return self._standing.is_set()

    @contextmanager
    def listen(self, kinds: int, version: int) -> Iterator[Waiter]:
        waiter = Waiter(kinds, version)
        self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)

    async def stand(self) -> bool:
        """Before going to sleep: true if only from now on nothing is missed, so that one more look is needed."""
        if self._connect is None or self._standing.is_set():
            return False
        is_new = self._keeper is None
        if self._keeper is None:
            self._keeper = asyncio.ensure_future(self._keep(self._connect))
        with suppress(TimeoutError):
            async with asyncio.timeout(STAND_S if is_new else 0):
                await self._standing.wait()
        return self._standing.is_set()

    def ring(self, kinds: int, versions: frozenset[int] = EVERY) -> None:
        """For those who wait in these versions; none named: for all."""
        for waiter in self._waiters:
            waiter.hear(kinds, versions)

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        self.ring(WAKE)
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])

    async def _keep(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        """Listen for ever; after a loss try again, less and less often."""
        pause_s = BACKOFF_S
        while True:
            try:
                connection = await connect()
            except (PolluxError, *THEIRS):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_MAX_S)
                continue
            try:
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _, lost=lost: lost.set())
                with suppress(*THEIRS):
                    async with asyncio.timeout(LISTEN_S):
                        await connection.add_listener(self._channel, self._hear)
                    pause_s = BACKOFF_S
                    self._standing.set()
                    self.ring(RUNS | FEED)  # whatever rang meanwhile was missed
                    await lost.wait()
            finally:
                self._standing.clear()
                connection.terminate()
            await asyncio.sleep(pause_s)

    def _hear(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        kinds, _, rest = payload.partition(":")
        sender, _, versions = rest.partition(":")
        if sender != self._sender and kinds.isdecimal():
            self.ring(int(kinds), frozenset(int(each) for each in versions.split(",") if each.isdecimal()))
