"""Where is the node that is to be asked?  `https://pollux.example`, `http://localhost:8060`, or a socket here."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from pollux.errors import InvalidInput

SOCKET = "http+unix"
_SCHEMES = ("http", "https", SOCKET)
_CURE = "write it like http://localhost:8060, https://pollux.example or http+unix:///run/pollux/pollux.sock"
_CONTROL = re.compile(r"[\x00-\x20\x7f]")


class NodeAddress(NamedTuple):
    """`root` is what paths are added to; with a `socket` its host means nothing."""

    root: str
    socket: str = ""

    @property
    def shown(self) -> str:
        return f"the socket {self.socket}" if self.socket else self.root

    @property
    def origin(self) -> str:
        """Without a path."""
        return self.root.removesuffix(self.path)

    @property
    def path(self) -> str:
        """What stands behind the host: that of a proxy in front, or a slip of the pen."""
        return urlsplit(self.root).path

    @property
    def is_encrypted(self) -> bool:
        return self.root.startswith("https:")

    @property
    def is_open(self) -> bool:
        """Can others on the way read what is sent?"""
        parts = urlsplit(self.root)
        return not self.socket and parts.scheme == "http" and not _is_here(parts.hostname or "")


def is_address(url: str) -> bool:
    """A node's, rather than a store's."""
    return url.partition("://")[0] in _SCHEMES


def socket_url(path: Path) -> str:
    return f"{SOCKET}://{quote(str(path.absolute()))}"


def address_of(url: str) -> NodeAddress:
    """The address that was written; `InvalidInput` for what is none."""
    try:
        parts = urlsplit(url)
        has_port = parts.port is not None or not parts.netloc.endswith(":")
    except ValueError:
        raise _wrong(url) from None
    if parts.scheme not in _SCHEMES or parts.query or parts.fragment or not has_port or _CONTROL.search(url):
        raise _wrong(url)
    if "@" in parts.netloc:
        what = "a name or password does not belong into the address"
        raise InvalidInput(what, where="url", cure="give a token: --token or POLLUX_TOKEN")
    if parts.scheme == SOCKET:
        if parts.netloc or len(parts.path) < 2:
            raise _wrong(url)
        return NodeAddress("http://localhost", unquote(parts.path))
    if not parts.hostname:
        raise _wrong(url)
    return NodeAddress(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}")


def _wrong(url: str) -> InvalidInput:
    return InvalidInput(f"{url[:200]!r} is no address of a node", where="url", cure=_CURE)


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
