"""Primitives of a store: what a backend does itself, and `StoreHandle` builds the verbs of the contract on.

A backend orders, leases and fences.  It gets arguments that were checked, and never waits in a verb: `listen` gives a
waiting call something to rest on between two looks.  Most verbs differ between backends only in how they are written
down; they go by name through `read` and `write`.  Those that are called for every run or turn are primitives of their
own.

`now_ms` None means the store's own clock.  A write with `audit` writes its lines with the change, or neither.  A write
with `unless_moved` raises `MovedAway` and changes nothing if the note `SEAL` is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pollux.errors import StoreError
from pollux.model import Job, Note, NotePut, Plan, Run
from pollux.store.contract import Advanced, Answer, Audit, Capabilities, Claimed, Feed, Pruning, RunAnswer, Settlement
from pollux.store.values import ClaimRequest

READS = frozenset(
    {
        *("get_jobs", "list_jobs", "due", "get_runs", "list_runs", "counts", "lines"),
        *("notes", "nodes", "versions", "read_log", "dump"),
    }
)
WRITES = frozenset(
    {
        *("put_jobs", "delete_jobs", "move_jobs", "renew", "cancel", "revive", "put_notes"),
        *("beat", "elect", "resign", "wake", "log", "load"),
    }
)
T = TypeVar("T")


class MovedAway(StoreError):
    """A change was refused: the store was moved elsewhere, or is being filled."""

    def __init__(self) -> None:
        super().__init__("the store was moved")


class Look(NamedTuple, Generic[T]):
    """What one look found, when it pays to look again, and where the waiter goes on from."""

    found: T
    again_ms: int | None = None  # in how many ms there may be more; None: not known
    mark: Any = None  # the backend's own


class Page(NamedTuple):
    """Rows, and the cursor of the next page."""

    rows: Sequence[Any]
    next: Any  # a text, or the number of a line


class BackendWaiter(Protocol):
    """A waiting call between its looks."""

    def begin(self) -> None:
        """Before a look: what wakes from here on ends the next rest."""
        ...

    @property
    def is_over(self) -> bool:
        """True once all waits were called back, or an owner was asked to stop a run."""
        ...

    async def rest(self, look: Look[Any], left_ms: float) -> Any | None:
        """Rest until a wake-up, `look.again_ms` or `left_ms`; an answer that is not None ends the wait."""
        ...


class Backend(Protocol):
    """One backend of one version.  It belongs to the event loop that opened it."""

    capabilities: Capabilities

    @property
    def version(self) -> int: ...

    @property
    def is_open(self) -> bool: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def twin(self) -> Backend:
        """For another thread and its loop; to be opened and closed by itself."""
        ...

    def of_version(self, number: int) -> Backend:
        """For another version on the same connections, open as long as this one is."""
        ...

    async def read(self, verb: str, *args: Any, now_ms: int | None = None) -> Any:
        """One of `READS`, by name.

        Rows of jobs, runs and notes are answered as they are stored, and decoded by `job`, `run` and `note`: `due` a
        list, `notes` a list of (key, row), `get_jobs` and `get_runs` a dict by id, `list_jobs` and `list_runs` a
        `Page`.  The rest is answered as the contract has it; `read_log` a `Page` of lines in the order of the answer,
        `dump` a `Page` of (kind, record).
        """
        ...

    async def write(
        self, verb: str, *args: Any, audit: Audit | None = None, now_ms: int | None = None, unless_moved: bool = False
    ) -> Any:
        """One of `WRITES`, by name."""
        ...

    async def feed(self, limit: int, *, now_ms: int | None) -> Look[Feed]: ...

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None) -> Advanced: ...

    async def enqueue(
        self,
        runs: Sequence[Run],
        notes: Sequence[NotePut],
        *,
        ready_max: int,
        unless_live: bool,
        audit: Audit | None,
        now_ms: int | None,
        unless_moved: bool,
    ) -> list[RunAnswer]:
        """Payloads are not checked yet: a backend encodes them anyway, and refuses with `limits.written`."""
        ...

    async def claim(self, request: ClaimRequest, *, now_ms: int | None) -> Look[Claimed]: ...

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None) -> list[Answer]:
        """Results are not checked yet, as in `enqueue`."""
        ...

    async def prune(self, what: Pruning, *, audit: Audit | None, now_ms: int | None, unless_moved: bool) -> int: ...

    def listen(self, request: ClaimRequest | None, *, is_live: bool) -> AbstractContextManager[BackendWaiter]:
        """A waiter for runs that `request` may claim, or for feed entries; `is_live`: time is the store's own."""
        ...

    async def now(self) -> int: ...

    async def problems(self) -> tuple[str, ...]: ...

    def job(self, row: Any) -> Job: ...

    def run(self, row: Any) -> Run: ...

    def note(self, row: Any) -> Note: ...


class JoiningBackend(Protocol):
    """A backend with `capabilities.joins`."""

    async def enqueue_in(
        self, connection: Any, runs: Sequence[Run], *, ready_max: int, now_ms: int | None, unless_moved: bool
    ) -> list[RunAnswer]: ...

    async def get_runs_in(self, connection: Any, ids: Sequence[str]) -> dict[str, Any]: ...
