"""Where on the line does a job stand?  The one stable hash: same id, same place, on every node and for ever.

Jobs that were added together must not fire together, and a restart must move nobody.  So the place is neither
drawn nor stored: it is computed from the job's id.  `purpose` keeps the places of one job independent of each
other: the phase of its interval says nothing about the minute of its cron line.
"""

from __future__ import annotations

from hashlib import blake2b


def place(job_id: str, purpose: str, width: int) -> int:
    """A number in [0, width), always the same for the same job and purpose; `width` is at least 1."""
    digest = blake2b(f"{purpose}\0{job_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % width
