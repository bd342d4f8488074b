"""Who writes?  One thread per process and database, which owns the only writing connection.

Group commit: it takes all calls that wait, runs them in one `BEGIN IMMEDIATE ... COMMIT`, and answers them only then.
While the disk is busy with one commit the next batch collects; nothing ever lingers.  If a call fails, the batch is
undone and its calls run one by one, so that nobody pays for a neighbour: a verb is a function that can be run again,
and checks before its first write.

    queue ─▶ look (nothing: answer) ─▶ write lock ─▶ BEGIN, verbs, COMMIT ─▶ answer ─▶ ring ─▶ unlock ─▶ checkpoint
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import apsw

from pollux.errors import StoreBusy
from pollux.store.sqlite import schema
from pollux.store.sqlite.bell import Bell
from pollux.store.sqlite.calls import Call, answer, in_our_words, promise
from pollux.store.sqlite.failpoint import failpoint
from pollux.store.sqlite.lock import WriteLock
from pollux.store.sqlite.transaction import Stats, Transaction

CALLS_MAX = 256  # in one transaction
BUSY_MS = 5_000  # for programs that do not know our lock
CHECKPOINT_PAGES = 1_000
TRUNCATE_PAGES = 8_192  # 32 MB of log
IDLE_S = 1.0


class Writer:
    def __init__(self, path: Path, *, stats: Stats, deadline: float) -> None:
        self._path, self._stats = path, stats
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._log_pages = 0  # in the write-ahead log
        self._checkpoint_at = CHECKPOINT_PAGES
        self.ready = promise()
        self.ended = promise()
        self.lock: WriteLock
        self.bell: Bell
        self._connection: apsw.Connection
        self._thread = threading.Thread(target=self._live, args=(deadline,), name="pollux-writer", daemon=True)
        self._thread.start()

    def put(self, call: Call) -> None:
        self._queue.put(call)

    def stop(self) -> Future[None]:
        """Finish what is queued, then end."""
        self._queue.put(None)
        return self.ended

    # the thread

    def _live(self, deadline: float) -> None:
        try:
            self._open(deadline)
        except BaseException as error:  # noqa: BLE001 - whoever opens the store gets it
            self.ready.set_exception(error if not isinstance(error, Exception) else in_our_words(error))
            self.ended.set_result(None)
            return
        self.ready.set_result(None)
        try:
            self._serve()
        finally:
            self._connection.close()
            self.lock.close()
            self.bell.close()
            self.ended.set_result(None)

    def _open(self, deadline: float) -> None:
        schema.prepare_file(self._path)
        self.lock = WriteLock(beside(self._path, ".lock"))
        try:
            self._connection = schema.open_writer(self._path, self.lock, deadline=deadline, busy_ms=BUSY_MS)
            self.bell = Bell(beside(self._path, ".bell"))
        except BaseException:
            self.lock.close()
            raise
        self._connection.set_wal_hook(self._on_commit)

    def _serve(self) -> None:
        while True:
            batch = self._take()
            if batch is None:
                return
            try:
                self._write(batch)
                self._checkpoint()
            except Exception as error:  # noqa: BLE001 - whoever waits is told, and the next batch may fare better
                _fail(batch, error)

    def _take(self) -> list[Call] | None:
        """All calls that wait, at least one; None at the end."""
        first = self._next()
        if first is None:
            return None
        batch = [first]
        self._take_more(batch)
        has_writes = any(call.look is None for call in batch)  # then a look saves no commit
        return [call for call in batch if not (call.is_given_up or (not has_writes and self._is_answered(call)))]

    def _next(self) -> Call | None:
        if self._log_pages == 0:
            return self._queue.get()
        try:
            return self._queue.get(timeout=IDLE_S)
        except Empty:
            self._checkpoint(is_idle=True)
            return self._queue.get()

    def _take_more(self, batch: list[Call]) -> None:
        while len(batch) < CALLS_MAX:
            try:
                call = self._queue.get_nowait()
            except Empty:
                return
            if call is None:
                self._queue.put(None)  # the end comes after this batch
                return
            batch.append(call)

    def _is_answered(self, call: Call) -> bool:
        """Did a look suffice?"""
        assert call.look is not None
        try:
            call.result = call.look(Transaction(self._connection, self._stats))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            call.error = in_our_words(error)
        if call.result is None and call.error is None:
            return False
        self._stats.ops += 1
        answer([call])
        return True

    def _write(self, batch: list[Call]) -> None:
        while batch:
            try:
                self.lock.acquire(min(call.deadline for call in batch))
            except StoreBusy as busy:
                batch = _give_up(batch, busy)
                continue
            try:
                self._take_more(batch)  # what came while we waited for the lock
                rings = self._commit(batch)
                failpoint()
                answer(batch)
                self._ring(rings)
            finally:
                self.lock.release()
            return

    def _ring(self, kinds: int) -> None:
        if kinds:
            with suppress(OSError):  # what is committed is answered; waiters look again by themselves
                self.bell.ring(kinds)

    def _commit(self, batch: list[Call]) -> int:
        """Run the batch in one transaction, or each call in its own if that fails; answers which bells to ring."""
        try:
            return self._transact(batch)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            if len(batch) == 1:
                batch[0].error = in_our_words(error)
                return 0
        rings = 0
        for call in batch:
            rings |= self._commit([call])
        return rings

    def _transact(self, batch: list[Call]) -> int:
        connection = self._connection
        transaction = Transaction(connection, self._stats)
        connection.execute("BEGIN IMMEDIATE")
        before = connection.total_changes()
        try:
            self._run_all(batch, transaction)
            transaction.close_tally()
            failpoint()
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        failpoint()
        self._stats.ops += len(batch)
        self._stats.commits += connection.total_changes() != before
        return transaction.rings

    def _run_all(self, batch: list[Call], transaction: Transaction) -> None:
        """Run the calls, and those that come meanwhile: a settle and the claim that follows it share one sync."""
        done = 0
        while done < len(batch):
            for call in batch[done:]:
                call.result = call.verb(transaction)
            done = len(batch)
            self._take_more(batch)

    # the log

    def _on_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self, *, is_idle: bool = False) -> None:
        """Carry the log over into the database, after the answers went out."""
        if not is_idle and self._log_pages < self._checkpoint_at:
            return
        self._stats.checkpoints += 1
        try:
            log, done = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if log > TRUNCATE_PAGES and log == done:
                self._truncate()
        except apsw.Error:
            log, done = self._log_pages, 0  # a reader stands in the way, or the disk is full: later
        self._checkpoint_at = CHECKPOINT_PAGES if log == done else self._log_pages + CHECKPOINT_PAGES
        self._log_pages = 0 if log == done else self._log_pages

    def _truncate(self) -> None:
        self._connection.set_busy_timeout(0)
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            self._connection.set_busy_timeout(BUSY_MS)


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _fail(batch: list[Call], error: Exception) -> None:
    for call in batch:
        call.error = call.error or in_our_words(error)
    answer(batch)


def _give_up(batch: list[Call], busy: StoreBusy) -> list[Call]:
    """Tell those whose time is over; the others go on waiting."""
    now = time.monotonic()
    late = [call for call in batch if call.deadline <= now]
    for call in late:
        call.error = busy
    answer(late)
    return [call for call in batch if call.deadline > now]
