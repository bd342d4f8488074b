"""Does the PostgreSQL store keep the contract?  On a real server, in a schema that is emptied before each test."""

import pytest

from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance import StoreContract
from pollux.testing.conformance.waits import LONG_MS
from tests.servers.postgres import empty, own_url


@pytest.fixture(scope="module")
def url():
    return own_url("contract")


class TestPostgresStore(StoreContract):
    @pytest.fixture
    async def store(self, url, monkeypatch):
        monkeypatch.setattr("pollux.store.postgres.bell.LOOK_AGAIN_MS", LONG_MS)  # who is not rung waits it out
        await empty(url)
        store = PostgresStore(url)
        await store.open()
        yield store
        await store.close()
