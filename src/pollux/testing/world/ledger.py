"""Ledger of a world: what handlers and users saw, written by themselves, independent of the product.

Nothing in it comes from a counter or a row of the product; the judge compares both.
"""

from __future__ import annotations

from msgspec import Struct


class BrokenPromise(Struct, frozen=True):
    """A promise that did not hold.  `kind` is the same for the same promise, whatever the details."""

    kind: str
    words: str
    us: int = 0


class Execution(Struct):
    """One call of a handler."""

    run_id: str
    job_id: str
    delivery: int
    node: str
    began_us: int
    ended_us: int | None = None
    result: str | None = None  # what it returned, if it returned


class WorldLedger:
    """Executions, accepted runs and broken promises."""

    def __init__(self) -> None:
        self.executions: dict[str, list[Execution]] = {}
        self.accepted: dict[str, str] = {}  # run -> job; enqueue or run_now returned it
        self.dropped: set[str] = set()  # dead letters that a user deleted, perhaps
        self.touched: set[str] = set()  # jobs that users changed, paused or deleted: their due times are not counted
        self.deleted: set[str] = set()
        self.broken: list[BrokenPromise] = []

    def begin(self, run_id: str, job_id: str, delivery: int, node: str, us: int) -> Execution:
        """A handler is called.  One delivery begins one handler, once."""
        before = self.executions.setdefault(run_id, [])
        if any(each.delivery == delivery for each in before):
            self.breaks("begun twice", f"delivery {delivery} of run {run_id} began twice", us)
        execution = Execution(run_id, job_id, delivery, node, us)
        before.append(execution)
        return execution

    def breaks(self, kind: str, words: str, us: int) -> None:
        self.broken.append(BrokenPromise(kind, words, us))
