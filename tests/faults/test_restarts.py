"""Everything acknowledged is there after the server was restarted or crashed, and the work goes on."""

import asyncio
import os
import signal

import pytest
from redis.asyncio import Redis

from tests.chaos.checker import unfinished
from tests.chaos.node import INTERVALS
from tests.chaos.yard import wait_until
from tests.faults.backends import POSTGRES, REDIS, REDIS_EVERYSEC, asked_of
from tests.faults.pressure import Pressure

PAUSE_MS = 60_000  # the server dies before it is over
BACKENDS_OF = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pollux' AND pid <> pg_backend_pid()"


@pytest.mark.parametrize("backend", [REDIS, REDIS_EVERYSEC, POSTGRES], ids=lambda backend: backend.name)
async def test_a_server_that_is_restarted_or_crashes_loses_nothing_and_the_nodes_go_on(far_yard, own_server, backend):
    """Under load; the same processes go on by themselves, at least at 70 % of their pace."""
    yard, pressure = far_yard, Pressure(far_yard)
    nodes = [yard.serve(), yard.worker()]
    await yard.is_up(*nodes)
    first_due = await yard.first_dues()
    async with pressure.on():
        for name, fault in FAULTS[backend.name].items():
            usual = await pressure.usual()
            await fault(own_server, yard)
            print(f"{name}: {await pressure.works_again(usual)}")
    await yard.fires_on()
    await yard.quiet()
    await yard.stop(*nodes)  # the very processes that were there before

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    assert unfinished(store, but=list(INTERVALS)) == []
    assert len(yard.told().asked) >= 100, "that was no load"


async def _restart(server, yard, how):
    await asyncio.to_thread(server.kill, how)
    await asyncio.to_thread(server.start)


async def _kill_when_all_is_written(server, yard):
    """With `everysec` the server keeps what it has answered to itself while its disk is still at work on the second
    before; that much it may lose.  So it dies in a moment in which it has none, with many requests before its door."""
    async with Redis.from_url(server.url) as client:
        await client.execute_command("CLIENT", "PAUSE", PAUSE_MS, "WRITE")

        async def look():
            told = await client.info("persistence")
            return told["aof_buffer_length"] == told["aof_pending_bio_fsync"] == 0

        await wait_until(look, "a server that has written all")
    await _restart(server, yard, signal.SIGKILL)


async def _lose_a_backend(server, yard):
    """One of its processes is killed: PostgreSQL ends all of them at once and recovers from its log."""
    async with asked_of(yard.store) as connection:
        pids = [row[0] for row in await connection.fetch(BACKENDS_OF)]
    os.kill(pids[0], signal.SIGKILL)


FAULTS = {
    REDIS.name: {
        "restarted (SIGTERM)": lambda server, yard: _restart(server, yard, signal.SIGTERM),
        "killed (SIGKILL)": lambda server, yard: _restart(server, yard, signal.SIGKILL),
    },
    REDIS_EVERYSEC.name: {
        "restarted (SIGTERM)": lambda server, yard: _restart(server, yard, signal.SIGTERM),
        "killed (SIGKILL)": _kill_when_all_is_written,
    },
    POSTGRES.name: {
        "restarted (fast shutdown)": lambda server, yard: _restart(server, yard, signal.SIGINT),
        "stopped as by a crash (immediate shutdown)": lambda server, yard: _restart(server, yard, signal.SIGQUIT),
        "one of its processes killed (SIGKILL)": _lose_a_backend,
    },
}
