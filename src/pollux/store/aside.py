"""What if this node cannot read a run's job?  The run is handed back for a while: a newer node may be able to.

While releases change, a job may say what the older one does not know.  Its runs are none the worse for it.  While one
rests nobody has it, and then whoever comes first: so it rests a second or two, and longer each time that nobody else
has taken it.  Where thousands wait they rest longer, too, or this node would do nothing else.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from pollux.clock import Clock
from pollux.model import Back
from pollux.store.contract import Settlement

REST_MS = 1_000  # after the first delivery, or up to twice as long; doubled by each one more
REST_EACH_MS = 2  # at least, for each run of the job that this handle met since it was said: so many have their turn
REST_MAX_MS = 60_000
SAY_AGAIN_MS = 60_000  # of one job
SAID_MAX = 10_000  # jobs of which that is remembered; beyond it all may be named anew
_log = logging.getLogger("pollux.store")


class Leased(NamedTuple):
    run_id: str
    token: str
    job_id: str
    fence: int


class Aside:
    """The runs that a handle hands back, and what it says of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._dice = clock, Random()  # noqa: S311  a rest, no secret
        self._said_ms: dict[str, float] = {}
        self._met: Counter[str] = Counter()  # runs of each job, since that was said

    def settlements(
        self, leased: Sequence[Leased], reasons: Mapping[str, str], node: str, now_ms: int
    ) -> list[Settlement]:
        """What hands them back, uncharged; their progress says why until somebody has them.  Reasons are by job."""
        met = Counter([each.job_id for each in leased])
        for job_id in met:
            self._say(job_id, reasons[job_id])
        self._met.update(met)
        roll, words = self._dice.random(), f"node {node} cannot read its job; another one may"
        rests = [rest_ms(each.fence, self._met[each.job_id], roll=roll) for each in leased]
        return [
            Settlement(each.run_id, each.token, Back(now_ms + rest), progress=words)
            for each, rest in zip(leased, rests, strict=True)
        ]

    def _say(self, job_id: str, reason: str) -> None:
        now_ms = self._clock.mono_ms()
        said_ms = self._said_ms.get(job_id)
        if said_ms is not None and now_ms - said_ms < SAY_AGAIN_MS:
            return
        if len(self._said_ms) >= SAID_MAX:
            self._said_ms.clear()
            self._met.clear()
        self._said_ms[job_id] = now_ms
        self._met.pop(job_id, None)
        _log.warning(
            "job %r cannot be read here (%s): its runs are set aside, seconds at first and up to %d s at a time, for a "
            "node of a newer release; if there is none, somebody else wrote it: put it anew, or delete it",
            job_id,
            reason,
            REST_MAX_MS // 1000,
        )


def rest_ms(fence: int, met: int, *, roll: float) -> int:
    """Until it may be had again; `met` are the runs of its job, `roll` in [0, 1) is thrown by the caller."""
    rest = max(REST_MS << min(fence - 1, 9), REST_EACH_MS * met)
    return int(min(rest, REST_MAX_MS // 2) * (1 + roll))
