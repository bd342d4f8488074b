"""What if this node cannot read a run's job?  The run is handed back for a while: a newer node may be able to.

While releases change, a job may say what the older one does not know.  Its runs are none the worse for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pollux.clock import Clock
from pollux.model import Back
from pollux.store.contract import Settlement

ASIDE_MS = 60_000  # for so long others may have it; then whoever comes first
SAY_AGAIN_MS = 60_000  # of one job
SAID_MAX = 10_000  # jobs of which that is remembered; beyond it all may be named anew
_log = logging.getLogger("pollux.store")


class Leased(NamedTuple):
    run_id: str
    token: str
    job_id: str


class Aside:
    """The runs that a handle hands back, and what it says of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_ms: dict[str, float] = {}

    def settlements(
        self, leased: Sequence[Leased], reasons: Mapping[str, str], node: str, now_ms: int
    ) -> list[Settlement]:
        """What hands them back, uncharged; their progress says why until somebody has them.  Reasons are by job."""
        for job_id in dict.fromkeys([each.job_id for each in leased]):
            self._say(job_id, reasons[job_id])
        back = Back(now_ms + ASIDE_MS)
        return [
            Settlement(each.run_id, each.token, back, progress=f"node {node} cannot read its job; another one may")
            for each in leased
        ]

    def _say(self, job_id: str, reason: str) -> None:
        now_ms = self._clock.mono_ms()
        said_ms = self._said_ms.get(job_id)
        if said_ms is not None and now_ms - said_ms < SAY_AGAIN_MS:
            return
        if len(self._said_ms) >= SAID_MAX:
            self._said_ms.clear()
        self._said_ms[job_id] = now_ms
        _log.warning(
            "job %r cannot be read here (%s): its runs are set aside for %d s at a time, for a node of a newer "
            "release; if there is none, somebody else wrote it: `pollux store check` names it",
            job_id,
            reason,
            ASIDE_MS // 1000,
        )
