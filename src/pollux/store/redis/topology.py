"""Discovery of the primary server: from the URL, from the sentinels, or as the owner of a cluster slot.

All keys of a store are in one slot, so a cluster is one server at a time, which may change.  Pollux discovers that
server itself and uses plain connections: a write and the wait for its replicas must use one connection, and redis-py's
cluster client sends `ASKING` and its command over two.  redis-py's sentinel client uses the first answer, which may be
from a sentinel that missed the last failover.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace
from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import MovedError, ResponseError
from redis.exceptions import TimeoutError as Silent

from pollux.store.redis.address import CLUSTER, SENTINEL, Place, RedisAddress
from pollux.store.tcp_keepalive import PROBES

CONNECT_S = 5.0
ASK_S = 2.0  # timeout of a query to a sentinel or a cluster node

Wire = Any  # a redis-py connection, which has no usable types


class Topology(Protocol):
    async def find(self) -> Wire:
        """A new connection object for the server, not yet connected."""
        ...

    def moved(self, error: MovedError) -> None:
        """Take the new slot owner from a MOVED error."""
        ...

    def doubt(self) -> None:
        """Discover the server again at the next `find`, after a failure."""
        ...


def route_to(address: RedisAddress) -> Topology:
    if address.kind == SENTINEL:
        return SentinelTopology(address)
    return ClusterTopology(address) if address.kind == CLUSTER else SingleServer(address)


class SingleServer:
    """The URL names the server."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address

    async def find(self) -> Wire:
        return wire_to(self._address, self._address.places[0] if self._address.places else None)

    def moved(self, error: MovedError) -> None:
        raise error  # only a cluster sends MOVED, and the connection checks that this is none

    def doubt(self) -> None:
        return


class SentinelAnswer(NamedTuple):
    """A sentinel's answer."""

    epoch: int  # epoch of the last failover it knows
    place: Place
    is_leaving: bool  # a failover replaces that server


class SentinelTopology:
    """Query all sentinels before every connection, and use the answer with the highest epoch."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._asked = replace(address, login=address.sentinel_login)

    async def find(self) -> Wire:
        asked = (self._ask(place) for place in self._address.places)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        named = [answer for answer in answers if isinstance(answer, SentinelAnswer)]
        if named:
            return wire_to(self._address, _primary_of(named))
        failure = next((answer for answer in answers if isinstance(answer, ResponseError)), answers[0])
        assert isinstance(failure, BaseException)
        raise failure

    def moved(self, error: MovedError) -> None:
        raise error

    def doubt(self) -> None:
        return

    async def _ask(self, place: Place) -> SentinelAnswer:
        """Last failover epoch of a sentinel, and the address of the primary.

        During a failover GET-MASTER-ADDR-BY-NAME of the leading sentinel already returns the new primary, while its
        MASTER record still has the old one.
        """
        service = self._address.service
        found, named = await ask_once(
            self._asked, place, ("SENTINEL", "MASTER", service), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        )
        record = {name.decode(): value.decode() for name, value in zip(found[::2], found[1::2], strict=True)}
        host, port = named[0].decode(), int(named[1])
        is_old = (host, str(port)) == (record["ip"], record["port"])
        flags = set(record["flags"].split(","))
        if is_old and {"s_down", "o_down"} & flags:
            raise Unreachable(f"the sentinels find {host}:{port} down, and have named no other yet")
        return SentinelAnswer(
            int(record["config-epoch"]), (host, port), is_leaving=is_old and "failover_in_progress" in flags
        )


def _primary_of(named: list[SentinelAnswer]) -> Place:
    """The primary by the answer with the highest epoch; raises `Unreachable` while a failover replaces that server."""
    latest = max(each.epoch for each in named)
    last = [each for each in named if each.epoch == latest]
    for each in last:
        if each.is_leaving:
            host, port = each.place
            raise Unreachable(f"the sentinels replace {host}:{port}, and have named no other yet")
    return max(each.place for each in last)


class ClusterTopology:
    """Query the known nodes for the owner of the slot; the owner is cached until a failure."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._slot = key_slot(f"{address.prefix}:".encode())
        self._known: dict[Place, None] = dict.fromkeys(address.places)
        self._owner: Place | None = None

    async def find(self) -> Wire:
        if self._owner is None:
            self._owner = await self._ask_around()
        return wire_to(self._address, self._owner)

    def moved(self, error: MovedError) -> None:
        self._owner = (error.host, int(error.port)) if error.host else None

    def doubt(self) -> None:
        self._owner = None

    async def _ask_around(self) -> Place:
        failure: Exception = Unreachable(f"no node of the cluster owns slot {self._slot}")
        for place in list(self._known):
            try:
                found = await self._ask(place)
            except (Unreachable, Silent, OSError) as error:
                failure = error
                self._known[place] = self._known.pop(place)  # queried last the next time
                continue
            if found is not None:
                return found
        raise failure

    async def _ask(self, place: Place) -> Place | None:
        owner = None
        [ranges] = await ask_once(self._address, place, ("CLUSTER", "SLOTS"))
        for first, last, *nodes in ranges:
            places = [(node[0].decode() or place[0], int(node[1])) for node in nodes if node[0] is not None]
            self._known.update(dict.fromkeys(places))
            if first <= self._slot <= last and places:
                owner = places[0]
        return owner


async def ask_once(address: RedisAddress, place: Place, *commands: tuple[str, ...]) -> list[Any]:
    """Run commands on a sentinel or a node over a separate connection.

    The timeouts are here and not in redis-py, which uses asyncio's `wait_for`: before Python 3.12 that can lose a
    cancellation that arrives just as the call completes.
    """
    wire = wire_to(address, place, connect_s=ASK_S)
    answers = []
    try:
        async with asyncio.timeout(ASK_S):
            await wire.connect()
        for command in commands:
            async with asyncio.timeout(ASK_S):
                await wire.send_command(*command)
                answers.append(await wire.read_response())
        return answers
    except TimeoutError as error:
        raise Silent(f"{place[0]}:{place[1]} gave no answer within {ASK_S:g} s") from error
    finally:
        await wire.disconnect(nowait=True)


def wire_to(address: RedisAddress, place: Place | None, connect_s: float = CONNECT_S) -> Wire:
    # No retries in the client: the caller repeats with the same ids.
    options: dict[str, Any] = {"socket_timeout": None, "protocol": 2, "retry": Retry(NoBackoff(), 0), **address.login}
    if place is None:
        return UnixDomainSocketConnection(path=address.path, socket_connect_timeout=connect_s, **options)
    options |= {"host": place[0], "port": place[1], "socket_connect_timeout": connect_s}
    options |= {"socket_keepalive": True, "socket_keepalive_options": PROBES}
    if address.tls is None:
        return Connection(**options)
    return SSLConnection(**options, **address.tls)
