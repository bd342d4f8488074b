"""A server that answers but writes nothing: it is read-only, or its memory is full."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from tests.chaos.checker import unfinished
from tests.chaos.node import INTERVALS
from tests.chaos.yard import wait_until
from tests.faults.backends import POSTGRES, REDIS_EVERYSEC, asked_of
from tests.faults.bounds import LEADER_TTL_S, LEASE_S, WORKS_AGAIN_S
from tests.faults.pressure import Pressure
from tests.servers.ports import nobodys_port

LASTS_S = LEADER_TTL_S + LEASE_S + 1  # whatever was held or led when it began is over
SEVER = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pollux'"


@asynccontextmanager
async def _a_replica(server, yard):
    """Of somebody who is not there."""
    with nobodys_port() as port:
        async with Redis.from_url(server.url) as client:
            await client.execute_command("REPLICAOF", "127.0.0.1", port)
            try:
                yield
            finally:
                await client.execute_command("REPLICAOF", "NO", "ONE")


@asynccontextmanager
async def _without_memory(server, yard):
    async with Redis.from_url(server.url) as client:
        await client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            await client.config_set("maxmemory", 0)


@asynccontextmanager
async def _read_only(server, yard):
    """For all connections that are made from now on; ours is older."""
    async with asked_of(yard.store) as connection:
        await connection.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
        await connection.execute(SEVER)
        try:
            yield
        finally:
            await connection.execute("ALTER DATABASE postgres RESET default_transaction_read_only")


# What happens, what the node that plans says to it, and what the one that only runs.
REPLICA = ("only reads: it is a replica", "name the primary in the store's URL")
FULL = ("has no room", "raise maxmemory")
READ_ONLY = ("is read-only", "name the primary server")
CASES = {
    "redis-replica": (REDIS_EVERYSEC, _a_replica, REPLICA, REPLICA),
    "redis-full": (REDIS_EVERYSEC, _without_memory, FULL, ()),  # what runs is still recorded
    "postgres-read-only": (POSTGRES, _read_only, READ_ONLY, READ_ONLY),
}


@pytest.mark.parametrize(("backend", "fault", "planner_says", "worker_says"), CASES.values(), ids=CASES.keys())
async def test_nodes_whose_server_refuses_to_write_stay_up_say_why_and_go_on_when_it_does_not(
    far_yard, own_server, fault, planner_says, worker_says
):
    """Under load, and for longer than leases and terms last; the very same processes go on by themselves."""
    yard, pressure = far_yard, Pressure(far_yard)
    serve, worker = nodes = [yard.serve(), yard.worker()]
    await yard.is_up(*nodes)
    first_due = await yard.first_dues()
    async with pressure.on():
        usual = await pressure.usual()
        async with fault(own_server, yard):
            await _says(serve, planner_says)
            await _says(worker, worker_says)
            await asyncio.sleep(LASTS_S)  # the length of the fault, not a hope
            assert await pressure.window() == 0, "work goes on: the test does not bite"
        print(await pressure.works_again(usual))
    await yard.fires_on()
    await yard.quiet()
    await yard.stop(*nodes)

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    assert unfinished(store, but=list(INTERVALS)) == []
    assert not any("Traceback" in node.log.read_text() for node in nodes)
    assert not any("went back" in node.log.read_text() for node in nodes), "nothing was lost"


async def _says(node, words):
    async def look():
        assert node.is_alive, node.said()
        said = node.log.read_text()
        return all(each in said for each in words)

    await wait_until(look, f"these words in the log of pid {node.pid}: {words}", seconds=WORKS_AGAIN_S)
