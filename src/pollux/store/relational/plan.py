"""May this due time fire?  What `advance` decides about the firings of a plan."""

from __future__ import annotations

CAME_BACK_MS = 60_000  # a last due so far ahead was written before the clock came back
WAITS_BEHIND = "waits for the previous run"


class Facts:
    """What a firing must know of its job, kept true while the firings of one plan are gone through."""

    __slots__ = ("has_live", "last_due_ms", "n", "revision")

    def __init__(self, n: int, revision: int, last_due_ms: int | None, has_live: int) -> None:
        self.n, self.revision, self.last_due_ms, self.has_live = n, revision, last_due_ms, bool(has_live)

    def is_fired(self, due_ms: int, now_ms: int) -> bool:
        last_due_ms = self.last_due_ms
        if last_due_ms is None or last_due_ms > now_ms + CAME_BACK_MS:
            return False
        return due_ms <= last_due_ms
