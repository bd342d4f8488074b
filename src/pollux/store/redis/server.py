"""Checks of a server, at every connection: after a failover it is another one."""

from __future__ import annotations

import logging
import re
from typing import Any

from pollux.errors import StoreError, StoreRefused
from pollux.store.redis.address import CLUSTER, SERVER, RedisAddress

FORMAT = 5  # of the keys; raised when they change
FORMAT_CURE = (
    "dump them with the Pollux that wrote them (`pollux store dump`) and load the dump into another ?namespace="
)
OLDEST = (7, 0)

log = logging.getLogger("pollux.store.redis")
log.addHandler(logging.NullHandler())  # a command that only looks has no log
_warned: set[str] = set()


def parse_info(answer: bytes) -> dict[str, Any]:
    """The fields of `INFO`, numbers as numbers."""
    found: dict[str, Any] = {}
    for line in answer.decode(errors="replace").splitlines():
        name, is_line, value = line.partition(":")
        if is_line and not name.startswith("#"):
            found[name] = int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else value
    return found


def check_server(info: dict[str, Any], address: RedisAddress) -> None:
    """Refuse what would lose runs; warn once of what may."""
    name = address.name
    _check_kind(info, address)
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise StoreRefused(f"the server {name} is Redis {version}; use 7.0 or newer, or Valkey")
    if info.get("role") == "slave":
        _refuse_replica(address)
    if words := _evicts(info, name):
        raise StoreRefused(words)
    # While it loads its file, it reports that it keeps none.
    if not int(info.get("aof_enabled", 0)) and not int(info.get("loading", 0)):
        _forgets(address)


def problems_of(info: dict[str, Any], address: RedisAddress) -> tuple[str, ...]:
    """What has become wrong with a server that was fit when we connected."""
    found = [_evicts(info, address.name)]
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if 0 < most <= used:
        found.append(
            f"the memory of the server {address.name} is full: nothing new is planned or taken in, what runs is still "
            "recorded; raise maxmemory, or keep less history (history.keep, history.age)"
        )
    return tuple(filter(None, found))


def _evicts(info: dict[str, Any], name: str) -> str:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ""
    return (
        f"the server {name} forgets keys when its memory is full (maxmemory-policy {policy}), and so would lose runs; "
        "set maxmemory-policy noeviction (CONFIG SET, and in redis.conf)"
    )


def _forgets(address: RedisAddress) -> None:
    name = address.name
    if address.is_durable:
        raise StoreRefused(
            f"the server {name} keeps no append-only file, and durability is required: a crash of it loses what was "
            "written since its last snapshot; set appendonly yes"
        )
    if name not in _warned:
        _warned.add(name)
        log.warning(
            "the server %s keeps no append-only file: a crash of it loses what was written since its last snapshot; "
            "set appendonly yes",
            name,
        )


def check_fsync(fsync: str | None, address: RedisAddress) -> None:
    """Refuse one that leaves it to its system when the file comes to the disk; an unknown one is trusted."""
    if fsync == "no" and address.is_durable:
        raise StoreRefused(
            f"the server {address.name} has appendfsync no, and durability is required: a power cut loses what its "
            "system has not written yet, often half a minute; set appendfsync everysec, or always to lose nothing"
        )


def _check_kind(info: dict[str, Any], address: RedisAddress) -> None:
    mode = info.get("redis_mode") or info.get("server_mode")  # as Valkey says
    if mode == "sentinel":
        raise StoreRefused(
            f"{address.name} is a sentinel, not a server; use redis+sentinel://host:port,.../service in the store's URL"
        )
    if mode == "cluster" and address.kind != CLUSTER:
        raise StoreRefused(
            f"the server {address.name} is part of a cluster; use redis+cluster://host:port,... in the store's URL"
        )


def _refuse_replica(address: RedisAddress) -> None:
    if address.kind == SERVER:
        raise StoreRefused(
            f"the server {address.name} is a replica and only reads; name the primary in the store's URL"
        )
    raise StoreError(
        f"the {address.kind} {address.name} still names a server that became a replica; it soon names the new primary"
    )


def check_format(found: str, name: str) -> None:
    if found != str(FORMAT):
        raise foreign_format(found, name)


def foreign_format(found: str, name: str) -> StoreRefused:
    return StoreRefused(f"the keys on {name} have format {found}, this Pollux writes format {FORMAT}; {FORMAT_CURE}")
