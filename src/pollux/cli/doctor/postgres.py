"""Checks of a PostgreSQL server: version, durability, vacuum, connections, poolers, clock, rights, distance."""

from __future__ import annotations

from collections.abc import Iterator

from pollux.cli.doctor.deployment import of_distance, of_offset
from pollux.cli.doctor.finding import DoctorFinding, fail, ok, warn
from pollux.store.postgres.inspect import PostgresReport, TableStats
from pollux.store.postgres.schema import SERVER_MIN, UNRELEASED, UNRELEASED_CURE
from pollux.units import SECOND_MS, format_ms

NAMED_MAX = 5  # tables
LEFT_WARN = 10  # connections
BLOAT_ROWS, BLOAT_SHARE = 10_000, 5  # dead rows at least, and so many times the living ones
OLD_S = 600  # a transaction that is open for longer keeps the vacuum from its work


def judge(server: PostgresReport) -> Iterator[DoctorFinding]:
    yield of_version(server)
    yield of_role(server)
    yield of_durability(server)
    yield of_vacuum(server)
    yield of_bloat(server.tables)
    yield of_transactions(server)
    yield of_connections(server)
    yield of_pooler(server)
    yield of_rights(server)
    yield of_offset(server.offset_ms)
    yield of_distance(server.trip_ms)
    yield of_schema(server)


def of_version(server: PostgresReport) -> DoctorFinding:
    seen = f"{server.address.where.replace('PostgreSQL', f'PostgreSQL {server.version}', 1)}"
    if server.number < SERVER_MIN:
        return fail("server", seen, f"use PostgreSQL {SERVER_MIN // 10_000} or newer")
    if server.encoding != "UTF8":
        return fail("server", f"{seen}, encoding {server.encoding}", "create the database with ENCODING 'UTF8'")
    return ok("server", seen)


def of_role(server: PostgresReport) -> DoctorFinding:
    if server.is_standby:
        cure = "name the primary, or list all hosts with ?target_session_attrs=primary"
        return fail("role", "it is a replica, and only reads", cure)
    return ok("role", "it takes writes")


def of_durability(server: PostgresReport) -> DoctorFinding:
    settings = server.settings
    off = [name for name in ("fsync", "full_page_writes") if settings.get(name) == "off"]
    if off:
        seen = f"{' and '.join(off)} off: a power cut may damage the whole database"
        return warn("durability", seen, f"ALTER SYSTEM SET {off[0]} = on; then SELECT pg_reload_conf()")
    if settings.get("synchronous_commit") == "off":
        seen = "synchronous_commit off: a crash loses the last moments, though they were answered"
        return warn("durability", seen, "ALTER ROLE ... SET synchronous_commit = on")
    return ok("durability", f"fsync on, synchronous_commit {settings.get('synchronous_commit', 'unknown')}")


def of_vacuum(server: PostgresReport) -> DoctorFinding:
    if server.settings.get("autovacuum") == "off":
        seen = "autovacuum is off: the busy tables only grow, and claims become slower and slower"
        return fail("vacuum", seen, "ALTER SYSTEM SET autovacuum = on; then SELECT pg_reload_conf()")
    return ok("vacuum", "autovacuum is on")


def of_bloat(tables: tuple[TableStats, ...]) -> DoctorFinding:
    fat = [table for table in tables if table.dead > BLOAT_ROWS and table.dead > BLOAT_SHARE * max(1, table.live)]
    if fat:
        seen = ", ".join(f"{table.name}: {table.dead:,} dead rows beside {table.live:,}" for table in fat)
        return warn("bloat", seen, f"VACUUM ANALYZE {fat[0].name}; end transactions that are open for long")
    return ok("bloat", "the busy tables are lean" if tables else "there is no table yet")


def of_transactions(server: PostgresReport) -> DoctorFinding:
    open_for = format_ms(server.oldest_transaction_s * SECOND_MS)
    if server.oldest_transaction_s > OLD_S:
        seen = f"a transaction is open for {open_for}: nothing that was deleted since can be cleaned up"
        return warn("transactions", seen, "find it in pg_stat_activity (xact_start), and end it")
    return ok("transactions", "none is open for long")


def of_connections(server: PostgresReport) -> DoctorFinding:
    left = server.connections_max - server.connections
    seen = f"{server.connections} of {server.connections_max} are taken"
    cure = "raise max_connections, lower ?pool= of the processes, or put PgBouncer between"
    if left <= 0:
        return fail("connections", seen, cure)
    return warn("connections", seen, cure) if left < LEFT_WARN else ok("connections", seen)


def of_pooler(server: PostgresReport) -> DoctorFinding:
    if not server.has_pooler:
        return ok("pooler", "none: we talk to the server itself")
    if server.address.listen:
        seen = "a pooler (PgBouncer?) is between us and the server: in transaction mode no notification arrives"
        return warn("pooler", seen, "add ?listen=false in transaction mode; in session mode all is well")
    return ok("pooler", "a pooler (PgBouncer?) is between us and the server; we do not listen")


def of_rights(server: PostgresReport) -> DoctorFinding:
    name = server.address.schema
    if server.refused:
        more = f" and {len(server.refused) - NAMED_MAX} more" if len(server.refused) > NAMED_MAX else ""
        named = ", ".join(server.refused[:NAMED_MAX])
        seen = f"user {server.user} may not use {named}{more} in schema {name}"
        grant = f"GRANT ALL ON ALL TABLES IN SCHEMA {name} TO {server.user}; the same for ALL SEQUENCES"
        return fail("rights", seen, grant)
    if server.schema is None and server.is_ours and not server.may_create:
        cure = f"GRANT CREATE ON DATABASE ... TO {server.user}, or let the owner make the schema {name}"
        return fail("rights", f"user {server.user} may not make the schema {name}", cure)
    return ok("rights", f"user {server.user} may do all that is needed in schema {name}")


def of_schema(server: PostgresReport) -> DoctorFinding:
    name = server.address.schema
    if not server.is_ours:
        return fail("schema", f"schema {name} belongs to another program", "name another one with ?schema=")
    if server.schema is None:
        return ok("schema", f"{name} is not there yet; the first start makes it")
    if server.is_unreleased:
        return fail("schema", f"{name} {UNRELEASED}", UNRELEASED_CURE)
    if server.schema > server.newest:
        seen = f"{name} was written by a newer Pollux (schema {server.schema}, this one knows {server.newest})"
        return fail("schema", seen, "upgrade Pollux")
    if server.schema < server.newest:
        return ok("schema", f"{name}, version {server.schema}; the next start brings it to {server.newest}")
    return ok("schema", f"{name}, version {server.schema}, the newest")
