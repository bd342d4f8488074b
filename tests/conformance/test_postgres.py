"""Does the PostgreSQL store keep the contract?  On a real server, in a schema that is emptied before each test."""

import pytest

from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance import StoreContract
from tests.servers.postgres import empty, own_url


@pytest.fixture(scope="module")
def url():
    return own_url("contract")


class TestPostgresStore(StoreContract):
    @pytest.fixture
    async def store(self, url):
        await empty(url)
        store = PostgresStore(url)
        await store.open()
        yield store
        await store.close()
