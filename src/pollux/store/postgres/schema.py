"""Checks of server and schema, and numbered migrations.

The table `meta` marks a schema of Pollux and counts the migrations that were applied to it.  All missing migrations run
in one transaction under a lock: a process that dies within it leaves the schema as it was, and the next one begins
again.  So indexes are built without CONCURRENTLY, which no transaction may hold, and tables are locked whole: readers
and writers of a table that changes wait for the commit, and never see half of a migration.  A foreign or newer schema,
and one of the format before the first release, is refused before anything is written to it.
"""

from __future__ import annotations

from asyncpg import Connection, InsufficientPrivilegeError

from pollux.errors import StoreRefused
from pollux.store.postgres.address import PostgresAddress
from pollux.store.postgres.transaction import SchemaStatements
from pollux.store.relational.sql import Migration, migrations_of
from pollux.store.relational.transaction import SCHEMA_LOCK

MARK = "pollux"
SERVER_MIN = 130_000
UNRELEASED = "has the format of a Pollux before its first release, which this one cannot read"
UNRELEASED_CURE = (
    "dump it with the Pollux that wrote it (`pollux store dump`) and load the dump into another schema (?schema=)"
)


def migrations() -> list[Migration]:
    """All of them, in order."""
    return migrations_of(__package__)


async def is_behind(connection: Connection, space: SchemaStatements, address: PostgresAddress) -> bool:
    """Refuse an unfit server; true if an earlier release made the schema.  A missing schema is made quickly."""
    where = address.where
    await _check_server(connection, where)
    if address.is_durable:
        await _check_durability(connection, where)
    return 0 < await version_of(connection, space, where) < migrations()[-1].number


async def prepare(connection: Connection, space: SchemaStatements, address: PostgresAddress) -> None:
    """Make the schema, or apply the missing migrations."""
    where = address.where
    if await version_of(connection, space, where) == migrations()[-1].number:
        return
    try:
        await _bring_up_to_date(connection, space, where)
    except InsufficientPrivilegeError as error:
        raise StoreRefused(
            f"{where}: this user may not make or change the schema {space.schema!r} ({error}); nothing was changed; "
            "let its owner open the store once with this release, or GRANT CREATE ON DATABASE if it is not there yet"
        ) from error


async def _bring_up_to_date(connection: Connection, space: SchemaStatements, where: str) -> None:
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1::int, $2::int)", space.lock_number, SCHEMA_LOCK)
        version = await version_of(connection, space, where)  # another process may have been quicker
        if statements := missing(version):
            await connection.execute(space.sql(";\n".join(statements)))


def missing(version: int) -> list[str]:
    """The statements that bring a schema up to date; none if it is."""
    begin = [] if version else ["CREATE SCHEMA IF NOT EXISTS {s}", "CREATE TABLE {s}.meta (mark text, version int)"]
    begin += [] if version else [f"INSERT INTO {{s}}.meta VALUES ('{MARK}', 0)"]  # noqa: S608  a word of ours
    newer = [migration for migration in migrations() if migration.number > version]
    statements = [statement for migration in newer for statement in migration.statements]
    end = [f"UPDATE {{s}}.meta SET version = {newer[-1].number}"] if newer else []  # noqa: S608  a number of ours
    return [*begin, *statements, *end]


def unreleased_table(schema: str) -> str:
    """A table that only the format before the first release has: its others have other names, too."""
    return f'"{schema}".tally'


async def _check_server(connection: Connection, where: str) -> None:
    number, version_text, is_standby, encoding = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(), "
        "current_setting('server_encoding')"
    )
    refuse_unfit(where, number=number, version_text=version_text, is_standby=is_standby, encoding=encoding)


async def _check_durability(connection: Connection, where: str) -> None:
    """Does it wait for its disk before it answers, with the settings of this user?"""
    for name in ("fsync", "synchronous_commit"):
        if await connection.fetchval("SELECT current_setting($1)", name) == "off":
            raise StoreRefused(
                f"{where} has {name} off, and durability is required: a crash of it loses what it has answered; "
                f"set {name} on"
            )


def refuse_unfit(where: str, *, number: int, version_text: str, is_standby: bool, encoding: str) -> None:
    if number < SERVER_MIN:
        raise StoreRefused(
            f"{where} is version {version_text}, too old; use PostgreSQL {SERVER_MIN // 10_000} or newer"
        )
    if is_standby:
        raise StoreRefused(f"{where} is a replica and can only be read; name the primary server")
    if encoding != "UTF8":
        raise StoreRefused(f"{where} has the encoding {encoding}; create the database with ENCODING 'UTF8'")


async def version_of(connection: Connection, space: SchemaStatements, where: str) -> int:
    """The number of migrations that were applied; refuses a schema that is neither Pollux's nor empty."""
    has_meta, tables, is_unreleased = await connection.fetchrow(
        "SELECT to_regclass($1) IS NOT NULL, (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace($2)), "
        "to_regclass($3) IS NOT NULL",
        f'"{space.schema}".meta',
        f'"{space.schema}"',
        unreleased_table(space.schema),
    )
    if not has_meta:
        if tables:
            raise StoreRefused(
                f"{where}: the schema {space.schema!r} belongs to another program; nothing was changed; "
                "name another one with ?schema="
            )
        return 0
    row = None
    columns = await connection.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
        f'"{space.schema}".meta',
    )
    if {column[0] for column in columns} == {"mark", "version"}:
        row = await connection.fetchrow(space.sql("SELECT mark, version FROM {s}.meta"))
    if row is None or row[0] != MARK:
        raise StoreRefused(
            f"{where}: the schema {space.schema!r} belongs to another program; nothing was changed; "
            "name another one with ?schema="
        )
    if is_unreleased:
        raise StoreRefused(f"{where}: the schema {space.schema!r} {UNRELEASED}; nothing was changed; {UNRELEASED_CURE}")
    newest = migrations()[-1].number
    if row[1] > newest:
        raise StoreRefused(
            f"{where}: the schema {space.schema!r} was written by a newer Pollux (it is {row[1]}, this one "
            f"knows {newest}); nothing was changed; upgrade Pollux"
        )
    return int(row[1])
