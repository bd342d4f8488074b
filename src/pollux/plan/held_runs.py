"""Held runs at the gate: to be checked now, later at a time, or parked under the key of an event."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from msgspec.structs import replace

from pollux.model import Run


def _due(run: Run) -> int:
    return run.due_ms


class HeldRun:
    """A run at the gate, and the feed entries that are paid once it is released or parked."""

    __slots__ = ("feeds", "run")

    def __init__(self, run: Run, feeds: Iterable[int] = ()) -> None:
        self.run = run
        self.feeds = list(feeds)


class HeldRuns:
    """All held runs of a version that the leader knows."""

    def __init__(self) -> None:
        self.here: dict[str, HeldRun] = {}  # to be checked, in order of arrival
        self.held: dict[str, int] = {}  # number of parked runs, by the kind of key
        self._parked: dict[str, dict[str, Run]] = {}
        self._key_of: dict[str, str] = {}
        self._later: dict[str, tuple[int, Run]] = {}
        self._times: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.here) + len(self._key_of) + len(self._later)

    @property
    def is_open(self) -> bool:
        """Whether there is any held run."""
        return bool(self._key_of or self.here or self._later)

    @property
    def later(self) -> int:
        """The number of runs that are checked later."""
        return len(self._later)

    def knows(self, run_id: str) -> bool:
        return run_id in self.here or run_id in self._key_of or run_id in self._later

    def admit(self, run: Run, feeds: Iterable[int]) -> None:
        """Check the run in the next plan."""
        old = self.here.get(run.id)
        self.forget(run.id)
        self.here[run.id] = HeldRun(run, [*(old.feeds if old else ()), *feeds])

    def admit_later(self, run: Run, at_ms: int) -> None:
        """Check the run at `at_ms`."""
        self.forget(run.id)
        self._later[run.id] = (at_ms, run)
        heappush(self._times, (at_ms, run.id))

    def bring_forward(self, run_id: str, at_ms: int) -> None:
        """Check a run that waits for its time at `at_ms` instead."""
        _, run = self._later.get(run_id, (None, None))
        if run is not None:
            self.admit_later(replace(run, visible_ms=at_ms), at_ms)

    def park(self, run: Run, key: str) -> None:
        """Skip the run until the key is woken."""
        self.forget(run.id)
        self._key_of[run.id] = key
        self._count(key, 1)
        self._parked.setdefault(key, {})[run.id] = run

    def wake(self, key: str, feed: int | None = None) -> int:
        """Check all runs parked under this key again, the oldest due first; returns their number."""
        runs = self.waiting(key)
        if runs:
            self._count(key, -len(runs))
            del self._parked[key]
        for run in runs:
            del self._key_of[run.id]
            self.here[run.id] = HeldRun(run, () if feed is None else (feed,))
        return len(runs)

    def waiting(self, key: str) -> list[Run]:
        """The runs parked under this key, the oldest due first."""
        return sorted(self._parked.get(key, {}).values(), key=_due)

    def forget(self, run_id: str) -> list[int]:
        """Remove the run; returns the feed entries that owe its check."""
        self._later.pop(run_id, None)
        key = self._key_of.pop(run_id, None)
        if key is not None:
            self._count(key, -1)
            parked = self._parked[key]
            del parked[run_id]
            if not parked:
                del self._parked[key]
        removed = self.here.pop(run_id, None)
        return removed.feeds if removed is not None else []

    def _count(self, key: str, by: int) -> None:
        kind = key.partition(":")[0]
        self.held[kind] = self.held.get(kind, 0) + by

    def come_due(self, now_ms: int) -> None:
        """Move the runs whose time has come to those that are checked in the next plan."""
        while self._times and self._times[0][0] <= now_ms:
            at_ms, run_id = heappop(self._times)
            when, run = self._later.get(run_id, (None, None))
            if run is not None and when == at_ms:
                del self._later[run_id]
                self.here[run_id] = HeldRun(run)

    def next_ms(self) -> int | None:
        while self._times:
            at_ms, run_id = self._times[0]
            if self._later.get(run_id, (None, None))[0] == at_ms:
                return at_ms
            heappop(self._times)
        return None
