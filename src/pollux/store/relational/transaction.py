"""Transaction of a store with tables, as verbs see it that SQLite and PostgreSQL share.

A shared verb is a coroutine, written once.  It names its statements (`jobs.get` is `get` in `queries/jobs.sql` of each
store) and gets rows; texts, dialects and locks are the store's.  On PostgreSQL it waits for the server.  In SQLite no
statement waits: `at_once` runs the verb to its end, in the thread that asks.

What the verbs of every run and turn do (claim, settle, enqueue, advance) is each store's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from pollux.model import SCHEDULER_VERSION, Arrived, End, Ended, Entry
from pollux.store.relational.rows import Row, by_version

JOBS_LOCK, NOTES_LOCK, LOG_LOCK, SCHEMA_LOCK, SEAL_LOCK = range(1, 6)
T = TypeVar("T")


class TransactionRetry(Exception):
    """Another writer was quicker: undo, and begin again."""


class VersionCounters(Protocol):
    """Counts of one version, as this write changes them."""

    held: int
    ready: int
    leased: int
    dead: int
    feed: int
    ends: int
    jobs: int
    stops: int
    clock_ms: int


class Transaction(ABC):
    """One write, or the reads of one call.

    What is here and not abstract is enough where one writer has the store to itself, as in SQLite.
    """

    no_index = ""  # before a column: no index over it is used for the term
    version: int  # of the handle
    given_ms: int | None  # the time, if it is known yet
    wakeups: int  # kinds of wake-ups that follow the commit

    # statements

    @abstractmethod
    async def fetch(self, name: str, *args: Any) -> list[Row]:
        """The rows of a statement by its name."""

    @abstractmethod
    async def write_rows(self, name: str, rows: Sequence[Row], *same: Any) -> list[Row]:
        """Run a statement for each of the rows, with the same further arguments; what it returns for all of them."""

    @abstractmethod
    async def fetch_text(self, sql: str, values: Sequence[Any]) -> list[Row]:
        """The rows of a statement that was put together, its values numbered as by `place`."""

    @staticmethod
    @abstractmethod
    def place(number: int) -> str:
        """The place of a value in such a statement."""

    @abstractmethod
    def text(self, name: str) -> str:
        """A statement by its name, to be a part of another."""

    @staticmethod
    @abstractmethod
    def contains(column: str) -> str:
        """The term that a text is part of a column, with `{}` for the place of the text."""

    async def fetch_one(self, name: str, *args: Any) -> Row | None:
        found = await self.fetch(name, *args)
        return found[0] if found else None

    def one_moment(self) -> AbstractAsyncContextManager[object]:
        """All reads in it see the same state."""
        return nullcontext()

    @abstractmethod
    async def now(self) -> int: ...

    @abstractmethod
    async def lock(self, what: int) -> None:
        """One writer at a time, until this write ends."""

    # texts

    def put(self, text: str) -> str:
        """A text from outside, as it can be written."""
        return text

    def put_at(self, row: Row, places: Sequence[int]) -> Row:  # noqa: ARG002  they are as they can be written
        """A row with such texts at these places."""
        return row

    def got(self, text: str) -> str:
        """The text as it was."""
        return text

    # versions and their counts

    @abstractmethod
    async def ensure(self, version: int) -> None:
        """The version has its counts and its term; whether it is in use is another matter."""

    async def use(self, version: int) -> None:
        """The version is there from now on."""
        await self.ensure(version)
        await self.fetch("versions.use", version)

    @abstractmethod
    def counters_of(self, version: int) -> VersionCounters: ...

    @property
    def counters(self) -> VersionCounters:
        """Of the handle's own version."""
        return self.counters_of(self.version)

    @property
    def shared(self) -> VersionCounters:
        """Of all versions: what is dead, and the stops."""
        return self.counters_of(SCHEDULER_VERSION)

    @abstractmethod
    async def clock_ms(self, versions: Iterable[int]) -> int:
        """The latest time at which a lease was given, or a job fired, in these versions."""

    @abstractmethod
    async def dead(self) -> int:
        """How many dead letters there are."""

    @abstractmethod
    async def forget_version(self, version: int) -> bool:
        """Forget it with its unread feed; false if it has a job or a live run."""

    # notes and the feed

    @abstractmethod
    def next_revision(self) -> int | None:
        """Of a note that is written; None: the statement counts it itself."""

    @abstractmethod
    async def pass_revision(self, revision: int) -> None:
        """Later notes get higher ones."""

    @abstractmethod
    def add_entry(self, version: int, entry: Entry) -> None:
        """Put an entry into the inbox of a version's leader."""

    def add_ends(self, ends: Sequence[tuple[int, End]]) -> None:
        """Each with the version it ended in: one entry a version."""
        for version, some in by_version(ends).items():
            self.add_entry(version, Ended(tuple(some)))

    def add_arrived(self, run_ids: Sequence[tuple[int, str]]) -> None:
        for version, some in by_version(run_ids).items():
            self.add_entry(version, Arrived(tuple(some)))

    @abstractmethod
    async def unread_ends(self, versions: Sequence[int]) -> list[Row]:
        """(id, body) of the entries with ends, in the order of their numbers."""


def at_once(verb: Coroutine[Any, Any, T]) -> T:
    """Run a verb to its end, of which no statement waits."""
    try:
        verb.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    verb.close()
    raise AssertionError("a statement has waited")
