"""The load: a process that enqueues runs of every kind and writes the answers into the ledger.

    python -m tests.chaos.client <store> <ledger> <seed> <count> <seconds>

It asks with ids of its own and repeats the same id until it is answered.
"""

from __future__ import annotations

import asyncio
import sys
from random import Random

from pollux import Pollux
from pollux.errors import PolluxError, StoreError
from tests.chaos.ledger import Ledger

KINDS = ["parent"] * 4 + ["plain"] * 2 + ["flaky"] * 2 + ["blocking", "gated"]
MS_MAX = 40  # how long a handler works
REPEATS_MAX = 200
STREAMS = 4


async def enqueue(app: Pollux, ledger: Ledger, kind: str, run_id: str, ms: int) -> None:
    ledger.write("ask", run_id)
    for _ in range(REPEATS_MAX):
        try:
            await app.enqueue(kind, {"ms": ms}, id=run_id)
        except StoreError:
            ledger.write("enq", run_id, "unknown")
            await asyncio.sleep(0.05)
        except PolluxError:
            ledger.write("enq", run_id, "err")
            raise
        else:
            ledger.write("enq", run_id, "ok")
            return
    raise TimeoutError(f"{run_id} was never answered")


async def load(store: str, ledger: Ledger, seed: int, count: int, seconds: float) -> None:
    dice = Random(seed)
    app = Pollux(store, name="chaos-client")
    await app.open()
    wanted = [(dice.choice(KINDS), f"r{seed}.{n}", dice.randrange(MS_MAX)) for n in range(count)]
    pause = seconds * STREAMS / max(1, count)

    async def stream(number: int) -> None:
        for kind, run_id, ms in wanted[number::STREAMS]:
            await enqueue(app, ledger, kind, run_id, ms)
            await asyncio.sleep(pause)

    try:
        await asyncio.gather(*(stream(number) for number in range(STREAMS)))
    finally:
        await app.close()


def main() -> None:
    store, path, seed, count, seconds = sys.argv[1:]
    asyncio.run(load(store, Ledger(path), int(seed), int(count), float(seconds)))


if __name__ == "__main__":
    main()
