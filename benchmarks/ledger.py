"""Which firings came, and how late?  One window of time in which every job is due exactly once."""

from __future__ import annotations

import asyncio
import time
from array import array

from benchmarks.report import percentile

GRACE_S = 2.0  # after the window, for what is late


class Ledger:
    """Everybody's firings are entered here by the handler itself: its number, and when it was due."""

    def __init__(self, jobs: int, begin_ms: float, length_ms: float) -> None:
        self.begin_ms, self.end_ms = begin_ms, begin_ms + length_ms
        self.total = 0
        self._times = bytearray(jobs)
        self._late_ms = array("d")

    def enter(self, i: int, due_ms: float) -> None:
        self.total += 1
        if self.begin_ms <= due_ms < self.end_ms:
            self._times[i] += 1
            self._late_ms.append(time.time() * 1000 - due_ms)

    async def watch(self) -> dict[str, float]:
        """Wait the window out, and say what was seen."""
        await until(self.begin_ms)
        cpu, total = time.process_time(), self.total
        await until(self.end_ms)
        cpu, total = time.process_time() - cpu, self.total - total
        await asyncio.sleep(GRACE_S)
        return {
            "fired": len(self._late_ms),
            "missed": self._times.count(0),
            "doubled": sum(times - 1 for times in self._times if times > 1),
            "p50_ms": percentile(self._late_ms, 0.5) if self._late_ms else 0.0,
            "p99_ms": percentile(self._late_ms, 0.99) if self._late_ms else 0.0,
            "calm_ms": self._calm_ms(),
            "cpu_us": cpu / max(total, 1) * 1e6,
        }

    def _calm_ms(self) -> float:
        """The p99 of the calmest quarter of the window: what the machine can do when nothing else disturbs it."""
        size = max(len(self._late_ms) // 4, 1)
        quarters = [self._late_ms[start : start + size] for start in range(0, 4 * size, size)]
        return min((percentile(quarter, 0.99) for quarter in quarters if quarter), default=0.0)


async def until(moment_ms: float) -> None:
    await asyncio.sleep(max(moment_ms / 1000 - time.time(), 0))
