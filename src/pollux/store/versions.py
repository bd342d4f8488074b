"""Errors of handles that are closed or were opened before a fork, and of jobs in another version.

A handle belongs to the process that opened it; a child of a fork opens its own.
"""

from __future__ import annotations

import os

from pollux.errors import StoreError


def shut(name: str, pid: int, *, is_open: bool) -> StoreError:
    """Error for a handle that is closed, or was opened by the process `pid` before a fork."""
    if not is_open:
        return StoreError(f"the store {name} is not open; open it first")
    return StoreError(
        f"the store {name} was opened by process {pid} and cannot be used in its child {os.getpid()}; "
        "open another one after the fork"
    )


def other_version(stored: int, own: int) -> str:
    """Conflict of a put: the job is in another version."""
    return f"it is in version {stored}, not {own}; move it: pollux jobs move ID --to-version {own}"
