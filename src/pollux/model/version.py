"""Which deployment does it belong to?  A version: jobs, their live runs and the one who plans them, apart from others.

Several versions of a deployment can use one store beside each other: each has its own leader, timers, lines and feed.
What nothing is said of belongs to `SCHEDULER_VERSION`.
"""

from __future__ import annotations

from msgspec import Struct

from pollux.errors import InvalidInput
from pollux.model.results import Counts

SCHEDULER_VERSION = 2
ALL_VERSIONS = 0  # of a worker: whatever there is
VERSION_MAX = 9_999


class Version(Struct, frozen=True):
    """One version as the store knows it."""

    number: int
    counts: Counts  # `dead` is of all versions: a dead letter belongs to its job, wherever that is
    term: int
    leader: str  # the node that leads it now; empty: none


def check_version(number: int, *, where: str = "scheduler_version") -> int:
    """A version that a job can be in."""
    if isinstance(number, bool) or not 1 <= number <= VERSION_MAX:
        raise InvalidInput(f"{number} is no version", where=where, cure=f"use a number from 1 to {VERSION_MAX}")
    return number
