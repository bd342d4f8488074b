"""Primitives of a store: the interface of a backend, on which `StoreHandle` builds the verbs of the contract.

A backend orders, leases and fences.  Its arguments are checked already, and no primitive waits: `listen` returns the
waiter on which a waiting call rests between two looks.  Most verbs are passed by name through `read` and `write`; those
that are called for every run or turn are methods of their own.

`now_ms` None means the store's own clock.  A write with `audit` writes its lines in the same transaction as the change.
A write with `unless_moved` raises `MovedAway` and changes nothing if the note `SEAL` exists.
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
    """A change was refused: the store was moved, or a move is filling it."""

    def __init__(self) -> None:
        super().__init__("the store was moved")


class Look(NamedTuple, Generic[T]):
    """Result of one look, the time of the next one, and the position from which the waiter continues."""

    found: T
    again_ms: int | None = None  # ms until there may be more; None: unknown
    mark: Any = None  # position in a format of the backend


class Page(NamedTuple):
    """Rows, and the cursor of the next page."""

    rows: Sequence[Any]
    next: Any  # a text, or the number of an audit line


class BackendWaiter(Protocol):
    """Waiter of one call, used between its looks."""

    def begin(self) -> None:
        """Called before a look: a wake-up from here on ends the next rest."""
        ...

    @property
    def is_over(self) -> bool:
        """True after `wake`, or after a cancel request for a leased run of this node."""
        ...

    async def rest(self, look: Look[Any], left_ms: float) -> Any | None:
        """Rest until a wake-up, `look.again_ms` or `left_ms`.  A result that is not None is the answer of the call."""
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
        """A backend for another thread and its loop; it is opened and closed separately."""
        ...

    def of_version(self, number: int) -> Backend:
        """A backend for another version on the same connections, open while this one is open."""
        ...

    async def read(self, verb: str, *args: Any, now_ms: int | None = None) -> Any:
        """One of `READS`, by name.

        Rows of jobs, runs and notes are returned as stored; `job`, `run` and `note` decode them.  `due` returns a
        list, `notes` a list of (key, row), `get_jobs` and `get_runs` a dict by id, `list_jobs` and `list_runs` a
        `Page`, `read_log` a `Page` of lines in the order of the answer, `dump` a `Page` of (kind, record).  Other
        verbs return the type of the contract.
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
        """Enqueue runs.  The backend checks the payloads when it encodes them (`limits.written`)."""
        ...

    async def claim(self, request: ClaimRequest, *, now_ms: int | None) -> Look[Claimed]: ...

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None) -> list[Answer]:
        """Record the ends of attempts.  The backend checks the results when it encodes them, as in `enqueue`."""
        ...

    async def prune(self, what: Pruning, *, audit: Audit | None, now_ms: int | None, unless_moved: bool) -> int: ...

    def listen(self, request: ClaimRequest | None, *, is_live: bool) -> AbstractContextManager[BackendWaiter]:
        """A waiter for runs that `request` may claim, or (None) for feed entries; `is_live`: by the store's clock."""
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
