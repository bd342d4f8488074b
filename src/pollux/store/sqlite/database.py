"""The database of one process, shared by a handle and its twins: writer, readers, notifier, counts.

The first handle that opens starts the threads, the last that closes ends them.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

from pollux.clock import Clock
from pollux.store.clock_jumps import JumpGuard
from pollux.store.sqlite.file_identity import FileIdentity
from pollux.store.sqlite.readers import Generations, Reader
from pollux.store.sqlite.transaction import WriteStats
from pollux.store.sqlite.wakeup import SqliteNotifier
from pollux.store.sqlite.writer import Writer

QUICK_AT_ONCE = 16  # reads of some rows each that are answered together


class SqliteDatabase:
    def __init__(self, place: FileIdentity, clock: Clock, deadline_ms: int) -> None:
        self.place, self.path = place, place.path
        self.clock, self.deadline_ms = clock, deadline_ms
        self.stats = WriteStats()
        self.generations = Generations(self.stats)
        self.jumps: JumpGuard  # asked by the writer's thread only
        self.writer: Writer
        self.quick: Reader
        self.slow: Reader
        self._guard = threading.Lock()
        self._users = 0

    @property
    def bell(self) -> SqliteNotifier:
        return self.writer.bell

    def join(self) -> Future[None]:
        """One more user; the answer is done once the database can be used."""
        with self._guard:
            self._users += 1
            if self._users == 1:
                self.jumps = JumpGuard(self.clock)
                self.writer = Writer(self.place, stats=self.stats, deadline=time.monotonic() + self.deadline_ms / 1000)
                self.quick = Reader(self.place, "reader", self.stats, at_once=QUICK_AT_ONCE)
                self.slow = Reader(self.place, "lister", self.stats)
            return self.writer.ready

    def leave(self) -> list[Future[None]]:
        """One user less; the answers are done once everything that ends with it has ended."""
        with self._guard:
            self._users -= 1
            if self._users:
                return []
            readers = [self.quick.stop(), self.slow.stop()]
        # The writer closes last: only it can carry the log over into the database and take the file away.
        for reader in readers:
            reader.add_done_callback(lambda _: self.writer.stop() if all(each.done() for each in readers) else None)
        return [*readers, self.writer.ended]
