"""The handlers of the demo: a small world that changes at different rates, seen without a network.

What each target shows follows from the clock alone, so it is the same on every machine, and a second worker agrees.
"""

import asyncio
import hashlib
import time

from pollux import Permanent, Transient


def _state(name: str, every_seconds: float) -> str:
    """A value that stays for a while and then is another one."""
    era = int(time.time() / every_seconds)
    return hashlib.blake2b(f"{name}:{era}".encode(), digest_size=4).hexdigest()


async def look(ctx, target: str, changes_every: float):
    """Poll one target; the result is compared with the one before: changed or not."""
    await asyncio.sleep(0.05)
    return {"target": target, "state": _state(target, changes_every)}


async def sweep(ctx, shelves: int = 20):
    """Slow work that says how far it is."""
    for shelf in range(shelves):
        ctx.progress(shelf, of=shelves)
        await asyncio.sleep(0.5)
    return {"shelves": shelves}


def count_words(ctx, text: str):
    """A plain function: it runs in a thread."""
    return {"words": len(text.split())}


async def flaky(ctx):
    """Fails for half a minute, works for half a minute: retries, then a dead letter, then recovery."""
    if int(time.time()) // 30 % 2:
        raise Transient("the far side does not answer just now")
    return "answered"


async def refused(ctx):
    """Fails in a way that trying again cannot help: a dead letter at once."""
    raise Permanent("the password is wrong (it always is, in this demo)")


async def report(ctx):
    return {"minute": time.strftime("%H:%M", time.gmtime())}


async def import_once(ctx):
    """The one-shot: it runs once, whatever restarts."""
    await asyncio.sleep(1)
    return "imported"
