"""Connections and calls to the server: each verb in a transaction, by a deadline, repeated after a conflict.

take a connection ─▶ BEGIN ─▶ the verb's statements ─▶ counts, entries, notification ─▶ COMMIT ─▶ wake our own waiters
        ▲                          │ deadlock or conflict: ROLLBACK
        └──────── a short pause ◀──┘
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

import asyncpg
from asyncpg import Connection
from msgspec import Struct

from pollux.clock import Deadlines
from pollux.errors import InvalidInput, PolluxError, StoreBusy, StoreError, StoreTimeout
from pollux.model import SCHEDULER_VERSION
from pollux.store.postgres import schema
from pollux.store.postgres.address import PostgresAddress
from pollux.store.postgres.errors import AGAIN, DOOR, GONE, MAY_HAVE, THEIRS, at_the_door, in_our_words
from pollux.store.postgres.transaction import PostgresTransaction, SchemaStatements, notification_payload
from pollux.store.postgres.wakeup import PostgresNotifier
from pollux.store.relational.transaction import TransactionRetry
from pollux.store.tcp_keepalive import keep_alive

# the array's number and name, and the number of its elements' type
_ARRAYS = (
    (1000, "_bool", 16),
    (1001, "_bytea", 17),
    (1005, "_int2", 21),
    (1007, "_int4", 23),
    (1016, "_int8", 20),
    (1231, "_numeric", 1700),
)
_ABOUT: tuple[dict[str, Any], ...] = tuple(
    {
        "oid": number,
        "ns": "pg_catalog",
        "name": name,
        "kind": b"b",
        "basetype": None,
        "elemtype": element,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
    }
    for number, name, element in _ARRAYS
)


def teach(connection: Connection) -> None:
    """Give the driver array types that it would ask the server for."""
    connection._protocol.get_settings().register_data_types(_ABOUT)  # noqa: SLF001  it has no other way to it


TRIES_MAX = 8
PLANS = {"enable_seqscan": "off", "jit": "off", "plan_cache_mode": "force_generic_plan"}  # made once, and kept
PAUSE_S = 0.005
IDLE_S = 60.0  # after which a connection is closed
CLOSE_S = 2.0
GREETED = 0.8  # of a deadline: a server that has not greeted by then was asked for nothing yet
MIGRATE_S = 3_600.0  # a migration writes whole tables: half a minute for a million live runs
T = TypeVar("T")
Verb = Callable[[PostgresTransaction], Awaitable[T]]
WakeWaiters = Callable[[int, frozenset[int]], None]


class ConnectionPool:
    """Connections of one handle, in one loop: the most recently used one first, and every wait has a deadline."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int, where: str) -> None:
        self._connect, self._where, self._size = connect, where, size
        self._seats = asyncio.Semaphore(size)
        self._idle: list[tuple[float, Connection]] = []
        self._used: set[Connection] = set()
        self._is_closed = False

    async def take(self, wait_s: float) -> Connection:
        if self._seats.locked():
            await self._sit(wait_s)
        else:
            await self._seats.acquire()  # at once
        try:
            while self._idle:
                _, connection = self._idle.pop()
                if not connection.is_closed():
                    break
            else:
                connection = await self._connect()
        except BaseException:
            self._seats.release()
            raise
        self._used.add(connection)
        return connection

    async def _sit(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._seats.acquire()
        except TimeoutError as error:
            raise StoreBusy(
                f"{self._where}: all {self._size} connections of this process were busy for {wait_s:g} s; nothing was "
                "changed; raise `?pool=`, or ask less at once"
            ) from error

    def give(self, connection: Connection, *, is_sound: bool) -> None:
        """Return a connection; one in the middle of something is cut off, and the server undoes what it began."""
        self._used.discard(connection)
        self._seats.release()
        if not is_sound or self._is_closed:
            connection.terminate()
            return
        now = time.monotonic()
        self._idle.append((now, connection))
        if self._idle[0][0] < now - IDLE_S:
            self._idle.pop(0)[1].terminate()

    def drop_idle(self) -> None:
        """After one was found dead the others are not trusted either."""
        for _, connection in self._idle:
            connection.terminate()
        self._idle.clear()

    async def close(self) -> None:
        self._is_closed = True
        for connection in self._used:
            connection.terminate()
        idle, self._idle = self._idle, []
        for _, connection in idle:
            try:
                await connection.close(timeout=CLOSE_S)
            except Exception:  # noqa: BLE001  it is closed in any case
                connection.terminate()


class DatabaseIdentity(Struct, frozen=True):
    """A database as its server knows it, and our schema in it."""

    database: str
    database_number: int
    schema_number: int | None  # None: there is none of that name
    server: int | None  # None: this user may not ask

    def is_same(self, other: DatabaseIdentity) -> bool:
        mine = self.database_number, self.schema_number
        theirs = other.database_number, other.schema_number
        return mine == theirs and (None in (self.server, other.server) or self.server == other.server)


async def place_of(tx: PostgresTransaction, schema: str) -> DatabaseIdentity:
    database, number, schema_number, may_ask = await tx.one("inspect.place", f'"{schema}"')
    return DatabaseIdentity(database, number, schema_number, (await tx.one("inspect.number"))[0] if may_ask else None)


class HomeDatabase:
    """Check that a user's connection leads to the database of the store.

    A run in another database with a schema of the same name would be written there without an error.  What a connection
    leads to does not change while it lasts: each is asked once.
    """

    def __init__(self, where: str, schema: str) -> None:
        self._where, self._schema = where, schema
        self._place: DatabaseIdentity | None = None
        self._known: WeakSet[Connection] = WeakSet()

    async def refuse_foreign(
        self, connection: Connection, tx: PostgresTransaction, ask_ours: Callable[[], Awaitable[DatabaseIdentity]]
    ) -> None:
        """Raises unless it leads to where the store is; `ask_ours` asks over a connection of the store."""
        itself = getattr(connection, "_con", connection)  # a pool lends another wrapping each time
        if itself in self._known:
            return
        theirs = await place_of(tx, self._schema)
        if self._place is None or not self._place.is_same(theirs):
            self._place = await ask_ours()  # anew: it may have been restored elsewhere since
        if not self._place.is_same(theirs):
            raise InvalidInput(
                self._differs(self._place, theirs),
                where="connection",
                cure="nothing was written; give one to the database of the store",
            )
        self._known.add(itself)

    def _differs(self, ours: DatabaseIdentity, theirs: DatabaseIdentity) -> str:
        if ours.database != theirs.database:
            return f"it is to database {theirs.database!r}, the store is in {ours.database!r} ({self._where})"
        return f"it is to a database {theirs.database!r} of another server than the store's ({self._where})"


class PostgresDatabase:
    """The connections of one handle."""

    def __init__(self, address: PostgresAddress, deadline_ms: int, sender: str, pool_size: int) -> None:
        self.address, self.space = address, SchemaStatements(address.schema)
        self._deadline_s = deadline_ms / 1000
        self._sender = sender
        self._pool = ConnectionPool(self.connect, pool_size, address.where)
        self._notifier = PostgresNotifier(self._notify)
        self._home = HomeDatabase(address.where, address.schema)
        self._deadlines = Deadlines()
        # A plan that was made while a table was empty walks over it when it is full: none may walk.  A pooler passes no
        # settings on, and keeps no plan either, but for those inside of functions: see their migrations.
        is_direct = address.listen and address.statement_cache_size > 0
        # After its deadline no call waits for a write any more: then no other shall wait for its locks.
        limits = {"lock_timeout": str(deadline_ms * 8 // 10), "idle_in_transaction_session_timeout": str(deadline_ms)}
        self._settings = {"application_name": "pollux"} | (PLANS | limits if is_direct else {})
        local = [] if is_direct else [f"SET LOCAL {name} = {value}" for name, value in limits.items()]
        self._begin = "; ".join(["BEGIN", *local])

    async def connect(self) -> Connection:
        """One more connection; a server that is still starting is waited for."""
        address = self.address
        while True:
            try:
                connection = await asyncpg.connect(
                    address.dsn,
                    timeout=self._deadline_s * GREETED,
                    statement_cache_size=address.statement_cache_size,
                    server_settings=self._settings,
                )
            except asyncpg.CannotConnectNowError:
                await asyncio.sleep(PAUSE_S * 10)
            except DOOR as error:
                raise at_the_door(error, address) from error
            else:
                keep_alive(connection._transport.get_extra_info("socket"))  # noqa: SLF001  it has no other way to it
                teach(connection)
                return connection

    async def open(self) -> None:
        """Cut off by a deadline, a migration would be undone each time, and a big store never opened again."""
        is_behind = await self._bounded(self._is_behind())
        await self._bounded(self._prepare(), MIGRATE_S if is_behind else self._deadline_s)

    async def close(self) -> None:
        await self._notifier.close()
        await self._pool.close()

    async def write(self, verb: Verb[T], version: int, now_ms: int | None, wake_waiters: WakeWaiters) -> T:
        return await self._bounded(self._write(verb, version, now_ms, wake_waiters))

    async def read(
        self, verb: Verb[T], version: int, now_ms: int | None = None, wake_waiters: WakeWaiters | None = None
    ) -> T:
        """One statement or several, each for itself."""
        return await self._bounded(self._read(verb, version, now_ms, wake_waiters))

    async def join(self, connection: Connection, verb: Verb[T], version: int, now_ms: int | None) -> T:
        """Inside a transaction of the user's own: what it writes is there when they commit."""
        tx = PostgresTransaction(
            connection, self.space, version, now_ms
        )  # without a sender: the user's commit wakes our waiters, too
        try:
            async with connection.transaction():  # a savepoint: refused, it leaves theirs as it was
                await self._home.refuse_foreign(connection, tx, self._place)
                answer = await verb(tx)
                await tx.finish(is_users=True)
        except (TransactionRetry, asyncpg.UniqueViolationError) as error:
            with suppress(PolluxError):  # for the next try
                await self.read(lambda tx: tx.step_over(), SCHEDULER_VERSION)
            raise StoreBusy("another process was writing the same runs; nothing was changed; try again") from error
        except THEIRS as error:
            raise in_our_words(error, self.address.where) from error
        return answer

    async def _place(self) -> DatabaseIdentity:
        return await self.read(lambda tx: place_of(tx, self.space.schema), SCHEDULER_VERSION)

    async def _bounded(self, call: Awaitable[T], seconds: float | None = None) -> T:
        seconds = self._deadline_s if seconds is None else seconds
        patience = self._deadlines.enter(seconds)
        try:
            return await call
        except (asyncio.CancelledError, TimeoutError) as error:
            if isinstance(error, asyncio.CancelledError) and not patience.is_over():
                raise
            raise StoreTimeout(f"{self.address.where} gave no answer within {seconds:g} s: {MAY_HAVE}") from error
        except TransactionRetry as error:
            raise StoreBusy(
                f"{self.address.where}: others were quicker again and again; nothing was changed; try again"
            ) from error
        except asyncpg.UniqueViolationError:
            raise  # claims handle it; a settler finds out which run it is, and goes on with the others
        except THEIRS as error:
            raise in_our_words(error, self.address.where) from error
        finally:
            self._deadlines.leave(patience)

    async def _is_behind(self) -> bool:
        connection = await self._pool.take(self._deadline_s)
        is_sound = False
        try:
            is_behind = await schema.is_behind(connection, self.space, self.address)
            is_sound = True
        finally:
            self._pool.give(connection, is_sound=is_sound)
        return is_behind

    async def _prepare(self) -> None:
        connection = await self._pool.take(self._deadline_s)
        is_sound = False
        try:
            await schema.prepare(connection, self.space, self.address)
            with suppress(asyncpg.InsufficientPrivilegeError):  # who may not use the numbers makes no runs
                await PostgresTransaction(connection, self.space, SCHEDULER_VERSION, None).catch_up()
            is_sound = True
        finally:
            self._pool.give(connection, is_sound=is_sound)

    async def _write(self, verb: Verb[T], version: int, now_ms: int | None, wake_waiters: WakeWaiters) -> T:
        for nth in range(1, TRIES_MAX + 1):
            connection = await self._begun()
            is_sound = False
            tx = PostgresTransaction(connection, self.space, version, now_ms, self._sender, notifier=self._notifier)
            try:
                answer = await verb(tx)
                await tx.finish()
                self.space.statements += 1
                await connection.execute("COMMIT")
                is_sound = True
            except (TransactionRetry, asyncpg.UniqueViolationError, *AGAIN) as error:
                await connection.execute("ROLLBACK")
                if not isinstance(error, AGAIN):
                    await tx.step_over()
                is_sound = True
                if nth == TRIES_MAX:
                    raise
                await asyncio.sleep(PAUSE_S * nth * random.random())  # noqa: S311  nothing secret
                continue
            except (asyncpg.PostgresError, StoreError, ValueError) as error:
                if not isinstance(error, GONE):
                    await connection.execute("ROLLBACK")
                    is_sound = self._may_stay(error)
                raise
            finally:
                self._pool.give(connection, is_sound=is_sound)
            self._wake(tx, wake_waiters)
            return answer
        raise AssertionError("the last try raises")

    def _may_stay(self, error: Exception) -> bool:
        """False for one that was made while its server only read: it will not write when the server does again."""
        if not isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            return True
        self._pool.drop_idle()
        return False

    def _wake(self, tx: PostgresTransaction, wake_waiters: WakeWaiters | None) -> None:
        """After the commit: wake our own waiters, and those of others if the commit did not."""
        if wake_waiters is not None and tx.wakeups:
            wake_waiters(tx.wakeups, tx.touched)
        if tx.is_notification_due:
            self._notifier.notify_later(tx.wakeups, tx.touched)

    async def _notify(self, kinds: int, versions: frozenset[int]) -> None:
        payload = notification_payload(self._sender, kinds, versions)
        with suppress(PolluxError):  # a hint
            await self.read(lambda tx: tx.fetch("counters.wake", self.space.channel, payload), SCHEDULER_VERSION)

    async def _begun(self) -> Connection:
        """A connection in a new transaction; one that died while it lay idle is replaced."""
        for is_last in (False, True):
            connection = await self._pool.take(self._deadline_s)
            try:
                self.space.statements += 1
                await connection.execute(self._begin)
            except GONE:
                self._pool.give(connection, is_sound=False)
                self._pool.drop_idle()
                if is_last:
                    raise
            except BaseException:
                self._pool.give(connection, is_sound=False)
                raise
            else:
                return connection
        raise AssertionError("the last try raises")

    async def _read(self, verb: Verb[T], version: int, now_ms: int | None, wake_waiters: WakeWaiters | None) -> T:
        for is_last in (False, True):
            connection = await self._pool.take(self._deadline_s)
            is_sound = False
            try:
                tx = PostgresTransaction(connection, self.space, version, now_ms, self._sender, notifier=self._notifier)
                answer = await verb(tx)
                is_sound = True
            except GONE as error:
                self._pool.drop_idle()
                if is_last or (isinstance(error, asyncpg.InterfaceError) and not connection.is_closed()):
                    raise
            except (asyncpg.PostgresError, ValueError) as error:
                is_sound = self._may_stay(error)
                raise
            finally:
                self._pool.give(connection, is_sound=is_sound)
            if is_sound:
                self._wake(tx, wake_waiters)
                return answer
        raise AssertionError("the last try raises")
