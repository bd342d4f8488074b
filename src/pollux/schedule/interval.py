"""When does an interval fire?  On a grid that never drifts: `phase + k * every_ms` on the wall clock.

    |-----x---------x---------x---------x-----    the grid of the job; x = phase + k * every
       ^                                          put: the first run is at once, off the grid
       |---half--|->x                             the second: the first x at least half an interval later

The grid is computed from the job's id (or from `start_ms`), never from the last run: late runs, restarts and
reloads move nobody.  Everything here is O(1).
"""

from __future__ import annotations

from pollux.model.schedule import Interval
from pollux.schedule.spread import place

CROWD_MAX = 100  # this many new jobs may start at once; a bigger crowd is spread
CROWD_SPREAD_MAX_MS = 60_000


def phase_ms(job_id: str, spec: Interval) -> int:
    """Where the grid starts, in [0, every_ms): by `start_ms` if given, at zero if not spread, else by the id."""
    if spec.start_ms is not None:
        return spec.start_ms % spec.every_ms
    return place(job_id, "phase", spec.every_ms) if spec.spread else 0


def next_after(spec: Interval, job_id: str, after_ms: int) -> int:
    """The first instant of the grid strictly after `after_ms`, and not before the start."""
    return _grid_from(spec, job_id, after_ms + 1)


def first_due(spec: Interval, job_id: str, *, now_ms: int, crowd: int = 1) -> int:
    """At once; at the start if that lies ahead; spread if more than a hundred jobs came in the same put."""
    if spec.start_ms is not None and spec.start_ms > now_ms:
        return spec.start_ms
    if crowd <= CROWD_MAX or not spec.spread:
        return now_ms
    return now_ms + place(job_id, "crowd", min(spec.every_ms, CROWD_SPREAD_MAX_MS))


def next_due(spec: Interval, job_id: str, after_ms: int) -> int:
    """The due that follows `after_ms`: the first of the grid at least half an interval later; on the grid, the next."""
    return _grid_from(spec, job_id, after_ms + (spec.every_ms + 1) // 2)


def _grid_from(spec: Interval, job_id: str, from_ms: int) -> int:
    """The first instant of the grid at or after `from_ms`."""
    if spec.start_ms is not None:
        from_ms = max(from_ms, spec.start_ms)
    return from_ms + (phase_ms(job_id, spec) - from_ms) % spec.every_ms
