"""Seats of a node: a bounded number of runs at a time; a run without a free seat is not claimed.

A seat is taken when a run is seated and free when its handler has ended, even if the run was settled before: a
thread that outlives its timeout keeps its seat.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from pollux.errors import InvalidInput, check_number
from pollux.model import Run

SEATS_MAX = 10_000


def check_seats(seats: int) -> int:
    check_number("pool.seats", seats)
    if not 1 <= seats <= SEATS_MAX:
        raise InvalidInput(f"{seats} seats are not possible", where="pool.seats", cure=f"use 1 to {SEATS_MAX}")
    return seats


class Seat(Struct, eq=False, gc=False):  # gc: a value holds no cycle, and there are many
    number: int
    run: Run


class Pool:
    """Bounded seats: `try_seat` refuses when none is free, `leave` frees one and calls `on_free`."""

    def __init__(self, seats: int) -> None:
        self._seats = check_seats(seats)
        self._taken: dict[int, Seat] = {}
        self._numbers: list[int] = list(range(seats, 0, -1))  # a heap is not needed: any free number will do
        self._highest = seats
        self._is_draining = False
        self.on_free: Callable[[], None] | None = None
        self.on_empty: Callable[[], None] | None = None

    @property
    def seats(self) -> int:
        return self._seats

    @property
    def busy(self) -> int:
        return len(self._taken)

    @property
    def free(self) -> int:
        """How many runs may be claimed now."""
        return 0 if self._is_draining else max(0, self._seats - len(self._taken))

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def seated(self) -> tuple[Seat, ...]:
        """The taken seats, with their runs."""
        return tuple(self._taken.values())

    def try_seat(self, run: Run) -> Seat | None:
        if self._is_draining or len(self._taken) >= self._seats:
            return None
        number = self._numbers.pop() if self._numbers else self._one_more()
        seat = self._taken[number] = Seat(number, run)
        return seat

    def leave(self, seat: Seat) -> None:
        """Free the seat of an ended handler.  Calling twice is harmless."""
        if self._taken.get(seat.number) is not seat:
            return
        del self._taken[seat.number]
        self._numbers.append(seat.number)
        if self.on_free is not None:
            self.on_free()
        if not self._taken and self.on_empty is not None:
            self.on_empty()

    def resize(self, seats: int) -> None:
        """Change the number of seats: new ones are free at once, surplus ones go when their handlers end."""
        self._seats = check_seats(seats)
        if self.on_free is not None:
            self.on_free()

    def drain(self) -> None:
        """Refuse new runs; seated ones go on."""
        self._is_draining = True

    def resume(self) -> None:
        self._is_draining = False
        if self.on_free is not None:
            self.on_free()

    def _one_more(self) -> int:
        self._highest += 1
        return self._highest
