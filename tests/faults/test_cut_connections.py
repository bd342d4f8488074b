"""All connections of all nodes are severed by the server, five times a second."""

import asyncio
import os
import time

from redis.asyncio import Redis

from tests.chaos.checker import unfinished
from tests.chaos.node import INTERVALS
from tests.faults.backends import REDIS, asked_of
from tests.faults.pressure import Pressure

SECONDS = float(os.environ.get("POLLUX_FAULT_SECONDS", "10"))
EVERY_S = 0.2
SEVER = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pollux'"


async def test_connections_severed_five_times_a_second_lose_nothing_and_double_nothing(far_yard, own_server, backend):
    yard, pressure = far_yard, Pressure(far_yard)
    nodes = [yard.serve(), yard.serve(), yard.worker()]
    await yard.is_up(*nodes)
    first_due = await yard.first_dues()
    async with pressure.on():
        usual = await pressure.usual()
        before = pressure.ends()
        severed = await (_sever_redis(own_server) if backend is REDIS else _sever_postgres(yard))
        done = pressure.ends() - before
        again = await pressure.works_again(usual)
        print(f"{severed} connections severed in {SECONDS:g} s, {done} ends meanwhile; {again}")
    await yard.fires_on()
    await yard.quiet()
    await yard.stop(*nodes)

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    assert unfinished(store, but=list(INTERVALS)) == []
    assert severed >= SECONDS / EVERY_S, "hardly a connection was hit: the test does not bite"


async def _sever_redis(server):
    severed = 0
    async with Redis.from_url(server.url) as client:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            severed += await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await asyncio.sleep(EVERY_S)
    return severed


async def _sever_postgres(yard):
    severed = 0
    async with asked_of(yard.store) as connection:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            severed += len(await connection.fetch(SEVER))
            await asyncio.sleep(EVERY_S)
    return severed
