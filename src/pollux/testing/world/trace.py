"""Trace of a world: its hash, the latest lines for a story, and counts of what was reached."""

from __future__ import annotations

from collections import Counter, deque
from hashlib import blake2b

LINES_MAX = 400  # of the latest, kept for a story


class WorldTrace:
    """Everything that is observable in a world, in the order in which it happened."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self.notable: list[str] = []  # faults, operations and lives of nodes, for stories
        self.reached: Counter[str] = Counter()

    def add(self, us: int, who: str, what: str) -> None:
        line = f"{us} {who} {what}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.lines.append(line)

    def note(self, us: int, who: str, what: str) -> None:
        """A line that also belongs into a story."""
        self.add(us, who, what)
        self.notable.append(f"{us / 1e6:9.3f} s  {who}: {what}")

    def reach(self, what: str) -> None:
        self.reached[what] += 1

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
