"""Under which name was it called, and by whom?  A name that is not ours is a page of somebody else's that a browser
was lured to (DNS rebinding); a proxy is believed what it forwards only if it was named.
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
    """Can nobody but this machine reach it?"""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name: whoever resolves it decides


def refuse_in_the_clear(host: str, *, has_tls: bool, behind_proxy: bool) -> None:
    """Nothing but this machine is reached without encryption, unless somebody says that a proxy sees to it."""
    if is_loopback(host) or has_tls or behind_proxy:
        return
    raise InvalidInput(
        f"the API would listen on {host}, and tokens would cross the network in the clear",
        where="server.host",
        cure="give it server.tls: {cert: ..., key: ...}; or, if a proxy in front encrypts, --behind-proxy; "
        "or stay on 127.0.0.1",
    )


class Hosts:
    """The names by which this server may be called."""

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        self._is_any = bound in ANY
        self._names = LOCAL | {_bare(name) for name in names} | (set() if self._is_any else {_bare(bound)})

    def knows(self, host: str, came_in_on: str) -> bool:
        """`came_in_on`: the address that was connected to; an address cannot be made to point elsewhere by anybody."""
        name = _bare(host_of(host))
        return name in self._names or (self._is_any and name == came_in_on.lower())


class Proxies:
    """Whose forwarded headers are believed."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks: tuple[Network, ...] = tuple(ip_network(text) for text in networks)

    def has(self, address: str) -> bool:
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(found.version == network.version and found in network for network in self._networks)

    def client_of(self, address: str, forwarded_for: str) -> str:
        """The nearest of the forwarded addresses that is no proxy of ours; what stands before it anybody may write."""
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
    """Did a browser send it for a page that is not ours?  By fetch metadata, else by where the page came from."""
    if method in SAFE:
        return False
    if site:
        return site not in {"same-origin", "none"}
    if origin:
        return _authority(origin) != host.lower()
    return False  # no browser of the last years


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
