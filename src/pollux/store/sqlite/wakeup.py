"""Wake-ups of waiting calls, in this process and, by a watched file, in others.

After a commit the writer wakes the waiters of its own process directly, those of others by changing a few bytes of
`<database>.bell`, which they watch with inotify.  (Watching the database itself would wake them before the commit
can be seen.)  The file holds one counter per kind of bell, changed only under the write lock, so that a process can
tell the changes of others from its own, and wakes only waiters of that kind.  Each process with the file open holds
a shared lock on it, so that a process which is alone detects it, and does not write the file.

Wake-ups are hints: a waiting call also polls now and then.  None is lost in normal running, because a waiter is
registered before it looks, and compares the counters once more after its watch is set.

    listen ─▶ look: nothing ─▶ watch ─▶ compare ─▶ sleep ◀─ ring (own process) ◀─ commit
                                                        ◀─ inotify ─ hear ◀── counters ◀── commit elsewhere
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import or_
from pathlib import Path

from pollux.store.relational.wakeup import ASKED, FEED, RUNS, WAKE, Waiter
from pollux.store.sqlite.lock import open_private

KINDS = (RUNS, FEED, WAKE, ASKED)

_COUNTERS = struct.Struct("<QQQQ")
_FLOCK = struct.Struct("@hhqqi4x")  # the kernel's: type, whence, start, length, pid
_IN_MODIFY = 0x2
_IN_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class SqliteNotifier:
    """The notifier of one database in this process: its writer notifies the listeners of its loops."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = open_private(path)
        self._guard = threading.Lock()
        self._sits = _sit(self._fd)
        self._known = self._read()  # after that: what is rung from now on is rung for us, too
        self._ears: tuple[SqliteListener, ...] = ()

    def ring(self, kinds: int) -> None:
        """Tell everybody, everywhere.  Only while the write lock is held: the counters are read, then written."""
        if self._sits and _is_alone(self._fd):
            self._deliver(kinds)
            return
        with self._guard:
            found = self._read()
            others = _changed(self._known, found)
            self._known = tuple(n + bool(kinds & kind) for n, kind in zip(found, KINDS, strict=True))
            os.pwrite(self._fd, _COUNTERS.pack(*self._known), 0)
        self._deliver(kinds | others)

    def hear(self) -> None:
        """Pass on what other processes rang since we last looked."""
        with self._guard:
            found = self._read()
            others = _changed(self._known, found)
            self._known = found
        if others:
            self._deliver(others)

    def add(self, ear: SqliteListener) -> None:
        with self._guard:
            self._ears = (*self._ears, ear)

    def drop(self, ear: SqliteListener) -> None:
        with self._guard:
            self._ears = tuple(other for other in self._ears if other is not ear)

    def close(self) -> None:
        os.close(self._fd)

    def _deliver(self, kinds: int) -> None:
        for ear in self._ears:
            ear.ring(kinds)

    def _read(self) -> tuple[int, ...]:
        data = os.pread(self._fd, _COUNTERS.size, 0)
        return _COUNTERS.unpack(data) if len(data) == _COUNTERS.size else (0, 0, 0, 0)


class SqliteListener:
    """The waiters of one event loop, and its watch on the bell file while anybody sleeps."""

    def __init__(self, bell: SqliteNotifier, loop: asyncio.AbstractEventLoop) -> None:
        self._bell, self._loop = bell, loop
        self._waiters: set[Waiter] = set()
        self._kinds = 0  # that anybody here waits for
        self._watch = _FileWatch(bell.path)
        bell.add(self)

    @contextmanager
    def listen(self, kinds: int) -> Iterator[Waiter]:
        """A waiter that hears every ring from now on."""
        waiter = Waiter(kinds)
        self._waiters.add(waiter)
        self._kinds |= waiter.kinds
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)
            self._kinds = reduce(or_, (other.kinds for other in self._waiters), 0)
            if not self._waiters:
                self._watch.rest()

    def prick(self) -> None:
        """Before going to sleep: from here on nothing that another process rings is missed."""
        if self._watch.stand(self._loop, self._on_change):
            self._bell.hear()

    def ring(self, kinds: int) -> None:
        """From any thread."""
        if kinds & self._kinds:
            try:
                self._loop.call_soon_threadsafe(self.wake, kinds)
            except RuntimeError:  # the loop is closed: nobody sleeps there any more
                self._bell.drop(self)

    def wake(self, kinds: int) -> None:
        for waiter in self._waiters:
            waiter.hear(kinds)

    def close(self) -> None:
        self._bell.drop(self)
        self.wake(WAKE)
        self._watch.close(self._loop)

    def _on_change(self) -> None:
        self._watch.drain()
        self._bell.hear()


class _FileWatch:
    """An inotify watch on one file, under an event loop; where there is no inotify, nothing."""

    def __init__(self, path: Path) -> None:
        self._path = os.fsencode(path)
        self._fd = -1
        self._mark = -1  # the watch itself, while it stands
        self._libc: ctypes.CDLL | None = None
        self._is_broken = False

    def stand(self, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None]) -> bool:
        """Watch from now on; true if the watch is new."""
        if self._mark >= 0 or self._is_broken:
            return False
        try:
            if self._fd < 0:
                self._open(loop, on_change)
            assert self._libc is not None
            self._mark = self._libc.inotify_add_watch(self._fd, self._path, _IN_MODIFY)
            if self._mark < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch")
        except (OSError, AttributeError, NotImplementedError):
            self._is_broken = True  # looking again now and then must do
            self.close(loop)
        return self._mark >= 0

    def rest(self) -> None:
        if self._mark >= 0 and self._libc is not None:
            self._libc.inotify_rm_watch(self._fd, self._mark)
            self._mark = -1

    def drain(self) -> None:
        try:
            while os.read(self._fd, 4096):
                pass
        except BlockingIOError:
            pass

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._fd >= 0:
            if not loop.is_closed():
                loop.remove_reader(self._fd)
            os.close(self._fd)
        self._fd = self._mark = -1

    def _open(self, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(_IN_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        loop.add_reader(self._fd, on_change)


def _sit(fd: int) -> bool:
    """Hold the lock that says: somebody listens.  It ends with the process, however that ends."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0))
    except (AttributeError, OSError):  # not Linux: ring always
        return False
    return True


def _is_alone(fd: int) -> bool:
    """Would anybody mind if we wanted it for us alone?"""
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    return bool(_FLOCK.unpack(found)[0] == fcntl.F_UNLCK)


def _changed(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    return sum(kind for kind, old, new in zip(KINDS, before, after, strict=True) if old != new)
