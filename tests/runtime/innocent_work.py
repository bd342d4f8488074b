"""Handlers of many harmless jobs, and of the one that kills whatever process it runs in."""

from __future__ import annotations

import asyncio
import os

from pollux.runtime.isolation import in_child

WORK_SECONDS = 0.2
workers = {}  # by node id: what ends when the poison runs there


async def innocent(ctx):
    """In the node it takes a while, so that others sit beside the poison."""
    await asyncio.sleep(0 if in_child() else WORK_SECONDS)


async def poison(ctx):
    if in_child():
        os.abort()
    workers[ctx.run.owner].die()
    await asyncio.Event().wait()
