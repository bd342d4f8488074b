"""Listening sockets: TCP with its TLS certificate, the unix socket of a node, and the holder of a port in use.

Only the owner of the unix socket can open it (mode 0600), and the owner can read the files of the store anyway, so the
peer credentials of the operating system are the authentication.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import secrets
import socket
import ssl
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pollux.errors import InvalidInput
from pollux.server.auth import Identity, Role

BACKLOG = 1_024
PATH_BYTES_MAX = 103  # limit on every system; Linux allows 107
LOCALHOST = "localhost"
LOOK_S = 10.0  # interval of the checks of the certificate files, while clients connect
HANDSHAKE_S = 10.0

log = logging.getLogger("pollux")

_PROC = Path("/proc")
_TABLES = ("net/tcp", "net/tcp6")
_LISTENS = "0A"
_OWN = "pollux"
_PEER = struct.Struct("3i")  # pid, uid, gid


def holder_of(port: int) -> str:
    """`process 4711 (pollux serve)`, or "another process" where that is unknown."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    for process in _PROC.glob("[0-9]*") if wanted else ():
        if _holds(process, wanted):
            return f"process {process.name} ({_process_name(process)})"
    return "another process"


def _inodes(port: int) -> Iterator[str]:
    """Inodes of the sockets that listen on this port."""
    for table in _TABLES:
        try:
            lines = (_PROC / table).read_text("ascii", "replace").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if len(fields) > 9 and fields[3] == _LISTENS and fields[1].endswith(f":{port:04X}"):
                yield fields[9]


def _holds(process: Path, sockets: set[str]) -> bool:
    try:
        return any(str(each.readlink()) in sockets for each in (process / "fd").iterdir())
    except OSError:  # the process ended, or belongs to another user
        return False


def _process_name(process: Path) -> str:
    """The program, and for `pollux` the command; no arguments, which may be secret."""
    try:
        words = (process / "cmdline").read_text("utf-8", "replace").split("\0")
        name = (process / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "just ended"
    names = [Path(word).name for word in words]
    return f"{_OWN} {names[names.index(_OWN) + 1]}".strip() if _OWN in names[:-1] else name


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets; for localhost of both address families, if the machine has them, on one port."""
    if host.lower() != LOCALHOST:
        return [_listen(family, address, port) for family, address in _addresses(host)]
    first = _listen(socket.AF_INET, "127.0.0.1", port)
    try:
        return [first, _listen(socket.AF_INET6, "::1", first.getsockname()[1])]
    except OSError as error:
        if error.errno == errno.EADDRINUSE and port:
            first.close()
            raise  # another process would get what is sent to localhost
        return [first]  # this machine has no IPv6


def _addresses(host: str) -> list[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(f"{host!r} is no address of this machine: {error}", where="server.host") from error
    return list(dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in found))


def _listen(family: int, address: str, port: int) -> socket.socket:
    listener = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # explicit: otherwise asyncio does not set TCP_NODELAY
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def is_loopback(host: str) -> bool:
    """Whether the host is reachable from this machine only."""
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


class UnixSocket:
    """The unix socket of one node.  It replaces the file of a dead node, never the file of a live one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark: tuple[int, int] | None = None  # inode and device of the file

    def listen(self) -> socket.socket | None:
        """The listening socket, or None if another node listens there.  `InvalidInput`: the path cannot be used."""
        name = os.fsencode(self.path)
        if len(name) > PATH_BYTES_MAX:
            raise InvalidInput(
                f"{self.path} is too long for a socket ({len(name)} of {PATH_BYTES_MAX} bytes)",
                where="server.socket",
                cure="use a shorter one, like /run/pollux/pollux.sock, or set it to false",
            )
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._put_there() if self._is_free() else None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # another node is about to listen there
                return None
            what = f"there can be no socket at {self.path}: {error.strerror or error}"
            raise InvalidInput(what, where="server.socket", cure="use another path, or set it to false") from error

    def _put_there(self) -> socket.socket:
        """A listening socket, renamed over the file of a dead one.

        If two nodes do so at once, the later one has the path, and the other notices at its next check.  Removing the
        dead file first could remove the file of the other node.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made = self.path.with_name(f"{self.path.name}.{secrets.token_hex(1)}")
        try:
            listener.bind(os.fsencode(made))
        except OSError:
            listener.close()
            raise
        try:
            made.chmod(0o600)  # before it listens, so no other user can connect
            listener.listen(BACKLOG)
            seen = made.lstat()
            made.rename(self.path)
        except OSError:
            listener.close()
            made.unlink(missing_ok=True)
            raise
        self._mark = seen.st_ino, seen.st_dev
        return listener

    def is_there(self) -> bool:
        """Whether the file at the path is still the one of this socket."""
        try:
            seen = self.path.lstat()
        except OSError:
            return False
        return (seen.st_ino, seen.st_dev) == self._mark

    def _is_free(self) -> bool:
        """Whether no live node listens there."""
        try:
            seen = self.path.lstat()
        except FileNotFoundError:
            return True
        if not stat.S_ISSOCK(seen.st_mode):
            raise InvalidInput(
                f"{self.path} exists and is not a socket",
                where="server.socket",
                cure="use another path, or set it to false",
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(0)  # a live socket with a full backlog answers EAGAIN
            return probe.connect_ex(os.fsencode(self.path)) in (errno.ECONNREFUSED, errno.ENOENT)

    def remove(self) -> None:
        """Remove the file if it is still the one of this socket."""
        if self.is_there():
            with suppress(OSError):
                self.path.unlink()


def peer_of(transport: Any) -> Identity | None:
    """Identity of the peer of a unix socket; None for any other socket."""
    there: socket.socket | None = transport.get_extra_info("socket")
    if there is None or there.family != socket.AF_UNIX:
        return None
    return Identity(f"cli:{_user_name(_uid_of(there))}", Role.ADMIN)


def _uid_of(there: socket.socket) -> int:
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return os.getuid()  # no peer credentials on this system: only the owner can open it
    _, uid, _ = _PEER.unpack(there.getsockopt(socket.SOL_SOCKET, option, _PEER.size))
    return int(uid)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Certificate:
    """A certificate and its key, in files that may be replaced while the server runs."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._files = (cert, key)
        self._looked = time.monotonic()
        self._mark = _mark(self._files)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        try:
            self._load(self.context)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InvalidInput(
                f"the certificate {cert} with the key {key} cannot be used: {reason}",
                where="server.tls",
                cure="name a certificate (with its chain) and its key, both in PEM, the key without a passphrase",
            ) from error

    def look(self) -> None:
        """Load new files; invalid ones change nothing and are logged once."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        mark = _mark(self._files)
        if mark in (self._mark, None):
            return
        self._mark = mark
        try:
            self._load(
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            )  # a certificate without its key must not reach the real context
            self._load(self.context)
        except (OSError, ssl.SSLError) as error:
            log.warning("the new certificate %s cannot be used (%s): the old one stays", self._files[0], error)
        else:
            log.info("the certificate %s was renewed", self._files[0])

    def _load(self, context: ssl.SSLContext) -> None:
        cert, key = self._files
        context.load_cert_chain(cert, key, password=lambda: "")  # never prompts on a terminal


def _mark(files: tuple[Path, ...]) -> tuple[int, ...] | None:
    try:
        seen = [file.stat() for file in files]
    except OSError:
        return None  # being replaced
    return tuple(number for each in seen for number in (each.st_mtime_ns, each.st_ino, each.st_size))
