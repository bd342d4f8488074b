"""When is there something to do?  A ring is an entry of a small stream, and so it cannot be lost between two looks.

Every look answers where the bell stood when it looked; whoever found nothing waits for what comes after that place.
One connection of its own per bell reads for all waiters of a handle, and only while somebody waits.

    look: nothing, bell at 7 ─▶ follow(7) ─▶ sleep ◀─ hear(8) ◀─ XREAD BLOCK ... 7

When the connection breaks, all waiters look for themselves (and are told by that call what is wrong), and the reader
tries again, later and later, from where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from pollux.store.redis.address import Address
from pollux.store.redis.link import Command, client

BLOCK_MS = 30_000
SLACK_S = 2.0
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 3.0
RINGS_MAX = 100

Place = tuple[int, int]


def place_of(text: str) -> Place:
    milliseconds, _, number = text.partition("-")
    return int(milliseconds), int(number)


class Waiter:
    """Somebody who waits, perhaps for a node; it remembers all rings since it listens."""

    __slots__ = ("_rings", "_since", "event", "node")

    def __init__(self, node: str) -> None:
        self.node = node
        self.event = asyncio.Event()
        self._rings: list[tuple[Place, bool]] = []  # where, and whether it asks us to come back
        self._since: Place | None = None  # where the bell stood at our first look

    def hear(self, place: Place, kind: str, node: str) -> None:
        is_asked = kind == "wake" or (kind == "asked" and node == self.node)
        if is_asked or kind != "asked":
            self._rings.append((place, is_asked))
            self.event.set()

    def looked(self, place: Place) -> None:
        """Only what rang after a look is news; being asked back counts from the first look on."""
        since = self._since = self._since or place
        self._rings = [ring for ring in self._rings if ring[0] > (since if ring[1] else place)]

    @property
    def is_asked_back(self) -> bool:
        return any(is_asked for _, is_asked in self._rings)

    @property
    def has_news(self) -> bool:
        return bool(self._rings)


class Ear:
    """The waiters of one handle for one bell."""

    def __init__(self, address: Address, bell: str) -> None:
        self._key = f"{address.prefix}:{bell}"
        self._client = client(address, BLOCK_MS / 1000 + SLACK_S, connections_max=1)
        self._send: Command = self._client.execute_command
        self._waiters: set[Waiter] = set()
        self._reader: asyncio.Task[None] | None = None
        self._place: Place = (0, 0)  # up to here it was read

    @contextmanager
    def listen(self, node: str = "") -> Iterator[Waiter]:
        waiter = Waiter(node)
        self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)

    def follow(self, waiter: Waiter, place: Place) -> None:
        """Before going to sleep: nothing that rings after that place is missed."""
        waiter.looked(place)
        if self._reader is None or self._reader.done():
            self._place = place
            self._reader = asyncio.create_task(self._read())
        elif waiter.has_news or place < self._place:
            waiter.event.set()

    async def close(self) -> None:
        for waiter in self._waiters:
            waiter.event.set()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})
            self._reader = None
        await self._client.aclose()

    async def _read(self) -> None:
        rest_s = BACKOFF_MIN_S
        while self._waiters:
            try:
                await self._hear()
                rest_s = BACKOFF_MIN_S
            except (RedisError, OSError):
                for waiter in self._waiters:
                    waiter.event.set()
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, BACKOFF_MAX_S)

    async def _hear(self) -> None:
        after = "{}-{}".format(*self._place)
        found = await self._send(*("XREAD", "COUNT", RINGS_MAX, "BLOCK", BLOCK_MS, "STREAMS", self._key, after))
        for _, entries in found or ():
            for entry_id, fields in entries:
                self._place = place_of(entry_id.decode())
                for waiter in self._waiters:
                    waiter.hear(self._place, fields.get(b"kind", b"").decode(), fields.get(b"node", b"").decode())
