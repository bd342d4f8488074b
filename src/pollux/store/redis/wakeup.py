"""Wake-ups of waiting calls, by entries of a small stream, so that none is lost between two reads.

Every read returns the last id of the stream; a call that found nothing waits for entries after it.
One connection per stream reads for all waiters of a handle, and only while a call waits.

    look: nothing, bell at 7 ─▶ follow(7) ─▶ sleep ◀─ hear(8) ◀─ XREAD BLOCK ... 7

A claim may be pipelined behind the wait (an offer): a wake-up returns leased runs without another round trip.  It is
valid for a moment only: a stalled waiter soon takes nothing.  A call that stops waiting withdraws it by closing the
connection: the server drops what it has not answered.

When the connection breaks, all waiters poll (and get the error of that call), and the reader tries again with
backoff, and goes on where it had stopped.  If it cannot, because the server is another one whose stream is behind
the old one's, or because the entries in between were trimmed, all waiters return: one of those wake-ups may have
been for them.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from redis.exceptions import RedisError

from pollux.store.redis.address import RedisAddress
from pollux.store.redis.connection import BlockingConnection
from pollux.store.redis.library import name_of

BLOCK_MS = 30_000
SLACK_S = 2.0
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 3.0
RINGS_MAX = 100
OFFER_MS = 1_000  # an offer is good for so long after the look that found nothing

Place = tuple[int, int]


def place_of(text: str) -> Place:
    milliseconds, _, number = text.partition("-")
    return int(milliseconds), int(number)


class RedisWaiter:
    """One waiting call, perhaps of a node; it remembers all rings since it listens."""

    __slots__ = (
        *("_has_missed", "_is_last_look", "_listener", "_rings", "_since"),
        *("event", "is_asleep", "looked_at", "node", "offer_answer"),
    )

    def __init__(self, listener: RedisListener, node: str) -> None:
        self._listener, self.node = listener, node
        self.event = asyncio.Event()
        self.is_asleep = False
        self.offer_answer: Any = None  # what the server answered to the offer of this call
        self._rings: list[tuple[Place, bool]] = []  # where, and whether it calls the waiter back
        self._since: Place | None = None  # where the bell stood at our first look
        self.looked_at: Place | None = None  # and at our last
        self._has_missed = self._is_last_look = False

    def __enter__(self) -> Self:
        self._listener.admit(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.dismiss(self)

    def wake(self) -> None:
        self.is_asleep = False
        self.event.set()

    def hear(self, place: Place, kind: str, node: str) -> None:
        is_asked = kind == "wake" or (kind == "asked" and node == self.node)
        is_work = kind in ("runs", "feed")
        if is_asked or (is_work and (self.looked_at is None or place > self.looked_at)):
            self._rings.append((place, is_asked))
            self.wake()

    def look(self) -> None:
        """Before a look: a ring from here on means another look, and so does one that was missed."""
        self.event.clear()
        self._is_last_look = self._has_missed

    def looked(self, place: Place) -> None:
        """Only what rang after a look is news; being asked back counts from the first look on."""
        since = self._since = self._since or place
        self.looked_at = place
        self._rings = [ring for ring in self._rings if ring[0] > (since if ring[1] else place)]

    def miss(self, place: Place) -> None:
        """Rings up to that place were missed: a waiter of before looks once more, and returns."""
        if self._since not in (None, place):
            self._has_missed = True
            self.wake()

    @property
    def is_asked_back(self) -> bool:
        return self._is_last_look or any(is_asked for _, is_asked in self._rings)

    @property
    def has_news(self) -> bool:
        return bool(self._rings)


class RedisListener:
    """The waiters of one handle for one bell of its version."""

    def __init__(self, address: RedisAddress, bell: str, version: int) -> None:
        self._key = f"{address.prefix}:{name_of(version, bell)}"
        self._connection = BlockingConnection(address)
        self._waiters: set[RedisWaiter] = set()
        self._reader: asyncio.Task[None] | None = None
        self._gone: set[asyncio.Task[None]] = set()  # readers that are being cancelled
        self._place: Place | None = None  # up to here it was read; None: not known, and nothing is read
        self._stopped_at: Place | None = None  # up to here it was read before the connection broke
        self._offer: tuple[RedisWaiter, bytes] | None = None  # a packed claim that goes with the next wait
        self._offered: RedisWaiter | None = None  # whose offer the server has
        self._offer_until = 0.0

    def listen(self, node: str = "") -> RedisWaiter:
        return RedisWaiter(self, node)

    def admit(self, waiter: RedisWaiter) -> None:
        if not self._waiters and self._is_idle:  # no waiter can have missed anything
            self._place = self._stopped_at = None
        self._waiters.add(waiter)

    def dismiss(self, waiter: RedisWaiter) -> None:
        """It waits no more; its offer is taken back, unless the server has answered it."""
        self._waiters.discard(waiter)
        if self._offer is not None and self._offer[0] is waiter:
            self._offer = None
        if self._offered is waiter:
            self._offered = None
            if asyncio.get_running_loop().time() < self._offer_until:
                self._connection.cut()
                self._end_reader()
                if any(each.is_asleep for each in self._waiters):
                    self._reader = asyncio.create_task(self._read())

    def follow(self, waiter: RedisWaiter, place: Place, offer: bytes | None = None) -> None:
        """Before going to sleep: nothing that rings after that place is missed.

        A look from before what was read is taken again; but if the place did not change, the bell was begun anew.
        """
        is_behind = self._place is not None and place < self._place and place != waiter.looked_at
        waiter.looked(place)
        waiter.is_asleep = True
        if self._is_idle:
            if self._place is None and self._stopped_at is None:
                self._place = place
            if offer is not None and self._stopped_at is None:
                self._offer = waiter, offer
                self._offer_until = asyncio.get_running_loop().time() + OFFER_MS / 1000
            self._reader = asyncio.create_task(self._read())
        elif self._place is not None and (waiter.has_news or is_behind):
            waiter.wake()

    @property
    def _is_idle(self) -> bool:
        return self._reader is None or self._reader.done()

    def move(self) -> None:
        """The keys are on another server now: listen there."""
        if self._is_idle:
            self._place = self._stopped_at = None
            return
        self._end_reader()
        self._break()
        self._stopped_at = None
        self._reader = asyncio.create_task(self._read())

    def _end_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._gone.add(self._reader)
            self._reader.add_done_callback(self._gone.discard)
            self._reader = None

    async def close(self) -> None:
        for waiter in self._waiters:
            waiter.wake()
        self._end_reader()
        if self._gone:
            await asyncio.wait(self._gone)
        await self._connection.close()

    async def _read(self) -> None:
        rest_s = BACKOFF_MIN_S
        while self._waiters:
            try:
                await self._hear(self._place or await self._stand())
                rest_s = BACKOFF_MIN_S
                if not any(waiter.is_asleep for waiter in self._waiters):
                    return  # the next one to sleep goes on where we stop, and may bring an offer
            except (RedisError, OSError):
                self._break()
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, BACKOFF_MAX_S)

    def _break(self) -> None:
        if self._place is not None:
            self._place, self._stopped_at = None, self._place
        self._offer = self._offered = None
        for waiter in self._waiters:
            waiter.wake()

    async def _stand(self) -> Place:
        """From where to read: where it stopped, or else where the bell is by now."""
        last = await self._end_of_bell("XREVRANGE", "+", "-")
        place = self._stopped_at
        if place is None or place > last or (place < last and place < await self._end_of_bell("XRANGE", "-", "+")):
            place = last
            for waiter in self._waiters:
                waiter.miss(last)
        self._place, self._stopped_at = place, None
        return place

    async def _end_of_bell(self, command: str, *ends: str) -> Place:
        found = await self._connection.ask(command, self._key, *ends, "COUNT", 1, within_s=SLACK_S)
        return place_of(found[0][0].decode()) if found else (0, 0)

    async def _hear(self, after: Place) -> None:
        block = ("XREAD", "COUNT", RINGS_MAX, "BLOCK", BLOCK_MS, "STREAMS", self._key, "{}-{}".format(*after))
        offer = None
        if self._offer is not None:
            (self._offered, offer), self._offer = self._offer, None
        await self._connection.ask(*block, within_s=BLOCK_MS / 1000 + SLACK_S, tell=self._tell, offer=offer)

    def _tell(self, answers: list[Any]) -> None:
        """Called with the answer itself, so that a waiter that is woken runs before the reader."""
        found, *others = answers
        waiter, self._offered = self._offered, None
        if waiter is not None and others and others[0] is not None and not isinstance(others[0], Exception):
            waiter.offer_answer = others[0]
            waiter.wake()
        if found is None or isinstance(found, Exception):
            return
        for _, entries in found:
            for entry_id, pairs in entries:
                self._place = place_of(entry_id.decode())
                fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
                kind, node = (fields.get(name, b"").decode(errors="replace") for name in (b"kind", b"node"))
                for waiter in self._waiters:
                    waiter.hear(self._place, kind, node)
