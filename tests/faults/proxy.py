"""Proxy between a store and its server that causes faults on request.

    client ──▶ request ──▶ [ hold ] ──▶ server
           ◀── [ lose ] ◀── answer  ◀──

proxy.lose_reply(3)          the third request from now on takes effect, its answer is lost, and the connection ends
proxy.cut()                  all connections end, and none can be made until `mend`
proxy.freeze()               nothing passes, and no connection ends
proxy.delay(0.015)           every message takes so much longer, each way
proxy.hold(is_write)         such requests are not passed on until `mend`
proxy.forget()               current connections receive nothing for ever; new connections pass

Both protocols ask and answer by turns on a connection, so a request is whatever comes from the client after an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

CHUNK = 65_536
RESET = struct.pack("ii", 1, 0)  # what has not been sent is dropped
Question = Callable[[bytes], bool]


class Line:
    """One connection of a client, and its twin to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.is_answered = True
        self.is_lost = False  # the answer to what was asked last is not to come through
        self.is_dumb = False  # nothing passes any more, and neither end is notified

    def abort(self) -> None:
        """A reset, said once: on a link that is down it never arrives."""
        for writer in (self.client, self.server):
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


class Proxy:
    """Listens on a port of its own and passes everything on, until a method changes that."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.port = 0
        self.requests = 0
        self.held = 0  # requests that stand before the door
        self.struck = asyncio.Event()  # the answer that was to be lost is lost
        self._lines: set[Line] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._is_down = False
        self._gate = asyncio.Event()  # open: bytes pass
        self._gate.set()
        self._door = asyncio.Event()  # open: requests are not held
        self._door.set()
        self._is_held: Question | None = None
        self._delay_s = 0.0
        self._lose_at: int | None = None
        self._stays_up = False

    async def start(self, host: str = "127.0.0.1") -> Proxy:
        self._listener = await asyncio.start_server(self._accept, host, 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        for pump in self._pumps:
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)
        await self._listener.wait_closed()

    # faults

    def lose_reply(self, nth: int, *, stays_up: bool = False) -> None:
        """The n-th request from now on reaches the server and is answered there; the answer is lost.

        Then the line is down until `mend`; with `stays_up` only that one connection has gone silent.
        """
        self.struck.clear()
        self._lose_at, self._stays_up = self.requests + nth, stays_up

    def cut(self) -> None:
        self._is_down = True
        for line in self._lines:
            line.abort()

    def freeze(self) -> None:
        self._gate.clear()

    def delay(self, seconds: float) -> None:
        self._delay_s = seconds

    def hold(self, which: Question) -> None:
        self._is_held = which
        self._door.clear()

    def forget(self) -> None:
        for line in self._lines:
            line.is_dumb = True

    def mend(self) -> None:
        """Serve all connections again, those that are open and new ones."""
        self._is_down, self._lose_at, self._is_held, self._delay_s = False, None, None, 0.0
        self._gate.set()
        self._door.set()

    # passing on

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_down:
            writer.transport.abort()
            return
        pump = asyncio.current_task()
        assert pump is not None
        self._pumps.add(pump)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the end of the test; raised as an error it would only be logged
        finally:
            self._pumps.discard(pump)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        line = Line(writer, to_server)
        self._lines.add(line)
        ways = [asyncio.ensure_future(self._ask(line, reader)), asyncio.ensure_future(self._answer(line, from_server))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if line.is_dumb:  # the one end hung up, and the other is not notified
                await asyncio.wait(ways)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            line.abort()
            self._lines.discard(line)

    async def _ask(self, line: Line, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if line.is_answered:
                    await self._request(line, data)
                await self._pass()
                if not line.is_dumb:
                    line.server.write(data)
                    await line.server.drain()
            await self._gate.wait()

    async def _pass(self) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await self._gate.wait()

    async def _request(self, line: Line, data: bytes) -> None:
        line.is_answered = False
        self.requests += 1
        if self.requests == self._lose_at:
            line.is_lost = True
        if self._is_held is not None and self._is_held(data):
            self.held += 1
            await self._door.wait()
            self.held -= 1

    async def _answer(self, line: Line, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if line.is_lost and not self.struck.is_set():
                    self._strike(line)
                line.is_answered = True
                await self._pass()
                if not line.is_dumb:
                    line.client.write(data)
                    await line.client.drain()
            await self._gate.wait()

    def _strike(self, line: Line) -> None:
        line.is_dumb = True
        self.struck.set()
        if not self._stays_up:
            self.cut()
