"""Where on the line does a job stand?  The one stable hash: same id, same place, on every node and for ever.

Jobs that were added together must not fire together, and a restart must move nobody.  So the place is neither
drawn nor stored: it is computed from the job's id.  `purpose` keeps the places of one job independent of each
other: the phase of its interval says nothing about the minute of its cron line.
"""

from __future__ import annotations

from hashlib import blake2b

from pollux.model.schedule import Interval


def place(job_id: str, purpose: str, width: int) -> int:
    """A number in [0, width), always the same for the same job and purpose; `width` is at least 1."""
    digest = blake2b(f"{purpose}\0{job_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % width


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
