"""How do bytes go to the server, and answers come back?  Over a connection that the client made, past its streams.

The client knows how to connect: addresses, TLS, passwords.  What it does for each answer costs more than most of our
scripts, so the connection is taken over once it is made: what is sent goes out at once, and who asked is woken with the
last of the answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hiredis import Reader
from redis import exceptions

from pollux.store.redis.route import Wire

CLOSED = "Connection closed by server."

Tell = Callable[[list[Any]], None]


class Talk(asyncio.Protocol):
    """One made connection; one question at a time, of one or more commands."""

    def __init__(self, wire: Wire) -> None:
        parser = wire._parser  # noqa: SLF001  it knows which refusal is which error
        self._reader = Reader(protocolError=exceptions.InvalidResponse, replyError=parser.parse_error)
        self._transport = wire._writer.transport  # noqa: SLF001  the client has no word for it
        self._transport.set_protocol(self)
        self._answers: list[Any] = []
        self._wanted = 0
        self._tell: Tell | None = None
        self._asking: asyncio.Future[list[Any]] | None = None
        self._is_lost = self._transport.is_closing()

    @property
    def is_stale(self) -> bool:
        """Is it closed, or does it say something that nobody asked?"""
        return self._is_lost or self._reader.has_data() or bool(self._answers)

    def ask(self, packed: bytes, count: int = 1, *, tell: Tell | None = None) -> asyncio.Future[list[Any]]:
        """Send so many packed commands; the answers come together.  One that is a refusal is among them.

        Who wants to be told at once is told the answers before anybody is woken.
        """
        asking: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        if self._is_lost:
            asking.set_exception(exceptions.ConnectionError(CLOSED))
            return asking
        self._asking, self._wanted, self._answers, self._tell = asking, count, [], tell
        self._transport.write(packed)
        return asking

    def cut(self) -> None:
        """End it now: the server hears so before anything that is sent after this, over whatever connection."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets(False)) is not False:  # noqa: FBT003  positional in the reader
                if isinstance(answer, exceptions.ConnectionError):
                    raise answer
                self._answers.append(answer)
        except exceptions.RedisError as error:
            self._fail(error)
            self._transport.close()
        else:
            if self._asking is not None and len(self._answers) >= self._wanted:
                asking, answers = self._asking, self._answers
                self._asking, self._answers = None, []
                if not asking.done():
                    if self._tell is not None:
                        self._tell(answers)
                    asking.set_result(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        why = CLOSED if exc is None else f"Error while reading: {exc}"
        self._fail(exceptions.ConnectionError(why))

    def _fail(self, error: Exception) -> None:
        asking, self._asking = self._asking, None
        if asking is not None and not asking.done():
            asking.set_exception(error)
