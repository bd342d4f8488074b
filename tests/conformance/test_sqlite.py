"""The SQLite store keeps the contract, in a file that is new for each test: a copy of a template."""

import asyncio
import shutil

import pytest

from pollux.store.sqlite.store import SqliteStore
from pollux.testing.conformance import StoreContract
from pollux.testing.conformance.waits import LONG_MS


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """To copy it takes a quarter of the time that it took to make it."""
    path = tmp_path_factory.mktemp("made") / "pollux.db"

    async def make():
        store = SqliteStore(path)
        await store.open()
        await store.close()

    asyncio.run(make())
    return path


class TestSqliteStore(StoreContract):
    @pytest.fixture
    async def store(self, made, tmp_path, monkeypatch):
        monkeypatch.setattr("pollux.store.sqlite.store.LOOK_AGAIN_MS", LONG_MS)  # who is not rung waits it out
        store = SqliteStore(shutil.copy(made, tmp_path / "pollux.db"))
        await store.open()
        yield store
        await store.close()
