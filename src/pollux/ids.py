"""Ids of jobs and runs: checks, and new ids that sort by time."""

from __future__ import annotations

import re
from random import Random

from pollux.errors import InvalidInput

ID_MAX = 200
KEY_MAX = 200
_ID = re.compile(r"[A-Za-z0-9._:/-]{1,200}\Z")
_MADE = re.compile(r"[0-9a-f]{28}\Z")


def is_id(value: str) -> bool:
    return _ID.match(value) is not None


def check_id(value: object, *, what: str = "id") -> str:
    """The id itself; an invalid one raises `InvalidInput` with the allowed characters."""
    if isinstance(value, str) and is_id(value):
        return value
    shown = repr(value if not isinstance(value, str) or len(value) <= 60 else value[:57] + "...")
    raise InvalidInput(
        f"{what} {shown} cannot be used",
        cure=f"an id has 1 to {ID_MAX} characters out of letters, digits and . _ : / -",
    )


def check_key(value: object) -> str | None:
    """The unique key of a live run (None: no limit on live runs); an invalid one raises `InvalidInput`."""
    if value is None or (isinstance(value, str) and 1 <= len(value) <= KEY_MAX and value.isprintable()):
        return value
    raise InvalidInput(f"key {str(value)[:60]!r} cannot be used", cure=f"a key has 1 to {KEY_MAX} printable characters")


def new_id(now_ms: int, dice: Random) -> str:
    """28 hexadecimal digits: the time, then 64 random bits."""
    return f"{now_ms:012x}{dice.getrandbits(64):016x}"


def new_ids(now_ms: int, dice: Random, count: int) -> list[str]:
    """`count` ids of one time in ascending order, which is cheapest for an index."""
    head, random = f"{now_ms:012x}", f"{dice.getrandbits(64 * count):0{16 * count}x}"
    return sorted([head + random[at : at + 16] for at in range(0, 16 * count, 16)])


def made_ms_of(run_id: str) -> int | None:
    """The time in an id made by `new_id`; None for an id of the caller's own (some of those look like ours)."""
    return int(run_id[:12], 16) if _MADE.match(run_id) else None


def firing_id(job_id: str, due_ms: int) -> str:
    """The id of a scheduled firing: the same job and due time always give the same id."""
    return f"{job_id}@{due_ms}"
