"""Free disk space, and a ballast file that is deleted when the disk is full.

A full disk must not keep what has happened from being recorded.  So 4 MB are reserved beside the database
(`<file>.ballast`), as much as the checkpoint of a whole log needs.  When a write finds the disk full the ballast is
deleted, the log is checkpointed and truncated, and from then on writes are restricted:

    OPEN ──a write finds no room──▶ TIGHT: nothing new is taken in (enqueue, put_jobs, load)
      ▲                               │  what is left is a quarter of the ballast, or nothing
      │                               ▼
      └──room for the ballast── SPENT: nothing new is begun either (claim, advance); all else is tried

The ballast itself is the mark that all processes see: a process that finds it missing is TIGHT, and tries to restore
it once a second.  A log that cannot be checkpointed because of an endless read is the same case with another
message.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import apsw

from pollux.errors import StoreFull
from pollux.store.sqlite.file_identity import lock_holders
from pollux.store.sqlite.lock import open_private

BALLAST_BYTES = 4 * 1024 * 1024
SPARE_BYTES = BALLAST_BYTES // 4  # that must be free besides, so that it is not put back only to go again
REOPEN_BYTES = 256 * 1024
TINY_BYTES = 64 * 1024  # with less left a disk that fails has failed for that
TRY_AGAIN_S = 1.0
LOG_PAGES_MAX = 65_536  # 256 MB of log
READ_MARKS = frozenset({"123", "124", "125", "126", "127"})  # bytes of the shared memory that a reader locks
OPEN, TIGHT, SPENT = range(3)
# What a call is for: to record what happened, to begin something, to take in more.
RECORDS, BEGINS, GROWS = range(3)
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Ballast:
    """So many bytes of the disk, kept until they are needed."""

    def __init__(self, path: Path) -> None:
        self._fd = open_private(path)
        self._is_possible = True

    @property
    def is_whole(self) -> bool:
        return not self._is_possible or os.fstat(self._fd).st_size >= BALLAST_BYTES

    def restore(self) -> bool:
        """Take the bytes again; false if they are not to be had."""
        try:
            os.posix_fallocate(self._fd, 0, BALLAST_BYTES)
        except OSError as error:
            self._is_possible = error.errno in FULL_ERRNOS  # else this disk cannot set bytes apart at all
            self.release()
        return self.is_whole

    def release(self) -> None:
        os.ftruncate(self._fd, 0)  # not unlinked: another process may hold it, and its bytes count until it lets go

    def close(self, *, is_last: bool) -> None:
        """The last process keeps just enough to open the store again on a disk that is full by then."""
        if is_last and os.fstat(self._fd).st_size > REOPEN_BYTES:
            os.ftruncate(self._fd, REOPEN_BYTES)
        os.close(self._fd)


class DiskSpace:
    """Level of the free space; looked at before every batch of writes, by the writer's thread alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ballast = Ballast(path.with_name(path.name + ".ballast"))
        self._try_at = 0.0
        self._is_spent = False
        self._log_pages = 0
        if self._has_spare():
            self._ballast.restore()

    def look(self) -> int:
        """OPEN, TIGHT or SPENT; puts the ballast back if it can be."""
        level = max(self._of_disk(), self._of_log())
        if level == OPEN:
            self._is_spent = False
        return level

    def ran_out(self) -> None:
        """A write found no room: let the ballast go; if it was released already, nothing is left."""
        self._is_spent = not self._ballast.is_whole
        self._ballast.release()
        self._try_at = time.monotonic() + TRY_AGAIN_S

    def learn_log(self, pages: int) -> None:
        """So many pages of log could not be carried over."""
        self._log_pages = pages

    @property
    def is_log_long(self) -> bool:
        return self._log_pages > LOG_PAGES_MAX

    def has(self, size: int) -> bool:
        """Is there room for so many bytes?"""
        return self._free() >= size

    def is_full(self, error: Exception, system_errno: int = 0) -> bool:
        """Does this error mean that there is no room?  SQLite reports only some shortages so."""
        if isinstance(error, apsw.IOError | apsw.CantOpenError):
            return system_errno in FULL_ERRNOS or self._free() < TINY_BYTES
        return isinstance(error, apsw.FullError)

    def refusal(self, need: int, level: int) -> StoreFull | None:
        """Why a call must not be tried now, if it must not."""
        return self.error(level) if need + level > GROWS else None

    def error(self, level: int = TIGHT) -> StoreFull:
        what, cure = self._shortage(level)
        return StoreFull(f"{what}; nothing was changed; {cure}")

    def problems(self) -> tuple[str, ...]:
        """What is short now, and the cure; changes nothing, so that any thread may ask."""
        level, is_whole = self._of_log(), self._ballast.is_whole
        if not is_whole or self._free() < TINY_BYTES:
            level = max(level, TIGHT if is_whole else self._without_ballast())
        return () if level == OPEN else ("; ".join(self._shortage(level)),)

    def _shortage(self, level: int) -> tuple[str, str]:
        """What is short and what follows from it; the cure."""
        follows = "no new work is taken in" if level == TIGHT else "nothing new is taken in or begun"
        if self.is_log_long:
            what = f"the write-ahead log of {self._path} has {self._log_pages:,} pages and cannot be carried over"
            return f"{what} because {self._readers()} without end; {follows}", "end that"
        megabytes = (BALLAST_BYTES + SPARE_BYTES) >> 20
        cure = f"make at least {megabytes} MB of room, then it goes on by itself"
        return f"the disk under {self._path} is full: {follows}, what runs is still recorded", cure

    def close(self, *, is_last: bool) -> None:
        self._ballast.close(is_last=is_last)

    def _of_disk(self) -> int:
        if self._ballast.is_whole:
            return OPEN
        now = time.monotonic()
        if now >= self._try_at:
            self._try_at = now + TRY_AGAIN_S
            self._is_spent = False  # what failed then may work now: the next write tries
            if self._has_spare() and self._ballast.restore():
                return OPEN
        return self._without_ballast()

    def _without_ballast(self) -> int:
        return SPENT if self._is_spent or self._free() < BALLAST_BYTES // 4 else TIGHT

    def _of_log(self) -> int:
        if not self.is_log_long:
            return OPEN
        return TIGHT if self._log_pages <= 2 * LOG_PAGES_MAX else SPENT

    def _has_spare(self) -> bool:
        return self._free() >= BALLAST_BYTES + SPARE_BYTES

    def _free(self) -> int:
        try:
            disk = os.statvfs(self._path.parent)
        except OSError:
            return 0
        return disk.f_bavail * disk.f_frsize

    def _readers(self) -> str:
        """The processes that hold one of the read marks in the shared memory."""
        others = lock_holders(self._path.with_name(self._path.name + "-shm"), of=READ_MARKS)
        return f"process {' and '.join(map(str, others))} reads" if others else "a process reads"
