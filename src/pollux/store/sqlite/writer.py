"""The writer thread: one per process and database, with the only writing connection.

Group commit: it takes all calls that wait, runs them in one `BEGIN IMMEDIATE ... COMMIT`, and answers them only
then. While the disk is busy with one commit the next batch collects; there is no delay.  If a call fails, the batch
is undone and its calls run one by one, so that no call fails because of another: a verb is a function that can be
run again, and checks before its first write.

    queue ─▶ look (nothing: answer) ─▶ write lock ─▶ BEGIN, verbs, COMMIT ─▶ answer ─▶ notify ─▶ unlock ─▶ checkpoint

Faults: before a batch the file must be the one that was opened (`file_identity.py`), and calls that do not fit on
the disk are refused (`disk_space.py`).  A write that finds the disk full frees the ballast once and is tried again.
After an error of the disk the whole batch is answered with it and the connection is thrown away: the next batch
begins with a new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import apsw

from pollux.errors import StoreBusy, StoreFull
from pollux.store.relational.wakeup import RUNS
from pollux.store.sqlite import schema
from pollux.store.sqlite.calls import WriterCall, answer, promise
from pollux.store.sqlite.disk_space import OPEN, DiskSpace
from pollux.store.sqlite.errors import affects_all_calls, as_store_error, breaks_connection
from pollux.store.sqlite.failpoint import failpoint
from pollux.store.sqlite.file_identity import FileIdentity
from pollux.store.sqlite.lock import WriteLock
from pollux.store.sqlite.transaction import Claims, SqliteTransaction, WriteStats
from pollux.store.sqlite.wakeup import SqliteNotifier
from pollux.store.sqlite.wal import BUSY_MS, Wal

CALLS_MAX = 256  # in one transaction
IDLE_S = 1.0


class Writer:
    def __init__(self, place: FileIdentity, *, stats: WriteStats, deadline: float) -> None:
        self._place, self._path, self._stats = place, place.path, stats
        self._queue: SimpleQueue[WriterCall | None] = SimpleQueue()
        self._wal = Wal(stats)
        self._claims: Claims = {}
        self._parked: dict[WriterCall, None] = {}  # claims that wait for work
        self._parked_guard = threading.Lock()
        self._level = OPEN
        self._is_broken = False  # the connection is thrown away before the next batch
        self.ready = promise()
        self.ended = promise()
        self.lock: WriteLock
        self.notifier: SqliteNotifier
        self.disk_space: DiskSpace
        self._connection: apsw.Connection
        self._thread = threading.Thread(target=self._live, args=(deadline,), name="pollux-writer", daemon=True)
        self._thread.start()

    def put(self, call: WriterCall) -> None:
        self._queue.put(call)

    def park(self, call: WriterCall) -> None:
        """Let a claim wait: the commit that makes a run ready runs it, too, without another turn of the loop."""
        with self._parked_guard:
            self._parked[call] = None

    def unpark(self, call: WriterCall) -> bool:
        """Take it back; false if it is too late: its answer is under way."""
        with self._parked_guard:
            return self._parked.pop(call, call) is None

    def stop(self) -> Future[None]:
        """Finish what is queued, then end."""
        self._queue.put(None)
        return self.ended

    # the thread

    def _live(self, deadline: float) -> None:
        try:
            self._open(deadline)
        except BaseException as error:  # noqa: BLE001 - the caller of open gets it
            self.ready.set_exception(error if not isinstance(error, Exception) else as_store_error(error))
            self.ended.set_result(None)
            return
        self.ready.set_result(None)
        try:
            self._serve()
        finally:
            self._close()
            self.ended.set_result(None)

    def _open(self, deadline: float) -> None:
        schema.prepare_file(self._place)
        with schema.file_errors(self._path), ExitStack() as undo:
            self.lock = WriteLock(_sibling(self._path, ".lock"))
            undo.callback(self.lock.close)
            self.disk_space = DiskSpace(self._path)
            undo.callback(self.disk_space.close, is_last=False)
            self._place.settle()
            self._connection = self._connect(deadline)
            undo.callback(self._connection.close)
            self._place.check()  # it is the file that we then opened
            self.notifier = SqliteNotifier(_sibling(self._path, ".bell"))
            undo.pop_all()
        self._wal.watch(self._connection)

    def _connect(self, deadline: float) -> apsw.Connection:
        """On a full disk it may not even open; then the ballast is released first."""
        try:
            return schema.open_writer(self._path, self.lock, deadline=deadline, busy_ms=BUSY_MS)
        except apsw.Error as error:
            if not self.disk_space.is_full(error):
                raise
            self.disk_space.ran_out()
        try:
            return schema.open_writer(self._path, self.lock, deadline=deadline, busy_ms=BUSY_MS)
        except apsw.Error as error:
            if self.disk_space.is_full(error):
                raise schema.no_room(self._path) from error
            raise

    def _close(self) -> None:
        with suppress(apsw.Error):  # what has no checkpoint is in the log, for the next process
            self._connection.close()
        self.lock.close()
        self.notifier.close()
        self.disk_space.close(is_last=not _sibling(self._path, "-wal").exists())

    def _serve(self) -> None:
        while True:
            batch = self._take()
            if batch is None:
                return
            try:
                self._write(batch)
                self._checkpoint()
            except Exception as error:  # noqa: BLE001 - the callers get it, and the next batch may succeed
                _fail(batch, error)

    def _take(self) -> list[WriterCall] | None:
        """All calls that wait, at least one; None at the end."""
        first = self._next()
        if first is None:
            return None
        batch = [first]
        self._take_more(batch)
        has_writes = any(call.look is None for call in batch)  # then a look saves no commit
        return [call for call in batch if not (call.is_abandoned or (not has_writes and self._is_answered(call)))]

    def _next(self) -> WriterCall | None:
        if self._wal.pages == 0:
            return self._queue.get()
        try:
            return self._queue.get(timeout=IDLE_S)
        except Empty:
            self._checkpoint(is_idle=True)
            return self._queue.get()

    def _take_more(self, batch: list[WriterCall]) -> None:
        while len(batch) < CALLS_MAX:
            try:
                call = self._queue.get_nowait()
            except Empty:
                return
            if call is None:
                self._queue.put(None)  # the end comes after this batch
                return
            batch.append(call)

    def _is_answered(self, call: WriterCall) -> bool:
        """Did a look suffice?"""
        assert call.look is not None
        if self._is_broken:
            return False
        try:
            self._place.check_sometimes()
            call.result = call.look(SqliteTransaction(self._connection, self._stats, self._claims))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            call.error = self._store_error(error)
        if call.result is None and call.error is None:
            return False
        self._stats.ops += 1
        answer([call])
        return True

    def _write(self, batch: list[WriterCall]) -> None:
        while batch:
            try:
                self.lock.acquire(min(call.deadline for call in batch))
            except StoreBusy as busy:
                batch[:] = _fail_overdue(batch, busy)  # in place: calls that join it get the same errors
                continue
            try:
                self._place.check()
                self._mend()
                self._take_more(batch)  # what came while we waited for the lock
                self._look_for_room()
                wakeups = self._commit(batch)
                failpoint()
                self._place.check()  # what went into a file that is gone is not there
                answer(batch)
                self._notify(wakeups)
            finally:
                self.lock.release()
            return

    def _notify(self, kinds: int) -> None:
        if kinds:
            with suppress(OSError):  # what is committed is answered; waiters look again by themselves
                self.notifier.notify(kinds)

    def _commit(self, batch: list[WriterCall], *, is_again: bool = False, is_alone: bool = False) -> int:
        """Run the batch in one transaction, or each call in its own if that fails; answers the wake-ups that follow."""
        try:
            return self._transact(batch, is_alone=is_alone)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            failure = self._store_error(error)
            if isinstance(failure, StoreFull) and not is_again:
                self._make_room()
                return self._commit(batch, is_again=True, is_alone=is_alone)
            if len(batch) == 1 or self._is_broken or affects_all_calls(error):
                for call in batch:
                    call.error = failure
                return 0
        wakeups = 0
        for call in batch:
            wakeups |= self._commit([call], is_again=is_again, is_alone=True)
        return wakeups

    def _transact(self, batch: list[WriterCall], *, is_alone: bool) -> int:
        connection = self._connection
        transaction = SqliteTransaction(connection, self._stats, self._claims)
        connection.execute("BEGIN IMMEDIATE")
        before = connection.total_changes()
        try:
            self._run_all(batch, transaction, is_alone=is_alone)
            transaction.write_counters()
            failpoint()
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        failpoint()
        self._stats.ops += len(batch)
        self._stats.commits += connection.total_changes() != before
        return transaction.wakeups

    def _run_all(self, batch: list[WriterCall], transaction: SqliteTransaction, *, is_alone: bool) -> None:
        """Run the calls, and those that come meanwhile: a settle and the claim that follows it share one sync, and so
        do what makes runs ready and the claim that waits for them.  No call joins one that is run alone.
        """
        done = 0
        while done < len(batch):
            for call in batch[done:]:
                call.error = None if self._level == OPEN else self.disk_space.refusal(call.need, self._level)
                if call.error is None:
                    call.result = call.verb(transaction)
            done = len(batch)
            if is_alone:
                return
            self._take_more(batch)
            if transaction.wakeups & RUNS:
                batch += self._take_parked()

    def _take_parked(self) -> list[WriterCall]:
        """The claims that wait for work."""
        with self._parked_guard:
            called, self._parked = list(self._parked), {}
        return [call for call in called if not call.is_abandoned]

    # faults

    def _store_error(self, error: Exception) -> Exception:
        """As an error of the store; and what follows from it for the connection."""
        if self.disk_space.is_full(error, 0 if self._is_broken else self._connection.system_errno):
            full = self.disk_space.error(self._level)
            full.__cause__ = error
            return full
        self._is_broken = self._is_broken or breaks_connection(error)
        return as_store_error(error)

    def _mend(self) -> None:
        """A new connection in place of one that the disk has failed."""
        if not self._is_broken:
            return
        with suppress(apsw.Error):
            self._connection.close(True)  # noqa: FBT003 - by position only: ignore errors
        self._connection = schema.reopen_writer(self._path, busy_ms=BUSY_MS)
        self._wal.watch(self._connection)
        self._is_broken = False

    def _look_for_room(self) -> None:
        if self.disk_space.is_log_long:
            self._checkpoint(is_idle=True)
        self._level = self.disk_space.look()

    def _make_room(self) -> None:
        self.disk_space.ran_out()
        self._or_break(self._cut_log)
        self._level = self.disk_space.look()

    def _checkpoint(self, *, is_idle: bool = False) -> None:
        """Of the log, after the answers went out."""
        is_tight = self._level != OPEN
        if self._is_broken or not (is_idle or self._wal.is_due(is_tight=is_tight)):
            return
        self._or_break(self._checkpoint_if_it_fits if is_tight else self._wal.checkpoint)
        self.disk_space.learn_log(self._wal.pages)

    def _checkpoint_if_it_fits(self) -> None:
        if self.disk_space.has(self._wal.growth_bytes(self._path)):
            self._wal.checkpoint()

    def _cut_log(self) -> None:
        if self.disk_space.has(self._wal.growth_bytes(self._path)):
            self._wal.truncate()

    def _or_break(self, work: Callable[[], object]) -> None:
        """Work on the log; its errors concern no caller, since what has no checkpoint is still in the log."""
        try:
            work()
        except (apsw.Error, OSError):
            self._is_broken = True


def _sibling(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _fail(batch: list[WriterCall], error: Exception) -> None:
    for call in batch:
        call.error = call.error or as_store_error(error)
    answer(batch)


def _fail_overdue(batch: list[WriterCall], busy: StoreBusy) -> list[WriterCall]:
    """Fail the calls whose deadline is over; the others go on waiting."""
    now = time.monotonic()
    late = [call for call in batch if call.deadline <= now]
    for call in late:
        call.error = busy
    answer(late)
    return [call for call in batch if call.deadline > now]
