"""Does the memory store keep the contract?"""

import pytest

from pollux.store.memory import MemoryStore
from pollux.testing.conformance import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    async def store(self):
        store = MemoryStore()
        await store.open()
        yield store
        await store.close()
