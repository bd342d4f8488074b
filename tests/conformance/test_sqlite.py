"""Does the SQLite store keep the contract?"""

import pytest

from pollux.store.sqlite.store import SqliteStore
from pollux.testing.conformance import StoreContract
from pollux.testing.conformance.waits import LONG_MS


class TestSqliteStore(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path, monkeypatch):
        monkeypatch.setattr("pollux.store.sqlite.handle.LOOK_AGAIN_MS", LONG_MS)  # who is not rung waits it out
        store = SqliteStore(tmp_path / "pollux.db")
        await store.open()
        yield store
        await store.close()
