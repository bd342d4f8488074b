"""Read-only inspection of a Redis server, for `pollux doctor`.

One connection, and commands that only read.  What this user may not ask for is reported as unknown, never as wrong.
"""

from __future__ import annotations

import re
import statistics
import time
from typing import Any

import msgspec
from msgspec import Struct
from redis import exceptions

from pollux.errors import StoreRefused
from pollux.store.redis.address import RedisAddress, read_address
from pollux.store.redis.connection import BlockingConnection
from pollux.store.redis.errors import PASSING, in_our_words
from pollux.store.redis.library import library
from pollux.store.redis.server import parse_info

ASK_S = 5.0
PAGE, PAGES_MAX = 1_000, 20  # keys that are looked through for another namespace
NAMED_MAX = 3  # of them
TRIPS = 21
_CALLED = re.compile(r'(?:call|send)\("([A-Z]+)"')
# Commands that take something else than a key and two words; "K" is a key of ours.
_SHAPES: dict[str, tuple[str, ...]] = {
    "DEL": ("K",),
    "EXISTS": ("K",),
    "TIME": (),
    "INFO": (),
    "XGROUP": ("CREATE", "K", "g", "0"),
    "XINFO": ("CONSUMERS", "K", "g"),
    "XREAD": ("STREAMS", "K", "0"),
    "XREADGROUP": ("GROUP", "g", "c", "STREAMS", "K", ">"),
    "FCALL": ("x", "1", "K"),
    "FCALL_RO": ("x", "1", "K"),
    "FUNCTION": ("LOAD", "x"),
}
_OURSELVES = ("FCALL", "FCALL_RO", "FUNCTION", "INFO", "XREAD")  # what we send besides what the functions call
_MAY = """#!lua flags=no-writes,allow-stale
local refused = {}
for _, command in ipairs(cmsgpack.unpack(ARGV[1])) do
  if not redis.acl_check_cmd(unpack(command)) then
    refused[#refused + 1] = command[1]
  end
end
return refused
"""


class RedisReport(Struct, frozen=True):
    """What the server reports of itself, and of our keys and rights."""

    address: RedisAddress
    info: dict[str, Any]
    fsync: str | None  # appendfsync; None: this user may not ask
    user: str
    refused: tuple[str, ...] | None  # commands that this user may not use on our keys; "": all; None: not known
    format: str | None  # of our keys; None: there are none yet
    trip_ms: float  # a question and its answer, the median of some
    offset_ms: int  # how far its clock lies ahead of ours, about


async def look_at_server(url: str) -> RedisReport:
    """Ask it.  Raises what a store would raise if it cannot be reached or does not let us in."""
    address = read_address(url)
    listener = BlockingConnection(address)
    try:
        with in_our_words(address.name):
            return await _look(listener, address)
    finally:
        await listener.close()


async def lacking(url: str) -> str:
    """What is missing for a store to be there; nothing if it is."""
    address = read_address(url)
    listener = BlockingConnection(address)
    try:
        with in_our_words(address.name):
            for is_last in (False, False, True):
                try:
                    format_ = await format_at(listener, address)
                except PASSING:  # the slot is on its way to another node of the cluster
                    if is_last:
                        raise
                else:
                    return "" if format_ is not None else await _what_else(listener, address)
    finally:
        await listener.close()
    raise AssertionError("the last try raises")


async def format_at(listener: BlockingConnection, address: RedisAddress) -> bytes | None:
    """That of our keys; None if there is no store.  A key in its place that is not ours is named."""
    key = f"{address.prefix}:meta"
    try:
        found: bytes | None = await listener.ask("HGET", key, "format", within_s=ASK_S)
    except exceptions.ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        raise StoreRefused(
            f"the key {key} on {address.name} is not ours: it holds no hash; delete it (`redis-cli DEL {key}`), or "
            "choose another ?prefix= or ?namespace="
        ) from error
    return found


async def _what_else(listener: BlockingConnection, address: RedisAddress) -> str:
    """There is no store of this name; perhaps there are some under another namespace."""
    found: set[str] = set()
    cursor, beginning, end = "0", f"{address.prefix}:", ":meta"
    for _ in range(PAGES_MAX):
        command = ("SCAN", cursor, "MATCH", f"{beginning}*{end}", "COUNT", PAGE)
        page = await _or_none(lambda *command: listener.ask(*command, within_s=ASK_S), *command)
        if page is None:
            break
        found |= {key.decode(errors="replace").removeprefix(beginning).removesuffix(end) for key in page[1]}
        cursor = page[0].decode()
        if cursor == "0":
            break
    names = sorted(name for name in found if ":" not in name)
    if not names:
        return f"no key {beginning}meta"
    there = " or ".join(f"?namespace={name}" for name in names[:NAMED_MAX])
    return f"no key {beginning}meta; there is one with {there}"


async def _look(listener: BlockingConnection, address: RedisAddress) -> RedisReport:
    async def ask(*command: Any) -> Any:
        return await listener.ask(*command, within_s=ASK_S)

    info = parse_info(await ask("INFO"))
    trips, offset_ms = await _times(ask)
    fsync = await _or_none(ask, "CONFIG", "GET", "appendfsync")
    found = await _or_none(ask, "HGET", f"{address.prefix}:meta", "format")
    return RedisReport(
        address=address,
        info=info,
        fsync=fsync[1].decode() if fsync else None,
        user=((await _or_none(ask, "ACL", "WHOAMI")) or b"").decode(),
        refused=await _refused(ask, address),
        format=None if found is None else found.decode(),
        trip_ms=trips,
        offset_ms=offset_ms,
    )


async def _times(ask: Any) -> tuple[float, int]:
    trips, offsets = [], []
    for _ in range(TRIPS):
        began, here_ms = time.monotonic(), time.time() * 1_000
        seconds, micros = await ask("TIME")
        trip_ms = (time.monotonic() - began) * 1_000
        trips.append(trip_ms)
        offsets.append(int(seconds) * 1_000 + int(micros) / 1_000 - here_ms - trip_ms / 2)
    return statistics.median(trips), round(statistics.median(offsets))


async def _or_none(ask: Any, *command: Any) -> Any:
    """The answer, or None if this user may not ask."""
    try:
        return await ask(*command)
    except exceptions.ResponseError:
        return None


async def _refused(ask: Any, address: RedisAddress) -> tuple[str, ...] | None:
    """Which of our commands this user may not use, as the server itself judges; a script asks, and changes nothing.

    The store itself runs no scripts: a user who may not run one is asked no more than whether it may call functions.
    """
    key = f"{address.prefix}:meta"
    commands = [
        [name, *(key if part == "K" else part for part in _SHAPES.get(name, ("K", "0", "0")))]
        for name in commands_used(wait=bool(address.wait))
    ]
    try:
        found = await ask("EVAL", _MAY, 1, key, msgspec.msgpack.encode(commands))
    except exceptions.NoPermissionError:
        return ("",) if await _may_not_call(ask, key) else None
    return tuple(name.decode() for name in found)


async def _may_not_call(ask: Any, key: str) -> bool:
    try:
        await ask("FCALL", "pollux", 1, key)
    except exceptions.NoPermissionError:
        return True
    except exceptions.ResponseError:  # there is no such function
        return False
    return False


def commands_used(*, wait: bool) -> list[str]:
    """What this store sends, and what its functions call."""
    return sorted(set(_CALLED.findall(library().text)) | set(_OURSELVES) | ({"WAIT"} if wait else set()))
