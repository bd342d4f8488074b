"""Detection of acknowledged writes that were lost, by a replica that was promoted without them or a restart.

Every write increments a count in the store itself, and its reply contains the count.  A *home* is the reign of one
server over the keys: the run id of its process, and the count at which it began.  Each new connection reports the
server; a server that is not the last home begins a new one.  So each process can compare: the highest count it got
at the old home, and the count at which the new one began.

    old home     ... 97 98 99 100 101 102      the process got 102
    the replica  ... 97 98 99                  new home begins at 99: three writes are lost
"""

from __future__ import annotations

import logging
from collections.abc import Callable

LEFT_MAX = 50  # homes of which is remembered where they were left
_said: set[tuple[str, str]] = set()
_log = logging.getLogger("pollux.store")  # its lines are seen also where no log is set up


def parse_homes(text: str) -> list[tuple[str, int]]:
    """`<run id>:<count>` for each home, the latest last."""
    return [(each, int(each.rpartition(":")[2])) for each in text.split()]


class FailoverDetector:
    """The highest count that one handle was answered, and by which home."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.home = ""
        self.count = 0
        self.lost = 0  # acknowledged writes that were lost, as far as this handle knows
        self.on_change: Callable[[], None] = lambda: None
        self._left: dict[str, int] = {}

    def arrive(self, text: str, count: int) -> str:
        """A connection was made; `text` tells all homes so far.  The answer is the one we are at."""
        homes = parse_homes(text)
        before, self.home = self.home, homes[-1][0]
        if before in ("", self.home):
            self.count = max(self.count, count)
            return self.home
        places = [number for number, (home, _) in enumerate(homes) if home == before]
        left_at = min(began for _, began in homes[places[-1] + 1 if places else -1 :])
        self._leave(before, left_at)
        self._lose(self.count - left_at)
        self.count = count
        self.on_change()
        return self.home

    def hear(self, home: str, count: int) -> None:
        """An answer came from a connection that was made at that home."""
        if home == self.home:
            self.count = max(self.count, count)
        elif count > self._left.get(home, count):  # writes were still taken there
            self._lose(count - self._left[home])
            self._left[home] = count

    def went_back(self, since: int, count: int) -> None:
        """A living connection got a smaller count than before: keys were deleted or replaced under it."""
        self._lose(since - count + 1)
        self.home, self.count = "", 0
        self.on_change()

    def _leave(self, home: str, count: int) -> None:
        self._left[home] = count
        if len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]

    def _lose(self, count: int) -> None:
        if count <= 0:
            return
        self.lost += count
        if (self._name, self.home) not in _said:
            _said.add((self._name, self.home))
            _log.warning(LOST, self._name, count)


LOST = (
    "the server %s went back: about %d writes that it had acknowledged are gone, because it was restarted or a replica "
    "without them was promoted; runs may be missing or run again, and the leader is elected anew. Prevent it by "
    "?wait=1 in the store's URL (replicas) and appendonly yes with appendfsync always (restarts)"
)
