"""What does a node ask of PostgreSQL that has nothing to do?  Counted over virtual minutes, on a real server."""

import asyncio

import pytest

from pollux import Pollux
from pollux.clock import FakeClock
from pollux.store.postgres.store import PostgresStore
from tests.servers.postgres import own_url

MINUTES = 2
STEP_MS = 500


async def asked_a_second(url, **options):
    """Round trips a second of an idle node, after it has settled in."""
    clock = FakeClock()
    store = PostgresStore(url, clock=clock)
    app = Pollux(store, clock=clock, **options)

    @app.job()
    async def noop(ctx) -> None: ...

    async with app:
        await pass_(clock, store, 60_000)
        before = store.statements
        await pass_(clock, store, MINUTES * 60_000)
        return (store.statements - before) / (MINUTES * 60)


async def pass_(clock, store, ms):
    """Let time go by in small steps, each only when all answers to the one before are there."""
    for _ in range(ms // STEP_MS):
        await clock.advance(STEP_MS)
        quiet = 0
        while quiet < 3:
            before = store.statements
            await asyncio.sleep(0.0005)
            is_busy = store.statements > before or store._door.database._pool._used
            quiet = 0 if is_busy else quiet + 1


@pytest.mark.parametrize(
    ("query", "options", "most"),
    [
        ("", {"plans": False}, 0.2),
        ("", {}, 0.5),
        ("&listen=false", {"plans": False}, 1.2),
        ("&listen=false", {}, 1.2),
    ],
    ids=["a worker", "the leader", "a worker that polls", "the leader that polls"],
)
async def test_an_idle_node_asks_seldom(query, options, most):
    seen = await asked_a_second(own_url("idle") + query, **options)

    assert 0 < seen <= most
