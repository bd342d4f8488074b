"""How is a long answer made while others wait?  A piece at a time: between two of them the loop goes its round.

The engine lives on the same loop, so whatever takes a handler longer than some milliseconds makes firings late.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

AT_ONCE = 50  # views of jobs or runs, or bodies that are read: two or three milliseconds

S = TypeVar("S")
T = TypeVar("T")


async def in_pieces(items: Sequence[S]) -> AsyncIterator[tuple[int, S]]:
    """The items with their numbers."""
    for number, item in enumerate(items):
        if number and number % AT_ONCE == 0:
            await asyncio.sleep(0)
        yield number, item


async def each_made(make: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """What is made of each."""
    made: list[T] = []
    for start in range(0, len(items), AT_ONCE):
        if start:
            await asyncio.sleep(0)
        made += [make(item) for item in items[start : start + AT_ONCE]]
    return made
