"""Fixtures of the store tests: other processes, all ended with their test, and handles of Redis."""

import pytest
from redis.asyncio import Redis

from pollux.store.redis import RedisStore
from tests.servers.redis import shared_url
from tests.store import children


@pytest.fixture
def start():
    """Start a program of `children.py`; ended with the test."""
    started = []

    def begin(name: str, *args: object, **env: str):
        started.append(children.start(name, *args, **env))
        return started[-1]

    yield begin
    for child in started:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


@pytest.fixture
def only_rings(monkeypatch):
    """Nobody who waits looks by itself meanwhile: what is heard was rung, however long it took."""
    monkeypatch.setattr("pollux.store.redis.store.LOOK_AGAIN_MS", 3_600_000)
    monkeypatch.setattr("pollux.store.postgres.wakeup.LOOK_AGAIN_MS", 3_600_000)


@pytest.fixture
async def opened():
    """Redis stores that are closed with the test."""
    stores = []

    async def begin(url, **options):
        stores.append(RedisStore(url, **options))
        await stores[-1].open()
        return stores[-1]

    yield begin
    for store in stores:
        await store.close()


@pytest.fixture
async def redis():
    """The server itself, as an operator sees it."""
    async with Redis.from_url(shared_url()) as client:
        yield client
