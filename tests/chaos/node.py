"""The app under test: a node like any other, whose handlers write the ledger.

    python -m tests.chaos.node <store> <ledger> [name=value ...]      options of `Pollux`, as in plans=0 seats=4

With `dies=learning` it is killed after the first plan by which a job learns how a run ended.

Handlers: `plain` ends; `parent` follows up with `follow` runs of `child`; `flaky` fails twice and then succeeds;
`hopeless` always fails, and ends dead; `blocking` blocks a thread; `gated` goes through the leader's gate; `patient`
waits until a file appears.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pollux import Pollux, every
from pollux.events import LeaseWasLost, NodeStarted, PlanFenced, RunSettled, TermWon
from pollux.model import Advanced, Plan, Retry
from tests.chaos.ledger import Ledger

FAILURES = 2  # of a flaky run, before it succeeds
INTERVALS = {"tick-200ms": "200ms", "tick-300ms": "300ms", "tick-500ms": "500ms", "tick-1s": "1s"}
SOON = Retry(attempts_max=5, base_ms=40, factor=1.5, max_ms=200)
LOOK_SECONDS = 0.02

# Jobs that run when asked, by the name of their handler.
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "child": {},
    "parent": {"params": {"follow": 1}},
    "flaky": {"retry": SOON},
    "blocking": {},
    "gated": {"target": "host-1"},
    "hopeless": {"retry": Retry(attempts_max=1)},
    "patient": {},
    "patient-blocking": {},
}

# Histories are the checker's evidence, and terms and leases are short so that a test sees them end.
OPTIONS: dict[str, Any] = {"seats": 4, "lease": "2s", "leader_ttl": "3s", "grace": "10s", "keep_history": 1_000_000}


def make_app(store: str, ledger: Ledger, **options: Any) -> Pollux:
    """An app whose handlers tell the ledger when they start and how they end."""
    app = Pollux(store, name="chaos", **{**OPTIONS, **options})
    handlers = Handlers(ledger)
    for name, asked in ASKED.items():
        app.handler(name=name)(getattr(handlers, name.replace("-", "_")))
        app.add(name, id=name, **asked)
    app.handler(name="tick")(handlers.tick)
    for job_id, interval in INTERVALS.items():
        follow = 1 if job_id == "tick-500ms" else 0
        target = "host-2" if job_id == "tick-300ms" else None
        app.add("tick", every(interval), id=job_id, params={"follow": follow}, target=target)
    return app


class Handlers:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    @contextlib.contextmanager
    def told(self, ctx: Any) -> Iterator[None]:
        self._tell("run", ctx)
        try:
            yield
        except asyncio.CancelledError:
            self._tell("cut", ctx)
            raise
        except Exception:
            self._tell("fail", ctx)
            raise
        self._tell("end", ctx)

    def _tell(self, kind: str, ctx: Any) -> None:
        self.ledger.handler(kind, ctx.run.id, ctx.run.fence, ctx.attempt, ctx.run.due_ms)

    async def plain(self, ctx, ms=0):
        with self.told(ctx):
            await asyncio.sleep(ms / 1000)
            return result_of(ctx)

    async def child(self, ctx, parent="", slot=0):
        with self.told(ctx):
            return result_of(ctx)

    async def parent(self, ctx, ms=0, follow=1):
        with self.told(ctx):
            follow_up(ctx, follow)
            await asyncio.sleep(ms / 1000)
            return result_of(ctx)

    async def flaky(self, ctx, ms=0):
        with self.told(ctx):
            await asyncio.sleep(ms / 1000)
            if ctx.attempt <= FAILURES:
                raise ConnectionError(f"attempt {ctx.attempt} fails on purpose")
            return result_of(ctx)

    async def hopeless(self, ctx):
        with self.told(ctx):
            raise ConnectionError("it fails on purpose")

    def blocking(self, ctx, ms=0):
        with self.told(ctx):
            time.sleep(ms / 1000)
            return result_of(ctx)

    async def gated(self, ctx, ms=0):
        with self.told(ctx):
            await asyncio.sleep(ms / 1000)
            return result_of(ctx)

    async def tick(self, ctx, follow=0):
        with self.told(ctx):
            follow_up(ctx, follow)
            return result_of(ctx)

    async def patient(self, ctx, file=""):
        with self.told(ctx):
            while not os.path.exists(file):  # noqa: ASYNC110, ASYNC240, PTH110  the other process touches it
                await asyncio.sleep(LOOK_SECONDS)
            return result_of(ctx)

    def patient_blocking(self, ctx, file=""):
        """Deaf: it ends when the file is there, whatever it is asked."""
        with self.told(ctx):
            while not Path(file).exists():
                time.sleep(LOOK_SECONDS)
            return result_of(ctx)


def follow_up(ctx: Any, count: int) -> None:
    for slot in range(count):
        ctx.enqueue("child", {"parent": ctx.run.id, "slot": slot})


def result_of(ctx: Any) -> dict[str, Any]:
    """Whose work this is; the due time makes every result a changed one, which no pruning thins out."""
    return {"pid": os.getpid(), "fence": ctx.run.fence, "due": ctx.run.due_ms}


def listen(app: Pollux, ledger: Ledger) -> None:
    """What the node itself says about lost leases goes to the ledger: a stalled machine may cost some."""
    app.events.listen(NodeStarted, lambda _: ledger.write("up", os.getpid()))
    app.events.listen(LeaseWasLost, lambda event: ledger.write("lost", event.run_id, os.getpid()))

    app.events.listen(PlanFenced, lambda event: ledger.write("fenced", event.term, os.getpid()))
    app.events.listen(TermWon, lambda event: ledger.write("term", event.term, os.getpid(), time.monotonic_ns()))

    def on_settled(event: RunSettled) -> None:
        if event.answer == "lost":
            ledger.write("lost", event.run_id, os.getpid())

    app.events.listen(RunSettled, on_settled)


def options_of(words: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = dict(word.split("=", 1) for word in words)
    for name in ("plans", "runs"):
        if name in options:
            options[name] = options[name] == "1"
    if "seats" in options:
        options["seats"] = int(options["seats"])
    return options


def die_learning(app: Pollux) -> None:
    """SIGKILL as soon as the first plan is written by which a job learns: before the next, and before any answer."""
    store: Any = app._store
    advance = store.advance

    async def last(term: int, plan: Plan) -> Advanced:
        advanced: Advanced = await advance(term, plan)
        if any(update.memory.learnt for update in plan.updates):
            os.kill(os.getpid(), signal.SIGKILL)
        return advanced

    store.advance = last


def main() -> None:
    store, ledger = sys.argv[1], Ledger(sys.argv[2])
    options = options_of(sys.argv[3:])
    dies = options.pop("dies", "") == "learning"
    app = make_app(store, ledger, **options)
    listen(app, ledger)
    if dies:
        die_learning(app)
    app.run()


if __name__ == "__main__":
    main()
