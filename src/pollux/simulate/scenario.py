"""Options of a simulation: the time that is played, the seats, and how long and how well runs go.

Every handler is simulated: no code of the user runs.  How long an attempt takes and whether it fails follows from the
seed, the run and the attempt alone, so that the same run goes the same way with more seats, in another order, in
another process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from statistics import NormalDist

from msgspec import Struct

from pollux.errors import InvalidInput
from pollux.model import Run
from pollux.runtime.options import check_seats
from pollux.units import DAY_MS, duration_ms, format_ms

WINDOW_MAX_MS = 366 * DAY_MS
SCALE_MAX = 10_000
GRAIN_MAX_MS = 60_000
_Z95 = NormalDist().inv_cdf(0.95)


class HandlerBehaviour(Struct, frozen=True):
    """How long runs take (half of them at most `p50_ms`, 95 % at most `p95_ms`), and which share of attempts fails."""

    p50_ms: int = 200
    p95_ms: int = 200
    failing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.failing <= 1:
            raise InvalidInput(f"{self.failing} is no share", where="failing", cure='write "5%" or 0.05')
        if self.p95_ms < self.p50_ms:
            what = f"95 % of the runs cannot be shorter ({format_ms(self.p95_ms)}) than half of them"
            raise InvalidInput(what, where="duration", cure='write it like "200ms" or "200ms..2s"')

    def roll(self, seed: int, run: Run) -> tuple[int, bool]:
        """Return how many microseconds this attempt takes, and whether it fails."""
        key = f"{seed}:{run.id}:{run.attempt}".encode()
        dice = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
        fails = (dice & 0xFFFFFFFF) / 2**32 < self.failing
        if self.p50_ms in {self.p95_ms, 0}:
            return self.p50_ms * 1_000, fails
        z = NormalDist().inv_cdf(((dice >> 32) + 0.5) / 2**32)
        return max(0, round(self.p50_ms * 1_000 * (self.p95_ms / self.p50_ms) ** (z / _Z95))), fails


def habit_of(duration: str, failing: str) -> HandlerBehaviour:
    """Parse a behaviour: `200ms` is constant, `200ms..2s` is p50 and p95; `5%` or `0.05` is the share that fails."""
    half, _, most = duration.partition("..")
    p50_ms = duration_ms(half)
    return HandlerBehaviour(p50_ms, duration_ms(most) if most else p50_ms, share_of(failing))


def share_of(text: str) -> float:
    bare = text.strip().removesuffix("%")
    try:
        share = float(bare) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InvalidInput(f"{text[:60]!r} is no share", where="failing", cure='write "5%" or 0.05')
    return share


class Scenario(Struct, frozen=True, kw_only=True):
    """Which time is played, on how many seats.  `habits` are by job; others behave as `habit`."""

    from_ms: int
    for_ms: int = DAY_MS
    seats: int = 10
    seed: int = 1
    habit: HandlerBehaviour = HandlerBehaviour()
    habits: Mapping[str, HandlerBehaviour] = {}
    turn_rest_ms: float = 20
    ready_max: int = 1_000_000
    grain_ms: int = 1  # everything happens at multiples of it

    def __post_init__(self) -> None:
        check_seats(self.seats)
        if not 1_000 <= self.for_ms <= WINDOW_MAX_MS:
            what = f"{format_ms(self.for_ms)} cannot be simulated"
            raise InvalidInput(what, where="for", cure=f"give 1s to {format_ms(WINDOW_MAX_MS)}")
        if not 1 <= self.grain_ms <= GRAIN_MAX_MS:
            raise InvalidInput(f"a grain of {self.grain_ms} ms", where="grain", cure="give 1ms to 1m")

    @property
    def until_ms(self) -> int:
        return self.from_ms + self.for_ms

    def habit_of(self, job_id: str) -> HandlerBehaviour:
        return self.habits.get(job_id, self.habit)
