"""Connections to the server: pipelined commands over sockets that the client library opened.

The client library connects: addresses, TLS, passwords.  Its work for each reply costs more than most of our functions,
so the socket is taken over once it is open: commands are sent at once, and a caller is woken with the last of its
replies.

No call is repeated by itself: one without a reply may have taken effect, and only the caller knows its ids.  A call
that had no effect is sent again: one of a function that the server does not know (the library is loaded first), or of a
slot that is elsewhere or on its way.
Each new connection is checked first: a fit server, keys of our format, no lost writes.  When the server fails or
turns out to be another one, all connections are opened anew.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from hiredis import Reader
from redis import exceptions

from pollux.clock import Deadlines
from pollux.errors import StoreBusy, StoreError, StoreTimeout
from pollux.store.decoding import UNREADABLE, unreadable
from pollux.store.redis.address import CLUSTER, RedisAddress
from pollux.store.redis.errors import PASSING, translated
from pollux.store.redis.failover_detection import FailoverDetector
from pollux.store.redis.library import KEYS, LOADED, UNKNOWN, library
from pollux.store.redis.replicas import GRACE_S, Replicas
from pollux.store.redis.server import FORMAT, check_fsync, check_server, parse_info
from pollux.store.redis.topology import Wire, route_to

CLOSED = "Connection closed by server."

Tell = Callable[[list[Any]], None]


class RespProtocol(asyncio.Protocol):
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
        """Whether it is closed, or holds bytes that answer no question."""
        return self._is_lost or self._reader.has_data() or bool(self._answers)

    def ask(self, packed: bytes, count: int = 1, *, tell: Tell | None = None) -> asyncio.Future[list[Any]]:
        """Send so many packed commands; the answers come together.  One that is a refusal is among them.

        `tell` gets the answers at once, before the caller is woken.
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
                    try:
                        if self._tell is not None:
                            self._tell(answers)
                    except Exception as error:  # noqa: BLE001  any: the caller would wait for ever
                        asking.set_exception(exceptions.InvalidResponse(f"unexpected answer: {error!r}"))
                    else:
                        asking.set_result(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        why = CLOSED if exc is None else f"Error while reading: {exc}"
        self._fail(exceptions.ConnectionError(why))

    def _fail(self, error: Exception) -> None:
        asking, self._asking = self._asking, None
        if asking is not None and not asking.done():
            asking.set_exception(error)


CONNECTIONS_MAX = 16
NAP_S = 0.05  # until we ask again for a slot that is on its way
PASSAGE = 0.75  # of the deadline we do so: then there is time to say that nothing was changed
FIND_S = 8.0  # for a listener to find the server, also past some that hang
WAIT_MS = 2_000  # for the replicas that confirm a write
# On a cluster every call also names a key that never is.  While the slot moves, key by key, the server then refuses the
# whole call (TRYAGAIN) instead of failing in the midst of a function, at the first key that has gone.
NOTHING = "nothing"

# Answers after which the server may be another one.
DOUBTFUL = (exceptions.ConnectionError, exceptions.ReadOnlyError, exceptions.ClusterDownError)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class RedisConnection:
    """One connection, and what is known of the server behind it."""

    _talk: RespProtocol

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.home = ""
        self.count = 0  # of writes, as last answered over this connection: it can only rise
        self.round = 0

    async def connect(self) -> None:
        await self.wire.connect()
        self._talk = RespProtocol(self.wire)

    async def talk(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send them together; an answer that is a refusal is in the list like the others."""
        return await self.send(b"".join(self.wire.pack_commands(commands)), len(commands))

    def send(self, packed: bytes, count: int) -> Awaitable[list[Any]]:
        """So many commands, packed."""
        return self._talk.ask(packed, count)

    async def ask(self, *command: Any) -> Any:
        [answer] = await self.talk(command)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def is_stale(self) -> bool:
        return self._talk.is_stale

    async def close(self) -> None:
        await self.wire.disconnect(nowait=True)


class RedisConnections:
    """The connections of one handle for everything but waiting."""

    def __init__(self, address: RedisAddress, deadline_ms: int) -> None:
        self._address, self._deadline_ms = address, deadline_ms
        names = (KEYS[0], NOTHING) if address.kind == CLUSTER else KEYS[:1]
        keys = tuple(f"{address.prefix}:{name}" for name in names)
        self._keys = (len(keys), *keys)
        self._library = library()
        self._calls: dict[str, bytes] = {}
        self._route = route_to(address)
        self._deadlines = Deadlines()
        self._seats = asyncio.Semaphore(CONNECTIONS_MAX)
        self._lines: set[RedisConnection] = set()
        self._free: list[RedisConnection] = []
        self._is_closed = False
        self._round = 0  # lines of an earlier round are not used again
        self._now_ms = 0
        self._replicas = Replicas(address.wait)
        self.homes = FailoverDetector(address.name)
        self.homes.on_change = self._at_new_home
        self.on_new_home: Callable[[], None] = lambda: None

    async def open(self) -> int:
        """Greet the server; the answer is what time it is there."""
        await self._over(self._greeted)
        return self._now_ms

    async def run(self, function: str, **arguments: Any) -> Any:
        """Call a function of the library; what it packed comes back as plain values."""
        packed = await self.run_raw(function, **arguments)
        try:
            return _decode(packed)
        except UNREADABLE as error:
            raise unreadable(f"what {self._address.name} answered to {function}", error) from error

    async def run_raw(self, function: str, **arguments: Any) -> Any:
        payload = _encode(arguments)
        return await self._over(lambda line: self._called(line, function, payload))

    async def time_ms(self) -> int:
        """The server's clock."""
        seconds, micros = await self._over(lambda line: line.ask("TIME"))
        return int(seconds) * 1_000 + int(micros) // 1_000

    async def info(self) -> dict[str, Any]:
        return parse_info(await self._over(lambda line: line.ask("INFO")))

    async def close(self) -> None:
        self._is_closed = True
        self._free.clear()
        for line in tuple(self._lines):
            await self._drop(line)

    async def _over(self, talk: Callable[[RedisConnection], Awaitable[Any]]) -> Any:
        """Talk over a connection of its own, within the deadline."""
        patience = self._deadlines.enter(self._deadline_ms / 1000)
        try:
            await self._seats.acquire()
            try:
                return await self._until_done(talk)
            finally:
                self._seats.release()
        except asyncio.CancelledError as error:
            if not patience.is_over():
                raise
            raise StoreTimeout(
                f"the server {self._address.name} gave no answer within {self._deadline_ms} ms: the call may have "
                "taken effect; repeat it with the same ids"
            ) from error
        except (exceptions.RedisError, OSError) as error:
            raise translated(error, self._address.name) from error
        finally:
            self._deadlines.leave(patience)

    async def _until_done(self, talk: Callable[[RedisConnection], Awaitable[Any]]) -> Any:
        """Send again what did nothing."""
        until, tries = time.monotonic() + self._deadline_ms / 1000 * PASSAGE, 0
        while True:
            tries += 1
            try:
                line = await self._line()
                answer = await self._guarded(line, talk(line))
            except PASSING as error:
                if isinstance(error, exceptions.MovedError):
                    await self._doubt()
                    self._route.moved(error)
                    if tries == 1:  # who is sent elsewhere goes there at once, but not to and fro
                        continue
                if time.monotonic() > until:
                    raise self._in_passage(error) from error
                await asyncio.sleep(NAP_S)
            else:
                self._give_back(line)
                return answer

    async def _greeted(self, line: RedisConnection) -> None:
        """Nothing more: each connection was greeted when it was made."""

    async def _called(self, line: RedisConnection, function: str, payload: bytes) -> Any:
        """The function's answer, and with `?wait=` the replicas' over the same connection."""
        writes = function in self._library.writing
        confirm = await self._confirmation(line) if self._address.wait and writes else []
        packed = self.packed(function, payload)
        if confirm:
            packed += b"".join(line.wire.pack_commands(confirm))
        answers = await line.send(packed, 1 + len(confirm))
        if _is_unknown(answers[0]):
            await self._load(line)
            answers = await line.send(packed, 1 + len(confirm))
        if isinstance(answers[0], Exception):
            raise answers[0]
        if not writes or answers[0] is None:  # it did nothing
            return answers[0]
        if confirm:
            self._check_confirmed(confirm[0][1], *answers[1:])
        value, count = answers[0]
        self._hear(line, count)
        return value

    async def _load(self, line: RedisConnection) -> None:
        """Load the library where it is missing: on a new server, after a flush, on the next owner of our slot."""
        [answer] = await line.talk(("FUNCTION", "LOAD", self._library.text))
        if isinstance(answer, Exception) and LOADED not in str(answer):
            raise answer

    async def _confirmation(self, line: RedisConnection) -> list[tuple[Any, ...]]:
        """What follows a write; once a second it also asks which replicas there are.

        After a replica left, who writes seldom looks before the write: the look behind it would come too late.
        """
        if self._replicas.is_outdated(time.monotonic()):
            self._replicas.see(parse_info(await line.ask("INFO", "replication")), time.monotonic())
        commands: list[tuple[Any, ...]] = [("WAIT", self._replicas.needed, WAIT_MS)]
        if self._replicas.is_unseen(time.monotonic()):
            commands.append(("INFO", "replication"))
        return commands

    def _check_confirmed(self, needed: int, confirmed: object, info: object = None) -> None:
        if isinstance(info, bytes):
            self._replicas.see(parse_info(info), time.monotonic())
        if not isinstance(confirmed, int) or confirmed < needed:
            raise self._unconfirmed(confirmed, needed)

    def packed(self, function: str, payload: bytes) -> bytes:
        """A call as it is sent.  All but the payload is made once: making it each time costs more than the rest."""
        head = self._calls.get(function)
        if head is None:
            command = "FCALL" if function in self._library.writing else "FCALL_RO"
            parts = [command, self._library.full_name(function), *[str(key) for key in self._keys]]
            sized = [b"$%d\r\n%b\r\n" % (len(part), part) for part in map(str.encode, parts)]
            head = self._calls[function] = b"*%d\r\n" % (len(parts) + 1) + b"".join(sized)
        return b"%b$%d\r\n%b\r\n" % (head, len(payload), payload)

    def _hear(self, line: RedisConnection, count: int) -> None:
        if count <= line.count:
            self._round += 1
            self.homes.went_back(line.count, count)
        else:
            self.homes.hear(line.home, count)
        line.count = count

    # connections

    async def _line(self) -> RedisConnection:
        while self._free:
            line = self._free.pop()
            if line.round == self._round and not line.is_stale:
                return line
            await self._drop(line)
        line = RedisConnection(await self._route.find())
        if self._is_closed:  # meanwhile: it would never be closed
            raise StoreError(f"the store {self._address.name} was closed before the call was sent; nothing was changed")
        self._lines.add(line)
        await self._guarded(line, self._greet(line))
        line.round = self._round
        return line

    async def _greet(self, line: RedisConnection) -> None:
        await line.connect()
        info = parse_info(await line.ask("INFO"))
        check_server(info, self._address)
        self._replicas.see(info, time.monotonic())
        if self._address.is_durable:
            check_fsync(await _fsync_of(line), self._address)
        call = self.packed("open", _encode({"format": FORMAT, "home": str(info.get("run_id", ""))}))
        [answer] = await line.send(call, 1)
        if _is_unknown(answer):
            await self._load(line)
            [answer] = await line.send(call, 1)
        if isinstance(answer, Exception):
            raise answer
        packed, line.count = answer
        self._now_ms, homes = _decode(packed)
        line.home = self.homes.arrive(homes, line.count)

    async def _guarded(self, line: RedisConnection, answer: Awaitable[Any]) -> Any:
        """A refusal leaves the connection as it was; after anything else it is dropped, with half an answer in it.

        Also when the caller was cancelled: the server may hang, and then it does so on all connections.
        """
        try:
            return await answer
        except BaseException as error:
            if isinstance(error, exceptions.ResponseError) and line.home and not isinstance(error, DOUBTFUL):
                self._give_back(line)
            else:
                await self._drop(line)
                await self._doubt()
            raise

    def _give_back(self, line: RedisConnection) -> None:
        if line in self._lines:
            self._free.append(line)

    async def _drop(self, line: RedisConnection) -> None:
        self._lines.discard(line)
        await line.close()

    async def _doubt(self) -> None:
        self._route.doubt()
        self._round += 1
        free, self._free = self._free, []
        for line in free:
            await self._drop(line)

    def _at_new_home(self) -> None:
        self._round += 1
        self.on_new_home()

    # refusals

    def _unconfirmed(self, got: object, needed: int) -> StoreTimeout:
        confirmed = got if isinstance(got, int) else 0
        cure = "see that a replica follows"
        if confirmed >= self._address.wait:
            cure = f"one that was in step may have been promoted: without it writes go on after {GRACE_S:g} s"
        return StoreTimeout(
            f"the server {self._address.name} took the write, but {confirmed} of {needed} replicas "
            f"confirmed it within {WAIT_MS} ms: it may have taken effect; repeat it with the same ids, and {cure}"
        )

    def _in_passage(self, error: Exception) -> StoreBusy:
        why = "has lost a node" if isinstance(error, exceptions.ClusterDownError) else "moves our slot to another node"
        return StoreBusy(f"the cluster {self._address.name} {why} ({error}); nothing was changed: try again")


def _is_unknown(answer: object) -> bool:
    """Whether a call did nothing because its library is not loaded there."""
    return isinstance(answer, exceptions.ResponseError) and UNKNOWN in str(answer)


async def _fsync_of(line: RedisConnection) -> str | None:
    """When its file comes to the disk; None if this user may not ask."""
    try:
        _, found = await line.ask("CONFIG", "GET", "appendfsync")
    except (exceptions.ResponseError, ValueError):  # forbidden, renamed, or not known where others run it
        return None
    return str(found.decode())


class BlockingConnection:
    """One connection of its own, for calls that block."""

    def __init__(self, address: RedisAddress) -> None:
        self._route = route_to(address)
        self._wire: Wire = None
        self._talk: RespProtocol | None = None
        self._asked: RespProtocol | None = None  # what is under way

    async def ask(self, *command: Any, within_s: float, tell: Tell | None = None, offer: bytes | None = None) -> Any:
        """The answer, or an error after which the next call goes over a new connection.

        An offer is a second command, packed, whose answer goes to `tell` alone.
        """
        (wire, talk), (self._wire, self._talk) = (self._wire, self._talk), (None, None)
        try:
            if talk is None:
                async with asyncio.timeout(FIND_S):
                    wire = await self._route.find()
                    await wire.connect()
                    talk = RespProtocol(wire)
            packed = b"".join(wire.pack_command(*command)) + (offer or b"")
            self._asked = talk
            async with asyncio.timeout(within_s):
                answer, *_ = await talk.ask(packed, 1 if offer is None else 2, tell=tell)
            if isinstance(answer, Exception):
                raise answer
        except BaseException as error:
            if wire is not None:
                await wire.disconnect(nowait=True)
            self._route.doubt()
            if isinstance(error, exceptions.MovedError):
                self._route.moved(error)
            raise
        finally:
            if self._asked is talk:
                self._asked = None
        self._wire, self._talk = wire, talk
        return answer

    def cut(self) -> None:
        """Whatever is asked now is not wanted any more, and the server must not answer it."""
        if self._asked is not None:
            self._asked.cut()

    async def close(self) -> None:
        wire, self._wire, self._talk = self._wire, None, None
        if wire is not None:
            await wire.disconnect(nowait=True)
