"""Removal of a store: what the migrations made, in one transaction, and the schema if it is empty then.

Nothing is dropped with what depends on it (RESTRICT): a foreign view or table that depends on one of ours aborts it.
"""

from __future__ import annotations

import re

import asyncpg
from asyncpg import Connection

from pollux.errors import StoreRefused
from pollux.store.postgres import schema
from pollux.store.postgres.address import PostgresAddress
from pollux.store.postgres.check import LOCK_MS, connected
from pollux.store.postgres.transaction import SchemaStatements
from pollux.store.relational.transaction import SCHEMA_LOCK

KINDS = ("TABLE", "SEQUENCE", "FUNCTION")  # each after those that need it
_MADE = re.compile(rf"^CREATE (?:OR REPLACE )?({'|'.join(KINDS)}) \{{s\}}\.(\w+)", re.MULTILINE)
_LEFT = "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind <> 'i'"


async def drop(url: str) -> int:
    """Drop all that is ours; answers how many things of others the schema holds, which stays then."""
    async with connected(url) as (connection, space, address):
        if not await schema.version_of(connection, space, address.where):
            name = space.schema
            raise StoreRefused(f"{address.where} has no store in schema {name!r}; name the right one with ?schema=")
        try:
            async with connection.transaction():
                return await _drop(connection, space)
        except asyncpg.InsufficientPrivilegeError as error:
            raise StoreRefused(
                f"{address.where}: this user may not drop what is in the schema {space.schema!r} ({error}); nothing "
                "was changed; let its owner do it"
            ) from error
        except asyncpg.DependentObjectsStillExistError as error:
            raise _needed(error, address) from error


async def _drop(connection: Connection, space: SchemaStatements) -> int:
    await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
    await connection.execute("SELECT pg_advisory_xact_lock($1::int, $2::int)", space.lock_number, SCHEMA_LOCK)
    for kind, names in made().items():
        all_of_them = ", ".join(f"{{s}}.{name}" for name in names)
        await connection.execute(space.sql(f"DROP {kind} IF EXISTS {all_of_them} RESTRICT"))
    left = int(await connection.fetchval(_LEFT, f'"{space.schema}"'))
    if not left and space.schema != "public":
        await connection.execute(space.sql("DROP SCHEMA {s} RESTRICT"))
    return left


def made() -> dict[str, list[str]]:
    """What of ours the schema holds, by kind; indexes go with their tables."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    found["TABLE"].append("meta")
    for statement in schema.missing(0):
        for kind, name in _MADE.findall(statement):
            if name not in found[kind]:
                found[kind].append(name)
    return found


def _needed(error: asyncpg.DependentObjectsStillExistError, address: PostgresAddress) -> StoreRefused:
    why = " ".join((error.detail or str(error)).split())[:300]
    return StoreRefused(
        f"{address.where}: another object depends on what would be dropped ({why}); nothing was changed; "
        "drop that first"
    )
