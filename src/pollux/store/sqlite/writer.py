"""The writer thread: one per process and database, with the only writing connection.

Group commit: it takes all calls that wait, runs them in one `BEGIN IMMEDIATE ... COMMIT`, and answers them only
then. While the disk is busy with one commit the next batch collects; there is no delay.  If a call fails, the batch
is undone and its calls run one by one, so that no call fails because of another: a verb is a function that can be
run again, and checks before its first write.

    queue ─▶ look (nothing: answer) ─▶ write lock ─▶ BEGIN, verbs, COMMIT ─▶ answer ─▶ ring ─▶ unlock ─▶ checkpoint

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
from pollux.store.sqlite.calls import WriterCall, answer, in_our_words, is_everybodys, is_sickening, promise
from pollux.store.sqlite.disk_space import OPEN, DiskSpace
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
        self._standing: dict[WriterCall, None] = {}  # claims that wait for work
        self._standing_guard = threading.Lock()
        self._level = OPEN
        self._is_sick = False  # the connection is thrown away before the next batch
        self.ready = promise()
        self.ended = promise()
        self.lock: WriteLock
        self.bell: SqliteNotifier
        self.room: DiskSpace
        self._connection: apsw.Connection
        self._thread = threading.Thread(target=self._live, args=(deadline,), name="pollux-writer", daemon=True)
        self._thread.start()

    def put(self, call: WriterCall) -> None:
        self._queue.put(call)

    def stand(self, call: WriterCall) -> None:
        """Wait for work: the commit that makes a run ready runs this claim, too, without another turn of the loop."""
        with self._standing_guard:
            self._standing[call] = None

    def stand_down(self, call: WriterCall) -> bool:
        """Wait no longer; false if it is too late: its answer is under way."""
        with self._standing_guard:
            return self._standing.pop(call, call) is None

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
            self._close()
            self.ended.set_result(None)

    def _open(self, deadline: float) -> None:
        schema.prepare_file(self._place)
        with schema.in_file_words(self._path), ExitStack() as undo:
            self.lock = WriteLock(beside(self._path, ".lock"))
            undo.callback(self.lock.close)
            self.room = DiskSpace(self._path)
            undo.callback(self.room.close, is_last=False)
            self._place.settle()
            self._connection = self._connect(deadline)
            undo.callback(self._connection.close)
            self._place.check()  # it is the file that we then opened
            self.bell = SqliteNotifier(beside(self._path, ".bell"))
            undo.pop_all()
        self._wal.watch(self._connection)

    def _connect(self, deadline: float) -> apsw.Connection:
        """A full disk may not even let it be opened; then the ballast goes first."""
        try:
            return schema.open_writer(self._path, self.lock, deadline=deadline, busy_ms=BUSY_MS)
        except apsw.Error as error:
            if not self.room.is_full(error):
                raise
            self.room.ran_out()
        try:
            return schema.open_writer(self._path, self.lock, deadline=deadline, busy_ms=BUSY_MS)
        except apsw.Error as error:
            if self.room.is_full(error):
                raise schema.no_room(self._path) from error
            raise

    def _close(self) -> None:
        with suppress(apsw.Error):  # what could not be carried over is in the log, for whoever opens it next
            self._connection.close()
        self.lock.close()
        self.bell.close()
        self.room.close(is_last=not beside(self._path, "-wal").exists())

    def _serve(self) -> None:
        while True:
            batch = self._take()
            if batch is None:
                return
            try:
                self._write(batch)
                self._carry_over()
            except Exception as error:  # noqa: BLE001 - whoever waits is told, and the next batch may fare better
                _fail(batch, error)

    def _take(self) -> list[WriterCall] | None:
        """All calls that wait, at least one; None at the end."""
        first = self._next()
        if first is None:
            return None
        batch = [first]
        self._take_more(batch)
        has_writes = any(call.look is None for call in batch)  # then a look saves no commit
        return [call for call in batch if not (call.is_given_up or (not has_writes and self._is_answered(call)))]

    def _next(self) -> WriterCall | None:
        if self._wal.pages == 0:
            return self._queue.get()
        try:
            return self._queue.get(timeout=IDLE_S)
        except Empty:
            self._carry_over(is_idle=True)
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
        if self._is_sick:
            return False
        try:
            self._place.check_sometimes()
            call.result = call.look(SqliteTransaction(self._connection, self._stats, self._claims))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            call.error = self._said(error)
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
                batch[:] = _give_up(batch, busy)  # in place: whoever joins it is told what becomes of it
                continue
            try:
                self._place.check()
                self._mend()
                self._take_more(batch)  # what came while we waited for the lock
                self._look_for_room()
                rings = self._commit(batch)
                failpoint()
                self._place.check()  # what went into a file that is gone is not there
                answer(batch)
                self._ring(rings)
            finally:
                self.lock.release()
            return

    def _ring(self, kinds: int) -> None:
        if kinds:
            with suppress(OSError):  # what is committed is answered; waiters look again by themselves
                self.bell.ring(kinds)

    def _commit(self, batch: list[WriterCall], *, is_again: bool = False, is_alone: bool = False) -> int:
        """Run the batch in one transaction, or each call in its own if that fails; answers which bells to ring."""
        try:
            return self._transact(batch, is_alone=is_alone)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            said = self._said(error)
            if isinstance(said, StoreFull) and not is_again:
                self._make_room()
                return self._commit(batch, is_again=True, is_alone=is_alone)
            if len(batch) == 1 or self._is_sick or is_everybodys(error):
                for call in batch:
                    call.error = said
                return 0
        rings = 0
        for call in batch:
            rings |= self._commit([call], is_again=is_again, is_alone=True)
        return rings

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
        return transaction.rings

    def _run_all(self, batch: list[WriterCall], transaction: SqliteTransaction, *, is_alone: bool) -> None:
        """Run the calls, and those that come meanwhile: a settle and the claim that follows it share one sync, and so
        do what makes runs ready and the claim that waits for them.  Nobody joins a call that is run alone.
        """
        done = 0
        while done < len(batch):
            for call in batch[done:]:
                call.error = None if self._level == OPEN else self.room.refusal(call.need, self._level)
                if call.error is None:
                    call.result = call.verb(transaction)
            done = len(batch)
            if is_alone:
                return
            self._take_more(batch)
            if transaction.rings & RUNS:
                batch += self._call_up()

    def _call_up(self) -> list[WriterCall]:
        """The claims that wait for work, now that there is some."""
        with self._standing_guard:
            called, self._standing = list(self._standing), {}
        return [call for call in called if not call.is_given_up]

    # bad days

    def _said(self, error: Exception) -> Exception:
        """The error in our words; and what follows from it for the connection."""
        if self.room.is_full(error, 0 if self._is_sick else self._connection.system_errno):
            full = self.room.words(self._level)
            full.__cause__ = error
            return full
        self._is_sick = self._is_sick or is_sickening(error)
        return in_our_words(error)

    def _mend(self) -> None:
        """A new connection in place of one that the disk has failed."""
        if not self._is_sick:
            return
        with suppress(apsw.Error):
            self._connection.close(True)  # noqa: FBT003 - by position only: whatever it says
        self._connection = schema.reopen_writer(self._path, busy_ms=BUSY_MS)
        self._wal.watch(self._connection)
        self._is_sick = False

    def _look_for_room(self) -> None:
        if self.room.is_log_long:
            self._carry_over(is_idle=True)
        self._level = self.room.look()

    def _make_room(self) -> None:
        self.room.ran_out()
        self._or_sick(self._cut_log)
        self._level = self.room.look()

    def _carry_over(self, *, is_idle: bool = False) -> None:
        """The log into the database, after the answers went out."""
        is_tight = self._level != OPEN
        if self._is_sick or not (is_idle or self._wal.is_due(is_tight=is_tight)):
            return
        self._or_sick(self._carry_if_it_fits if is_tight else self._wal.carry_over)
        self.room.learn_log(self._wal.pages)

    def _carry_if_it_fits(self) -> None:
        if self.room.has(self._wal.growth_bytes(self._path)):
            self._wal.carry_over()

    def _cut_log(self) -> None:
        if self.room.has(self._wal.growth_bytes(self._path)):
            self._wal.truncate()

    def _or_sick(self, work: Callable[[], object]) -> None:
        """Work on the log, of which nobody needs to be told: what it could not carry over is still in the log."""
        try:
            work()
        except (apsw.Error, OSError):
            self._is_sick = True


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _fail(batch: list[WriterCall], error: Exception) -> None:
    for call in batch:
        call.error = call.error or in_our_words(error)
    answer(batch)


def _give_up(batch: list[WriterCall], busy: StoreBusy) -> list[WriterCall]:
    """Tell those whose time is over; the others go on waiting."""
    now = time.monotonic()
    late = [call for call in batch if call.deadline <= now]
    for call in late:
        call.error = busy
    answer(late)
    return [call for call in batch if call.deadline > now]
