"""Wake-up of waiting calls: one event per call, set in the event loop of that call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock


class MemoryWaiter:
    """A waiting call on one handle: for `runs` (with its node) or for `feed` of a version."""

    __slots__ = ("event", "handle", "is_woken", "kind", "loop", "node", "version")

    def __init__(self, kind: str, node: str, handle: object, version: int) -> None:
        self.kind, self.node, self.handle, self.version = kind, node, handle, version
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()
        self.is_woken = False  # the wait ends, whatever is found

    def ring(self) -> None:
        """Set the event; the caller is a coroutine, possibly of another loop in another thread."""
        if asyncio.get_running_loop() is self.loop:
            self.event.set()
            return
        with suppress(RuntimeError):  # its loop is closed, so the wait has ended
            self.loop.call_soon_threadsafe(self.event.set)


class MemoryNotifier:
    def __init__(self) -> None:
        self._lock = Lock()
        self._waiters: dict[MemoryWaiter, None] = {}  # in insertion order, so that wake-ups are deterministic

    @contextmanager
    def waiter(self, kind: str, node: str, handle: object, version: int) -> Iterator[MemoryWaiter]:
        waiter = MemoryWaiter(kind, node, handle, version)
        with self._lock:
            self._waiters[waiter] = None
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters.pop(waiter, None)

    def ring(self, kind: str, version: int) -> None:
        """Wake the calls that wait for this kind in this version."""
        if self._waiters:
            for waiter in self._snapshot():
                if waiter.kind == kind and waiter.version == version:
                    waiter.ring()

    def wake(self, *, node: str | None = None, handle: object = None) -> None:
        """End the waits: all, those of a node, or those of a handle."""
        for waiter in self._snapshot():
            if (node is None or waiter.node == node) and (handle is None or waiter.handle is handle):
                waiter.is_woken = True
                waiter.ring()

    def _snapshot(self) -> list[MemoryWaiter]:
        with self._lock:
            return list(self._waiters)
