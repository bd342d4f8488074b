"""A server that does what no server should: real sockets on loopback, one kind of malice each.

A malice is a coroutine with reader and writer; it ends when it is done or when the client has had enough.
"""

import asyncio
import contextlib
import gzip
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

CERTIFICATES = Path(__file__).parent / "certificates"
Malice = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def tls(name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / f"{name}.pem", CERTIFICATES / "server.key")
    return context


@contextlib.asynccontextmanager
async def serving(
    malice: Malice, *, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """The port, while it is served.  Connections that are still open at the end are cut."""
    at_work: set[asyncio.Task] = set()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at_work.add(asyncio.current_task())
        try:
            await malice(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            at_work.discard(asyncio.current_task())
            writer.transport.abort()

    server = await asyncio.start_server(meet, host, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for work in tuple(at_work):
            work.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)
        await server.wait_closed()


async def request(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


def says(answer: bytes) -> Malice:
    """Answers these bytes and ends."""

    async def malice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(answer)
        await writer.drain()
        writer.write_eof()
        await reader.read()

    return malice


async def endless_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
        await writer.drain()


async def slow_drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.05)


async def slow_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def silence(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def plain_words(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer any connection, whatever it sends."""
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    await reader.read()


def bomb() -> bytes:
    packed = gzip.compress(bytes(100_000_000), compresslevel=9)
    return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed


class Redirects:
    """Sends everybody to the next place, for ever; counts."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            self.count += 1
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /%d\r\nContent-Length: 0\r\n\r\n" % self.count)
            await writer.drain()


async def reset_in_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
    await writer.drain()
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def reset_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
