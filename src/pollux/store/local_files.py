"""Local files of a store: the first token, the socket of a node, and the announcements of nodes by folder.

sqlite:////var/lib/shop.db     /var/lib/shop.db.token    /var/lib/shop.db.sock
redis://..., postgresql://...  in the user's state folder, ~/.local/state/pollux (or XDG_STATE_HOME); the name is a hash
                               of the URL without its password and its durability option
nodes that listen on a socket  announced in that folder; the name is a hash of their host and the folder from which they
                               run: hosts may share a home directory, and pids are unique on one host only
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from pollux.store.urls import place_of, sqlite_file

TOKEN, SOCKET = ".token", ".sock"
OFF = "off"
ANNOUNCED_MAX = 20  # nodes of one folder that are read
FILES_MAX = 1_000  # files of one folder that are read
_ENDINGS = frozenset({".db", ".sqlite", ".sqlite3"})
_HEADER_BYTES, _FIRST, _WHOSE = 100, b"SQLite format 3\0", slice(68, 72)  # SQLite header: application id
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


def beside(url: str, ending: str) -> Path:
    """The local file of the store with this URL that has this ending."""
    file = sqlite_file(url)
    if file is not None:
        return Path(f"{Path(file).absolute()}{ending}")
    kind, _, _ = url.partition(":")
    mark = sha256(_PASSWORD.sub(r"\1@", place_of(url)).encode()).hexdigest()[:12]
    return state_folder() / f"{kind}-{mark}{ending}"


def socket_path(option: str, url: str) -> Path | None:
    """The socket of a node that serves this store: the option `server.socket`, else the default path of the store."""
    if option == OFF:
        return None
    return Path(option).absolute() if option else beside(url, SOCKET)


def state_folder() -> Path:
    """The state folder of this user; writers create it."""
    state_home = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state_home) if Path(state_home).is_absolute() else Path.home() / ".local" / "state") / "pollux"


class AnnouncedNode(Struct, frozen=True):
    """A node that listens on a socket, announced to commands in the folder from which it runs."""

    pid: int
    socket: str  # secrets in the path are masked; such a socket cannot be opened from here
    store: str  # its URL, without a password
    seats: int = 0  # at its start; 0: none


def announce(node: AnnouncedNode) -> Path | None:
    """Write the announcement of a node; None if it cannot be written, which does not stop the node.

    Also removes the announcements of killed nodes.
    """
    try:
        announced_in(Path.cwd())
        path = state_folder() / f"{_nodes_of(Path.cwd())}{node.pid}.json"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(node))
    except (OSError, RuntimeError):  # a user without a home, a deleted folder
        return None
    return path


def announced_in(folder: Path) -> list[AnnouncedNode]:
    """The nodes of this host that run from this folder, lowest pid first; removes the files of dead ones."""
    found = []
    for path in state_folder().glob(f"{_nodes_of(folder)}*.json"):
        with suppress(OSError, msgspec.DecodeError):
            node = msgspec.json.decode(path.read_bytes(), type=AnnouncedNode)
            if _lives(node.pid):
                found.append(node)
            else:
                path.unlink()
    return sorted(found, key=lambda node: node.pid)[:ANNOUNCED_MAX]


def stores_in(folder: Path) -> list[str]:
    """Relative URLs of the Pollux databases in this folder; reads only the headers of files."""
    from pollux.store.sqlite.schema import APPLICATION_ID

    found = []
    with suppress(OSError):
        for path in sorted(islice(folder.iterdir(), FILES_MAX)):
            if path.suffix in _ENDINGS and path.is_file():
                with suppress(OSError), path.open("rb") as file:
                    head = file.read(_HEADER_BYTES)
                    if head.startswith(_FIRST) and int.from_bytes(head[_WHOSE], "big") == APPLICATION_ID:
                        found.append(f"sqlite:///{path.name}")
    return found


def _nodes_of(folder: Path) -> str:
    place = platform.node().encode() + b"\0" + os.fsencode(folder.resolve())
    return f"folder-{sha256(place).hexdigest()[:12]}-"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
