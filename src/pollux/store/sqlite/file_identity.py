"""Location and identity of the database file.

A database is refused where it is not safe: on a network file system (locks and shared memory do not hold
there), behind a symbolic link or a second name (two names have two locks).  And a file that is deleted or
replaced while in use takes the writes with it: so its identity is compared before a write, again before the write
is answered, and once a second by readers.
"""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path

from pollux.errors import StoreRefused

# fmt: off
NETWORKS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs",
})
FUSE_NETWORKS = frozenset({
    "ceph", "ceph-fuse", "curlftpfs", "davfs", "davfs2", "gcsfuse", "glusterfs", "goofys", "juicefs", "rclone", "s3fs",
    "smbnetfs", "sshfs",
})
# fmt: on
LOOK_S = 1.0  # readers compare so often
_MOUNTS = Path("/proc/self/mountinfo")


class FileIdentity:
    """The path of one database, and which file was found there when it was opened."""

    def __init__(self, path: Path, *, allow_network: bool = False) -> None:
        self.path = path
        self._allow_network = allow_network
        self._file: tuple[int, int] | None = None
        self._look_at = 0.0

    def refuse_unsafe(self) -> None:
        """Before anything is made: may a database be here at all?"""
        try:
            found = self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is not None and not stat.S_ISDIR(found.st_mode):
            _refuse_names(self.path, found)
        kind = "" if self._allow_network else file_system_of(self.path)
        if is_network(kind):
            raise StoreRefused(
                f"{self.path} lies on a network file system ({kind}), where locks and shared memory do not hold: the "
                "database would be damaged; put it on a local disk (?allow_network=true allows it at your own risk)"
            )

    def settle(self) -> None:
        """From now on it is this file and no other."""
        self._file = self._found()

    def check(self) -> None:
        """Refuse to go on with a file that is no longer there, or is another one."""
        found = self._found()
        if found == self._file:
            return
        self._look_at = 0.0  # the next call is refused at once
        what = "was deleted" if found is None else "was replaced by another file"
        raise StoreRefused(
            f"{self.path} {what} while it was in use; nothing more is read or written, so that nothing is mixed up; "
            "stop every process on this store, put the right file in its place (`pollux store restore`), start again"
        )

    def check_sometimes(self) -> None:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self.check()

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - twice a commit: half the time of Path.stat
        except OSError:
            return None
        return found.st_dev, found.st_ino


def lock_holders(file: Path, *, of: frozenset[str] | None = None) -> list[int]:
    """Which other processes hold a lock on the file (on one of those bytes), as the kernel lists them."""
    try:
        inode = f":{file.stat().st_ino}"
        locks = [line.split() for line in Path("/proc/locks").read_text("utf-8").splitlines()]
    except OSError:
        return []
    # 1: POSIX  ADVISORY  READ 4711 08:02:1312 123 123
    held = {lock[-4] for lock in locks if lock[-3].endswith(inode) and (of is None or lock[-2] in of)}
    return sorted({int(pid) for pid in held} - {os.getpid(), 0, -1})


def is_network(kind: str) -> bool:
    return kind in NETWORKS or (kind.startswith("fuse.") and kind.removeprefix("fuse.") in FUSE_NETWORKS)


def file_system_of(path: Path) -> str:
    """What the kernel calls the file system under a path, such as ext4, nfs4, fuse.sshfs; empty if it lists none."""
    try:
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts:
        about, _, rest = line.partition(" - ")
        point = _unescaped(about.split(" ")[4])
        if len(point) >= len(best) and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind = point, rest.split(" ", 1)[0]  # a later mount on the same point covers the earlier one
    return kind


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _refuse_names(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise StoreRefused(f"{path} is a symbolic link, and two names have two locks; name the file it points to")
    if not stat.S_ISREG(found.st_mode):
        raise StoreRefused(f"{path} is no plain file; name another")
    if found.st_nlink > 1:
        raise StoreRefused(
            f"{path} has {found.st_nlink} names (hard links), and two names have two locks; remove the others"
        )
