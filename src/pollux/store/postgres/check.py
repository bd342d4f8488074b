"""Consistency check of a schema: every rule that PostgreSQL itself cannot enforce, row by row.

It runs beside working processes: the counts are compared as of one moment, everything else goes in pages.  What can
be repaired without guessing (counts that can be counted again, indexes that can be built again) is, if asked;
meanwhile other writes wait.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from asyncpg import Connection

from pollux.errors import StoreRefused
from pollux.model import SCHEDULER_VERSION
from pollux.store.check_report import ENTRIES_ASIDE, FOUND_MAX, CheckFinding, CheckReport, Report, finding
from pollux.store.postgres import rows, schema
from pollux.store.postgres.address import PostgresAddress, read_address
from pollux.store.postgres.errors import AGAIN, DOOR, THEIRS, at_the_door, in_our_words
from pollux.store.postgres.transaction import PostgresTransaction, SchemaStatements
from pollux.store.relational.check import check_feed, check_records, check_rules

ASK_S = 10.0
LOCK_MS = 10_000
REPAIR_TRIES = 3
COUNTED = ("held", "ready", "leased", "feed", "ends", "jobs")
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+) ON")
_NO_INDEX = re.compile(r"DROP INDEX {s}\.(\w+)")
_RULES = {
    "states": "a run is both live and finished, or neither",
    "leases": "a leased run has no token",
    "orphans": "a run waits for a job that was deleted",
    "versions": "a run is in another version than its job",
    "buried": "a job is among the deleted ones, too",
}


async def check(url: str, report: Report) -> CheckReport:
    """Look at everything.  Raises if the schema is not ours or cannot be read."""
    async with connected(url) as (connection, space, address):
        version = await _recognised(connection, address, space)
        tx = PostgresTransaction(connection, space, SCHEDULER_VERSION)
        report("the indexes", 0, 0)
        findings = await _of_indexes(tx, space)
        report("the counts", 0, 0)
        findings += await _of_counts(tx)
        findings += await check_rules(tx, _RULES)
        runs, jobs, notes, log = await tx.one("check.sizes")
        findings += await check_records(tx, rows.run, rows.note, runs + jobs + notes + log, report)
        findings += await check_feed(tx)
        return CheckReport(f"{address.where}, schema {space.schema}", version, runs, jobs, notes, log, tuple(findings))


async def repair(url: str) -> None:
    """Build indexes again and count again."""
    async with connected(url) as (connection, space, address):
        await _recognised(connection, address, space)
        await _repair_indexes(connection, space)
        for nth in range(1, REPAIR_TRIES + 1):
            try:
                async with connection.transaction():
                    await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
                    tx = PostgresTransaction(connection, space, SCHEDULER_VERSION)
                    await _recount(tx)
                    await tx.fetch("check.forget", ENTRIES_ASIDE)
                return
            except AGAIN:
                if nth == REPAIR_TRIES:
                    raise


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[Connection, SchemaStatements, PostgresAddress]]:
    address = read_address(url)
    try:
        connection = await asyncpg.connect(address.dsn, timeout=ASK_S, statement_cache_size=0)
    except DOOR as error:
        raise at_the_door(error, address) from error
    except THEIRS as error:
        raise in_our_words(error, address.where) from error
    try:
        yield connection, SchemaStatements(address.schema), address
    except THEIRS as error:
        raise in_our_words(error, address.where) from error
    finally:
        connection.terminate()


async def _recognised(connection: Connection, address: PostgresAddress, space: SchemaStatements) -> int:
    """The number of our schema; refused if it is not there, not ours, or not as this program knows it."""
    version = await schema.version_of(connection, space, address.where)
    newest = schema.migrations()[-1].number
    if not version:
        raise StoreRefused(f"{address.where} has no store in schema {space.schema!r}; name the right one with ?schema=")
    if version < newest:
        raise StoreRefused(
            f"{address.where}: the schema {space.schema!r} is {version}, this Pollux knows {newest}; start a node, or "
            "any other command: that brings it up to date"
        )
    return version


# indexes


def index_statements() -> dict[str, str]:
    """Every index that the migrations leave behind, and how it is made."""
    found: dict[str, str] = {}
    for migration in schema.migrations():
        for statement in migration.statements:
            bare = "\n".join(line for line in statement.splitlines() if not line.startswith("--"))
            if match := _INDEX.search(bare):
                found[match[1]] = bare
            elif match := _NO_INDEX.search(bare):
                found.pop(match[1], None)
    return found


async def _of_indexes(tx: PostgresTransaction, space: SchemaStatements) -> list[CheckFinding]:
    there = {row[0]: row[1] for row in await tx.fetch("check.indexes", space.schema)}
    wrong = [f"{name} is not valid" for name, is_valid in sorted(there.items()) if not is_valid]
    wrong += [f"{name} is missing" for name in index_statements() if name not in there]
    return finding("indexes", "an index cannot be used: what it was for is slow, or not kept", wrong, can_repair=True)


async def _repair_indexes(connection: Connection, space: SchemaStatements) -> None:
    there = dict(await connection.fetch(space.named["check.indexes"], space.schema))
    for name, is_valid in there.items():
        if not is_valid:
            await connection.execute(space.sql(f'REINDEX INDEX {{s}}."{name}"'))
    for name, statement in index_statements().items():
        if name not in there:
            await connection.execute(space.sql(statement))


# counts


async def _of_counts(tx: PostgresTransaction) -> list[CheckFinding]:
    """As of one moment, so that no commit comes between the counts and what they count."""
    async with tx.one_moment():
        stored = {row[0]: tuple(row)[1:] for row in await tx.fetch("check.stored")}
        counted = {row[0]: tuple(row)[1:] for row in await tx.fetch("check.counted")}
        counted_dead, dead = await tx.one("check.dead")
        slots = await tx.fetch("check.slots", FOUND_MAX)
    wrong = [
        f"{name} in version {version}: {count} are counted, {found} are there"
        for version, row in counted.items()
        for name, count, found in zip(COUNTED, stored.get(version, (0,) * len(COUNTED)), row, strict=True)
        if count != found
    ]
    wrong += [f"dead: {counted_dead} are counted, {dead} are there"] if counted_dead != dead else []
    wrong += [f"version {version} has no slot {slot} to count in" for version, slot in slots]
    return finding("counts", "a count differs from what is there", wrong, can_repair=True)


async def _recount(tx: PostgresTransaction) -> None:
    """Write what is there into the first slot of each version; what only rises stays as it is."""
    await tx.fetch("check.lock")
    for version, slot in await tx.fetch("check.slots", FOUND_MAX):
        await tx.fetch("check.fill", version, slot)
    counted = [tuple(row) for row in await tx.fetch("check.counted")]
    _, dead = await tx.one("check.dead")
    await tx.fetch("check.clear")
    for row in counted:
        await tx.fetch("check.write", *row)
    for version, slot in await tx.fetch("check.slots", FOUND_MAX):
        await tx.fetch("check.fill", version, slot)
    await tx.fetch("check.write_dead", SCHEDULER_VERSION, dead)
