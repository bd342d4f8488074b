"""Checks of a Redis server: version, persistence, eviction, memory, replicas, clock, rights, distance."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pollux.cli.doctor.deployment import of_distance, of_offset
from pollux.cli.doctor.finding import DoctorFinding, about_size, fail, ok, warn
from pollux.store.redis.address import CLUSTER
from pollux.store.redis.inspect import RedisReport
from pollux.store.redis.replicas import in_step
from pollux.store.redis.server import FORMAT, FORMAT_CURE, OLDEST

FULL_WARN, FULL_FAIL = 0.8, 0.95  # of maxmemory
CLIENTS_WARN = 0.9  # of maxclients
FORGETFUL = {
    "always": "always: nothing that was answered is lost by a crash",
    "everysec": "everysec: a crash loses at most about a second",
}


def judge(server: RedisReport) -> Iterator[DoctorFinding]:
    yield of_version(server)
    yield of_role(server)
    yield of_persistence(server)
    yield of_saves(server)
    yield of_eviction(server)
    yield of_memory(server)
    yield of_replicas(server)
    yield of_clients(server)
    yield of_rights(server)
    yield of_offset(server.offset_ms)
    yield of_distance(server.trip_ms)
    yield of_keys(server)


def of_version(server: RedisReport) -> DoctorFinding:
    info = server.info
    name, version = "Redis", str(info.get("redis_version", "?"))
    if "valkey_version" in info:
        name, version = "Valkey", str(info["valkey_version"])
    mode = str(info.get("redis_mode") or info.get("server_mode", "standalone"))  # as Valkey names it
    seen = f"{name} {version}, {mode}, at {server.address.name}"
    if mode == "cluster" and server.address.kind != CLUSTER:
        return fail("server", seen, "use redis+cluster://host:port,... in the store's URL")
    if name == "Redis" and tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        return fail("server", seen, "use Redis 7.0 or newer, or Valkey")
    return ok("server", seen)


def of_role(server: RedisReport) -> DoctorFinding:
    if server.info.get("role") == "slave":
        primary = f"{server.info.get('master_host')}:{server.info.get('master_port')}"
        return fail("role", "it is a replica, and only reads", f"name the primary ({primary}) in the store's URL")
    if server.info.get("loading"):
        return warn("role", "it is still loading its data", "wait until that is done")
    return ok("role", "it takes writes")


def of_persistence(server: RedisReport) -> DoctorFinding:
    info = server.info
    if not info.get("aof_enabled"):
        seen = "no append-only file: a crash loses what was written since the last snapshot"
        return _forgets(server, seen, "CONFIG SET appendonly yes, and the same in redis.conf")
    if info.get("aof_last_write_status", "ok") != "ok":
        return fail("persistence", "its append-only file cannot be written", "make room on its disk; see its log")
    if server.fsync is None:
        return ok("persistence", "append-only file; this user may not read appendfsync")
    if server.fsync not in FORGETFUL:
        seen = f"append-only file, but appendfsync {server.fsync}: a power cut loses what the kernel has not written"
        return _forgets(server, seen, "CONFIG SET appendfsync everysec (or always), and the same in redis.conf")
    return ok("persistence", f"append-only file, appendfsync {FORGETFUL[server.fsync]}")


def _forgets(server: RedisReport, seen: str, cure: str) -> DoctorFinding:
    """Something to know of, unless the store's URL requires more: then no node starts on it."""
    if server.address.is_durable:
        return fail("persistence", f"{seen}; durability is required, so no node starts on it", cure)
    return warn("persistence", seen, cure)


def of_saves(server: RedisReport) -> DoctorFinding:
    if server.info.get("rdb_last_bgsave_status", "ok") != "ok":
        seen = "its last snapshot failed: it may refuse all writes (stop-writes-on-bgsave-error)"
        return fail("snapshots", seen, "make room on its disk, or memory for the fork (vm.overcommit_memory=1)")
    return ok("snapshots", "the last one went well, or there was none")


def of_eviction(server: RedisReport) -> DoctorFinding:
    policy = str(server.info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        seen = f"maxmemory-policy {policy}: when its memory is full it forgets keys, and so runs"
        return fail("eviction", seen, "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf")
    return ok("eviction", "noeviction: it forgets nothing by itself")


def of_memory(server: RedisReport) -> DoctorFinding:
    used, most = int(server.info.get("used_memory", 0)), int(server.info.get("maxmemory", 0))
    if not most:
        return ok("memory", f"{about_size(used)} used, no maxmemory", "set maxmemory below the machine's memory")
    seen = f"{about_size(used)} of {about_size(most)} used"
    cure = "raise maxmemory, or keep less history (history.keep, history.age)"
    if used > most * FULL_FAIL:
        return fail("memory", f"{seen}: new work is about to be refused", cure)
    return warn("memory", seen, cure) if used > most * FULL_WARN else ok("memory", seen)


def of_replicas(server: RedisReport) -> DoctorFinding:
    there, wanted, ready = int(server.info.get("connected_slaves", 0)), server.address.wait, in_step(server.info)
    if wanted > ready and there > ready:
        seen = f"?wait={wanted}, but of {there} replicas {ready} are in step: no write is confirmed by the others"
        return fail("replicas", seen, "wait until they have everything (INFO replication: state=online), promote none")
    if wanted > there:
        seen = f"?wait={wanted}, but {there} replicas follow: every write will count as unconfirmed"
        return fail("replicas", seen, f"start {wanted - there} more, or lower ?wait=")
    if not there:
        return ok("replicas", "none", "a replica and ?wait=1 keep what was answered when this machine is lost")
    confirmed = f"{max(wanted, ready)} confirm every write" if wanted else "none is waited for"
    if there > ready:
        return warn("replicas", f"{there} follow, {ready} in step, {confirmed}", "promote none that is not in step")
    return ok("replicas", f"{there} follow, {confirmed}", "" if wanted else "?wait=1: no answer before one has it")


def of_clients(server: RedisReport) -> DoctorFinding:
    there, most = int(server.info.get("connected_clients", 0)), int(server.info.get("maxclients", 0))
    if most and there > most * CLIENTS_WARN:
        return warn("connections", f"{there} of {most} are taken", "CONFIG SET maxclients higher, or end some")
    return ok("connections", f"{there} of {most or 'any number'} are taken")


def of_rights(server: RedisReport) -> DoctorFinding:
    who = server.user or "this user"
    pattern = f"~{server.address.prefix}:*"
    grant = f"ACL SETUSER {who} {pattern} +@read +@write +@stream +@scripting +@connection +info +time"
    if server.refused is None:
        return warn("rights", f"not known: user {who} may not run the script that asks for them (EVAL)", grant)
    if server.refused == ("",):
        return fail("rights", f"user {who} may not call functions on our keys", grant)
    if server.refused:
        return fail("rights", f"user {who} may not use {', '.join(server.refused)} on keys {pattern[1:]}", grant)
    return ok("rights", f"user {who} may do all that is needed on keys {pattern[1:]}")


def of_keys(server: RedisReport) -> DoctorFinding:
    prefix = server.address.prefix
    if server.format is None:
        return ok("keys", f"none under {prefix}: yet; the first start makes them")
    if server.format != str(FORMAT):
        seen = f"those under {prefix}: have format {server.format}, this Pollux writes format {FORMAT}"
        return fail("keys", seen, FORMAT_CURE)
    return ok("keys", f"under {prefix}:, format {server.format}")
