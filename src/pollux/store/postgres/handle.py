"""Handle on a PostgreSQL store: calls, time, waits, and what is open with it (connections, the listener, caches)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from pollux.clock import Clock, SystemClock
from pollux.model import SCHEDULER_VERSION, FeedItem, Job, Node, check_version
from pollux.store.contract import Audit, Capabilities, Claimed
from pollux.store.job_cache import JobCache
from pollux.store.postgres import records as record_verbs
from pollux.store.postgres import rows
from pollux.store.postgres import runs as run_verbs
from pollux.store.postgres import versions as version_verbs
from pollux.store.postgres.address import PostgresAddress, read_address
from pollux.store.postgres.claim import Claimer
from pollux.store.postgres.database import PostgresDatabase
from pollux.store.postgres.settle_cache import SettleCache
from pollux.store.postgres.transaction import PostgresTransaction
from pollux.store.postgres.wakeup import Looked, PostgresListener, Seen
from pollux.store.relational.rows import Row
from pollux.store.values import ClaimRequest
from pollux.store.versions import shut


class PostgresOpenState:
    """What is opened and closed, for a handle and those of other versions that were made from it."""

    database: PostgresDatabase
    ear: PostgresListener

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pid = 0
        self.counted: set[int] = set()  # the versions that have their counts
        self.grants = SettleCache()
        self.kept: tuple[int, str] | None = None  # nobody had more finished runs when these wrote last
        self.beats: dict[str, Node] = {}  # the last of whoever beats here


DEADLINE_MS = 10_000
T = TypeVar("T")


class PostgresHandle:
    """One handle, of one version."""

    def __init__(
        self,
        url: str | PostgresAddress,
        *,
        clock: Clock | None = None,
        deadline_ms: int = DEADLINE_MS,
        pool: int | None = None,
        scheduler_version: int = SCHEDULER_VERSION,
    ) -> None:
        self._version = check_version(scheduler_version)
        self._address = url if isinstance(url, PostgresAddress) else read_address(url)
        self.capabilities = Capabilities(name="postgres", joins=True, rings=self._address.listen)
        self._clock = clock or SystemClock()
        self._deadline_ms = deadline_ms
        self._pool = pool or self._address.pool
        self._jobs = JobCache()
        self._entries: dict[int, FeedItem] = {}  # of the feed as last read: many stay for some turns
        self._door = PostgresOpenState()
        self._claimer: Claimer | None = None

    def _opened(self) -> PostgresDatabase:
        door = self._door
        if door.loop is None or os.getpid() != door.pid:
            raise shut(f"on {self._address.where}", door.pid, is_open=door.loop is not None)
        return door.database

    async def _count_in(self, version: int) -> None:
        """Before the first write in a version: it gets its counts."""
        database = self._opened()
        if version not in self._door.counted:
            await database.read(lambda tx: version_verbs.ensure(tx, version), version)
            self._door.counted.add(version)

    async def _write(
        self, now_ms: int | None, verb: Callable[..., Awaitable[T]], *args: Any, audit: Audit[T] | None = None
    ) -> T:
        await self._count_in(self._version)

        async def whole(tx: PostgresTransaction) -> T:
            return await record_verbs.recorded(tx, audit, await verb(tx, *args))

        return await self._opened().write(whole, self._version, now_ms, self._door.ear.ring)

    async def _read(self, now_ms: int | None, verb: Callable[..., Awaitable[T]], *args: Any) -> T:
        return await self._opened().read(lambda tx: verb(tx, *args), self._version, now_ms)

    async def _enqueue(self, runs: rows.UniformRuns, ready_max: int, now_ms: int | None) -> bool:
        verb = partial(run_verbs.enqueue_plainly, made=runs, ready_max=ready_max)
        return await self._opened().read(verb, self._version, now_ms, self._door.ear.ring)

    async def _claim(self, asking: ClaimRequest, now_ms: int | None) -> Claimed:
        await self._count_in(self._version)
        if self._claimer is None:
            door = self._door
            self._claimer = Claimer(door.database, self._version, self._jobs, door.grants, self._clock, door.ear.ring)
        return await self._claimer.claim(asking, now_ms)

    async def _wait(self, kinds: int, look: Callable[[float], Awaitable[Looked[Seen]]], wait_ms: int) -> Seen:
        if wait_ms <= 0:
            return (await look(0.0))[0]
        self._opened()
        door = self._door
        return await door.ear.wait(kinds, self._version, look, wait_ms, lambda: door.loop is None)

    def _job(self, row: Row) -> Job:
        return rows.legible(self._jobs.job, tuple(row), "job")
