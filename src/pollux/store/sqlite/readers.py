"""Reader threads with read-only connections: one for quick reads, one for what may take long.

A listing of a big store must not delay the leader's feed, so each has a thread of its own.  Statements are
finished at once, and cut off at the deadline of their call: a stalled reader would block the checkpoint of the
log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue

import apsw

from pollux.store.sqlite import schema
from pollux.store.sqlite.calls import WriterCall, answer, in_our_words, is_sickening, promise
from pollux.store.sqlite.file_identity import FileIdentity
from pollux.store.sqlite.transaction import SqliteTransaction, WriteStats

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
        """This one and those that wait behind it, as many as are answered together: each answer wakes a loop."""
        call: WriterCall | None = first
        for left in reversed(range(self._at_once)):
            assert call is not None
            if not call.is_given_up:
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
            call.error = in_our_words(error)
            if is_sickening(error):
                self._drop()

    def _is_overdue(self) -> bool:
        return time.monotonic() > self._deadline

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(apsw.Error):
                connection.close(True)  # noqa: FBT003 - by position only: whatever it says


class Generations:
    """Did another process commit since?  Kept by `data_version`, which changes when another connection commits.

    A change that our own writer explains does not count: it rang by itself, and if it hides another one, whoever
    waits looks again within seconds.  So the elections and beats of an idle node wake nobody.
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
