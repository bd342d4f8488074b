"""The app of the poison tests: a node whose jobs are harmless, or kill whatever process they run in.

python -m tests.chaos.poison_node <store> <ledger> [name=value ...]      options of `Pollux`; isolate=process
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pollux import Pollux
from pollux.model import Retry
from pollux.runtime.isolation import in_child
from tests.chaos.ledger import Ledger
from tests.chaos.node import listen, options_of

SOON = Retry(attempts_max=4, base_ms=20, factor=1.0, max_ms=20)
OPTIONS: dict[str, Any] = {"seats": 3, "lease": "2s", "leader_ttl": "3s", "grace": "10s", "keep_history": 1_000_000}


def innocent(ctx: Any, ledger: str, ms: int = 5) -> int:
    """Not quite at once, so that others sit beside the poison."""
    book = Ledger(ledger)
    for kind in ("run", "end"):
        book.handler(kind, ctx.run.id, ctx.run.fence, ctx.attempt, ctx.run.due_ms)
        time.sleep(ms / 1000 if kind == "run" else 0)
    book.close()
    return os.getpid()


def segfault(ctx: Any) -> None:
    ctypes.string_at(0)


def abort(ctx: Any) -> None:
    os.abort()


def vanish(ctx: Any) -> None:
    os._exit(3)


def leave(ctx: Any) -> None:
    sys.exit(5)


def hog(ctx: Any) -> None:
    """A child's limit refuses it; a node gets it, and then comes the kernel."""
    block = bytes(2 << 30)  # not touched: the machine has better uses for it
    os.kill(os.getpid(), signal.SIGKILL)
    del block


def breed(ctx: Any, brood: str, stay: bool = False) -> None:
    """Children that live on, one of them in a session of its own; then the kernel comes."""
    for apart in (False, True):
        child = subprocess.Popen(["sh", "-c", "trap '' TERM HUP; exec sleep 600"], start_new_session=apart)
        with Path(brood).open("a") as file:
            file.write(f"{child.pid} {'child' if in_child() else 'node'}\n")
    if stay:
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)


POISONS = (segfault, abort, vanish, leave, hog, breed)


def make_app(store: str, *, isolate: str = "suspect", **options: Any) -> Pollux:
    app = Pollux(store, name="poison", **{**OPTIONS, **options})
    app.job(id="innocent")(innocent)
    for poison in POISONS:
        app.job(id=poison.__name__, isolate=isolate, retry=SOON)(poison)
    return app


def main() -> None:
    store, ledger = sys.argv[1], Ledger(sys.argv[2])
    options = options_of(sys.argv[3:])
    app = make_app(store, **options)
    listen(app, ledger)
    app.run()


if __name__ == "__main__":
    main()
