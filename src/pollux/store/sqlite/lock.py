"""Write lock: one lock file beside the database, held for one commit by one process.

SQLite's own busy handler sleeps and tries again, so that one process can starve the others for a second; waiters of
`flock` queue in the kernel.  A blocking `flock` knows no deadline, so a contended one is taken by a thread of its
own; if it comes too late, the thread releases it at once.  The file contains the holder's process id.

    acquire ──free──▶ held
       └──busy──▶ Proxy: blocking flock ──in time──▶ held
                                        └──too late──▶ released, StoreBusy(holder)
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from pollux.errors import StoreBusy

_PID_BYTES = 12


class WriteLock:
    """Exclusive among all processes; used by the one writer thread of this one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waits = 0  # how often another process held it
        self._fd = open_private(path)
        self._mark = str(os.getpid()).ljust(_PID_BYTES).encode()
        self._proxy: _Proxy | None = None
        _open_locks.add(self)

    def acquire(self, deadline: float) -> None:
        """Take the lock, or raise `StoreBusy` once the monotonic clock passes `deadline`."""
        if not (self._proxy and self._proxy.is_waiting) and self._try():
            self._sign()
            return
        self.waits += 1
        if self._proxy is None:
            self._proxy = _Proxy(self._fd)
        if not self._proxy.take(deadline - time.monotonic()):
            raise StoreBusy(self._who())
        self._sign()

    def release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.stop()
        self.forget()

    def forget(self) -> None:
        """Close the file and leave the lock as it is; also for a child that was forked."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def forget_in_child(self) -> None:
        self.forget()
        if self._proxy is not None:
            self._proxy.forget()

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _sign(self) -> None:
        """Write our process id.  Reading first costs a third of writing, and mostly it is there already."""
        with suppress(OSError):  # a full disk: it is ours all the same, and must not be kept for a name
            if os.pread(self._fd, _PID_BYTES, 0) != self._mark:
                os.pwrite(self._fd, self._mark, 0)

    def _who(self) -> str:
        pid = os.pread(self._fd, _PID_BYTES, 0).decode(errors="replace").strip("\0 ")
        who = f"process {pid}" if pid else "another process"
        return f"busy: {who} holds the write lock {self.path}; nothing was changed; try again, or look what it is doing"


class _Proxy:
    """A thread that waits in `flock` for a caller with a deadline."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)  # the same lock under a descriptor of our own, which no other thread closes
        self._asked: SimpleQueue[str] = SimpleQueue()
        self._state = threading.Condition()
        self._wanted = False
        self._taken = False
        self.is_waiting = False
        threading.Thread(target=self._serve, name="pollux-lock", daemon=True).start()

    def take(self, timeout: float) -> bool:
        with self._state:
            self._wanted, self._taken = True, False
            if not self.is_waiting:
                self.is_waiting = True
                self._asked.put("take")
            self._state.wait_for(lambda: self._taken, max(0.0, timeout))
            self._wanted = False
            return self._taken

    def stop(self) -> None:
        self._asked.put("end")

    def forget(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _serve(self) -> None:
        while self._asked.get() == "take":
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            with self._state:
                if self._wanted:
                    self._taken = True
                    self._state.notify_all()
                else:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
                self.is_waiting = False  # last: our descriptor has the same lock, and the writer looks here
        self.forget()


def open_private(path: Path) -> int:
    """A file that only its owner may read, whatever the umask is."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    os.fchmod(fd, 0o600)
    return fd


# A forked child shares our open files: it would keep the lock after our death, so it closes its copies.
_open_locks: weakref.WeakSet[WriteLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in _open_locks:
        lock.forget_in_child()


os.register_at_fork(after_in_child=_forget_all)
