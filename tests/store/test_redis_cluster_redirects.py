"""Redirects of a cluster whose nodes name each other as the owner of our slot: no storm of requests."""

import asyncio
from contextlib import asynccontextmanager

import hiredis
import pytest

from pollux.errors import StoreBusy, StoreError
from pollux.store.redis import RedisStore, connection

INFO = "redis_version:7.4.0\r\nredis_mode:cluster\r\nrole:master\r\naof_enabled:1\r\nrun_id:0\r\n"


class Talk(asyncio.Protocol):
    def __init__(self, node):
        self.node, self.commands = node, hiredis.Reader()

    def connection_made(self, transport):
        self.transport = transport
        self.node.open.add(transport)

    def connection_lost(self, exc):
        self.node.open.discard(self.transport)

    def data_received(self, data):
        self.commands.feed(data)
        while (command := self.commands.gets()) is not False:
            self.transport.write(self.node.answer(command[0].upper().decode()))


class Node:
    """Speaks as a node of a cluster; to every call of a function it answers `says`."""

    def __init__(self):
        self.says = "-ERR nothing to say"
        self.asked = 0

    async def start(self):
        self.open = set()
        self.server = await asyncio.get_running_loop().create_server(lambda: Talk(self), "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def stop(self):
        self.server.close()
        for transport in self.open:
            transport.abort()
        for _ in range(9):  # until they have heard it
            await asyncio.sleep(0)

    def answer(self, verb):
        if verb == "INFO":
            return b"$%d\r\n%b\r\n" % (len(INFO), INFO.encode())
        if verb == "CLUSTER":  # all slots are its own
            host = b"$9\r\n127.0.0.1\r\n"
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n%b:%d\r\n$2\r\nme\r\n" % (host, self.port)
        if verb == "FCALL":
            self.asked += 1
            return f"{self.says}\r\n".encode()
        return b"+OK\r\n"


@asynccontextmanager
async def two_nodes():
    one, other = await Node().start(), await Node().start()
    one.says = f"-MOVED 1 127.0.0.1:{other.port}"
    try:
        yield one, other
    finally:
        await one.stop()
        await other.stop()


async def test_nodes_that_send_us_to_and_fro_are_asked_with_pauses_and_not_for_ever():
    async with two_nodes() as (one, other):
        other.says = f"-MOVED 1 127.0.0.1:{one.port}"
        store = RedisStore(f"redis+cluster://127.0.0.1:{one.port}", deadline_ms=1_000)

        with pytest.raises(StoreBusy, match=r"moves our slot to another node .*nothing was changed"):
            await store.open()

    assert 2 < one.asked + other.asked <= 2 + connection.PASSAGE / connection.NAP_S


async def test_who_is_sent_elsewhere_once_goes_there_at_once(monkeypatch):
    monkeypatch.setattr(connection, "NAP_S", 3_600)
    async with two_nodes() as (one, other):
        store = RedisStore(f"redis+cluster://127.0.0.1:{one.port}", deadline_ms=60_000)

        with pytest.raises(StoreError, match="nothing to say"):
            await store.open()

        assert (one.asked, other.asked) == (1, 1)
