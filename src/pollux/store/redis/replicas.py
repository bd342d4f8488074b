"""Replicas that must confirm a write (`?wait=`).

At least as many as the URL names, and every one that is in step with the primary: whichever of them is promoted then
has all that was answered.  One that is in step no more may have been promoted while its old primary still takes writes,
so its confirmation is required until that would be known.  Sentinel compares replicas by what it heard of them in the
last ten seconds; after that time it no longer prefers one that fell behind, and writes go on without it.

    in step     2 2 2 1 1 1 ... 1 1        one leaves: promoted, dead, cut off or restarted
    confirmed   2 2 2 - - - ... 1 1        nothing is answered for GRACE_S, unless another primary is found before

A replica in its first synchronisation is not in step: it confirms nothing and is not waited for.
"""

from __future__ import annotations

import re
from typing import Any

LOOK_S = 1.0  # between two looks at who follows
LAG_S = 2  # a replica in step is heard every second
GRACE_S = 10.0  # Sentinel's own period for `INFO`

_REPLICA = re.compile(r"(?:slave|replica)[0-9]+")
_IN_STEP = re.compile(r"(?=.*\bstate=online\b).*\blag=([0-9]+)")


class Replicas:
    """The replicas of the primary at which one handle is."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._primary = ""
        self._in_step = 0
        self._fewer_since: float | None = None
        self._looked_at = float("-inf")

    @property
    def needed(self) -> int:
        """How many must confirm a write."""
        return max(self._wanted, self._in_step)

    def is_unseen(self, now_s: float) -> bool:
        """Is it time to look again?"""
        return now_s - self._looked_at >= LOOK_S

    def is_outdated(self, now_s: float) -> bool:
        """Were fewer seen so long ago that a look may end the wait for the missing one?"""
        return self._fewer_since is not None and now_s - self._fewer_since >= GRACE_S

    def see(self, info: dict[str, Any], now_s: float) -> None:
        """Take what the primary reports of its replicas: another primary, or more of them, count at once."""
        self._looked_at = now_s
        primary, found = str(info.get("master_replid", "")), in_step(info)
        if primary != self._primary or found >= self._in_step:
            self._primary, self._in_step, self._fewer_since = primary, found, None
        elif self._fewer_since is None:
            self._fewer_since = now_s
        elif self.is_outdated(now_s):
            self._in_step, self._fewer_since = found, None


def in_step(info: dict[str, Any]) -> int:
    """How many replicas have everything but the last moment, as `INFO replication` tells it."""
    lags = [_IN_STEP.match(str(value)) for name, value in info.items() if _REPLICA.fullmatch(name)]
    return sum(found is not None and int(found[1]) <= LAG_S for found in lags)
