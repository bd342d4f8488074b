"""Due times of an interval: a grid without drift, `phase + k * every_ms` on the wall clock.

    |-----x---------x---------x---------x-----    the grid of the job; x = phase + k * every
       ^                                          put: the first run is at once, off the grid
       |---half--|->x                             the second: the first x at least half an interval later

The grid is computed from the job's id (or from `start_ms`), never from the last run: late runs, restarts and reloads
do not shift it.  Everything here is O(1).
"""

from __future__ import annotations

from hashlib import blake2b

from pollux.model.job import Interval


def place(job_id: str, purpose: str, width: int) -> int:
    """A stable hash of the job's id to [0, width), the same on every node; `width` is at least 1.

    Jobs that are added together must not fire together, and a restart must not shift them: so the number is neither
    random nor stored.  `purpose` makes the numbers of one job independent of each other, such as the phase of its
    interval and the minute of its cron line.
    """
    digest = blake2b(f"{purpose}\0{job_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % width


CROWD_MAX = 100  # so many new jobs may start at once; the first due times of more are spread
CROWD_SPREAD_MAX_MS = 60_000


def phase_ms(job_id: str, spec: Interval) -> int:
    """The phase of the grid in [0, every_ms): from `start_ms` if set, 0 if not spread, else from the id."""
    if spec.start_ms is not None:
        return spec.start_ms % spec.every_ms
    return place(job_id, "phase", spec.every_ms) if spec.spread else 0


def next_after(spec: Interval, job_id: str, after_ms: int) -> int:
    """The first instant of the grid strictly after `after_ms`, and not before the start."""
    return _grid_from(spec, job_id, after_ms + 1)


def first_due(spec: Interval, job_id: str, *, now_ms: int, batch_size: int = 1) -> int:
    """Now; `start_ms` if that is later; spread over time if the put had more than `CROWD_MAX` new jobs."""
    if spec.start_ms is not None and spec.start_ms > now_ms:
        return spec.start_ms
    if batch_size <= CROWD_MAX or not spec.spread:
        return now_ms
    return now_ms + place(job_id, "crowd", min(spec.every_ms, CROWD_SPREAD_MAX_MS))


def next_due(spec: Interval, job_id: str, after_ms: int) -> int:
    """The due time after `after_ms`: the first of the grid at least half an interval later; on the grid, the next."""
    return _grid_from(spec, job_id, after_ms + (spec.every_ms + 1) // 2)


def _grid_from(spec: Interval, job_id: str, from_ms: int) -> int:
    """The first instant of the grid at or after `from_ms`."""
    if spec.start_ms is not None:
        from_ms = max(from_ms, spec.start_ms)
    return from_ms + (phase_ms(job_id, spec) - from_ms) % spec.every_ms
