"""Host names, trusted proxies and the origin of browser requests.

A request for an unknown host name may come from a foreign page (DNS rebinding); forwarded headers count only if they
come from a configured proxy.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from pollux.errors import InvalidInput

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104  to be recognised, not to be used
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
Network = IPv4Network | IPv6Network


def is_loopback(host: str) -> bool:
    """Is it reachable from this machine only?"""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to anything


def refuse_in_the_clear(host: str, *, has_tls: bool, behind_proxy: bool) -> None:
    """Raise unless the API is encrypted, bound to loopback, or behind a proxy that encrypts."""
    if is_loopback(host) or has_tls or behind_proxy:
        return
    raise InvalidInput(
        f"the API would listen on {host}, and tokens would cross the network in the clear",
        where="server.host",
        cure="give it server.tls: {cert: ..., key: ...}; or, if a proxy in front encrypts, --behind-proxy; "
        "or stay on 127.0.0.1",
    )


class Hosts:
    """The host names that this server accepts."""

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        self._is_any = bound in ANY
        self._names = LOCAL | {_bare(name) for name in names} | (set() if self._is_any else {_bare(bound)})

    def knows(self, host: str, came_in_on: str) -> bool:
        """`came_in_on`: the local address of the connection; unlike a name, an address cannot be forged."""
        name = _bare(host_of(host))
        return name in self._names or (self._is_any and name == came_in_on.lower())


class Proxies:
    """Networks of proxies whose forwarded headers are trusted."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks: tuple[Network, ...] = tuple(ip_network(text) for text in networks)

    def has(self, address: str) -> bool:
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(found.version == network.version and found in network for network in self._networks)

    def client_of(self, address: str, forwarded_for: str) -> str:
        """The last forwarded address that is not a trusted proxy; the ones before it can be forged."""
        for each in reversed([part.strip() for part in forwarded_for.split(",")]):
            if not _is_address(each):
                return address
            address = each
            if not self.has(each):
                return address
        return address


def host_of(authority: str) -> str:
    """The host of `host`, `host:port`, `[::1]:port`."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def is_foreign_page(method: str, host: str, *, site: str, origin: str) -> bool:
    """Did a page of another origin send it?  Decided by fetch metadata, otherwise by `Origin`."""
    if method in SAFE:
        return False
    if site:
        return site not in {"same-origin", "none"}
    if origin:
        return _authority(origin) != host.lower()
    return False  # not a browser: current ones send at least one of them


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _bare(name: str) -> str:
    return name.lower().removesuffix(".").strip("[]")


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
