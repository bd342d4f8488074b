"""How do we talk to the server?  By scripts, each call with a deadline, and every refusal in our words.

Nothing is sent twice by itself: a call without an answer may have taken effect, and only the caller knows its ids.
The one exception is a script that the server does not know: it did nothing, so it is loaded and called again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from pollux.errors import StoreError, StoreFull, StoreRefused, StoreTimeout
from pollux.store.redis.address import Address
from pollux.store.redis.scripts import KEYS, script

CONNECT_S = 5.0
CONNECTIONS_MAX = 16

Command = Callable[..., Awaitable[Any]]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Link:
    """The connections of one handle for everything but waiting."""

    def __init__(self, address: Address, deadline_ms: int) -> None:
        self._address, self._deadline_ms = address, deadline_ms
        self._keys = tuple(f"{address.prefix}:{name}" for name in KEYS)
        self._client = client(address, deadline_ms / 1000)
        self._send: Command = self._client.execute_command

    async def run(self, verb: str, **arguments: Any) -> Any:
        """Call a verb's script; what it packed comes back as plain values."""
        return _decode(await self.run_raw(verb, **arguments))

    async def run_raw(self, verb: str, **arguments: Any) -> Any:
        wanted = script(verb)
        call = (len(self._keys), *self._keys, _encode(arguments))
        with in_our_words(self._address.name, self._deadline_ms):
            try:
                return await self._send("EVALSHA", wanted.sha, *call)
            except exceptions.NoScriptError:
                await self._send("SCRIPT LOAD", wanted.text)
                return await self._send("EVALSHA", wanted.sha, *call)

    async def info(self) -> dict[str, Any]:
        with in_our_words(self._address.name, self._deadline_ms):
            found: dict[str, Any] = await self._send("INFO")
            return found

    async def close(self) -> None:
        await self._client.aclose()


def client(address: Address, timeout_s: float, connections_max: int = CONNECTIONS_MAX) -> Redis:
    """A client that neither retries by itself nor waits longer than told."""
    pool = BlockingConnectionPool.from_url(
        address.url,
        max_connections=connections_max,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=CONNECT_S,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    return Redis.from_pool(pool)


@contextmanager
def in_our_words(name: str, deadline_ms: int) -> Iterator[None]:
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        raise _translated(error, name, deadline_ms) from error


def _translated(error: Exception, name: str, deadline_ms: int) -> StoreError:
    said = str(error)
    match error:
        case exceptions.AuthenticationError() | exceptions.NoPermissionError() | exceptions.AuthorizationError():
            return StoreRefused(
                f"the server {name} does not let us in ({said}); check user and password in the store's URL, "
                "and that the user may run scripts and touch keys under the prefix"
            )
        case exceptions.TimeoutError():
            return StoreTimeout(
                f"the server {name} gave no answer within {deadline_ms} ms: the call may have taken effect; "
                "repeat it with the same ids"
            )
        case exceptions.BusyLoadingError():
            return StoreError(f"the server {name} is still loading its data; it answers when that is done")
        case exceptions.ConnectionError() | OSError():
            return StoreError(f"the server {name} cannot be reached ({said}); start it, or correct the store's URL")
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM" in said or "MISCONF" in said:
        return StoreFull(f"the server {name} has no room ({said}); raise maxmemory, free its disk, or prune")
    if "READONLY" in said or "replica" in said:
        return StoreError(
            f"the server {name} only reads: it is a replica ({said}); name the primary in the store's URL"
        )
    if "WRONGTYPE" in said:
        return StoreRefused(
            f"a key under our prefix on {name} is not ours ({said}); choose another ?prefix= or ?namespace="
        )
    return StoreError(f"the server {name} refused: {said}")
