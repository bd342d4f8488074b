"""Cooperative iteration: long loops yield to the event loop every few items.

The engine runs on the same loop, so a route that computes for more than some milliseconds delays firings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

AT_ONCE = 50  # views of jobs or runs, or parsed bodies: two or three milliseconds

S = TypeVar("S")
T = TypeVar("T")


async def in_pieces(items: Sequence[S]) -> AsyncIterator[tuple[int, S]]:
    """Yield the items with their indexes."""
    for number, item in enumerate(items):
        if number and number % AT_ONCE == 0:
            await asyncio.sleep(0)
        yield number, item


async def each_made(make: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """The result of `make` for each item."""
    made: list[T] = []
    for start in range(0, len(items), AT_ONCE):
        if start:
            await asyncio.sleep(0)
        made += [make(item) for item in items[start : start + AT_ONCE]]
    return made
