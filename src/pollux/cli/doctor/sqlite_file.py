"""Checks of a SQLite file: file system, room, speed, permissions, leftovers, and the holder of the lock."""

from __future__ import annotations

import os
import stat
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pollux.cli.doctor.finding import DoctorFinding, about_size, fail, ok, warn
from pollux.store.sqlite.file_identity import file_system_of, is_network
from pollux.store.sqlite.inspect import files_of, holders

ROOM_FAIL_BYTES = 8_000_000  # the ballast, its reserve, and something to write into
ROOM_WARN_BYTES = 500_000_000
SLOW_MS = 50.0
FSYNC_SECONDS = 0.2  # measured for so long,
FSYNC_TIMES = 20  # or so often
LOCK_SECONDS = 1.0  # watched for so long while one process holds it,
LOCK_LOOKS_APART_S = 0.005  # so often
LOG_BYTES_MAX = 300_000_000
_LOST_AT_BOOT = frozenset({"tmpfs", "ramfs"})
_LAYERS = frozenset({"overlay", "aufs"})


def look_at_place(path: Path) -> Iterator[DoctorFinding]:
    """The checks of a SQLite file, also of one that is not there yet."""
    folder = _existing(path.parent)
    files = files_of(path)
    if "" not in files:
        yield ok("file", f"{path} is not there yet; the first start makes it")
    elif stat.S_ISDIR(files[""].st_mode):
        yield fail("file", f"{path} is a directory", f"name a file inside it, such as {path / 'pollux.db'}")
        return
    else:
        yield of_rights(path, files)
    yield of_folder(folder)
    yield of_file_system(path, file_system_of(path))
    yield of_room(folder, files)
    yield of_speed(folder)
    if "" in files:
        yield of_log(files)
        yield of_lock(path, files)


def of_rights(path: Path, files: Mapping[str, os.stat_result]) -> DoctorFinding:
    if not os.access(path, os.R_OK | os.W_OK):
        cure = "run as the user who owns it, or give that user the right to read and write it"
        return fail("rights", f"{path} may not be read and written by user {os.geteuid()}", cure)
    owner = files[""].st_uid
    open_ones = [path.name + end for end, found in files.items() if stat.S_IMODE(found.st_mode) & 0o077]
    if open_ones:
        seen = f"others may read or write {', '.join(open_ones)}"
        return warn("rights", seen, f"chmod 600 {' '.join(str(path.with_name(name)) for name in open_ones)}")
    strangers = sorted({found.st_uid for found in files.values()} - {owner})
    if strangers:
        seen = f"{path.name} belongs to user {owner}, files beside it to {', '.join(map(str, strangers))}"
        return warn("rights", seen, f"chown all of them to one user, and run every process as that user ({owner})")
    if owner != os.geteuid():
        seen = f"{path.name} belongs to user {owner}, and you are {os.geteuid()}"
        return warn("rights", seen, "run as its owner: files that you make beside it would be yours")
    return ok("rights", f"only its owner (user {owner}) may read and write it")


def of_folder(folder: Path) -> DoctorFinding:
    if not os.access(folder, os.W_OK | os.X_OK):
        cure = "give the user who runs Pollux the right to make files there"
        return fail("folder", f"{folder} may not be written by user {os.geteuid()}", cure)
    if folder.stat().st_mode & stat.S_IWOTH and not folder.stat().st_mode & stat.S_ISVTX:
        return warn("folder", f"every user may write in {folder}", f"chmod o-w {folder}")
    return ok("folder", f"{folder} may be written")


def of_file_system(path: Path, kind: str) -> DoctorFinding:
    if is_network(kind):
        seen = f"{path} lies on a network file system ({kind}), where locks and shared memory do not hold"
        return fail("file system", seen, "put it on a local disk")
    if kind in _LOST_AT_BOOT:
        return warn("file system", f"{kind}: all is lost when the machine goes down", "put it on a disk")
    if kind in _LAYERS:
        return warn("file system", f"{kind}: a container's own layer, lost with the container", "mount a volume")
    return ok("file system", f"{kind or 'unknown'}, local")


def of_room(folder: Path, files: Mapping[str, os.stat_result]) -> DoctorFinding:
    disk = os.statvfs(folder)
    free, used = disk.f_bavail * disk.f_frsize, sum(found.st_size for found in files.values())
    seen = f"{about_size(free)} free" + (f", {about_size(used)} used" if used else "")
    if free < ROOM_FAIL_BYTES:
        return fail("room", seen, "make room: new work is refused on a full disk")
    if free < ROOM_WARN_BYTES or disk.f_favail == 0:
        return warn("room", seen, "make room, or keep less history (history.keep, history.age)")
    return ok("room", seen)


def of_speed(folder: Path) -> DoctorFinding:
    """How long a commit waits for the disk, by a file that has no name and leaves nothing behind."""
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):
        return ok("disk speed", "not measured: this file system has no files without a name")
    times: list[float] = []
    try:
        end = time.monotonic() + FSYNC_SECONDS
        while len(times) < FSYNC_TIMES and (not times or time.monotonic() < end):
            began = time.monotonic()
            os.pwrite(handle, b"\0" * 4_096, 0)
            os.fsync(handle)
            times.append((time.monotonic() - began) * 1_000)
    except OSError as error:
        return fail("disk speed", f"a write was refused: {error.strerror}", "make room, or look at the disk")
    finally:
        os.close(handle)
    middle = statistics.median(times)
    seen = f"a write reaches the disk in {middle:.1f} ms"
    if middle > SLOW_MS:
        return warn("disk speed", seen, "every commit waits so long; use a disk of your own, or an SSD")
    return ok("disk speed", seen)


def of_log(files: Mapping[str, os.stat_result]) -> DoctorFinding:
    log = files.get("-wal")
    if log is None or log.st_size == 0:
        return ok("log", "nothing is left to be carried over")
    size = about_size(log.st_size)
    is_used = "-shm" in files and bool(holders(files["-shm"].st_ino))
    if not is_used:
        seen = f"{size} were left by a process that was killed; nothing of it is lost"
        return warn("log", seen, "the next start carries it over; never delete the -wal file by hand")
    if log.st_size > LOG_BYTES_MAX:
        return warn(
            "log", f"{size} wait to be carried over", "end the process that reads without end (`pollux doctor` again)"
        )
    return ok("log", f"{size}, in use")


def of_lock(path: Path, files: Mapping[str, os.stat_result]) -> DoctorFinding:
    lock = files.get(".lock")
    held_by = [] if lock is None else holders(lock.st_ino)
    if lock is None or not held_by:
        return ok("lock", "no process holds it")
    pid = held_by[0]
    if _state_of(pid) == "T":
        seen = f"process {pid} holds the write lock and is stopped: no process can write"
        return fail("lock", seen, f"let it go on (kill -CONT {pid}) or end it (kill -9 {pid})")
    if _keeps(pid, lock.st_ino):
        seen = f"process {pid} has held the write lock for {LOCK_SECONDS:g} s or longer: no other process can write"
        cure = (
            "look what it is doing: the disk may be slow, or a handler in it holds the interpreter's lock (GIL); "
            "give such a handler a process of its own (isolate: process)"
        )
        return warn("lock", seen, cure)
    return ok("lock", f"process {pid} writes just now ({path.name}.lock)")


def _keeps(pid: int, inode: int) -> bool:
    """Does the process hold the lock at every look?  One that writes a lot lets go between two commits."""
    end = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < end:
        if pid not in holders(inode):
            return False
        time.sleep(LOCK_LOOKS_APART_S)
    return True


def _state_of(pid: int) -> str:
    """One letter: R running, S sleeping, D waiting for the disk, T stopped; empty if it is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    folder = folder.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder
