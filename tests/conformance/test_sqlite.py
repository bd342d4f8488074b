"""Does the SQLite store keep the contract?"""

import pytest

from pollux.store.sqlite.store import SqliteStore
from pollux.testing.conformance import StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path):
        store = SqliteStore(tmp_path / "pollux.db")
        await store.open()
        yield store
        await store.close()
