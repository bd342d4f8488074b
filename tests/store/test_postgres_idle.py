"""Statements of an idle node on PostgreSQL, counted over virtual minutes, on a real server."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from pollux import Pollux
from pollux.clock import FakeClock
from pollux.store.postgres.store import PostgresStore
from tests.servers.postgres import own_url

MINUTES = 2
STEP_MS = 500


class Nodes:
    """Idle nodes on one store, by a clock of ours."""

    def __init__(self, url):
        self.url, self.clock = url, FakeClock()
        self.stores = []
        self.stack = AsyncExitStack()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.stack.aclose()

    async def start(self, **options):
        store = PostgresStore(self.url, clock=self.clock)
        app = Pollux(store, clock=self.clock, **options)

        @app.job()
        async def noop(ctx) -> None: ...

        self.stores.append(store)
        return await self.stack.enter_async_context(app)

    async def pass_(self, ms, step_ms=STEP_MS):
        """Let time go by in small steps, each only when all answers to the one before are there."""
        for _ in range(ms // step_ms):
            await self.clock.advance(step_ms)
            quiet = 0
            while quiet < 3:
                before = self.asked
                await asyncio.sleep(0.0005)
                is_busy = self.asked > before or any(store.backend.database._pool._used for store in self.stores)
                quiet = 0 if is_busy else quiet + 1

    @property
    def asked(self):
        return sum(store.statements for store in self.stores)

    async def asked_a_second(self):
        """Round trips of the node that came last, after it has settled in."""
        await self.pass_(60_000)
        before = self.stores[-1].statements
        await self.pass_(MINUTES * 60_000)
        return (self.stores[-1].statements - before) / (MINUTES * 60)


@pytest.mark.parametrize(
    ("query", "options", "most"),
    [("", {"plans": False}, 0.2), ("", {}, 0.5), ("&listen=false", {"plans": False}, 1.2), ("&listen=false", {}, 1.2)],
    ids=["a worker", "the leader", "a worker that polls", "the leader that polls"],
)
async def test_an_idle_node_asks_seldom(query, options, most):
    async with Nodes(own_url("idle") + query) as nodes:
        await nodes.start(**options)

        assert 0 < await nodes.asked_a_second() <= most


@pytest.mark.parametrize(("query", "most"), [("", 0.5), ("&listen=false", 1.2)], ids=["a standby", "one that polls"])
async def test_an_idle_standby_asks_as_seldom_as_the_leader(query, most):
    async with Nodes(own_url("idle") + query) as nodes:
        await nodes.start()
        await nodes.pass_(STEP_MS)
        standby = await nodes.start()

        assert 0 < await nodes.asked_a_second() <= most
        assert standby.runtime.leader.wins == 0


@pytest.mark.parametrize("query", ["", "&listen=false"], ids=["a standby", "one that polls"])
@pytest.mark.parametrize("phase_ms", range(0, 1_500, 250))
async def test_a_resigned_term_is_taken_within_a_second_whenever_it_is_given_up(query, phase_ms):
    """One that polls asks for the term itself: told by the pulse it could come too late."""
    async with Nodes(own_url("idle") + query) as nodes:
        leading = await nodes.start()
        await nodes.pass_(STEP_MS)
        standby = await nodes.start()
        await nodes.pass_(20_000)  # until it rests for as long as it ever does
        await nodes.pass_(phase_ms, 250)
        assert standby.runtime.leader.term is None

        await leading.runtime.leader.resign()
        await nodes.pass_(1_000, 50)

        assert standby.runtime.leader.term == 2
