"""Discovery of the server that takes writes: named in the URL, known to the sentinels, or the owner of the slot.

All our keys are in one slot, so a cluster is for us one server at a time that may move.  The store asks for it
itself and uses plain connections: a write and the wait for its replicas must go over one connection, and the
client's own router sends `ASKING` and the command it is meant for over two.  Its sentinels' client believes the
first that answers, also one that has slept through the last failover.
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
ASK_S = 2.0  # for a sentinel or a node of the cluster to say where the primary is

Wire = Any  # a connection of the client, whose types are not ours to know


class Topology(Protocol):
    async def find(self) -> Wire:
        """A new connection to the server, not yet made."""
        ...

    def moved(self, error: MovedError) -> None:
        """A node of the cluster said who owns our slot."""
        ...

    def doubt(self) -> None:
        """The server failed us: ask again where it is."""
        ...


def route_to(address: RedisAddress) -> Topology:
    if address.kind == SENTINEL:
        return SentinelTopology(address)
    return ClusterTopology(address) if address.kind == CLUSTER else SingleServer(address)


class SingleServer:
    """The server itself is named."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address

    async def find(self) -> Wire:
        return wire_to(self._address, self._address.places[0] if self._address.places else None)

    def moved(self, error: MovedError) -> None:
        raise error  # only a cluster says so, and the server was asked whether it is one

    def doubt(self) -> None:
        return


class SentinelAnswer(NamedTuple):
    """A sentinel's answer."""

    epoch: int  # of the last failover that it saw
    place: Place
    is_leaving: bool  # it is about to promote a replica in place of that server


class SentinelTopology:
    """Ask all sentinels before every connection, and believe the one that saw the last failover."""

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
        """Which failover it saw last, and where the primary is since then.

        While one is under way the sentinel that leads it already names the new primary to who asks for the address,
        though its record is still of the old one.
        """
        service = self._address.service
        found, named = await ask_once(
            self._asked, place, ("SENTINEL", "MASTER", service), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        )
        said = {name.decode(): value.decode() for name, value in zip(found[::2], found[1::2], strict=True)}
        host, port = named[0].decode(), int(named[1])
        is_old = (host, str(port)) == (said["ip"], said["port"])
        flags = set(said["flags"].split(","))
        if is_old and {"s_down", "o_down"} & flags:
            raise Unreachable(f"the sentinels find {host}:{port} down, and have named no other yet")
        return SentinelAnswer(
            int(said["config-epoch"]), (host, port), is_leaving=is_old and "failover_in_progress" in flags
        )


def _primary_of(named: list[SentinelAnswer]) -> Place:
    """As the sentinel says that saw the last failover; while one begins, nobody is told the server that it replaces."""
    latest = max(each.epoch for each in named)
    last = [each for each in named if each.epoch == latest]
    for each in last:
        if each.is_leaving:
            host, port = each.place
            raise Unreachable(f"the sentinels replace {host}:{port}, and have named no other yet")
    return max(each.place for each in last)


class ClusterTopology:
    """Ask any node that we know for the owner of our slot; remember it until it fails us."""

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
                self._known[place] = self._known.pop(place)  # asked last the next time
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
    """Some questions to a sentinel or a node, over a connection of its own.

    The time is ours to keep: where the client keeps it, a cancellation that comes just as something was sent is lost
    (asyncio's `wait_for` before Python 3.12), and whoever was to end goes on.
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
    # Nothing is retried by itself: whoever calls knows its ids.
    options: dict[str, Any] = {"socket_timeout": None, "protocol": 2, "retry": Retry(NoBackoff(), 0), **address.login}
    if place is None:
        return UnixDomainSocketConnection(path=address.path, socket_connect_timeout=connect_s, **options)
    options |= {"host": place[0], "port": place[1], "socket_connect_timeout": connect_s}
    options |= {"socket_keepalive": True, "socket_keepalive_options": PROBES}
    if address.tls is None:
        return Connection(**options)
    return SSLConnection(**options, **address.tls)
