"""PostgreSQL behind a pooler in transaction mode: a real PgBouncer, three connections for all.

Between two statements its connection may be another one: whatever is kept in a session would be lost, or found by
somebody else.
"""

import asyncio

import asyncpg
import pytest

from pollux.model import Done
from pollux.store.contract import Answer
from pollux.store.postgres.address import read_address
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_run, given_jobs, settlement
from tests.conformance.variants import VariantContract
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import emptied, empty, own_url, shared_url

pytestmark = pytest.mark.xdist_group("pgbouncer")  # one bouncer for all of them


@pytest.fixture(scope="module")
def bouncer():
    started = PgBouncer(shared_url()).start()
    yield started
    started.stop()


@pytest.fixture
def narrow():
    started = PgBouncer(shared_url(), size=1).start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def url(bouncer):
    return bouncer.url(f"schema={read_address(own_url('pooled')).schema}")


class TestBehindPgBouncer(VariantContract):
    @pytest.fixture
    def clean(self, url):
        return emptied(url)

    @pytest.fixture
    async def store(self, clean):
        store = PostgresStore(clean)
        await store.open()
        yield store
        await store.close()


async def test_many_handles_share_one_connection_and_nothing_is_lost_or_doubled(narrow):
    """Whoever lets go of it between a statement and its values gets somebody else's statement."""
    schema = read_address(own_url("shared")).schema
    stores = [PostgresStore(narrow.url(f"schema={schema}")) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    await given_jobs(stores[0], "job")
    runs = [a_run(f"r{n}", due_ms=0) for n in range(120)]
    await asyncio.gather(*(store.enqueue(runs[n::6]) for n, store in enumerate(stores)))

    async def work(nth, store):
        settled = []
        for turn in range(40):
            claimed = await store.claim(node=f"n{nth}", token=f"{nth}-{turn}", limit=4, lease_ms=60_000)
            if not claimed.runs:
                break
            answers = await store.settle([settlement(run, Done()) for run in claimed.runs])
            assert answers == [Answer.OK] * len(claimed.runs)
            settled += [run.id for run in claimed.runs]
        return settled

    done = await asyncio.gather(*(work(nth, store) for nth, store in enumerate(stores)))

    assert sorted(run_id for some in done for run_id in some) == sorted(run.id for run in runs)
    counts = await stores[0].counts()
    assert (counts.ready, counts.leased) == (0, 0)
    for store in stores:
        await store.close()


async def test_behind_a_pooler_a_call_back_and_a_new_run_reach_who_waits(url):
    """Nobody listens there: both are seen in the counts, within 1.5 s."""
    await empty(url)
    store, other = PostgresStore(url), PostgresStore(url)
    await store.open()
    await other.open()
    await given_jobs(store, "job")
    waiting = asyncio.ensure_future(store.claim(node="n", token="1", limit=1, lease_ms=60_000, wait_ms=60_000))
    async with asyncio.timeout(30):  # half of what it would wait by itself
        while not waiting.done():  # its first question only tells how things stand: a call before that is not heard
            await other.wake()
            await asyncio.wait({waiting}, timeout=2)
    assert waiting.result().runs == ()

    waiting = asyncio.ensure_future(store.claim(node="n", token="2", limit=1, lease_ms=60_000, wait_ms=60_000))
    await asyncio.sleep(0)
    await other.enqueue([a_run("a", due_ms=0)])
    assert [run.id for run in (await asyncio.wait_for(waiting, 50)).runs] == ["a"]
    await store.close()
    await other.close()


async def test_no_session_keeps_anything_of_ours(bouncer):
    """The pooler's own connections, asked directly: no prepared statement, no lock, no setting of ours is left."""
    schema = read_address(own_url("clean")).schema
    store = PostgresStore(bouncer.url(f"schema={schema}"))
    await store.open()
    await given_jobs(store, "job")
    await store.enqueue([a_run("a", due_ms=0)])
    await store.claim(node="n", token="t", limit=1, lease_ms=60_000)
    connection = await asyncpg.connect(bouncer.url().split("?")[0], statement_cache_size=0)
    async with connection.transaction():
        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''") == 0
        assert await connection.fetchval("SELECT current_setting('lock_timeout')") == "0"
        assert await connection.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    async with connection.transaction():
        assert await connection.fetchval(held) == 0
    await connection.close()
    await store.close()
