"""The proxy causes the faults that were requested, and no others, before a server that echoes in capitals."""

import asyncio
import time

import pytest

from tests.faults.proxy import Proxy


class Server:
    def __init__(self):
        self.heard = []

    async def serve(self, reader, writer):
        try:
            while data := await reader.read(1_000):
                self.heard.append(data)
                writer.write(data.upper())
        except OSError:
            pass
        finally:
            writer.close()


class Client:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def ask(self, what, *, seconds=10.0):
        self.writer.write(what)
        async with asyncio.timeout(seconds):
            return await self.reader.read(1_000)


@pytest.fixture
async def server():
    return Server()


@pytest.fixture
async def proxy(server):
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    proxy = await Proxy(*listener.sockets[0].getsockname()).start()
    yield proxy
    await proxy.close()
    listener.close()
    await listener.wait_closed()


@pytest.fixture
async def call(proxy):
    clients = []

    async def make():
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", proxy.port)))
        return clients[-1]

    yield make
    for client in clients:
        client.writer.transport.abort()


async def test_it_passes_everything_on_and_counts_requests(proxy, call):
    one, other = await call(), await call()
    assert [await one.ask(b"a"), await other.ask(b"b"), await one.ask(b"c")] == [b"A", b"B", b"C"]
    assert proxy.requests == 3


async def test_a_lost_reply_is_that_of_a_request_that_was_heard_and_then_the_line_is_down(proxy, server, call):
    client = await call()
    proxy.lose_reply(2)
    assert await client.ask(b"a") == b"A"
    with pytest.raises(OSError, match="reset"):
        await client.ask(b"b")
    assert server.heard == [b"a", b"b"]
    assert proxy.struck.is_set()
    with pytest.raises((OSError, AssertionError)):
        assert await (await call()).ask(b"c")
    proxy.mend()
    assert await (await call()).ask(b"d") == b"D"


async def test_a_lost_reply_on_a_line_that_stays_up_is_silence(proxy, server, call):
    client, other = await call(), await call()
    proxy.lose_reply(1, stays_up=True)
    with pytest.raises(TimeoutError):
        await client.ask(b"a", seconds=0.1)
    assert server.heard == [b"a"]
    assert await other.ask(b"b") == b"B"


async def test_what_is_frozen_comes_later_and_no_line_ends(proxy, server, call):
    client = await call()
    proxy.freeze()
    with pytest.raises(TimeoutError):
        await client.ask(b"a", seconds=0.1)
    assert server.heard == []
    proxy.mend()
    assert await client.ask(b"") == b"A"


async def test_only_such_requests_are_held(proxy, server, call):
    client, other = await call(), await call()
    proxy.hold(lambda request: b"x" in request)
    with pytest.raises(TimeoutError):
        await client.ask(b"x", seconds=0.1)
    assert (proxy.held, server.heard) == (1, [])
    assert await other.ask(b"y") == b"Y"
    proxy.mend()
    assert await client.ask(b"") == b"X"
    assert proxy.held == 0


async def test_who_is_forgotten_is_neither_heard_nor_told(proxy, server, call):
    client = await call()
    assert await client.ask(b"a") == b"A"
    proxy.forget()
    with pytest.raises(TimeoutError):
        await client.ask(b"b", seconds=0.1)
    assert server.heard == [b"a"]
    assert await (await call()).ask(b"c") == b"C"


async def test_a_delay_is_taken_each_way(proxy, call):
    client = await call()
    proxy.delay(0.05)
    begun = time.monotonic()
    assert await client.ask(b"a") == b"A"
    assert time.monotonic() - begun >= 0.1
