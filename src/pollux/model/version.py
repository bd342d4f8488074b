"""Scheduler version: a partition of the store for one deployment.

Several versions of a deployment can share one store: each has its own jobs, live runs, leader, timers, queues and feed.
The default is `SCHEDULER_VERSION`.
"""

from __future__ import annotations

from msgspec import Struct

from pollux.errors import InvalidInput
from pollux.model.results import Counts

SCHEDULER_VERSION = 2
VERSION_MAX = 9_999


class Version(Struct, frozen=True):
    """One version in the store."""

    number: int
    counts: Counts  # `dead` counts all versions: a dead letter belongs to its job, whatever the version of that is
    term: int
    leader: str  # the current leader's node id; empty: none


def check_version(number: int, *, where: str = "scheduler_version") -> int:
    """The number itself; one that no job can be in raises `InvalidInput`."""
    if isinstance(number, bool) or not 1 <= number <= VERSION_MAX:
        raise InvalidInput(f"{number} is no version", where=where, cure=f"use a number from 1 to {VERSION_MAX}")
    return number
