"""Commands of an idle node on Redis, counted over virtual minutes, on a real server."""

import asyncio

import pytest

from pollux import Pollux
from pollux.clock import FakeClock
from pollux.store.redis import RedisStore
from pollux.store.redis.connection import CONNECTIONS_MAX, RespProtocol
from pollux.store.redis.wakeup import BLOCK_MS
from tests.servers.redis import own_url

MINUTES = 2
STEP_MS = 500
LISTENS = 1_000 / BLOCK_MS  # the leader's wait for rings begins anew so often, by the clock on the wall


@pytest.fixture
def asked(monkeypatch):
    """All that was asked over any connection."""
    asked = []
    ask = RespProtocol.ask

    def told(talk, packed, *args, **options):
        asked.append(packed)
        return ask(talk, packed, *args, **options)

    monkeypatch.setattr(RespProtocol, "ask", told)
    return asked


async def pass_(clock, store, asked, ms):
    """Let time go by in small steps, each only when all answers to the one before are there."""
    for _ in range(ms // STEP_MS):
        await clock.advance(STEP_MS)
        quiet = 0
        while quiet < 3:
            before = len(asked)
            await asyncio.sleep(0.0005)
            is_busy = len(asked) > before or store.backend.link()._seats._value < CONNECTIONS_MAX
            quiet = 0 if is_busy else quiet + 1


@pytest.mark.parametrize(
    ("options", "unseen", "most"),
    [({"plans": False}, 0, 0.2), ({"runs": False}, LISTENS, 0.5)],
    ids=["a worker", "the leader"],
)
async def test_an_idle_node_asks_seldom(asked, options, unseen, most):
    clock = FakeClock()
    store = RedisStore(own_url("idle"), clock=clock)
    app = Pollux(store, clock=clock, **options)

    @app.job()
    async def noop(ctx) -> None: ...

    async with app:
        await pass_(clock, store, asked, 60_000)
        before = len(asked)
        await pass_(clock, store, asked, MINUTES * 60_000)
        seen = (len(asked) - before) / (MINUTES * 60) + unseen

    print(f"{seen:.2f} questions a second")
    assert unseen < seen <= most
