"""Read-only inspection of a PostgreSQL server and schema, for `pollux doctor`.

One connection, and statements that only read.  What this user may not see is reported as unknown, never as wrong.
"""

from __future__ import annotations

import statistics
import time

import asyncpg
from asyncpg import Connection
from msgspec import Struct

from pollux.model import SCHEDULER_VERSION
from pollux.store.postgres import schema
from pollux.store.postgres.address import PostgresAddress, read_address
from pollux.store.postgres.database import PostgresDatabase
from pollux.store.postgres.errors import DOOR, THEIRS, at_the_door, in_our_words
from pollux.store.postgres.transaction import SchemaStatements

ASK_S = 5.0
WAIT_MS = 10_000
TRIPS = 21
HOT = ("queue", "runs", "jobs", "feed", "claims", "counters", "nodes", "term")  # tables that are written all the time


class TableStats(Struct, frozen=True):
    """A table that is written all the time: rows, and what deleted and replaced ones left behind."""

    name: str
    live: int
    dead: int


class PostgresReport(Struct, frozen=True):
    """State of the server, of our schema, and of the connection."""

    address: PostgresAddress
    version: str
    number: int  # of the version: 160002
    is_standby: bool
    encoding: str
    settings: dict[str, str]  # synchronous_commit, fsync, full_page_writes, autovacuum
    connections: int
    connections_max: int  # for all users but superusers
    has_pooler: bool  # between us and the server
    user: str
    may_create: bool  # schemas in this database
    schema: int | None  # migrations that our schema has seen; None: it is not there yet
    is_ours: bool  # no foreign tables are in it
    is_unreleased: bool  # it has the format before the first release, which this program cannot read
    newest: int  # migrations that this program knows
    refused: tuple[str, ...]  # tables and sequences of ours that this user may not use
    tables: tuple[TableStats, ...]
    oldest_transaction_s: int  # how long the oldest one that we can see has been open
    trip_ms: float  # a question and its answer, the median of some
    offset_ms: int  # how far its clock lies ahead of ours, as far as can be measured

    @property
    def is_current(self) -> bool:
        return self.is_ours and not self.is_unreleased and self.schema == self.newest


async def look_at_server(url: str) -> PostgresReport:
    """Ask it.  Raises what a store would raise if it cannot be reached or does not let us in."""
    address = read_address(url)
    try:
        connection = await asyncpg.connect(address.dsn, timeout=ASK_S, statement_cache_size=0)
    except DOOR as error:
        raise at_the_door(error, address) from error
    except THEIRS as error:
        known = isinstance(error, asyncpg.PostgresError)
        raise (in_our_words(error, address.where) if known else at_the_door(error, address)) from error
    try:
        return await _look(connection, address)
    except THEIRS as error:
        raise in_our_words(error, address.where) from error
    finally:
        connection.terminate()


async def lacking(url: str) -> str:
    """What is missing for a store to be there; nothing if it is, or if the schema belongs to another program.

    A server that is still starting is waited for.
    """
    address = read_address(url)
    database = PostgresDatabase(address, WAIT_MS, "", 1)
    names = f'"{address.schema}".meta', f'"{address.schema}"'
    try:
        [(has_meta, tables)] = await database.read(lambda tx: tx.fetch("inspect.schema", *names), SCHEDULER_VERSION)
    finally:
        await database.close()
    return "" if has_meta or tables else f"no schema {address.schema!r}"


async def _look(connection: Connection, address: PostgresAddress) -> PostgresReport:
    named = SchemaStatements(address.schema).named
    trip_ms, offset_ms = await _times(connection, named["inspect.now"])
    row = await connection.fetchrow(named["inspect.server"])
    settings = dict(await connection.fetch(named["inspect.settings"]))
    has_meta, tables = await connection.fetchrow(
        named["inspect.schema"], f'"{address.schema}".meta', f'"{address.schema}"'
    )
    version = await _version(connection, address) if has_meta else None
    is_unreleased = await connection.fetchval(named["inspect.has_table"], schema.unreleased_table(address.schema))
    rows = await connection.fetch(named["inspect.tables"], address.schema, HOT) if version is not None else []
    refused = await connection.fetch(named["inspect.refused"], address.schema) if version is not None else []
    return PostgresReport(
        address=address,
        version=row["version"],
        number=row["number"],
        is_standby=row["is_standby"],
        encoding=row["encoding"],
        settings=settings,
        connections=row["connections"],
        connections_max=row["connections_max"],
        has_pooler=row["pid"] != connection.get_server_pid(),
        user=row["username"],
        may_create=row["may_create"],
        schema=version,
        is_ours=version is not None or not tables,
        is_unreleased=version is not None and is_unreleased,
        newest=schema.migrations()[-1].number,
        refused=tuple(each[0] for each in refused),
        tables=tuple(TableStats(*each) for each in rows),
        oldest_transaction_s=int(row["oldest_transaction_s"] or 0),
        trip_ms=trip_ms,
        offset_ms=offset_ms,
    )


async def _version(connection: Connection, address: PostgresAddress) -> int | None:
    """None: a table of that name is there, and it is not ours."""
    try:
        row = await connection.fetchrow(f'SELECT mark, version FROM "{address.schema}".meta')  # noqa: S608  checked
    except asyncpg.UndefinedColumnError:
        return None
    return None if row is None or row[0] != schema.MARK else int(row[1])


async def _times(connection: Connection, now: str) -> tuple[float, int]:
    trips, offsets = [], []
    for _ in range(TRIPS):
        began, here_ms = time.monotonic(), time.time() * 1_000
        there_ms = await connection.fetchval(now)
        trip_ms = (time.monotonic() - began) * 1_000
        trips.append(trip_ms)
        offsets.append(float(there_ms) - here_ms - trip_ms / 2)
    return statistics.median(trips), round(statistics.median(offsets))
