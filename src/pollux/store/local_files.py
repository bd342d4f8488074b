"""Small files of a store: the first token, the socket of a node that serves it, and which nodes run from a folder.

sqlite:////var/lib/shop.db     /var/lib/shop.db.token    /var/lib/shop.db.sock
redis://..., postgresql://...  in a folder of the user's own, ~/.local/state/pollux (or XDG_STATE_HOME), under a name
                               that is made of the URL without its password, and without what is asked of the store
nodes that listen on a socket  announced in that folder, under a name that is made of their host and the folder from
                               which they run: hosts may share a home directory, and pids are those of one host
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
ANNOUNCED_MAX = 20  # nodes of one folder that are looked at
FILES_MAX = 1_000  # of one folder, likewise
_ENDINGS = frozenset({".db", ".sqlite", ".sqlite3"})
_HEADER_BYTES, _FIRST, _WHOSE = 100, b"SQLite format 3\0", slice(68, 72)  # of a database: whose it is stands there
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


def beside(url: str, ending: str) -> Path:
    """The file that belongs to the store of this URL; `ending` says which."""
    file = sqlite_file(url)
    if file is not None:
        return Path(f"{Path(file).absolute()}{ending}")
    kind, _, _ = url.partition(":")
    mark = sha256(_PASSWORD.sub(r"\1@", place_of(url)).encode()).hexdigest()[:12]
    return state_folder() / f"{kind}-{mark}{ending}"


def socket_path(said: str, url: str) -> Path | None:
    """The socket of whoever serves this store: as the option `server.socket` says, else beside the store."""
    if said == OFF:
        return None
    return Path(said).absolute() if said else beside(url, SOCKET)


def state_folder() -> Path:
    """The folder of this user where programs keep what they need again; it is made by whoever writes there."""
    said = os.environ.get("XDG_STATE_HOME", "")
    return (Path(said) if Path(said).is_absolute() else Path.home() / ".local" / "state") / "pollux"


class AnnouncedNode(Struct, frozen=True):
    """A node that listens on a socket, as commands in the folder from which it runs find it."""

    pid: int
    socket: str  # where no secret is part of its path: else nobody finds it by this
    store: str  # its URL, without a password
    seats: int = 0  # as it was started; 0: it has none


def announce(node: AnnouncedNode) -> Path | None:
    """The file that tells of a node in this folder; None where none can be written, which is no reason not to run.

    Those that were killed could not take theirs away: whoever comes next does.
    """
    try:
        announced_in(Path.cwd())
        path = state_folder() / f"{_nodes_of(Path.cwd())}{node.pid}.json"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(node))
    except (OSError, RuntimeError):  # a user without a home, a folder that is gone
        return None
    return path


def announced_in(folder: Path) -> list[AnnouncedNode]:
    """The nodes of this host that run from this folder, lowest pid first; the files of dead ones are taken away."""
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
    """The URLs of our stores in this folder, as they are written there; files are only looked at."""
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
