"""Removal of a store: its keys are deleted page by page, and only those with a name of ours.

`meta` and the notes go last: a removal that is interrupted leaves a store that is still recognised, still has
the mark of a move if it had one, and can be dropped again.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from pollux.errors import StoreRefused
from pollux.store.redis.address import read_address
from pollux.store.redis.check import OF_JOBS
from pollux.store.redis.connection import BlockingConnection
from pollux.store.redis.errors import in_our_words
from pollux.store.redis.library import KEYS

ASK_S = 10.0
PAGE = 500
LAST = ("notes:keys", "notes:ends", "notes", "meta")
_OF_THINGS = frozenset({"run", "job", "claim", *OF_JOBS})
_VERSION = re.compile("^v(?!2:)[1-9][0-9]{0,3}:")  # `?namespace=v2` is a store of its own: see address.py


async def drop(url: str) -> int:
    """Delete all keys of the store; answers how many others begin with the same prefix, and were left."""
    address = read_address(url)
    listener = BlockingConnection(address)
    try:
        with in_our_words(address.name):
            return await _drop(listener, f"{address.prefix}:", address.name)
    finally:
        await listener.close()


async def _drop(listener: BlockingConnection, beginning: str, name: str) -> int:
    if not await _is_store(listener, beginning):
        raise StoreRefused(f"{name} has no store under {beginning}; name the right one with ?namespace=")
    of_things = _OF_THINGS
    if await _is_store(listener, f"{beginning}claim:"):  # of `?namespace=claim`; our own claims end by themselves
        of_things -= {"claim"}
    left: set[bytes] = set()
    async for page in _pages(listener, beginning):
        ours = [key for key in page if _is_ours(key, beginning, of_things)]
        left.update(set(page).difference(ours))
        if now := [key for key in ours if key.decode().removeprefix(beginning) not in LAST]:
            await listener.ask("UNLINK", *now, within_s=ASK_S)
    await listener.ask("UNLINK", *(f"{beginning}{key}" for key in LAST), within_s=ASK_S)
    return len(left)


async def _is_store(listener: BlockingConnection, beginning: str) -> bool:
    """A key of another type is not our `meta`."""
    if await listener.ask("TYPE", f"{beginning}meta", within_s=ASK_S) != b"hash":
        return False
    return bool(await listener.ask("HEXISTS", f"{beginning}meta", "format", within_s=ASK_S))


async def _pages(listener: BlockingConnection, beginning: str) -> AsyncIterator[list[bytes]]:
    """All keys that begin so; one that is there all the time is seen, whatever is deleted meanwhile."""
    cursor = b"0"
    while True:
        cursor, keys = await listener.ask("SCAN", cursor, "MATCH", f"{beginning}*", "COUNT", PAGE, within_s=ASK_S)
        yield keys
        if cursor == b"0":
            return


def _is_ours(key: bytes, beginning: str, of_things: frozenset[str]) -> bool:
    try:
        name = key.decode().removeprefix(beginning)
    except UnicodeDecodeError:
        return False
    kind, has_name, _ = name.partition(":")
    return (bool(has_name) and kind in of_things) or _VERSION.sub("", name, count=1) in KEYS
