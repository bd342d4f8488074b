"""Promises of the store on another major version of PostgreSQL than the other tests use.

They take what the machine has, and where it has nothing that of a wheel, which is newer; then Debian's is fetched.
Where no second one can be had these tests are skipped, which fails a run that must not skip.
"""

import asyncpg
import pytest

from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.waits import LONG_MS
from tests.conformance.variants import VariantContract
from tests.servers.postgres import QUICK, PostgresServer, Sweeper, find_other, shared_url

pytestmark = pytest.mark.xdist_group("postgres kinds")  # one server for all of them


@pytest.fixture(scope="module")
def server():
    try:
        program = find_other()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    server = PostgresServer(*QUICK, program=program)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="module")
def sweeper(server):
    sweeper = Sweeper(server.url())
    yield sweeper
    sweeper.end()


async def version_of(url):
    connection = await asyncpg.connect(url)
    try:
        return connection.get_server_version()
    finally:
        await connection.close()


async def test_it_is_another_one(server):
    assert (await version_of(server.url())).major != (await version_of(shared_url())).major


class TestOnTheOtherMajor(VariantContract):
    @pytest.fixture
    def clean(self, server, sweeper):
        sweeper.empty("contract")
        return f"{server.url()}?schema=contract"

    @pytest.fixture
    async def store(self, clean, monkeypatch):
        monkeypatch.setattr("pollux.store.postgres.wakeup.LOOK_AGAIN_MS", LONG_MS)  # who is not rung waits it out
        store = PostgresStore(clean)
        await store.open()
        yield store
        await store.close()
