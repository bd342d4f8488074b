"""How late are we?  Counts in buckets that double, so that any number of runs costs a few integers."""

from __future__ import annotations

from msgspec import Struct

BUCKETS = 32


class LatenessSeen(Struct, frozen=True):
    """`buckets[0]` counts 0 ms, `buckets[n]` counts 2**(n-1) up to 2**n - 1 ms."""

    count: int
    sum_ms: int
    max_ms: int
    buckets: tuple[int, ...]

    def at_most_ms(self, share: float) -> int:
        """The bound below which at least this share of all (0.99) lies, to the width of a bucket."""
        wanted, seen = share * self.count, 0
        for n, count in enumerate(self.buckets):
            seen += count
            if seen >= wanted:
                return min(self.max_ms, (1 << n) - 1)
        return self.max_ms


class Lateness:
    __slots__ = ("buckets", "count", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.count = self.sum_ms = self.max_ms = 0
        self.buckets = [0] * BUCKETS

    def add(self, late_ms: int) -> None:
        late_ms = max(late_ms, 0)
        self.count += 1
        self.sum_ms += late_ms
        self.max_ms = max(self.max_ms, late_ms)
        self.buckets[min(late_ms.bit_length(), BUCKETS - 1)] += 1

    def seen(self) -> LatenessSeen:
        return LatenessSeen(self.count, self.sum_ms, self.max_ms, tuple(self.buckets))
