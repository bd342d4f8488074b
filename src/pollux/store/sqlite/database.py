"""Database of one process, shared by a handle and its twins: the writer thread, reader threads, notifier, counts.

The first handle that opens starts the threads, the last that closes ends them.

There are two readers with read-only connections: one for quick reads, one for what may take long.  A listing of a big
store must not delay the leader's feed, so each has a thread of its own.  Statements are finished at once, and cut off
at the deadline of their call: a stalled reader would block the checkpoint of the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue

import apsw

from pollux.clock import Clock
from pollux.store.clock_jumps import JumpGuard
from pollux.store.sqlite import schema
from pollux.store.sqlite.calls import WriterCall, answer, promise
from pollux.store.sqlite.errors import as_store_error, breaks_connection
from pollux.store.sqlite.file_identity import FileIdentity
from pollux.store.sqlite.transaction import SqliteTransaction, WriteStats
from pollux.store.sqlite.wakeup import SqliteNotifier
from pollux.store.sqlite.writer import Writer

QUICK_AT_ONCE = 16  # reads of some rows each that are answered together
BUSY_MS = 5_000
STEPS = 20_000  # of SQLite's between two looks at the clock


class Reader:
    """One lane: a thread and its connection, both made for the first call.

    `at_once` calls are answered together if they come together; where one of them may take long it is 1.
    """

    def __init__(self, place: FileIdentity, name: str, stats: WriteStats, *, at_once: int = 1) -> None:
        self._place, self._name, self._stats, self._at_once = place, name, stats, at_once
        self._deadline = 0.0  # of the call under way
        self._queue: SimpleQueue[WriterCall | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: apsw.Connection | None = None
        self.ended = promise()

    def put(self, call: WriterCall) -> None:
        if self._thread is None:
            self._start()
        self._queue.put(call)

    def stop(self) -> Future[None]:
        with self._guard:
            if self._thread is None:
                self.ended.set_result(None)
            else:
                self._queue.put(None)
        return self.ended

    def _start(self) -> None:
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"pollux-{self._name}", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        try:
            while (call := self._queue.get()) is not None:
                answer(list(self._read_all(call)))
        finally:
            self._drop()
            self.ended.set_result(None)

    def _read_all(self, first: WriterCall) -> Iterator[WriterCall]:
        """This call and those queued after it, as many as are answered together: each answer wakes a loop."""
        call: WriterCall | None = first
        for left in reversed(range(self._at_once)):
            assert call is not None
            if not call.is_abandoned:
                self._read(call)
                yield call
            if not left or self._queue.empty():
                return
            if (call := self._queue.get()) is None:
                self._queue.put(None)  # the end comes after these answers
                return

    def _read(self, call: WriterCall) -> None:
        try:
            self._place.check_sometimes()
            if self._connection is None:
                self._connection = schema.open_reader(self._place.path, busy_ms=BUSY_MS)
                self._connection.set_progress_handler(self._is_overdue, STEPS)
            self._stats.reads += 1
            self._deadline = call.deadline
            call.result = call.verb(SqliteTransaction(self._connection, self._stats))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            call.error = as_store_error(error)
            if breaks_connection(error):
                self._drop()

    def _is_overdue(self) -> bool:
        return time.monotonic() > self._deadline

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(apsw.Error):
                connection.close(True)  # noqa: FBT003 - by position only: ignore errors


class Generations:
    """Did another process commit since?  Kept by `data_version`, which changes when another connection commits.

    A change that may be of this process's writer does not count: the writer has notified the waiters, and if it hides
    another change, they look again within seconds.  So elections and beats of an idle node wake no waiter.
    """

    def __init__(self, stats: WriteStats) -> None:
        self._stats = stats
        self._seen: object = None
        self._own = 0
        self.number = 0

    def look(self, transaction: SqliteTransaction) -> int:
        self._stats.versions += 1
        self._stats.statements -= 1
        version = transaction.row("PRAGMA data_version")
        own = self._stats.commits
        if self._seen is None or (version != self._seen and own == self._own):
            self.number += 1
        self._seen, self._own = version, own
        return self.number


class SqliteDatabase:
    def __init__(self, place: FileIdentity, clock: Clock, deadline_ms: int) -> None:
        self.place, self.path = place, place.path
        self.clock, self.deadline_ms = clock, deadline_ms
        self.stats = WriteStats()
        self.generations = Generations(self.stats)
        self.jumps: JumpGuard  # used by the writer's thread only
        self.writer: Writer
        self.quick: Reader
        self.slow: Reader
        self._guard = threading.Lock()
        self._users = 0

    @property
    def notifier(self) -> SqliteNotifier:
        return self.writer.notifier

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
