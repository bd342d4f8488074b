"""Wake-ups of waiting calls, in this process and, by a watched file, in others.

After a commit the writer wakes the waiters of its own process directly, those of others by changing a few bytes of
`<database>.bell`, which they watch with inotify.  (Watching the database itself would wake them before the commit
can be seen.)  The file holds one counter per kind of wake-up, changed only under the write lock, so that a process can
distinguish changes of others from its own, and wakes only waiters of that kind.  Each process with the file open holds
a shared lock on it, so that a process which is alone detects that, and does not write the file.

Wake-ups are hints: a waiting call also polls now and then.  None is lost in normal running, because a waiter is
registered before it looks, and compares the counters once more after its watch is set.

    listen ─▶ look: nothing ─▶ watch ─▶ compare ─▶ sleep ◀─ notify (own process) ◀─ commit
                                                        ◀─ inotify ─ poll ◀── counters ◀── commit elsewhere
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
        self._is_registered = _register(self._fd)
        self._known = self._read()  # after the lock: other processes write the file from then on
        self._listeners: tuple[SqliteListener, ...] = ()

    def notify(self, kinds: int) -> None:
        """Wake all listeners of all processes.  Only while the write lock is held: counters are read, then written."""
        if self._is_registered and _is_alone(self._fd):
            self._deliver(kinds)
            return
        with self._guard:
            found = self._read()
            others = _changed(self._known, found)
            self._known = tuple(n + bool(kinds & kind) for n, kind in zip(found, KINDS, strict=True))
            os.pwrite(self._fd, _COUNTERS.pack(*self._known), 0)
        self._deliver(kinds | others)

    def poll(self) -> None:
        """Wake the listeners here for what other processes have signalled since the last look."""
        with self._guard:
            found = self._read()
            others = _changed(self._known, found)
            self._known = found
        if others:
            self._deliver(others)

    def add(self, listener: SqliteListener) -> None:
        with self._guard:
            self._listeners = (*self._listeners, listener)

    def drop(self, listener: SqliteListener) -> None:
        with self._guard:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

    def close(self) -> None:
        os.close(self._fd)

    def _deliver(self, kinds: int) -> None:
        for listener in self._listeners:
            listener.notify(kinds)

    def _read(self) -> tuple[int, ...]:
        data = os.pread(self._fd, _COUNTERS.size, 0)
        return _COUNTERS.unpack(data) if len(data) == _COUNTERS.size else (0, 0, 0, 0)


class SqliteListener:
    """The waiters of one event loop, and its watch on the file while any of them sleeps."""

    def __init__(self, notifier: SqliteNotifier, loop: asyncio.AbstractEventLoop) -> None:
        self._notifier, self._loop = notifier, loop
        self._waiters: set[Waiter] = set()
        self._kinds = 0  # that waiters here wait for
        self._watch = _FileWatch(notifier.path)
        notifier.add(self)

    @contextmanager
    def listen(self, kinds: int) -> Iterator[Waiter]:
        """A waiter that gets every wake-up from now on."""
        waiter = Waiter(kinds)
        self._waiters.add(waiter)
        self._kinds |= waiter.kinds
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)
            self._kinds = reduce(or_, (other.kinds for other in self._waiters), 0)
            if not self._waiters:
                self._watch.stop()

    def watch(self) -> None:
        """Before going to sleep: from here on no wake-up from another process is missed."""
        if self._watch.start(self._loop, self._on_change):
            self._notifier.poll()

    def notify(self, kinds: int) -> None:
        """From any thread."""
        if kinds & self._kinds:
            try:
                self._loop.call_soon_threadsafe(self.wake, kinds)
            except RuntimeError:  # the loop is closed, and its waiters with it
                self._notifier.drop(self)

    def wake(self, kinds: int) -> None:
        for waiter in self._waiters:
            waiter.hear(kinds)

    def close(self) -> None:
        self._notifier.drop(self)
        self.wake(WAKE)
        self._watch.close(self._loop)

    def _on_change(self) -> None:
        self._watch.drain()
        self._notifier.poll()


class _FileWatch:
    """An inotify watch on one file, under an event loop; where there is no inotify, nothing."""

    def __init__(self, path: Path) -> None:
        self._path = os.fsencode(path)
        self._fd = -1
        self._mark = -1  # the watch itself, while there is one
        self._libc: ctypes.CDLL | None = None
        self._is_broken = False

    def start(self, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None]) -> bool:
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
            self._is_broken = True  # waiters poll now and then
            self.close(loop)
        return self._mark >= 0

    def stop(self) -> None:
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


def _register(fd: int) -> bool:
    """Hold the lock by which other processes see that this one listens.  It ends with the process."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0))
    except (AttributeError, OSError):  # not Linux: always write the file
        return False
    return True


def _is_alone(fd: int) -> bool:
    """Could this process have an exclusive lock?"""
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    return bool(_FLOCK.unpack(found)[0] == fcntl.F_UNLCK)


def _changed(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    return sum(kind for kind, old, new in zip(KINDS, before, after, strict=True) if old != new)
