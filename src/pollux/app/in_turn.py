"""How are many things written?  In batches, one after another; the next one is made while the last is being written.

Never two at once: they keep their order, and after one that was refused nothing more is written.  Two batches are in
memory at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any, TypeVar

from msgspec.structs import replace

from pollux.clock import Clock
from pollux.ids import new_ids
from pollux.model import Run
from pollux.store.contract import BATCH_MAX

SLICE = 200  # made at a stretch; then whatever waits to be sent is sent, the batch before it first of all
T = TypeVar("T")


def runs_like(one: Run, payloads: Sequence[dict[str, Any] | None], clock: Clock, dice: Random) -> Iterator[Run]:
    """The same run for each of the payloads, with an id of its own."""
    for start in range(0, len(payloads), BATCH_MAX):
        some = payloads[start : start + BATCH_MAX]
        for run_id, payload in zip(new_ids(clock.now_ms(), dice, len(some)), some, strict=True):
            yield replace(one, id=run_id, payload=payload)


async def write_in_turn(items: Iterator[T], write: Callable[[list[T]], Coroutine[Any, Any, None]]) -> None:
    """Items are made when their batch is; the first write that fails ends it, and its error is the answer."""
    writing: asyncio.Task[None] | None = None
    try:
        while batch := await _next_batch(items):
            if writing is not None:
                await writing
            writing = asyncio.create_task(write(batch))
        if writing is not None:
            await writing
    finally:
        if writing is not None and not writing.done():  # we were cut off while a batch was made
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def _next_batch(items: Iterator[T]) -> list[T]:
    batch: list[T] = []
    while len(batch) < BATCH_MAX:
        await asyncio.sleep(0)
        some = list(islice(items, min(SLICE, BATCH_MAX - len(batch))))
        if not some:
            break
        batch += some
    return batch
