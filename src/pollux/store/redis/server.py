"""May we trust this server with our runs?  Asked once, when the store is opened."""

from __future__ import annotations

import logging
import re
from typing import Any

from pollux.errors import StoreRefused

FORMAT = 1  # of the keys; raised when they change
OLDEST = (7, 0)

_log = logging.getLogger("pollux.store.redis")
_log.addHandler(logging.NullHandler())  # a command that only looks has no log, and says nothing of it
_warned: set[str] = set()


def check_server(info: dict[str, Any], name: str) -> None:
    """Refuse what would lose runs; warn once of what may."""
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise StoreRefused(f"the server {name} is Redis {version}; use 7.0 or newer, or Valkey")
    if info.get("role") == "slave":
        raise StoreRefused(f"the server {name} is a replica and only reads; name the primary in the store's URL")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreRefused(
            f"the server {name} forgets keys when its memory is full (maxmemory-policy {policy}), and so would lose "
            "runs; set maxmemory-policy noeviction"
        )
    if not int(info.get("aof_enabled", 0)) and name not in _warned:
        _warned.add(name)
        _log.warning(
            "the server %s keeps no append-only file: a crash of it loses what was written since its last snapshot; "
            "set appendonly yes",
            name,
        )


def check_format(found: str, name: str) -> None:
    if found != str(FORMAT):
        raise StoreRefused(
            f"the keys on {name} have format {found}, this Pollux writes format {FORMAT}; "
            "use the Pollux that wrote them, or another ?namespace="
        )
