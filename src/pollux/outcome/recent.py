"""How did the latest runs of a job go?  One character each, so that a job can remember them for the price of a word.

A character says how the run ended (as it was, changed, failed) and about how long it took: each step of the scale is
twice the one before, from a millisecond to nine hours.  History is thinned, this is not: it is the whole picture of
the latest ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

RECENT_MAX = 40
_STEPS = 26
_FIRST = ord("#")  # 3 x 26 characters from here on are plain ASCII
_AS_IT_WAS, _CHANGED, _FAILED = range(3)


class Mark(Struct, frozen=True):
    """One end, as far as it is remembered."""

    failed: bool
    changed: bool
    at_most_ms: int  # it took no longer, and more than half of it


def remember(recent: str, duration_ms: int, *, failed: bool, changed: bool | None) -> str:
    """The latest ends and this one."""
    kind = _FAILED if failed else _CHANGED if changed else _AS_IT_WAS
    step = min(max(0, duration_ms - 1).bit_length(), _STEPS - 1)
    return f"{recent[1 - RECENT_MAX :]}{chr(_FIRST + kind * _STEPS + step)}"


def marks(recent: str) -> tuple[Mark, ...]:
    """What is remembered, oldest first."""
    places = (divmod(ord(char) - _FIRST, _STEPS) for char in recent)
    return tuple(Mark(kind == _FAILED, kind == _CHANGED, 1 << step) for kind, step in places)


def within_ms(seen: Sequence[Mark], share: float) -> int:
    """So long took the quickest `share` of them, at most."""
    order = sorted(mark.at_most_ms for mark in seen)
    return order[min(len(order) - 1, int(share * len(order)))] if order else 0
