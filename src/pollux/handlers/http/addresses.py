"""Address policy: whether a job may connect to an address, by its kind and by where the job came from.

    address                                                      a job of a file or of code      a job that came by API
    ----------------------------------------------------------   -----------------------------   ----------------------
    never: this host (0/8, ::), link-local and other places of   no                              no
    cloud metadata, multicast, broadcast, reserved
    loopback, private, shared, documentation, benchmarking       yes                             only in allow_networks
    everything else                                              yes                             yes

A URL that comes with a run counts as API, whatever its job is.  The tables are our own: what `ipaddress` calls private
differs between Python versions.  An IPv6 address that may hold an IPv4 one (mapped, compatible, translated, NAT64,
6to4, Teredo, ISATAP) has several readings: itself, and each IPv4 address that may be meant.  The worst of them counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from pollux.errors import InvalidInput

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

NETWORKS_MAX = 1_000
LOOPBACK = IPv4Address("127.0.0.1")
METADATA_NAMES = frozenset({"metadata.google.internal", "metadata.goog", "metadata", "instance-data"})

_NEVER = (
    "0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4",
    "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
    "::/128", "fe80::/10", "ff00::/8", "fd00:ec2::/32", "fd20:ce::/32", "100::/64",
)  # fmt: skip
_INSIDE = (
    "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24",
    "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
    "::1/128", "fc00::/7", "fec0::/10", "64:ff9b:1::/48", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16",
)  # fmt: skip
_EMBEDDED = {  # an IPv4 address starts this many bits from the right
    "::/96": (0,),  # compatible
    "::ffff:0:0/96": (0,),  # mapped
    "::ffff:0:0:0/96": (0,),  # translated
    "64:ff9b::/96": (0,),  # NAT64
    "64:ff9b:1::/48": (0,),
    "2002::/16": (80,),  # 6to4
}
_TEREDO = IPv6Network("2001::/32")
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")  # RFC 8215: any prefix length of RFC 6052 may be in use below it
_ISATAP, _ISATAP_MASK = 0x0000_5EFE, 0xFCFF_FFFF  # the two bits left out are flags of the interface id
_HOST = re.compile(r"(?=.{1,253}\Z)(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")


class Reach(IntEnum):
    """Kind of an address by its reach; the smaller the more dangerous."""

    NEVER = 0
    INSIDE = 1
    OUTSIDE = 2


def _table(version: int) -> tuple[tuple[int, int, Reach], ...]:
    """Return first and last number of each network, the most dangerous first."""
    rows = [(Reach.NEVER, ip_network(text)) for text in _NEVER] + [(Reach.INSIDE, ip_network(text)) for text in _INSIDE]
    return tuple((int(network[0]), int(network[-1]), reach) for reach, network in rows if network.version == version)


_TABLES = {4: _table(4), 6: _table(6)}
_WRAPPINGS = tuple((IPv6Network(text), shifts) for text, shifts in _EMBEDDED.items())


class AddressPolicy:
    """The addresses that jobs of one kind of source may reach."""

    def __init__(self, *, inside: bool, allowed: Iterable[Network] = ()) -> None:
        self.inside, self.allowed = inside, tuple(allowed)

    def refusal(self, address: Address) -> str:
        """Return why this address may not be reached; empty if it may."""
        worst = reach_of(address)
        if worst is Reach.OUTSIDE:
            return ""
        if worst is Reach.NEVER:
            return f"{address} is never reached (this host, link-local, metadata, multicast or reserved)"
        if self.inside or self._is_allowed(address):
            return ""
        by = "came by API or with a run"
        return f"{address} is not a public address, and it {by}; list its network in http.allow_networks"

    def _is_allowed(self, address: Address) -> bool:
        """Whether every reading of it that is not public is in an allowed network."""
        near = [each for each in readings(address) if _own_reach(each) is not Reach.OUTSIDE]
        return all(any(each in network for network in self.allowed) for each in near)


@lru_cache(maxsize=16_384)
def reach_of(address: Address) -> Reach:
    return min(_own_reach(each) for each in readings(address))


def _own_reach(address: Address) -> Reach:
    number = int(address)
    for first, last, reach in _TABLES[address.version]:
        if first <= number <= last:
            return reach
    return Reach.OUTSIDE


def readings(address: Address) -> Iterator[Address]:
    """Yield every reading of an address: itself, and each IPv4 address that may be meant by it."""
    yield address
    if isinstance(address, IPv6Address) and int(address) > 1:  # :: and ::1 hold none
        yield from _embedded(address)


def _embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    number = int(address)
    for network, shifts in _WRAPPINGS:
        if address in network:
            yield from (IPv4Address(number >> shift & 0xFFFF_FFFF) for shift in shifts)
    if address in _TEREDO:
        yield IPv4Address(number >> 64 & 0xFFFF_FFFF)
        yield IPv4Address(~number & 0xFFFF_FFFF)
    if address in _LOCAL_NAT64:
        yield from _split(number)
    if number >> 32 & _ISATAP_MASK == _ISATAP:
        yield IPv4Address(number & 0xFFFF_FFFF)


def _split(number: int) -> Iterator[IPv4Address]:
    """Yield IPv4 addresses after a NAT64 prefix of 48, 56 or 64 bits, around the reserved bits 64 to 71 (RFC 6052).

    0.x.x.x is left out: there it is the padding of a longer prefix, whose own reading is judged.
    """
    joined = number >> 64 << 56 | number & (1 << 56) - 1  # without the reserved bits: 120 are left
    for prefix in (48, 56, 64):
        inner = IPv4Address(joined >> 120 - prefix - 32 & 0xFFFF_FFFF)
        if inner.packed[0]:
            yield inner


@lru_cache(maxsize=16_384)
def literal(host: str) -> Address | None:
    """Return the address that a host is, however it is written; None if it is a name.

    `2130706433`, `0x7f.1` and `0177.0.0.1` are all 127.0.0.1 to one resolver or another, so they are here, too; a host
    that ends in a number but is no address is refused, because resolvers differ on it.
    """
    if ":" in host:
        try:
            address = IPv6Address(host)
        except ValueError:
            raise InvalidInput("the host is no IPv6 address", cure="write it like http://[2001:db8::1]/") from None
        if address.scope_id is not None:
            raise InvalidInput("the host has a zone", cure="leave %... out")
        return address
    parts = host.removesuffix(".").split(".")
    if not (parts[-1].isdigit() or parts[-1].lower().startswith("0x")):
        return None
    number = _ipv4(parts)
    if number is None:
        raise InvalidInput("the host is neither a name nor an IPv4 address", cure="write it like 192.0.2.7")
    return IPv4Address(number)


def _ipv4(parts: list[str]) -> int | None:
    """Return the number of one to four parts, each decimal, octal (0...) or hexadecimal (0x...).

    The last part fills the rest.
    """
    if len(parts) > 4:
        return None
    numbers = [_number(part) for part in parts]
    if any(number is None for number in numbers):
        return None
    *first, last = (number for number in numbers if number is not None)
    if any(number > 255 for number in first) or last >= 256 ** (4 - len(first)):
        return None
    return sum((number << 8 * (3 - place) for place, number in enumerate(first)), last)


def _number(part: str) -> int | None:
    base, digits = 10, part
    if part.lower().startswith("0x"):
        base, digits = 16, part[2:] or "0"
    elif part.startswith("0") and len(part) > 1:
        base = 8
    try:
        return int(digits, base) if digits.isalnum() and digits.isascii() else None
    except ValueError:
        return None


def is_host_name(host: str) -> bool:
    return _HOST.fullmatch(host) is not None


def refused_name(host: str) -> str:
    """Return why no job may look up this name; empty if any may."""
    is_metadata = host.lower().removesuffix(".") in METADATA_NAMES
    return f"{host} serves the machine's own credentials and is never asked" if is_metadata else ""


def refused_host(host: str, policy: AddressPolicy) -> str:
    """Return why a host may not be polled, as far as that is known before its name is resolved; empty if it may."""
    name = host.lower()
    address = LOOPBACK if name == "localhost" or name.endswith(".localhost") else literal(name)
    return refused_name(name) if address is None else policy.refusal(address)


def networks_of(values: Iterable[object]) -> tuple[Network, ...]:
    """Parse networks as people write them: "10.0.0.0/8", "fd00::/8", a single address."""
    found: list[Network] = []
    for value in values:
        try:
            found.append(ip_network(value if isinstance(value, str) else "", strict=True))
        except ValueError as error:
            cure = 'write it like "10.0.0.0/8"; bits after the prefix are 0'
            raise InvalidInput(f"{str(value)[:60]!r} is no network", cure=cure) from error
    if len(found) > NETWORKS_MAX:
        raise InvalidInput(f"{len(found)} networks are too many", cure=f"at most {NETWORKS_MAX}")
    return tuple(found)


def address_of(text: str) -> Address:
    """Parse an address as a resolver returns it."""
    return ip_address(text.partition("%")[0])
