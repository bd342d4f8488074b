"""The Redis store keeps the contract, on a real server."""

import pytest

from pollux.store.redis import RedisStore
from pollux.testing.conformance import StoreContract
from tests.servers.redis import own_url


class TestRedisStore(StoreContract):
    @pytest.fixture
    async def store(self):
        store = RedisStore(own_url("conformance"))
        await store.open()
        yield store
        await store.close()
