"""Who has the port already?  As far as the machine tells; for whoever is refused because of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_TABLES = ("net/tcp", "net/tcp6")
_LISTENS = "0A"
_OWN = "pollux"


def holder_of(port: int) -> str:
    """`process 4711 (pollux serve)`; "another process" where nobody says which."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    for process in _PROC.glob("[0-9]*") if wanted else ():
        if _holds(process, wanted):
            return f"process {process.name} ({_name_of(process)})"
    return "another process"


def _inodes(port: int) -> Iterator[str]:
    """Of the sockets that listen on this port."""
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
    except OSError:  # it has ended, or is another user's
        return False


def _name_of(process: Path) -> str:
    """The program, and for one of ours the command; no arguments, which may hold anything."""
    try:
        words = (process / "cmdline").read_text("utf-8", "replace").split("\0")
        name = (process / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "it has just ended"
    names = [Path(word).name for word in words]
    return f"{_OWN} {names[names.index(_OWN) + 1]}".strip() if _OWN in names[:-1] else name
