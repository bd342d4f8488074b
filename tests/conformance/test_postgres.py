"""Does the PostgreSQL store keep the contract?  On a real server, each test in a schema of its own."""

import pytest

from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance import StoreContract
from tests.servers.postgres import own_url


class TestPostgresStore(StoreContract):
    @pytest.fixture
    async def store(self):
        store = PostgresStore(own_url("contract"))
        await store.open()
        yield store
        await store.close()
