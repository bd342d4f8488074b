"""Disks that fail: a small one, real where we may mount it, and one that fails at the n-th touch.

A small disk is a tmpfs of 6 MB; whoever may not mount gets a quota, kept by a layer between SQLite and the files of the
folder (`POLLUX_TEST_QUOTA=folder:bytes`, which processes started by a test obey too).
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import apsw

MEGABYTE = 1024 * 1024
SMALL_BYTES = 6 * MEGABYTE
QUOTA = "POLLUX_TEST_QUOTA"


class SmallDisk:
    """A folder that is soon full."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder, self.variables = folder, variables
        self.file = folder / "pollux.db"
        self._filler = folder / "somebody-elses.data"

    def fill(self, *, leave: int = 0) -> None:
        """Somebody else takes all the room there is."""
        chunk = 16 * 1024
        with self._filler.open("ab") as file, contextlib.suppress(OSError):
            while free_bytes(self.folder) > leave:
                os.write(file.fileno(), b"x" * min(chunk, max(1, free_bytes(self.folder) - leave)))

    def make_room(self) -> None:
        self._filler.unlink()


def can_mount(folder: Path) -> bool:
    if os.getuid() != 0:
        return False
    with contextlib.suppress(OSError, subprocess.CalledProcessError), mounted(folder, "size=1m"):
        return True
    return False


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=0755,{options}", "tmpfs", folder], check=True, capture_output=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True, capture_output=True)


@contextlib.contextmanager
def small_disk(tmp_path: Path, kind: str) -> Iterator[SmallDisk]:
    folder = tmp_path / "small"
    folder.mkdir()
    if kind == "tmpfs":
        with mounted(folder, f"size={SMALL_BYTES}"):
            yield SmallDisk(folder, {})
        return
    with quota(folder, SMALL_BYTES):
        yield SmallDisk(folder, {QUOTA: f"{folder}:{SMALL_BYTES}"})


# a quota


def free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


class _Blocks:
    """What `statvfs` says about a folder with a quota."""

    def __init__(self, free: int) -> None:
        self.f_bavail, self.f_frsize = max(0, free), 1


class Quota(apsw.VFS):
    """Files as they are, but those of one folder have so many bytes together."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder, self.bytes_max = folder, bytes_max
        super().__init__("quota", "unix", makedefault=True)

    def left(self) -> int:
        used = 0
        for entry in os.scandir(self.folder):
            with contextlib.suppress(OSError):
                used += entry.stat().st_size
        return self.bytes_max - used

    def xOpen(self, name, flags):  # noqa: N802 - SQLite's name
        return _QuotaFile(self, name, flags)


class _QuotaFile(apsw.VFSFile):
    def __init__(self, quota: Quota, name, flags) -> None:
        self._quota = quota
        super().__init__("unix", name, flags)

    def xWrite(self, data, offset):  # noqa: N802 - SQLite's name
        growth = offset + len(data) - self.xFileSize()
        if growth > 0 and growth > self._quota.left():
            raise apsw.FullError("the quota is used up")
        super().xWrite(data, offset)


@contextlib.contextmanager
def quota(folder: Path, bytes_max: int) -> Iterator[None]:
    """In this process, for whatever lies in the folder."""
    layer = Quota(folder, bytes_max)
    real_allocate, real_statvfs, real_write = os.posix_fallocate, os.statvfs, os.write

    def is_here(fd: int) -> bool:
        return os.path.realpath(f"/proc/self/fd/{fd}").startswith(f"{folder}/")

    def allocate(fd, offset, length):
        if is_here(fd) and offset + length - os.fstat(fd).st_size > layer.left():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_allocate(fd, offset, length)

    def statvfs(path):
        return _Blocks(layer.left()) if Path(path) == folder else real_statvfs(path)

    def write(fd, data):
        if is_here(fd) and len(data) > layer.left():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(fd, data)

    os.posix_fallocate, os.statvfs, os.write = allocate, statvfs, write
    try:
        yield
    finally:
        os.posix_fallocate, os.statvfs, os.write = real_allocate, real_statvfs, real_write
        layer.unregister()


def obey_quota() -> contextlib.ExitStack:
    """In a process that a test started: the quota that it was told of, if any."""
    stack = contextlib.ExitStack()
    if told := os.environ.get(QUOTA):
        folder, _, size = told.rpartition(":")
        stack.enter_context(quota(Path(folder), int(size)))
    return stack


# a disk that fails


class Faults:
    """Which touch of the disk fails: the n-th of those kinds, on those files, counted from `arm` on."""

    def __init__(self) -> None:
        self.kinds: frozenset[str] = frozenset()
        self.at = self.seen = self.struck = 0
        self.times = 1
        self.error: type[apsw.Error] = apsw.IOError
        self.log: list[str] = []

    def arm(self, kinds: str, at: int, *, error: type[apsw.Error] = apsw.IOError, times: int = 1) -> None:
        self.kinds, self.at, self.error, self.times = frozenset(kinds.split()), at, error, times
        self.seen = self.struck = 0
        self.log.clear()

    def disarm(self) -> None:
        self.kinds = frozenset()

    def touch(self, kind: str) -> None:
        """Count it, and fail if it is the one."""
        self.log.append(kind)
        if kind not in self.kinds:
            return
        self.seen += 1
        if self.at <= self.seen < self.at + self.times:
            self.struck += 1
            raise _failure(self.error, kind)


_CODES = {
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "read": apsw.SQLITE_IOERR_READ,
}


def _failure(error: type[apsw.Error], kind: str) -> apsw.Error:
    failure = error(f"the disk fails at {kind}")
    if error is apsw.IOError:
        failure.extendedresult = _CODES[kind.partition("-")[0]]
    return failure


class BrokenDisk(apsw.VFS):
    """The file system of every connection in this process.  Kinds: write sync truncate read, with -db and -wal."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        super().__init__("broken", "unix", makedefault=True)

    def xOpen(self, name, flags):  # noqa: N802 - SQLite's name
        return _BrokenFile(self.faults, name, flags)


class _BrokenFile(apsw.VFSFile):
    def __init__(self, faults: Faults, name, flags) -> None:
        self._faults = faults
        self._which = "wal" if flags[0] & apsw.SQLITE_OPEN_WAL else "db"
        super().__init__("unix", name, flags)

    def xWrite(self, data, offset):  # noqa: N802 - SQLite's name
        self._faults.touch(f"write-{self._which}")
        super().xWrite(data, offset)

    def xSync(self, flags):  # noqa: N802 - SQLite's name
        self._faults.touch(f"sync-{self._which}")
        super().xSync(flags)

    def xTruncate(self, size):  # noqa: N802 - SQLite's name
        self._faults.touch(f"truncate-{self._which}")
        super().xTruncate(size)

    def xRead(self, amount, offset):  # noqa: N802 - SQLite's name
        self._faults.touch(f"read-{self._which}")
        return super().xRead(amount, offset)


@contextlib.contextmanager
def broken_disk() -> Iterator[Faults]:
    faults = Faults()
    layer = BrokenDisk(faults)
    try:
        yield faults
    finally:
        layer.unregister()
