"""Check that a user's connection leads to the database of the store.

A run in another database with a schema of the same name would be written there without an error.
What a connection is to does not change while it lasts: each is asked once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from weakref import WeakSet

from asyncpg import Connection
from msgspec import Struct

from pollux.errors import InvalidInput
from pollux.store.postgres.transaction import PostgresTransaction


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
    """Where the store is, and which connections of the user's lead there."""

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
