"""Node addresses: `https://pollux.example`, `http://localhost:8060`, or a unix socket."""

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
    """Address of a node.  Paths are appended to `root`; with a `socket` its host is ignored."""

    root: str
    socket: str = ""

    @property
    def shown(self) -> str:
        return f"the socket {self.socket}" if self.socket else self.root

    @property
    def origin(self) -> str:
        """`root` without its path."""
        return self.root.removesuffix(self.path)

    @property
    def path(self) -> str:
        """The path of the URL: the prefix of a proxy, or a mistake."""
        return urlsplit(self.root).path

    @property
    def is_encrypted(self) -> bool:
        return self.root.startswith("https:")

    @property
    def is_open(self) -> bool:
        """Is it unencrypted and leaves this machine?"""
        parts = urlsplit(self.root)
        return not self.socket and parts.scheme == "http" and not _is_here(parts.hostname or "")


def is_address(url: str) -> bool:
    """Is it the URL of a node, not of a store?"""
    return url.partition("://")[0] in _SCHEMES


def socket_url(path: Path) -> str:
    return f"{SOCKET}://{quote(str(path.absolute()))}"


def address_of(url: str) -> NodeAddress:
    """The parsed address; `InvalidInput` for an invalid one."""
    try:
        parts = urlsplit(url)
        has_port = parts.port is not None or not parts.netloc.endswith(":")
    except ValueError:
        raise _wrong(url) from None
    if parts.scheme not in _SCHEMES or parts.query or parts.fragment or not has_port or _CONTROL.search(url):
        raise _wrong(url)
    if "@" in parts.netloc:
        what = "an address cannot contain a user name or password"
        raise InvalidInput(what, where="url", cure="give a token: --token or POLLUX_TOKEN")
    if parts.scheme == SOCKET:
        if parts.netloc or len(parts.path) < 2:
            raise _wrong(url)
        return NodeAddress("http://localhost", unquote(parts.path))
    if not parts.hostname:
        raise _wrong(url)
    return NodeAddress(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}")


def _wrong(url: str) -> InvalidInput:
    return InvalidInput(f"{url[:200]!r} is not the address of a node", where="url", cure=_CURE)


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
