"""The networked stores under test, each with a server, a proxy before it, and faults of the server itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import asyncpg

from pollux.errors import StoreAway, StoreTimeout
from pollux.store.contract import Store
from pollux.store.postgres.address import read_address
from pollux.store.postgres.store import PostgresStore
from pollux.store.redis import RedisStore
from tests.faults.proxy import Proxy
from tests.servers import postgres, redis

SHORT_TRIES = 20


class Backend(NamedTuple):
    """`may_plan`: may this request be the beginning of an `advance`?  Of `plans_at` such requests of a node that only
    plans one is."""

    name: str
    own_url: Callable[[str], str]
    make: Callable[..., Store]
    start_server: Callable[[Path], Any]
    url_on: Callable[[Any], str]
    may_plan: Callable[[bytes], bool]
    plans_at: int


def _redis_plans(request: bytes) -> bool:
    return b"_advance\r\n" in request  # `FCALL pollux_<hash>_advance`


def _postgres_plans(request: bytes) -> bool:
    """Every write begins so; besides plans there is one for the term every second."""
    return b"BEGIN" in request


def _redis_server(folder: Path, appendfsync: str = "always") -> redis.RedisServer:
    return redis.RedisServer(folder, "--appendonly", "yes", "--appendfsync", appendfsync).start()


def _postgres_server(_: Path) -> postgres.PostgresServer:
    return postgres.PostgresServer().start()


REDIS = Backend(
    name="redis",
    own_url=redis.own_url,
    make=RedisStore,
    start_server=_redis_server,
    url_on=lambda server: f"{server.url}?namespace=faults",
    may_plan=_redis_plans,
    plans_at=1,
)
REDIS_EVERYSEC = REDIS._replace(
    name="redis-everysec", start_server=lambda folder: _redis_server(folder, "everysec")
)  # as most are set
POSTGRES = Backend(
    name="postgres",
    own_url=postgres.own_url,
    make=PostgresStore,
    start_server=_postgres_server,
    url_on=lambda server: f"{server.url()}?schema=faults",
    may_plan=_postgres_plans,
    plans_at=2,
)
BACKENDS = [REDIS, POSTGRES]


@asynccontextmanager
async def opened(backend: Backend, url: str, **options: Any) -> AsyncIterator[Store]:
    """A handle of our own on that store; with a short deadline a busy machine may open it only at the second try."""
    store = backend.make(url, **options)
    for is_last in (*[False] * SHORT_TRIES, True):
        try:
            await store.open()
            break
        except (StoreTimeout, StoreAway):  # the second: before the server said who it is
            if is_last:
                raise
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def asked_of(url: str) -> AsyncIterator[Any]:
    """A connection of our own to the PostgreSQL of that URL."""
    connection = await asyncpg.connect(read_address(url).dsn)
    try:
        yield connection
    finally:
        await connection.close()


def place_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


async def way_to(url: str, host: str = "127.0.0.1") -> Proxy:
    """A proxy before the server of that URL."""
    return await Proxy(*place_of(url)).start(host)


def by_way_of(url: str, proxy: Proxy, host: str = "127.0.0.1") -> str:
    """The same store, reached through the proxy."""
    server, port = place_of(url)
    return url.replace(f"{server}:{port}", f"{host}:{proxy.port}", 1)
