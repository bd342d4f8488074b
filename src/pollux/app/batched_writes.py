"""How are many things written?  In batches, one after another; the next one is made while the last is being written.

Never two at once: they keep their order, and after one that was refused nothing more is written.  Two batches are in
memory at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, TypeVar

from pollux.clock import Clock
from pollux.ids import new_ids
from pollux.model import Run
from pollux.store.contract import BATCH_MAX, RunsAlike

T = TypeVar("T")


def batches_like(one: Run, bodies: list[bytes | None], now_ms: int, clock: Clock, dice: Random) -> Iterator[RunsAlike]:
    """The same run for each of the payloads, with an id of its own; `now_ms` is the store's time."""
    begun_ms = clock.mono_ms()
    for start in range(0, len(bodies), BATCH_MAX):
        some = bodies[start : start + BATCH_MAX]
        made_ms = now_ms + int(clock.mono_ms() - begun_ms)
        yield RunsAlike(one, new_ids(made_ms, dice, len(some)), some)


async def write_in_turn(batches: Iterator[T], write: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    """The first write that fails ends it, and its error is the answer."""
    writing: asyncio.Task[None] | None = None
    try:
        for batch in batches:
            if writing is not None:
                await writing
            writing = asyncio.create_task(write(batch))
            await asyncio.sleep(0)  # it is sent before the next one is made
        if writing is not None:
            await writing
    finally:
        if writing is not None and not writing.done():  # we were cut off meanwhile
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
