"""Connection pool, bounded: the most recently used connection first, and every wait has a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from asyncpg import Connection

from pollux.errors import StoreBusy

IDLE_S = 60.0
CLOSE_S = 2.0


class ConnectionPool:
    """Connections of one handle, in one loop."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int, where: str) -> None:
        self._connect, self._where, self._size = connect, where, size
        self._seats = asyncio.Semaphore(size)
        self._idle: list[tuple[float, Connection]] = []
        self._used: set[Connection] = set()
        self._is_closed = False

    async def take(self, wait_s: float) -> Connection:
        if self._seats.locked():
            await self._sit(wait_s)
        else:
            await self._seats.acquire()  # at once
        try:
            while self._idle:
                _, connection = self._idle.pop()
                if not connection.is_closed():
                    break
            else:
                connection = await self._connect()
        except BaseException:
            self._seats.release()
            raise
        self._used.add(connection)
        return connection

    async def _sit(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._seats.acquire()
        except TimeoutError as error:
            raise StoreBusy(
                f"{self._where}: all {self._size} connections of this process were busy for {wait_s:g} s; nothing was "
                "changed; raise `?pool=`, or ask less at once"
            ) from error

    def give(self, connection: Connection, *, is_sound: bool) -> None:
        """Return a connection; one in the middle of something is cut off, and the server undoes what it began."""
        self._used.discard(connection)
        self._seats.release()
        if not is_sound or self._is_closed:
            connection.terminate()
            return
        now = time.monotonic()
        self._idle.append((now, connection))
        if self._idle[0][0] < now - IDLE_S:
            self._idle.pop(0)[1].terminate()

    def drop_idle(self) -> None:
        """After one was found dead the others are not trusted either."""
        for _, connection in self._idle:
            connection.terminate()
        self._idle.clear()

    async def close(self) -> None:
        self._is_closed = True
        for connection in self._used:
            connection.terminate()
        idle, self._idle = self._idle, []
        for _, connection in idle:
            try:
                await connection.close(timeout=CLOSE_S)
            except Exception:  # noqa: BLE001  it is closed in any case
                connection.terminate()
