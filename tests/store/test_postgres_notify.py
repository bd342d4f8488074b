"""NOTIFY of a busy process, as another connection hears it: how often, and nothing is missed."""

import asyncio

import asyncpg
import pytest

from pollux.store.postgres.address import read_address
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_run, given_jobs, ids
from tests.servers.postgres import own_url, shared_url


@pytest.fixture
async def heard():
    """A store, and all that is said on its channel."""
    url = own_url("bells")
    store = PostgresStore(url)
    await store.open()
    await given_jobs(store, "job")
    said = []
    connection = await asyncpg.connect(shared_url())
    await connection.add_listener(f"pollux_{read_address(url).schema}", lambda *about: said.append(about[-1]))
    yield store, said
    await store.close()
    await connection.close()


async def until(condition):
    for _ in range(6_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")


async def test_many_writes_ring_a_few_times_and_once_after_the_last(heard):
    store, said = heard
    moment_s = store.backend.database._notifier._moment_s = 0.3  # far longer than a write takes, also on a busy machine
    began = asyncio.get_running_loop().time()
    for n in range(100):
        await store.enqueue([a_run(f"r{n}", due_ms=0)])
    took = asyncio.get_running_loop().time() - began
    written = len(said)
    await until(lambda: len(said) > written or not store.backend.database._notifier._kinds)

    assert 1 <= len(said) <= took / moment_s + 2


async def test_a_single_write_rings_with_its_commit(heard):
    store, said = heard
    await store.enqueue([a_run("a", due_ms=0)])
    await until(lambda: said)
    assert len(said) == 1


@pytest.mark.usefixtures("only_rings")
async def test_who_waits_elsewhere_misses_none_of_many_quick_writes(heard):
    """Each run is picked up long before anybody would look by itself."""
    store, _ = heard
    other = PostgresStore(store.backend.address)
    await other.open()
    for n in range(30):
        waiting = asyncio.ensure_future(other.claim(node="n", token=f"t{n}", limit=1, lease_ms=60_000, wait_ms=60_000))
        await store.enqueue([a_run(f"w{n}", due_ms=0)])
        assert ids((await asyncio.wait_for(waiting, 50)).runs) == [f"w{n}"]
    await other.close()
