"""The PostgreSQL store keeps the contract, on a real server, in a schema that is emptied before each test."""

import pytest

from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance import StoreContract
from pollux.testing.conformance.waits import LONG_MS
from tests.servers.postgres import emptied, own_url


@pytest.fixture(scope="module")
def url():
    return own_url("contract")


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def clean(self, url):
        return emptied(url)

    @pytest.fixture
    async def store(self, clean, monkeypatch):
        monkeypatch.setattr("pollux.store.postgres.wakeup.LOOK_AGAIN_MS", LONG_MS)  # who is not rung waits it out
        store = PostgresStore(clean)
        await store.open()
        yield store
        await store.close()
