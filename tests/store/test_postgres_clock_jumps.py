"""Leases when the clock of a PostgreSQL server leaps: those of living nodes stand."""

import asyncpg

from pollux.clock import FakeClock
from pollux.store.postgres.address import read_address
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_run, given, ids, the_run
from tests.servers.postgres import own_url, shared_url

HOUR_MS = 3_600_000
LEAP = """
CREATE OR REPLACE FUNCTION {s}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE
AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + {ms}'
"""


async def test_after_a_leap_of_the_servers_clock_the_living_keep_their_leases():
    url, clock = own_url("leaps"), FakeClock()
    store = PostgresStore(url, clock=clock)
    await store.open()
    connection = await asyncpg.connect(shared_url())
    try:
        await given(store, a_run("a", due_ms=0))
        [run] = (await store.claim(node="n", token="one", limit=1, lease_ms=30_000)).runs
        await connection.execute(LEAP.format(s=read_address(url).schema, ms=HOUR_MS))

        held = await store.claim(node="n", token="two", limit=1, lease_ms=30_000)
        assert (held.runs, (await the_run(store, "a")).token) == ((), run.token)
        await clock.advance(20_000)
        assert ids((await store.claim(node="n", token="three", limit=1, lease_ms=30_000)).runs) == ["a"]
    finally:
        await connection.close()
        await store.close()
